//! Checks how masters read and write the values under locks (docs/protocol.md, "Values under a lock"):
//!
//! - A read raises the master's fencing counter to the fencing token of the lock under which the client reads.
//! - A master refuses a write whose token is smaller than its fencing counter or than the token of its last write.
//! - All writes under one token write the same value.

use std::collections::HashMap;

use crate::check::{Check, Moment};
use crate::facts::{Fact, LockState};
use crate::scenario::Scenario;
use quorate::node::{Answer, Request};

#[derive(Default)]
pub(crate) struct ValueRequests {
    /// The value that was written under each fencing token, by resource and token.
    written_values: HashMap<(usize, u64), Vec<u8>>,
    /// The fencing token of the last write since the server's restart, by master and resource.
    last_tokens: HashMap<(usize, usize), u64>,
    judged_cases: u64,
}

impl ValueRequests {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self::default()
    }

    fn check_write(
        &mut self,
        key: (usize, usize),
        token: u64,
        bytes: &[u8],
        before: LockState,
    ) -> Result<(), String> {
        let (master, resource) = key;
        self.judged_cases += 1;
        let last_token = self.last_tokens.insert(key, token).unwrap_or(0);
        let larger_token = before.counter.max(last_token);
        if larger_token > token {
            return Err(format!(
                "master {master} wrote a value of r{resource} under the fencing token {token}, although the master \
                 had seen the larger token {larger_token}"
            ));
        }
        let first_value = self
            .written_values
            .entry((resource, token))
            .or_insert_with(|| bytes.to_vec());
        if first_value != bytes {
            return Err(format!(
                "two different values of r{resource} were written under the same fencing token {token}"
            ));
        }
        Ok(())
    }
}

impl Check for ValueRequests {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::MasterRestarted { master, .. } => self
                .last_tokens
                .retain(|(written_on, _), _| written_on != master),
            Fact::ValueRequestExecuted {
                master,
                resource,
                request: Request::Read { token, .. },
                answer: Ok(Answer::Value { .. }),
                after,
                ..
            } => {
                self.judged_cases += 1;
                if after.counter != *token {
                    return Err(format!(
                        "master {master} returned the value of r{resource} to the holder of the fencing token {token}, \
                         but the fencing counter of this master is {}",
                        after.counter
                    ));
                }
            }
            Fact::ValueRequestExecuted {
                master,
                resource,
                request: Request::Write { token, value, .. },
                answer: Ok(Answer::Written { .. }),
                before,
                ..
            } if moment.promises.stock => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                return self.check_write((*master, *resource), *token, bytes, *before);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
