//! A seeded bug: the master reads lock keys with MGET, which reports a value of another type as missing. The lock then
//! looks free, and a grant overwrites the value.

use quorate::node::{Answer, Fault, Request};

use super::request_context::{Outcome, RequestContext};

pub(super) fn execute_with_mget(
    context: &mut RequestContext<'_>,
    keys: &[Vec<u8>],
) -> Option<Outcome> {
    let foreign = |context: &mut RequestContext<'_>, key: &Vec<u8>| {
        let key = key.as_slice().into();
        context.memory.apply(context.now, &Request::Status { key }) == Err(Fault::WrongType)
    };
    let foreign: Vec<_> = keys.iter().filter(|key| foreign(context, key)).collect();
    if foreign.is_empty() {
        return None;
    }
    for key in &foreign {
        context.delete_lock(key);
    }
    let answer = context.execute_correctly();
    if !matches!(answer, Ok(Answer::Granted { .. })) {
        for key in foreign {
            context.memory.put_foreign(key);
        }
    }
    Some(answer)
}
