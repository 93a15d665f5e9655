//! A seeded bug: the master reads lock keys with MGET, which reports a value of another type as missing. The lock then
//! looks free, and a grant overwrites the value.

use quorate::node::{Answer, Fault, Request};

use super::turn::{Outcome, Turn};

pub(super) fn read_as_free(turn: &mut Turn<'_>, keys: &[Vec<u8>]) -> Option<Outcome> {
    let foreign = |turn: &mut Turn<'_>, key: &Vec<u8>| {
        let key = key.as_slice().into();
        turn.memory.apply(turn.now, &Request::Look { key }) == Err(Fault::WrongType)
    };
    let foreign: Vec<_> = keys.iter().filter(|key| foreign(turn, key)).collect();
    if foreign.is_empty() {
        return None;
    }
    for key in &foreign {
        turn.free(key);
    }
    let answer = turn.sound();
    if !matches!(answer, Ok(Answer::Granted { .. })) {
        for key in foreign {
            turn.memory.put_foreign(key);
        }
    }
    Some(answer)
}
