//! Carries the values (quotas and once-per-period records) to the next masters while masters are replaced. Each value
//! is carried under the lock that protects it, in the same way as a client that knows both sets writes it.
//!
//! Copying a value without its lock would not be safe. The copy could restore an older value on a master that has just
//! lost a later value. It could also restore a value that a client that knows both sets is removing.

use std::fmt;
use std::time::Duration;

use crate::acquire::kind::Kind;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::protocol::quorum::MasterSet;
use crate::redlock::Redlock;
use crate::settings::Wait;
use crate::values::register::{Carried, Register};

/// A value (quota or once-per-period record) that a step such as [`MastersChange::open`](crate::MastersChange::open)
/// has carried to the next masters, or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarriedValue {
    /// The name of the value's lock with the key prefix, as text.
    pub name: String,
    /// True if the next masters have the value now. False if it was removed from them, because no old master had it.
    pub is_carried: bool,
}

impl fmt::Display for CarriedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = if self.is_carried {
            "carried"
        } else {
            "removed, because no old master has it"
        };
        write!(f, "{:?}: {outcome}", self.name)
    }
}

/// How often carrying one value is attempted. The first attempt also restores the value on masters that had lost it.
/// Only in the next attempt do these masters count as having the value.
const ATTEMPTS: u32 = 3;

/// How many values are carried at the same time.
const TOGETHER: usize = 32;

/// The parameters for carrying values to the next masters.
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
    /// Carries the values under these lock keys. Returns the results, and one line for each value that an operator must
    /// handle. Values whose locks are held are carried last, so that the other values need not wait for these locks.
    pub(crate) async fn carry_all(self, keys: &[Vec<u8>]) -> (Vec<CarriedValue>, Vec<String>) {
        let (mut carried, mut left) = (Vec::new(), Vec::new());
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
                        note(key, outcome, &mut carried, &mut left);
                    }
                }
            }
            pending = again;
        }
        (carried, left)
    }

    /// Carries the values of these lock keys, each under its lock, after checking the generation markers once.
    async fn carry(self, keys: &[&Vec<u8>], wait: Duration) -> Vec<Result<Carried, AcquireError>> {
        let guards = keys.iter().map(|key| {
            let lock = self.redlock.lock(key.as_slice()).of_kind(Kind::Key);
            lock.wait(Wait::For(wait)).acquire()
        });
        let guards = futures::future::join_all(guards).await;
        let closed = self.look().await;
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

    /// Checks that no next master is open. Another operator may have carried the values and opened the next masters
    /// while this call waited for the locks. The old masters would then no longer have the last values. Asking a
    /// majority of the next masters is enough: a client can write on the next masters alone only after a majority of
    /// them has opened.
    async fn look(self) -> Result<(), Carried> {
        match self.redlock.survey().await {
            Ok(survey) if survey.is_any_open() => Err(Carried::Nowhere),
            Ok(survey) if survey.quorum.next_only().is_met_by(survey.well()) => Ok(()),
            Ok(survey) => Err(Carried::Undecided(survey.faults().join("; "))),
            Err(error) => Err(Carried::Undecided(error.to_string())),
        }
    }
}

/// Records the result of carrying one value.
fn note(
    key: &[u8],
    outcome: Result<Carried, AcquireError>,
    carried: &mut Vec<CarriedValue>,
    left: &mut Vec<String>,
) {
    let name = String::from_utf8_lossy(key).into_owned();
    match outcome {
        Ok(Carried::Nowhere) => {}
        Ok(done @ (Carried::Both | Carried::Removed)) => carried.push(CarriedValue {
            name,
            is_carried: matches!(done, Carried::Both),
        }),
        Ok(Carried::Lost(shown)) => left.push(format!(
            "{name:?}: lost, or created or removed in part: no majority of the old masters has it ({shown}): \
             drop it with a client of both sets (quorate quota drop, quorate once --drop)"
        )),
        Ok(Carried::Undecided(shown)) => left.push(format!(
            "{name:?}: not carried: too few masters could take it ({shown}): run this step again"
        )),
        Err(error) => left.push(format!("{name:?}: not carried: {error}")),
    }
}

/// One line for each value that was removed from the next masters. These lines are reported even if the step fails,
/// because a repeated step would not find the removed values any more.
pub(crate) fn removed(carried: &[CarriedValue]) -> impl Iterator<Item = String> + '_ {
    let removed = carried.iter().filter(|value| !value.is_carried);
    removed.map(ToString::to_string)
}
