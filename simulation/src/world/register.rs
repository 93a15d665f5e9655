//! Executes the requests that read or write a stored value (quota or once-per-period record).

use quorate::node::{Answer, Extended, Fault, Request, StoredValue};

use super::World;
use super::words::text;
use crate::facts::Fact;
use crate::locker::resource_of;

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
        let now_us = master.micros(now);
        let before = master.peek_key(now_us, claim.key());
        let answer = master.execute(now_us, request, self.flaw);
        let after = master.look_again(now_us, claim.key());
        let resource = resource_of(claim.key());
        self.say_valued(index, request, &answer);
        self.watch.fact(
            now,
            &Fact::Valued {
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
    pub(super) fn shown_elsewhere(&self, key: &[u8]) -> Option<StoredValue> {
        let shown = (0..self.masters.len()).filter_map(|master| self.stored_on(master, key));
        let oldest = shown.min_by_key(|stored| stored.number);
        oldest.map(|stored| StoredValue {
            trusted: true,
            ..stored
        })
    }

    /// Returns the value that one master stores for this lock; `None` if it stores none.
    fn stored_on(&self, master: usize, key: &[u8]) -> Option<StoredValue> {
        let master = &self.masters[master];
        let key = [b"quorate:value:", key].concat();
        let text = text(master.holder(master.micros(self.now), &key)?).to_owned();
        let mut words = text.splitn(3, ' ');
        let (first, run, bytes) = (words.next()?, words.next()?, words.next()?);
        Some(StoredValue {
            number: first.parse().ok()?,
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
                    .peek_key(master.micros(self.now), claim.key())
                    .counter;
                Answer::Granted {
                    counter: Some((counter + 1).max(*proposal)),
                }
            }
            Request::Confirm { .. } => Answer::Confirmed,
            Request::Extend { items } => Answer::Extended(vec![Extended::Kept; items.len()]),
            Request::Read { claim, .. } => Answer::Value {
                run,
                stored: self.stored_on(index, claim.key()),
                clock: Some(master.micros(self.now)),
            },
            _ => return None,
        })
    }

    fn say_valued(&mut self, master: usize, request: &Request, answer: &Result<Answer, Fault>) {
        self.say(|| match request {
            Request::Write {
                token,
                value,
                claim,
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                let (key, bytes) = (text(claim.key()), text(bytes));
                format!("master {master}: Write of {bytes:?} to {key}, fencing token {token}; answer {answer:?}")
            }
            Request::Read { token, claim } => {
                let key = text(claim.key());
                let said = match answer {
                    Ok(Answer::Value {
                        stored: Some(one), ..
                    }) => format!(
                        "{:?} of {}{}",
                        text(&one.bytes),
                        one.number,
                        if one.trusted { "" } else { ", of another run" }
                    ),
                    answer => format!("{answer:?}"),
                };
                format!("master {master}: Read of {key}, fencing token {token}; answer {said}")
            }
            _ => String::new(),
        });
    }
}
