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
use crate::report::failed_with;
use crate::settings::Wait;
use crate::values::register::{Carried, Register};

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
const ATTEMPTS: u32 = 3;

/// How many values are copied at the same time.
const TOGETHER: usize = 32;

/// The results of copying all values.
#[derive(Default)]
pub(crate) struct Copied {
    pub(crate) carried: Vec<CarriedValue>,
    /// One line for each value that was not copied and that an operator must handle.
    pub(crate) left: Vec<String>,
    /// One line for each value that was not copied because the operator's user lacks a right.
    pub(crate) denied: Vec<String>,
}

/// The parameters of copying values to the next masters.
#[derive(Clone, Copy)]
pub(crate) struct Carrier<'a> {
    pub(crate) redlock: &'a Redlock,
    /// How long to wait for the lock of each value.
    pub(crate) wait: Duration,
    /// The next masters that are open already.
    pub(crate) open: MasterSet,
    /// Whether to remove a value from the next masters if no old master has it.
    pub(crate) removes: bool,
}

impl Carrier<'_> {
    /// Copies the values under these lock keys to the next masters. If another client holds the lock of a value, this
    /// value is copied last.
    pub(crate) async fn carry_all(self, keys: &[Vec<u8>]) -> Copied {
        let mut copied = Copied::default();
        let mut pending: Vec<&Vec<u8>> = keys.iter().collect();
        for attempt in 1..=ATTEMPTS {
            let first = attempt == 1;
            let wait = if first { Duration::ZERO } else { self.wait };
            let group = if first { TOGETHER } else { 1 };
            let mut again = Vec::new();
            for page in pending.chunks(TOGETHER) {
                let groups = page.chunks(group).map(|keys| self.carry(keys, wait));
                let outcomes = futures::future::join_all(groups).await;
                for (key, outcome) in page.iter().zip(outcomes.into_iter().flatten()) {
                    let may_change = match &outcome {
                        Ok(outcome) => matches!(outcome, Carried::Undecided(_)),
                        Err(_) => first && !self.wait.is_zero(),
                    };
                    if may_change && attempt < ATTEMPTS {
                        again.push(*key);
                    } else {
                        copied.note(key, outcome, self.redlock.core.coordinator.quorum);
                    }
                }
            }
            pending = again;
        }
        copied
    }

    /// Copies the values of these lock keys, each under its lock. Reads the generation markers only once, while the
    /// locks are held.
    async fn carry(self, keys: &[&Vec<u8>], wait: Duration) -> Vec<Result<Carried, AcquireError>> {
        let guards = keys.iter().map(|key| {
            let lock = self.redlock.lock(key.as_slice()).of_kind(Kind::Key);
            lock.wait(Wait::For(wait)).acquire()
        });
        let guards = futures::future::join_all(guards).await;
        let closed = self.check_next_masters_are_closed().await;
        let each = guards
            .into_iter()
            .map(|guard| self.carry_under(guard, &closed));
        futures::future::join_all(each).await
    }

    async fn carry_under(
        self,
        guard: Result<LockGuard, AcquireError>,
        closed: &Result<(), Carried>,
    ) -> Result<Carried, AcquireError> {
        let guard = guard?;
        let carried = match (closed, Register::under(&guard)) {
            (Err(carried), _) => carried.clone(),
            (Ok(()), Ok(register)) => register.carry(self.open, self.removes).await,
            (Ok(()), Err(error)) => Carried::Undecided(error.to_string()),
        };
        guard.release().await;
        Ok(carried)
    }

    /// Checks that no next master admits clients yet. If one does, another operator has already copied the values, and
    /// the old masters may have outdated values.
    ///
    /// The check needs the answers of only a majority of the next masters.
    async fn check_next_masters_are_closed(self) -> Result<(), Carried> {
        let masters = self.redlock.masters_as_marked();
        let masters = masters.map_err(|error| Carried::Undecided(error.to_string()))?;
        match masters.order(&ChangeOrder::Look).await {
            survey if survey.is_any_open() => Err(Carried::Nowhere),
            survey if survey.quorum.next_only().is_met_by(survey.well()) => Ok(()),
            survey => Err(Carried::Undecided(survey.faults().join("; "))),
        }
    }
}

impl Copied {
    /// Records the result of copying one value.
    fn note(&mut self, key: &[u8], outcome: Result<Carried, AcquireError>, quorum: Quorum) {
        let name = String::from_utf8_lossy(key).into_owned();
        match outcome {
            Ok(Carried::Nowhere) => {}
            Ok(done @ (Carried::Both | Carried::Removed)) => self.carried.push(CarriedValue {
                name,
                is_carried: matches!(done, Carried::Both),
            }),
            Ok(Carried::Lost(shown)) => self.left.push(format!(
                "{name:?}: lost, or only partly created or removed: no majority of the old masters has this value \
                 ({shown}); with masters and next_masters set, run quorate quota drop or quorate once --drop"
            )),
            Ok(Carried::Undecided(shown)) => self.left.push(format!(
                "{name:?}: not copied: too few masters could store it ({shown}): run this step again"
            )),
            Ok(Carried::Denied(shown)) => self.denied.push(format!(
                "{name:?}: not copied: a right is missing ({shown}): grant it, and run this step again"
            )),
            Err(error) => {
                let is_denied = |fault: &Fault| matches!(fault, Fault::Denied(_));
                let denied = failed_with(error.reports(), is_denied);
                // Missing rights are the cause only if the masters that denied no right cannot form a majority.
                let lines = if quorum.possible_without(denied) {
                    &mut self.left
                } else {
                    &mut self.denied
                };
                lines.push(format!("{name:?}: not copied: {}", error.details()));
            }
        }
    }
}

/// One line for each value that was removed from the next masters. The lines are reported even if the operation fails:
/// if the operator repeats the operation, it no longer finds these values.
pub(crate) fn removed(carried: &[CarriedValue]) -> impl Iterator<Item = String> + '_ {
    let removed = carried.iter().filter(|value| !value.is_carried);
    removed.map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Missed;
    use crate::node::{NodeName, Phase};
    use crate::report::{NodeOutcome, NodeReport};

    fn missed(fault: Fault) -> AcquireError {
        AcquireError::NoQuorum(Missed {
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
            majority: Quorum::of(1),
        })
    }

    #[test]
    fn values_not_copied_because_masters_denied_permission_are_listed_separately() {
        let mut copied = Copied::default();
        let denied = || Err(missed(Fault::Denied("NOPERM".into())));
        let (one, three) = (Quorum::of(1), Quorum::of(3));
        copied.note(b"a", denied(), one);
        copied.note(b"b", Ok(Carried::Denied("NOPERM".into())), one);
        copied.note(b"c", Err(missed(Fault::Loading)), one);
        copied.note(b"d", Ok(Carried::Undecided("loading".into())), one);
        // Only one of three masters denies the right, so missing rights are not the cause of this failure.
        copied.note(b"e", denied(), three);
        let names = |lines: &[String]| {
            let names = lines.iter().map(|line| line[1..2].to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&copied.denied), ["a", "b"]);
        assert_eq!(names(&copied.left), ["c", "d", "e"]);
        assert_eq!(copied.carried, []);
    }
}
