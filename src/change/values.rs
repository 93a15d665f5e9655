//! Copies the values (quotas and once-per-period records) to the next masters while masters are replaced. Each value is
//! copied under the lock that protects it, in the same way as a client that knows both sets of masters writes it.
//!
//! Without the lock, a copy would not be safe. It could restore an older value on a master that has just lost a newer
//! value. It could also restore a value while another client removes it.

use std::fmt;
use std::time::Duration;

use crate::acquire::kind::Kind;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::protocol::quorum::MasterSet;
use crate::redlock::Redlock;
use crate::settings::Wait;
use crate::values::register::{Carried, Register};

/// A value (quota or once-per-period record) that a step of a replacement has copied to the next masters, or removed
/// from them. One of these steps is [`MastersChange::open`](crate::MastersChange::open).
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

/// How often copying one value is attempted. The first attempt also restores the value on masters that had lost it.
/// Only the next attempt can rely on these masters.
const ATTEMPTS: u32 = 3;

/// How many values are copied at the same time.
const TOGETHER: usize = 32;

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
    /// Copies the values under these lock keys to the next masters. Returns the results, and one line for each value
    /// that an operator must handle. If the lock of a value is held by another client, the value is tried again after
    /// all others.
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

    /// Copies the values of these lock keys, each under its lock. The generation markers are checked once for all of
    /// them, while the locks are held.
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

    /// Checks that no next master is open. If a next master is open, another operator has already copied the values,
    /// and the old masters may no longer have the latest values. It is enough to ask a majority of the next masters: a
    /// client writes to the next masters alone only after a majority of the next masters has opened.
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
            "{name:?}: lost, or only partly created or removed: no majority of the old masters has it ({shown}): \
             drop it with a client that has masters and next_masters (quorate quota drop, quorate once --drop)"
        )),
        Ok(Carried::Undecided(shown)) => left.push(format!(
            "{name:?}: not copied: too few masters could store it ({shown}): run this step again"
        )),
        Err(error) => left.push(format!("{name:?}: not copied: {}", error.details())),
    }
}

/// One line for each value that was removed from the next masters. The lines are reported even if the step fails,
/// because a repeated step would no longer find the removed values.
pub(crate) fn removed(carried: &[CarriedValue]) -> impl Iterator<Item = String> + '_ {
    let removed = carried.iter().filter(|value| !value.is_carried);
    removed.map(ToString::to_string)
}
