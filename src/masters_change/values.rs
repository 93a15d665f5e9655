//! Copies the values (quotas and once-per-period records) to the next masters while masters are replaced.
//!
//! Each value is copied under the lock that protects it. Without the lock, the copy could overwrite a newer value, or
//! restore a value that another client removes.

use std::fmt;
use std::time::Duration;

use crate::acquire::kind::Kind;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::node::Fault;
use crate::node::change::ChangeOrder;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::redlock::Redlock;
use crate::report::masters_failed_with;
use crate::settings::Wait;
use crate::values::register::{CarryResult, Register};

/// A value (quota or once-per-period record) that a step of a replacement has copied to the next masters, or has
/// removed from them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarriedValue {
    /// The resource name of the lock that protects the value, with the key prefix, as text.
    pub name: String,
    /// True if the next masters have the value now. False if the value was removed from the next masters, because no
    /// old master had it.
    pub is_carried: bool,
}

impl fmt::Display for CarriedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = if self.is_carried {
            "carried"
        } else {
            "removed, because no old master has the value"
        };
        write!(f, "{:?}: {outcome}", self.name)
    }
}

/// The largest number of attempts to copy one value. An attempt can fail because a master has lost the value, but may
/// restore the value on this master. The next attempt then succeeds.
const MAX_ATTEMPTS: u32 = 3;

/// How many values are copied at the same time.
const GROUP_SIZE: usize = 32;

/// The results of copying all values.
#[derive(Default)]
pub(crate) struct CarryResults {
    pub(crate) carried: Vec<CarriedValue>,
    /// One line for each value that was not copied and that an operator must handle.
    pub(crate) not_carried: Vec<String>,
    /// One line for each value that was not copied because the operator's user lacks a right.
    pub(crate) denied: Vec<String>,
}

/// The parameters of copying values to the next masters.
#[derive(Clone, Copy)]
pub(crate) struct ValueCarrier<'a> {
    pub(crate) redlock: &'a Redlock,
    /// How long to wait for the lock of each value.
    pub(crate) wait: Duration,
    /// The next masters that are open already.
    pub(crate) open: MasterSet,
    /// Whether to remove a value from the next masters if no old master has it.
    pub(crate) removes: bool,
}

impl ValueCarrier<'_> {
    /// Copies the values under these lock keys to the next masters. If another client holds the lock of a value, this
    /// value is copied last.
    pub(crate) async fn carry_all(self, keys: &[Vec<u8>]) -> CarryResults {
        let mut results = CarryResults::default();
        let mut pending: Vec<&Vec<u8>> = keys.iter().collect();
        for attempt in 1..=MAX_ATTEMPTS {
            let is_first_attempt = attempt == 1;
            let wait = if is_first_attempt {
                Duration::ZERO
            } else {
                self.wait
            };
            let group_len = if is_first_attempt { GROUP_SIZE } else { 1 };
            let mut pending_again = Vec::new();
            for chunk in pending.chunks(GROUP_SIZE) {
                let groups = chunk
                    .chunks(group_len)
                    .map(|keys| self.carry_group(keys, wait));
                let outcomes = futures::future::join_all(groups).await;
                for (key, outcome) in chunk.iter().zip(outcomes.into_iter().flatten()) {
                    let may_change = match &outcome {
                        Ok(outcome) => matches!(outcome, CarryResult::Undecided(_)),
                        Err(_) => is_first_attempt && !self.wait.is_zero(),
                    };
                    if may_change && attempt < MAX_ATTEMPTS {
                        pending_again.push(*key);
                    } else {
                        results.record(key, outcome, self.redlock.core.coordinator.quorum);
                    }
                }
            }
            pending = pending_again;
        }
        results
    }

    /// Copies the values of these lock keys, each under its lock. Reads the generation markers only once, while the
    /// locks are held.
    async fn carry_group(
        self,
        keys: &[&Vec<u8>],
        wait: Duration,
    ) -> Vec<Result<CarryResult, AcquireError>> {
        let guards = keys.iter().map(|key| {
            let lock = self.redlock.lock(key.as_slice()).of_kind(Kind::RawKey);
            lock.wait(Wait::For(wait)).acquire()
        });
        let guards = futures::future::join_all(guards).await;
        let closed = self.check_next_masters_are_closed().await;
        let carried_values = guards
            .into_iter()
            .map(|guard| self.carry_under(guard, &closed));
        futures::future::join_all(carried_values).await
    }

    async fn carry_under(
        self,
        guard: Result<LockGuard, AcquireError>,
        closed: &Result<(), CarryResult>,
    ) -> Result<CarryResult, AcquireError> {
        let guard = guard?;
        let carried = match (closed, Register::under(&guard)) {
            (Err(carried), _) => carried.clone(),
            (Ok(()), Ok(register)) => register.carry(self.open, self.removes).await,
            (Ok(()), Err(error)) => CarryResult::Undecided(error.to_string()),
        };
        guard.release().await;
        Ok(carried)
    }

    async fn check_next_masters_are_closed(self) -> Result<(), CarryResult> {
        let change = self
            .redlock
            .masters_change()
            .map_err(|error| CarryResult::Undecided(error.to_string()))?;
        let survey = change.send_order(&ChangeOrder::ReadState).await;
        survey.check_next_masters_are_closed()
    }
}

impl CarryResults {
    /// Records the result of copying one value.
    fn record(&mut self, key: &[u8], outcome: Result<CarryResult, AcquireError>, quorum: Quorum) {
        let name = String::from_utf8_lossy(key).into_owned();
        match outcome {
            Ok(CarryResult::Nowhere) => {}
            Ok(result @ (CarryResult::Both | CarryResult::Removed)) => self.carried.push(CarriedValue {
                name,
                is_carried: matches!(result, CarryResult::Both),
            }),
            Ok(CarryResult::Lost(texts)) => self.not_carried.push(format!(
                "{name:?}: lost, or only partly created or removed: no majority of the old masters has this value \
                 ({texts}); with masters and next_masters set, run quorate quota drop or quorate once --drop"
            )),
            Ok(CarryResult::Undecided(texts)) => self.not_carried.push(format!(
                "{name:?}: not copied: too few masters could store it ({texts}): run this step again"
            )),
            Ok(CarryResult::Denied(texts)) => self.denied.push(format!(
                "{name:?}: not copied: a right is missing ({texts}): grant it, and run this step again"
            )),
            Err(error) => {
                let is_denied = |fault: &Fault| matches!(fault, Fault::Denied(_));
                let denying_masters = masters_failed_with(error.reports(), is_denied);
                // Missing rights are the cause only if the masters that denied no right cannot form a majority.
                let fault_texts = if quorum.is_possible_without(denying_masters) {
                    &mut self.not_carried
                } else {
                    &mut self.denied
                };
                fault_texts.push(format!("{name:?}: not copied: {}", error.details()));
            }
        }
    }
}

/// One line for each value that was removed from the next masters. The lines are reported even if the operation fails:
/// if the operator repeats the operation, it no longer finds these values.
pub(crate) fn removed_texts(carried: &[CarriedValue]) -> impl Iterator<Item = String> + '_ {
    let removed_texts = carried.iter().filter(|value| !value.is_carried);
    removed_texts.map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FailedAcquire;
    use crate::node::{NodeName, Phase};
    use crate::report::{NodeOutcome, NodeReport};

    fn failed_acquire(fault: Fault) -> AcquireError {
        AcquireError::NoQuorum(FailedAcquire {
            resource: "prizes".into(),
            waited: Duration::ZERO,
            attempts: 1,
            reports: vec![NodeReport {
                node: NodeName::new("a"),
                phase: Phase::Acquire,
                outcome: NodeOutcome::Fault(fault),
                latency: None,
                late: false,
            }],
            held_here: false,
            foreign: false,
            note: None,
            majority: Quorum::new(1),
        })
    }

    #[test]
    fn one_line_is_shown_for_each_value_that_was_removed() {
        let value = |name: &str, is_carried| CarriedValue {
            name: name.into(),
            is_carried,
        };
        let values = [value("kept", true), value("stale", false)];
        let texts: Vec<String> = removed_texts(&values).collect();
        assert_eq!(
            texts,
            ["\"stale\": removed, because no old master has the value"]
        );
    }

    #[test]
    fn values_not_copied_because_masters_denied_permission_are_listed_separately() {
        let mut results = CarryResults::default();
        let denied_error = || Err(failed_acquire(Fault::Denied("NOPERM".into())));
        let (one_master, three_masters) = (Quorum::new(1), Quorum::new(3));
        results.record(b"a", denied_error(), one_master);
        results.record(b"b", Ok(CarryResult::Denied("NOPERM".into())), one_master);
        results.record(b"c", Err(failed_acquire(Fault::Loading)), one_master);
        results.record(
            b"d",
            Ok(CarryResult::Undecided("loading".into())),
            one_master,
        );
        // Only one of three masters denies the right, so missing rights are not the cause of this failure.
        results.record(b"e", denied_error(), three_masters);
        let names = |texts: &[String]| {
            let names = texts.iter().map(|line| line[1..2].to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&results.denied), ["a", "b"]);
        assert_eq!(names(&results.not_carried), ["c", "d", "e"]);
        assert_eq!(results.carried, []);
    }
}
