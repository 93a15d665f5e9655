//! Runs a sequence of operations on the memory master and on another master, and compares them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use quorate::node::{Answer, Claim, ExtendItem, Extended, Fault, NoteItem, Request};

use super::action::{Action, action};
use super::equality::{agree, forget_note, forget_notes, times_agree};
use super::expiry_times::ExpiryTimes;
use super::key_states::{KeyStates, NOTE};
use super::operation::Operation;
use super::random_claim::KEYS;
use super::times::{BLUR, Times};
use super::wake_ups::WakeUps;
use crate::requests::Reply;
use crate::tested_master::TestedMaster;
use crate::time::{ms, secs};

/// The memory master and the master that is compared with it.
pub(super) struct Pair {
    memory: TestedMaster,
    other: TestedMaster,
    wake_ups: [WakeUps; 2],
    /// The number of operations that were compared.
    pub(super) compared: AtomicUsize,
    /// The number of sequences that were aborted because an operation took too long.
    pub(super) cut_short: AtomicUsize,
}

impl Pair {
    pub(super) fn new(other: TestedMaster) -> Self {
        let memory = TestedMaster::memory();
        let wake_ups = [WakeUps::subscribe(&memory), WakeUps::subscribe(&other)];
        Self {
            memory,
            other,
            wake_ups,
            compared: AtomicUsize::new(0),
            cut_short: AtomicUsize::new(0),
        }
    }

    /// Removes all keys, and all wake-ups that an aborted sequence has left.
    fn clear(&self) {
        self.memory.keys().clear();
        self.other.keys().clear();
        for wake_ups in &self.wake_ups {
            wake_ups.take();
        }
    }

    /// Carries out one operation on both masters. Returns their replies; `None` if the operation is no request.
    async fn carry_out(&self, action: Action) -> Option<(Reply, Reply)> {
        match action {
            Action::Send(request) => {
                let a = self.memory.send(request.clone()).await;
                Some((a, self.send_to_other(request).await))
            }
            Action::Change(change) => {
                change(self.memory.keys());
                change(self.other.keys());
                None
            }
            Action::Pause(_) => None,
        }
    }

    /// Carries out the operations one by one, and compares the masters after each.
    pub(super) async fn compare_sequence(
        &self,
        operations: &[Operation],
        times: &Times,
    ) -> Result<(), TestCaseError> {
        self.clear();
        let is_fleeting = times.are_fleeting();
        let mut expiries = ExpiryTimes::default();
        for (step, operation) in operations.iter().enumerate() {
            let action = action(operation, &self.memory, times);
            if is_fleeting {
                expiries.wait_before(&action).await;
            }
            let started_at = Instant::now();
            let mut replies = self.carry_out(action).await;
            let answer_time = started_at.elapsed();
            let mut state_pairs = self.key_states().await;
            if is_fleeting {
                // Do not compare notes. A note lives for four times the remaining TTL of its lock, so `ExpiryTimes`
                // cannot predict when the note expires.
                if let Some((a, b)) = &mut replies {
                    forget_notes([a, b]);
                }
                for (a, b) in &mut state_pairs {
                    a.forget_note(b);
                }
            }
            if is_fleeting && !expiries.record_operation(started_at) {
                // The operation took too long. Its effects may have expired, so nothing can be compared.
                self.cut_short.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            let elapsed = started_at.elapsed();
            if !is_fleeting && (answer_time > ms(300) || elapsed > secs(5)) {
                // A master may have changed a proposed fencing number because it arrived too late, or the machine was
                // too slow for a comparison of remaining times. The second limit is longer, because reading all keys
                // takes longer than one request. With one short limit, a busy machine repeated nearly every sequence.
                return Err(TestCaseError::reject("too slow to compare"));
            }
            let blur = if is_fleeting {
                expiries.blur()
            } else {
                BLUR + 2 * elapsed
            };
            if let Some((a, b)) = replies {
                prop_assert!(
                    agree(&a, &b, blur),
                    "the answers to step {step} must agree: memory {a:?}, other {b:?}"
                );
            }
            for (a, b) in state_pairs {
                prop_assert!(
                    agree(&a.status, &b.status, blur),
                    "the states after step {step} must agree: memory {a:?}, other {b:?}"
                );
                for (index, (a, b)) in a.keys.into_iter().zip(b.keys).enumerate() {
                    prop_assert_eq!(&a.0, &b.0, "the keys after step {} must agree", step);
                    let (a, b) = (a.1, b.1);
                    prop_assert!(
                        times_agree(a, b, if index == NOTE { 4 * blur } else { blur }),
                        "the TTLs after step {step} must agree: memory {a:?}, other {b:?}"
                    );
                }
            }
            // Wake-ups arrive on the connections that `key_states` has just used. So all earlier wake-ups have arrived.
            self.compare_wake_ups(step)?;
            self.compared.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sends a request to the compared master. A store may process the locks of a request in any order. So if these
    /// locks share a key, a store gets a separate request for each lock.
    async fn send_to_other(&self, request: Request) -> Reply {
        let requests = if self.other.is_store() {
            split_by_lock(&request)
        } else {
            Vec::new()
        };
        if requests.is_empty() {
            return self.other.send(request).await;
        }
        let (mut extended_locks, mut noted_locks, mut is_answered) =
            (Vec::new(), Vec::new(), false);
        for (part, keys) in requests {
            match self.other.send(part).await {
                Ok(Answer::Extended(part)) => {
                    extended_locks.extend(part);
                    is_answered = true;
                }
                Ok(Answer::Noted(part)) => {
                    noted_locks.extend(part);
                    is_answered = true;
                }
                Err(Fault::Withdrawn) => {
                    extended_locks.extend(vec![Extended::Withdrawn; keys]);
                    noted_locks.push(false);
                }
                reply => return reply,
            }
        }
        match request {
            _ if !is_answered => Err(Fault::Withdrawn),
            // If a claim is for a group of keys, do not compare the answers about notes.
            Request::Extend { items } if items.iter().any(|i| i.claim.group().is_some()) => {
                let mut reply = Ok(Answer::Extended(extended_locks));
                forget_note(&mut reply);
                reply
            }
            Request::Extend { .. } => Ok(Answer::Extended(extended_locks)),
            _ => Ok(Answer::Noted(noted_locks)),
        }
    }

    fn compare_wake_ups(&self, step: usize) -> Result<(), TestCaseError> {
        let [a, b] = self.wake_ups.each_ref().map(WakeUps::take);
        if self.other.is_store() {
            // When a client begins to listen, a store sends it a wake-up for every lock for which it waits. So the
            // store may send more wake-ups than the memory master, but not fewer.
            let missing_key = a.iter().find(|key| !b.contains(key));
            prop_assert_eq!(missing_key, None, "a wake-up of step {} was not sent", step);
        } else {
            prop_assert_eq!(a, b, "the wake-ups of step {} must agree", step);
        }
        Ok(())
    }

    /// The visible state of every key on the memory master and on the compared master.
    async fn key_states(&self) -> Vec<(KeyStates, KeyStates)> {
        let mut state_pairs = Vec::new();
        for key in KEYS {
            state_pairs.push((
                KeyStates::read(&self.memory, key).await,
                KeyStates::read(&self.other, key).await,
            ));
        }
        state_pairs
    }
}

/// If locks in the request share a key, returns one request for each lock, together with the number of the lock's keys.
/// Otherwise returns an empty list.
fn split_by_lock(request: &Request) -> Vec<(Request, usize)> {
    let (requests, claims): (Vec<_>, Vec<&Claim>) = match request {
        Request::Extend { items } => {
            let part = |item: &ExtendItem| Request::Extend {
                items: [item.clone()].into(),
            };
            items.iter().map(|i| (part(i), &*i.claim)).unzip()
        }
        Request::Note { items } => {
            let part = |item: &NoteItem| Request::Note {
                items: [item.clone()].into(),
            };
            items.iter().map(|i| (part(i), &*i.claim)).unzip()
        }
        _ => return Vec::new(),
    };
    let keys: Vec<_> = claims.iter().flat_map(|claim| claim.keys()).collect();
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    if distinct.len() == keys.len() {
        return Vec::new();
    }
    let key_counts = claims.iter().map(|claim| claim.keys().count());
    requests.into_iter().zip(key_counts).collect()
}
