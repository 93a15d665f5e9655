//! Executes the requests that read or write a stored value (quota or once-per-period record).

use quorate::node::{Answer, Extended, Fault, Request, StoredValue};

use super::World;
use super::arguments::as_text;
use crate::facts::Fact;
use crate::locker::place_of_key;

impl World {
    /// Lets a master read or write the value that is stored under a lock (quota or once-per-period record). Reports the
    /// request and the answer to the checkers.
    pub(super) fn apply_value(&mut self, index: usize, request: &Request) -> Result<Answer, Fault> {
        let (Request::Read { claim, .. } | Request::Write { claim, .. }) = request else {
            return Err(Fault::Server(
                "the request must read or write a value under a lock".into(),
            ));
        };
        let now = self.now;
        let master = &mut self.masters[index];
        let now_us = master.clock_us(now);
        let before = master.lock_state(now_us, claim.key());
        let answer = master.memory.apply(now_us, request);
        let after = master.record_lock_state(now_us, claim.key());
        let resource = place_of_key(claim.key());
        self.trace_value_request(index, request, &answer);
        self.observer.report_fact(
            now,
            &Fact::ValueRequestExecuted {
                master: index,
                resource,
                request,
                answer: &answer,
                before,
                after,
            },
        );
        answer
    }

    /// For a seeded bug: among the values that the masters store for this lock, returns the value with the smallest
    /// fencing token. `None` if no master stores a value.
    pub(super) fn oldest_stored_value(&self, key: &[u8]) -> Option<StoredValue> {
        let values = (0..self.masters.len()).filter_map(|master| self.stored_value(master, key));
        let oldest = values.min_by_key(|stored| stored.number);
        oldest.map(|stored| StoredValue {
            trusted: true,
            ..stored
        })
    }

    /// Returns the value that one master stores for this lock; `None` if it stores none.
    fn stored_value(&self, master: usize, key: &[u8]) -> Option<StoredValue> {
        let master = &self.masters[master];
        let value_key = [b"quorate:value:", key].concat();
        let text = as_text(master.holder(master.clock_us(self.now), &value_key)?).to_owned();
        let mut parts = text.splitn(3, ' ');
        let (token, run, bytes) = (parts.next()?, parts.next()?, parts.next()?);
        Some(StoredValue {
            number: token.parse().ok()?,
            bytes: bytes.into(),
            trusted: run == master.memory.run().as_str(),
        })
    }

    /// For the seeded bug `CarryWithoutLock`: answers an acquire, a confirmation, an extension or a read as if the
    /// asking client held the lock. Changes nothing on the master. Returns `None` for other requests.
    pub(super) fn answer_without_lock(&self, index: usize, request: &Request) -> Option<Answer> {
        let master = &self.masters[index];
        let run = master.memory.run().clone();
        Some(match request {
            Request::Acquire {
                claim, proposal, ..
            } => {
                let counter = master
                    .lock_state(master.clock_us(self.now), claim.key())
                    .counter;
                Answer::Granted {
                    counter: Some((counter + 1).max(*proposal)),
                }
            }
            Request::Confirm { .. } => Answer::Confirmed,
            Request::Extend { items } => Answer::Extended(vec![Extended::Kept; items.len()]),
            Request::Read { claim, .. } => Answer::Value {
                run,
                stored: self.stored_value(index, claim.key()),
                clock: Some(master.clock_us(self.now)),
            },
            _ => return None,
        })
    }

    fn trace_value_request(
        &mut self,
        master: usize,
        request: &Request,
        answer: &Result<Answer, Fault>,
    ) {
        self.trace_line(|| match request {
            Request::Write {
                token,
                value,
                claim,
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                let (key, bytes) = (as_text(claim.key()), as_text(bytes));
                format!("master {master}: Write of {bytes:?} to {key}, fencing token {token}; answer {answer:?}")
            }
            Request::Read { token, claim } => {
                let key = as_text(claim.key());
                let result = match answer {
                    Ok(Answer::Value {
                        stored: Some(value), ..
                    }) => format!(
                        "{:?} of {}{}",
                        as_text(&value.bytes),
                        value.number,
                        if value.trusted { "" } else { ", of another run" }
                    ),
                    answer => format!("{answer:?}"),
                };
                format!("master {master}: Read of {key}, fencing token {token}; answer {result}")
            }
            _ => String::new(),
        });
    }
}
