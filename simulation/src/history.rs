//! The history of a run for the check against the model (`quorate_model::Replay`): which requests clients send, what
//! masters execute, and which locks clients get, extend and lose.
//!
//! The history contains only plain exclusive locks on Redis masters, because the model has no others.

use std::collections::HashMap;

use quorate::node::{Claim, Request};
use quorate_model::history::{AttemptId, Event, EventKind, Sent};
use quorate_model::rules::StoredLock;

use crate::place::{PLACES, place_of_key};

/// The recorder of a history.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    /// The client of each attempt.
    clients: HashMap<u128, usize>,
}

/// A client that sends a request, at a reading of its clock.
pub(crate) struct Sender {
    pub(crate) client: usize,
    /// The step of the client (see `change_plan.rs`).
    pub(crate) step: u8,
    /// The reading of the client's clock, in nanoseconds.
    pub(crate) reading: u64,
}

/// The lock value of an attempt as a number.
pub(crate) fn value_of(claim: &Claim) -> u128 {
    number_of(&claim.token().to_hex()).unwrap_or(0)
}

/// The number that a lock value in hexadecimal digits stands for; `None` if the text is not a lock value.
pub(crate) fn number_of(hex: &[u8; 32]) -> Option<u128> {
    u128::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

impl History {
    pub(crate) fn push(&mut self, at: u64, kind: EventKind) {
        self.events.push(Event { at, kind });
    }

    /// Records a request that a client sends to a master.
    pub(crate) fn record_sent(
        &mut self,
        at: u64,
        sender: &Sender,
        master: usize,
        request: &Request,
    ) {
        let nanos = |ttl: std::time::Duration| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let mut record = |claim: &Claim, sent: Sent| {
            if claim.keys().count() > 1 || claim.group().is_some() || claim.permit().is_some() {
                return;
            }
            let value = value_of(claim);
            self.clients.entry(value).or_insert(sender.client);
            let attempt = AttemptId {
                client: sender.client,
                lock: place_of_key(claim.key()),
                value,
            };
            let kind = EventKind::Sent {
                attempt,
                step: sender.step,
                master,
                request: sent,
                reading: sender.reading,
            };
            self.events.push(Event { at, kind });
        };
        match request {
            Request::Acquire { claim, .. } => record(claim, Sent::Acquire),
            Request::Confirm { claim, token } => record(claim, Sent::Confirm(*token)),
            Request::Release { claim, .. } => record(claim, Sent::Release),
            Request::Extend { items } => {
                for item in items.iter() {
                    record(&item.claim, Sent::Extend(nanos(item.ttl)));
                }
            }
            _ => {}
        }
    }

    /// Records what a master stores for each lock, at the beginning of the run.
    pub(crate) fn record_beginning(
        &mut self,
        at: u64,
        master: usize,
        states: &[StoredLock; PLACES],
    ) {
        for (lock, stored) in states.iter().copied().enumerate() {
            if stored != StoredLock::default() {
                let kind = EventKind::Begins {
                    master,
                    lock,
                    stored,
                };
                self.push(at, kind);
            }
        }
    }

    /// Records a restart of a master, and what it stores afterwards.
    pub(crate) fn record_restart(
        &mut self,
        at: u64,
        (master, clock): (usize, u64),
        states: &[StoredLock; PLACES],
    ) {
        let kind = EventKind::Restarted {
            master,
            clock,
            locks: states.to_vec(),
        };
        self.push(at, kind);
    }

    /// Records that a master has got a generation marker with this number. `is_step` is true for a step of an operator.
    pub(crate) fn record_marker(
        &mut self,
        at: u64,
        (master, clock): (usize, u64),
        (number, is_step): (u64, bool),
    ) {
        let kind = EventKind::Marked {
            master,
            clock,
            number,
            is_step,
        };
        self.push(at, kind);
    }

    /// Records that an operator has copied fencing counters to a master.
    pub(crate) fn record_raised(
        &mut self,
        at: u64,
        master: usize,
        before: &[StoredLock; PLACES],
        after: &[StoredLock; PLACES],
    ) {
        for (lock, (before, after)) in before.iter().zip(after).enumerate() {
            if before.counter != after.counter {
                let after = *after;
                self.push(
                    at,
                    EventKind::Raised {
                        master,
                        lock,
                        after,
                    },
                );
            }
        }
    }
}
