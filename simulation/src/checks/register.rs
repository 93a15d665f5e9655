//! Checks how masters read and write the values under locks (docs/protocol.md, "Values under a lock"):
//!
//! - A read raises the master's fencing counter to the fencing token of the lock under which the client reads.
//! - A master refuses a write whose token is smaller than its fencing counter or than the token of its last write.
//! - All writes under one token write the same value.

use std::collections::HashMap;

use super::{Check, Moment};
use crate::facts::{Fact, Seen};
use crate::scenario::Scenario;
use quorate::node::{Answer, Request};

#[derive(Default)]
pub(crate) struct Register {
    /// The value that was written under each fencing token, by resource and token.
    written: HashMap<(usize, u64), Vec<u8>>,
    /// The fencing token of the last write since the server's restart, by master and resource.
    last: HashMap<(usize, usize), u64>,
    judged: u64,
}

impl Register {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self::default()
    }

    fn wrote(
        &mut self,
        here: (usize, usize),
        number: u64,
        bytes: &[u8],
        before: Seen,
    ) -> Result<(), String> {
        let (master, resource) = here;
        self.judged += 1;
        let last = self.last.insert(here, number).unwrap_or(0);
        let above = before.counter.max(last);
        if above > number {
            return Err(format!(
                "master {master} wrote a value of r{resource} under the fencing token {number}, although the master \
                 had seen the larger token {above}"
            ));
        }
        let known = self.written.entry((resource, number));
        let known = known.or_insert_with(|| bytes.to_vec());
        if known != bytes {
            return Err(format!(
                "two different values of r{resource} were written under the same fencing token {number}"
            ));
        }
        Ok(())
    }
}

impl Check for Register {
    const RULE: &'static str = "register";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Restarted { master, .. } => self.last.retain(|(of, _), _| of != master),
            Fact::Valued {
                master,
                resource,
                request: Request::Read { token, .. },
                answer: Ok(Answer::Value { .. }),
                after,
                ..
            } => {
                self.judged += 1;
                if after.counter != *token {
                    return Err(format!(
                        "master {master} returned the value of r{resource} to the holder of the fencing token {token}, \
                         but the fencing counter of this master is {}",
                        after.counter
                    ));
                }
            }
            Fact::Valued {
                master,
                resource,
                request: Request::Write { token, value, .. },
                answer: Ok(Answer::Written { .. }),
                before,
                ..
            } if at.promises.stock => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                return self.wrote((*master, *resource), *token, bytes, *before);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
