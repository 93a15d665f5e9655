//! The values under locks when masters change: each is carried under its lock, as a client of both sets would write it.
//!
//! A copy that takes no lock does not do: it would fill a master that has just forgotten a later value, and put back a
//! value that a client of both sets removes meanwhile.

use std::fmt;
use std::time::Duration;

use crate::acquire::kind::Kind;
use crate::error::AcquireError;
use crate::hold::guard::LockGuard;
use crate::kinds::register::{Carried, Register};
use crate::protocol::quorum::MasterSet;
use crate::redlock::Redlock;
use crate::settings::Wait;

/// A value under a lock that [`MastersChange::open`](crate::MastersChange::open) has seen to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarriedValue {
    /// The name of its lock, with the key prefix, as text.
    pub name: String,
    /// Whether the next masters have it now. Otherwise it was removed, because no old master had it.
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

/// Attempts for one value: a first one gives it again to masters that had lost it, and these count in the next.
const ATTEMPTS: u32 = 3;

/// The values that are carried at the same time.
const TOGETHER: usize = 32;

/// How values are carried.
#[derive(Clone, Copy)]
pub(crate) struct Carrier<'a> {
    pub(crate) redlock: &'a Redlock,
    /// How long it waits for the lock of each.
    pub(crate) wait: Duration,
    /// The next masters that are open already.
    pub(crate) open: MasterSet,
    /// Whether values are removed that no old master has.
    pub(crate) removes: bool,
}

impl Carrier<'_> {
    /// Carries the values under these lock keys: what was done, and one line for each value that somebody has to see to.
    pub(crate) async fn carry_all(self, keys: &[Vec<u8>]) -> (Vec<CarriedValue>, Vec<String>) {
        let (mut carried, mut left) = (Vec::new(), Vec::new());
        for page in keys.chunks(TOGETHER) {
            let each = page.iter().map(|key| self.carry(key));
            for (key, outcome) in page.iter().zip(futures::future::join_all(each).await) {
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
                        "{name:?}: not carried: too few masters could take it ({shown}): take this step again"
                    )),
                    Err(error) => left.push(format!("{name:?}: not carried: {error}")),
                }
            }
        }
        (carried, left)
    }

    /// Carries one value, under its lock.
    async fn carry(self, key: &[u8]) -> Result<Carried, AcquireError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let lock = self.redlock.lock(key).of_kind(Kind::Key);
            let guard = lock.wait(Wait::For(self.wait)).acquire().await?;
            let carried = self.carry_under(&guard).await;
            guard.release().await;
            if attempts == ATTEMPTS || !matches!(carried, Carried::Undecided(_)) {
                return Ok(carried);
            }
        }
    }

    /// Another operator may have carried it and opened the next masters while this one waited for the lock: then the old
    /// masters no longer show the last value. Who has written on next masters alone was let in by a majority of them
    /// before this lock was granted, so a majority is asked.
    async fn carry_under(self, guard: &LockGuard) -> Carried {
        match self.redlock.survey().await {
            Ok(survey) if survey.is_any_open() => return Carried::Nowhere,
            Ok(survey) if survey.quorum.next_only().is_met_by(survey.well()) => {}
            Ok(survey) => return Carried::Undecided(survey.faults().join("; ")),
            Err(error) => return Carried::Undecided(error.to_string()),
        }
        match Register::under(guard) {
            Ok(register) => register.carry(self.open, self.removes).await,
            Err(error) => Carried::Undecided(error.to_string()),
        }
    }
}

/// One line for each value that is gone. Where a step stops behind a removal, no later one finds it again to tell.
pub(crate) fn removed(carried: &[CarriedValue]) -> impl Iterator<Item = String> + '_ {
    let removed = carried.iter().filter(|value| !value.is_carried);
    removed.map(ToString::to_string)
}
