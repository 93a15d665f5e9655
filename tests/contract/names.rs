//! Contract cases: the names of locks.

use quorate::MAX_RESOURCE_LEN;
use quorate::node::Answer;

use crate::arm::{Arm, LONG, hex, now};
use crate::support::asking::{acquire, claim, look, release};

fn odd_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b" "[..],
        b"two words",
        b"{tag}rest",
        b"}{",
        b"line\r\nbreak",
        b"nul\0byte",
        b"*3\r\n$3\r\nSET\r\n",
        b"\xff\xfe",
        "\u{1f512} gr\u{fc}n".as_bytes(),
        b"%s%n",
    ]
    .map(<[u8]>::to_vec)
    .into();
    names.push((0..=255).collect());
    names.push(vec![b'n'; MAX_RESOURCE_LEN]);
    names
}

pub(crate) async fn name_of_a_lock_can_contain_any_bytes(arm: &Arm) {
    for name in odd_names() {
        let claim = claim(&name, 1);
        assert_eq!(claim.resource(), name);
        let counter = arm.granted(acquire(&claim, LONG, now())).await;
        assert_eq!(arm.read(&name), Some(hex(1)), "{name:?}");
        assert_eq!(arm.counter(&name), Some(counter), "{name:?}");
        let said = arm.ask(look(&name)).await;
        let Ok(Answer::State(state)) = said else {
            panic!("{said:?}")
        };
        assert_eq!(state.holder, Some(hex(1)));
        let said = arm.ask(release(&claim)).await;
        assert_eq!(said, Ok(Answer::Released(true)), "{name:?}");
        assert_eq!(arm.read(&name), None, "{name:?}");
    }
}

pub(crate) async fn names_that_differ_by_a_byte_are_different_locks(arm: &Arm) {
    for (n, name) in [
        &b"job"[..],
        b"Job",
        b"job ",
        b" job",
        b"job\0",
        b"jo",
        b"{job}",
    ]
    .iter()
    .enumerate()
    {
        arm.granted(acquire(&claim(name, n as u8), LONG, now()))
            .await;
    }
}
