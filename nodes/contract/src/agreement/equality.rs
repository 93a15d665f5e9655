//! Compares the replies of two masters.

use std::time::Duration;

use quorate::node::{Answer, Extended, Hold, KeyState, Waiter};

use crate::requests::Reply;

/// Whether two remaining times differ by at most `blur`, or both are missing.
pub(super) fn times_agree(a: Option<Duration>, b: Option<Duration>, blur: Duration) -> bool {
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
        ) => times_agree(*a, *b, blur) && l == m,
        (Ok(Answer::State(a)), Ok(Answer::State(b))) => {
            let without_times = |state: &KeyState| KeyState {
                ttl_left: None,
                queue: Vec::new(),
                holds: Vec::new(),
                ..state.clone()
            };
            let has_all_holds = |others: &[Hold], holds: &[Hold]| {
                let is_same = |one: &Hold, other: &Hold| {
                    let same_times = times_agree(Some(one.lives), Some(other.lives), blur);
                    same_times && (&one.value, &one.note) == (&other.value, &other.note)
                };
                let is_in_others = |hold: &Hold| others.iter().any(|other| is_same(hold, other));
                holds
                    .iter()
                    .all(|hold| hold.lives <= blur || is_in_others(hold))
            };
            let same_holds = has_all_holds(&b.holds, &a.holds) && has_all_holds(&a.holds, &b.holds);
            // A waiter whose heartbeat is about to expire may be missing on one master only, because the two masters
            // were not asked at the same moment.
            let is_queued = |waiter: &Waiter, queue: &[Waiter]| {
                let mut same_ids = queue.iter().filter(|other| other.id == waiter.id);
                same_ids.any(|other| times_agree(Some(waiter.lives), Some(other.lives), blur))
            };
            let has_all_waiters = |other: &[Waiter], queue: &[Waiter]| {
                queue
                    .iter()
                    .all(|waiter| waiter.lives <= blur || is_queued(waiter, other))
            };
            let common_ids = |queue: &[Waiter], other: &[Waiter]| -> Vec<String> {
                let common = queue.iter().filter(|waiter| is_queued(waiter, other));
                common.map(|waiter| waiter.id.clone()).collect()
            };
            let same_queue = has_all_waiters(&b.queue, &a.queue)
                && has_all_waiters(&a.queue, &b.queue)
                && common_ids(&a.queue, &b.queue) == common_ids(&b.queue, &a.queue);
            times_agree(a.ttl_left, b.ttl_left, blur)
                && without_times(a) == without_times(b)
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
    for reply in replies {
        forget_note(reply);
    }
}

/// Removes what a reply says about notes.
pub(super) fn forget_note(reply: &mut Reply) {
    match reply {
        Ok(Answer::State(state)) => state.note = None,
        Ok(Answer::Refused {
            line: Some(line), ..
        }) => line.note = None,
        Ok(Answer::Extended(extended)) => {
            for lock in extended
                .iter_mut()
                .filter(|lock| **lock == Extended::Unnoted)
            {
                *lock = Extended::Kept;
            }
        }
        _ => {}
    }
}
