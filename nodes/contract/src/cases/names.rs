//! Contract cases: the names of locks.

use quorate::MAX_RESOURCE_LEN;
use quorate::node::Answer;

use crate::fixtures::{LONG, now, token_text};
use crate::requests::{acquire, claim, release, status};
use crate::tested_master::TestedMaster;

fn unusual_names() -> Vec<Vec<u8>> {
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

pub async fn name_of_a_lock_can_contain_any_bytes(master: &TestedMaster) {
    for name in unusual_names() {
        let claim = claim(&name, 1);
        assert_eq!(claim.resource(), name);
        let counter = master.granted(acquire(&claim, LONG, now())).await;
        assert_eq!(master.keys().read(&name), Some(token_text(1)), "{name:?}");
        assert_eq!(master.keys().counter(&name), Some(counter), "{name:?}");
        let reply = master.send(status(&name)).await;
        let Ok(Answer::State(state)) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(state.holder, Some(token_text(1)));
        let reply = master.send(release(&claim)).await;
        assert_eq!(reply, Ok(Answer::Released(true)), "{name:?}");
        assert_eq!(master.keys().read(&name), None, "{name:?}");
    }
}

pub async fn names_that_differ_by_a_byte_are_different_locks(master: &TestedMaster) {
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
        master
            .granted(acquire(&claim(name, n as u8), LONG, now()))
            .await;
    }
}
