//! Contract cases: the status of a lock on one master.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorate::node::{
    Answer, Claim, Class, Fairness, Fault, Group, KeyState, Mode, Part, Ticket, Waiter,
};

use crate::fixtures::{LONG, assert_about, now, token_text};
use crate::requests::{acquire, claim, status, token};
use crate::tested_master::TestedMaster;

const KEY: &[u8] = b"job";

pub async fn status_request_for_an_absent_lock_returns_an_empty_state(master: &TestedMaster) {
    assert_eq!(master.status(KEY).await, KeyState::default());
}

pub async fn status_request_returns_the_holder_the_remaining_ttl_and_the_fencing_counter(
    master: &TestedMaster,
) {
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let state = master.status(KEY).await;
    assert_eq!(state.holder, Some(token_text(1)));
    assert_about(state.ttl_left, LONG);
    assert_eq!(state.counter, Some(counter));
    master.keys().delete(KEY);
    let state = master.status(KEY).await;
    assert_eq!((state.holder, state.ttl_left), (None, None));
    assert_eq!(
        state.counter,
        Some(counter),
        "the counter must still exist after the lock key is deleted"
    );
    master.keys().put(KEY, b"somebody", None);
    let state = master.status(KEY).await;
    assert_eq!(state.holder.as_deref(), Some(&b"somebody"[..]));
    assert_eq!(state.ttl_left, None);
}

/// Queues a waiter behind the holder of the lock. The waiter is a reader if `is_reader` is true, and a writer otherwise.
async fn enqueue(master: &TestedMaster, waiter: &str, number: u64, is_reader: bool) {
    let ticket = Ticket {
        waiter: waiter.into(),
        number,
        heartbeat: LONG,
    };
    let claim = Claim::new("", KEY, token(9), true);
    let mut claim = claim.with_fairness(Fairness::Fair(Some(Box::new(ticket))));
    if is_reader {
        claim = claim.with_group(Group::new(vec![Part {
            key: KEY.into(),
            mode: Mode::Class(Class::Shared),
        }]));
    }
    let reply = master.send(acquire(&Arc::new(claim), LONG, now())).await;
    assert!(matches!(reply, Ok(Answer::Refused { .. })), "{reply:?}");
}

pub async fn status_request_returns_each_waiter_with_the_time_at_which_its_wait_began(
    master: &TestedMaster,
) {
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(1_763_000_000_500);
    let longest = "h".repeat(64);
    let largest = format!("{}:{}/{longest}:{}", "f".repeat(16), u64::MAX, u32::MAX);
    let latest = SystemTime::UNIX_EPOCH + Duration::from_millis(253_402_300_799_999);
    let unknown = (None, None, None);
    for (number, (waiter, is_reader, id, expected)) in [
        (
            "00000000000000a1:1/web-3:4711:1763000000500",
            false,
            "00000000000000a1:1",
            (Some("web-3"), Some(4711), Some(since)),
        ),
        (
            "00000000000000a2:10/web-3:1:1763000000500",
            true,
            "00000000000000a2:10:r",
            (Some("web-3"), Some(1), Some(since)),
        ),
        // These three waiter ids contain no valid host, process id and start time.
        ("00000000000000a3:7", false, "00000000000000a3:7", unknown),
        ("00000000000000a4:7", true, "00000000000000a4:7:r", unknown),
        (
            "00000000000000a5:7/h",
            false,
            "00000000000000a5:7/h",
            unknown,
        ),
        (
            &format!("{largest}:253402300799999"),
            true,
            &format!("{}:{}:r", "f".repeat(16), u64::MAX),
            (Some(&*longest), Some(u32::MAX), Some(latest)),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        enqueue(master, waiter, number as u64 + 1, is_reader).await;
        let queue = master.status(KEY).await.queue;
        assert_eq!(queue.len(), number + 1, "{queue:?}");
        let Some(Waiter {
            id: short_id,
            host,
            pid,
            since,
            ..
        }) = queue.last()
        else {
            unreachable!("the waiter must be in the queue");
        };
        assert_eq!(short_id, id);
        assert_eq!((host.as_deref(), *pid, *since), expected, "{waiter}");
    }
}

pub async fn status_request_changes_no_key(master: &TestedMaster) {
    master.keys().put(KEY, b"somebody", Some(LONG));
    let keys_before = (master.keys().read(KEY), master.keys().count());
    master.status(KEY).await;
    assert_eq!(
        (master.keys().read(KEY), master.keys().count()),
        keys_before
    );
}

pub async fn status_request_fails_if_the_lock_key_has_another_data_type(master: &TestedMaster) {
    master.keys().put_foreign(KEY);
    assert_eq!(master.send(status(KEY)).await, Err(Fault::WrongType));
}
