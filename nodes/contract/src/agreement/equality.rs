//! Compares the replies of two masters.

use std::time::Duration;

use quorate::node::{Answer, Extended, Hold, KeyState, Waiter};

use crate::requests::Reply;

/// Whether two remaining times differ by at most `blur`, or both are missing.
pub(super) fn close(a: Option<Duration>, b: Option<Duration>, blur: Duration) -> bool {
    match (a, b) {
        // A store without a clock may report a remaining time that is too long by up to 1/32 of itself.
        (Some(a), Some(b)) => a.abs_diff(b) <= blur + a / 32,
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Whether the replies of two masters agree, if their remaining times may differ by `blur`.
pub fn agree(a: &Reply, b: &Reply, blur: Duration) -> bool {
    match (a, b) {
        (
            Ok(Answer::Refused {
                ttl_left: a,
                line: l,
            }),
            Ok(Answer::Refused {
                ttl_left: b,
                line: m,
            }),
        ) => close(*a, *b, blur) && l == m,
        (Ok(Answer::State(a)), Ok(Answer::State(b))) => {
            let timeless = |state: &KeyState| KeyState {
                ttl_left: None,
                queue: Vec::new(),
                holds: Vec::new(),
                ..state.clone()
            };
            let held = |holds: &[Hold], other: &[Hold]| {
                let same = |one: &Hold, other: &Hold| {
                    let times = close(Some(one.lives), Some(other.lives), blur);
                    times && (&one.value, &one.note) == (&other.value, &other.note)
                };
                let among = |one: &Hold| other.iter().any(|other| same(one, other));
                holds.iter().all(|one| one.lives <= blur || among(one))
            };
            let same_holds = held(&a.holds, &b.holds) && held(&b.holds, &a.holds);
            // A waiter whose heartbeat is about to expire may be missing on one master only, because the two masters
            // were not asked at the same moment.
            let of = |one: &Waiter, queue: &[Waiter]| {
                let mut same = queue.iter().filter(|other| other.id == one.id);
                same.any(|other| close(Some(one.lives), Some(other.lives), blur))
            };
            let queued = |queue: &[Waiter], other: &[Waiter]| {
                queue.iter().all(|one| one.lives <= blur || of(one, other))
            };
            let common = |queue: &[Waiter], other: &[Waiter]| -> Vec<String> {
                let both = queue.iter().filter(|one| of(one, other));
                both.map(|one| one.id.clone()).collect()
            };
            let same_queue = queued(&a.queue, &b.queue)
                && queued(&b.queue, &a.queue)
                && common(&a.queue, &b.queue) == common(&b.queue, &a.queue);
            close(a.ttl_left, b.ttl_left, blur)
                && timeless(a) == timeless(b)
                && same_queue
                && same_holds
        }
        // The ids of the server runs are not compared, because every master has a different id.
        (Ok(Answer::Value { stored: a, .. }), Ok(Answer::Value { stored: b, .. })) => a == b,
        (Ok(Answer::Written { .. }), Ok(Answer::Written { .. })) => true,
        (a, b) => a == b,
    }
}

/// Removes what two replies say about notes.
pub(super) fn forget_notes(replies: [&mut Reply; 2]) {
    for one in replies {
        forget_note(one);
    }
}

/// Removes what a reply says about notes.
pub(super) fn forget_note(reply: &mut Reply) {
    match reply {
        Ok(Answer::State(state)) => state.note = None,
        Ok(Answer::Refused {
            line: Some(line), ..
        }) => line.note = None,
        Ok(Answer::Extended(all)) => {
            for one in all.iter_mut().filter(|one| **one == Extended::Unnoted) {
                *one = Extended::Kept;
            }
        }
        _ => {}
    }
}
