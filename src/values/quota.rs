//! A limited number of units, stored under a lock.

use std::sync::Arc;

use super::error::ValueError;
use super::register::Register;
use super::value::{NamedValue, parse_number};
use crate::hold::guard::LockGuard;
use crate::redlock::Redlock;
use crate::settings::Wait;
use crate::waiting::Waiting;

/// A limited number of units that are handed out across all machines: prizes, seats, licences. No unit is handed out
/// twice.
///
/// Made by [`Redlock::quota`]. The masters store the number of units left, under the lock with the same name. Each call
/// takes and releases this lock. A pause, a late or repeated message, or a wrong clock never hands out a unit twice.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), quorate::ValueError> {
/// use quorate::{Redlock, Take};
///
/// # #[cfg(feature = "testing")] {
/// let redlock = Redlock::in_memory(5);
/// let prizes = redlock.quota("prizes");
/// prizes.create(10).await?; // once, by an operator
///
/// match prizes.take(1).await? {
///     Take::Taken { left } => println!("yours; {left} are left"),
///     Take::SoldOut { left } => println!("only {left} left"),
/// }
/// # assert_eq!(prizes.left().await?, 9);
/// # }
/// # Ok(()) }
/// ```
///
/// # Promises and their limits
///
/// - A quota never hands out more units than were created.
/// - The quota survives if the masters lose their memory one after another, and a [`take`](Self::take) or
///   [`left`](Self::left) succeeds after each loss. If a majority loses its memory without such a call in between,
///   later calls return [`Lost`](ValueError::Lost) and hand out nothing.
/// - A crash during a call, a dropped future, or an [`Unknown`](ValueError::Unknown) error can waste units. Wasted
///   units are not handed out again.
/// - The masters must not evict keys (`noeviction`).
/// - Before you stop a majority of the masters on purpose, turn on `appendonly yes` and `appendfsync always` on the
///   running masters (`docs/operations.md`, Masters), so that they lose nothing. On every client, set the restart guard
///   to [`Off`](crate::RestartGuard::Off).
/// - A quota does not work with `fencing(false)`.
///
/// If you have a database, use a single statement there instead: `UPDATE .. SET left = left - 1 WHERE left > 0`.
///
/// # Cost
///
/// - [`take`](Self::take): one round trip in addition to the lock, because the release is sent together with the write.
///   Two round trips if a master has not yet answered the read.
/// - [`left`](Self::left): one round trip, and another one if a lost value is written again to a master.
#[derive(Clone, Debug)]
pub struct Quota(NamedValue);

/// The result of [`Quota::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "check the result: the units are taken only if it is `Taken`"]
pub enum Take {
    /// The caller has got the units. They are not handed out to any other caller.
    Taken {
        /// How many units are left after this call.
        left: u64,
    },
    /// Fewer units are left than were requested, so none was taken.
    SoldOut {
        /// How many units are left.
        left: u64,
    },
}

impl Redlock {
    /// The quota with this name, protected by the lock with the same name. While a client holds this lock, no other
    /// client can use the quota. Nothing is sent yet.
    pub fn quota(&self, name: impl AsRef<[u8]>) -> Quota {
        Quota(NamedValue::new(self, name.as_ref(), "quota"))
    }
}

impl Quota {
    /// How long each call waits for the lock. Default: the builder's `wait`.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.0.wait = Some(wait);
        self
    }

    /// Calls `observer` while a call waits for the lock, as [`LockRequest::waiting`](crate::LockRequest::waiting) does.
    #[must_use]
    pub fn waiting(mut self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.0.observer = Some(Arc::new(observer));
        self
    }

    /// Creates the quota with this number of units. An operator calls this once; do not call it automatically at
    /// start-up. The call fails unless **every** master reports that it has no such quota. If one master has the quota,
    /// the others may have lost theirs.
    ///
    /// # Errors
    ///
    /// - [`ValueError::Exists`]: a master has a value with this name.
    /// - [`ValueError::Incomplete`]: a master did not answer.
    /// - [`ValueError::Unknown`]: the quota may have been created. Call [`left`](Self::left) to check. If the result is
    ///   neither a number nor `Missing`, [drop the quota](Self::drop_quota) and create it again.
    /// - Any other error: see [`take`](Self::take).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the quota may or may not have been created.
    pub async fn create(&self, units: u64) -> Result<(), ValueError> {
        if units == 0 {
            let why = "0 units: create the quota with at least 1 unit";
            return Err(ValueError::Invalid(why));
        }
        self.0.create(&units.to_string()).await
    }

    /// Takes this number of units from the quota, all or none.
    ///
    /// # Errors
    ///
    /// - [`Unknown`](ValueError::Unknown): too few masters reported that they stored the new number of units. Treat the
    ///   requested units as wasted, and do not use them. A repeated call takes more units.
    /// - Any other error, for example [`Missing`](ValueError::Missing), [`Lost`](ValueError::Lost) or
    ///   [`NoQuorum`](ValueError::NoQuorum): nothing was taken.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may count as taken although nobody has them. They are never handed out
    /// twice.
    pub async fn take(&self, units: u64) -> Result<Take, ValueError> {
        if units == 0 {
            return Err(ValueError::Invalid("0 units: take at least 1 unit"));
        }
        let take_units = |bytes: &[u8]| {
            let units_left = self.parse_units(bytes)?;
            Ok(match units_left.checked_sub(units) {
                None => (None, Take::SoldOut { left: units_left }),
                Some(units_left) => {
                    let rest = self.0.text_with_kind(&units_left.to_string());
                    (Some(rest), Take::Taken { left: units_left })
                }
            })
        };
        Box::pin(self.0.change(take_units)).await
    }

    /// Reads the number of units that are left.
    ///
    /// # Errors
    ///
    /// Those of [`take`](Self::take); nothing is taken.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: reading changes nothing.
    pub async fn left(&self) -> Result<u64, ValueError> {
        let read_units = async |guard: &LockGuard| {
            let value = Register::under(guard)?.read().await?;
            let units_left = self.parse_units(value.bytes())?;
            value.refill().await?;
            Ok(units_left)
        };
        Box::pin(self.0.under_lock(read_units)).await
    }

    /// Removes the quota from every master. Only an operator should do this. It is the only remedy if the quota is
    /// [lost](ValueError::Lost). Returns true if any master had a value with this name.
    ///
    /// # Errors
    ///
    /// [`ValueError::Incomplete`] if a master did not answer. The quota is then removed from the other masters: call it
    /// again to remove the rest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the quota may be removed from some masters only: call it again.
    pub async fn drop_quota(&self) -> Result<bool, ValueError> {
        self.0.remove().await
    }

    fn parse_units(&self, bytes: &[u8]) -> Result<u64, ValueError> {
        let units = parse_number(self.0.text_after_kind(bytes)?);
        units.ok_or_else(|| self.0.other_kind_error(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::node::memory::intercepted::intercepted;
    use crate::node::memory::{Condition, Masters};
    use crate::node::{Reply, Request};

    /// The next caller would otherwise wait for a lock that nobody needs any more.
    #[tokio::test(start_paused = true)]
    async fn call_ends_after_the_lock_of_the_quota_was_released() {
        // The number of units to take; without a number, the units that are left are read.
        for (name, units, has_dead_master) in [
            ("prizes", Some(1), false),
            ("prizes", Some(1), true),
            ("prizes", Some(8), false),
            ("unknown", Some(1), false),
            ("prizes", None, false),
        ] {
            for are_answered in [true, false] {
                let masters = Masters::new(3);
                let unanswered = Arc::<Mutex<Vec<Reply>>>::default();
                let answers_releases = Arc::new(AtomicBool::new(true));
                let is_answering = answers_releases.clone();
                let nodes = intercepted(&masters, move |request, reply| {
                    let is_release = matches!(request, Request::Release { .. });
                    if is_release && !is_answering.load(Ordering::SeqCst) {
                        unanswered.lock().expect("not poisoned").push(reply);
                        return None;
                    }
                    Some(reply)
                });
                let redlock = Redlock::builder().nodes(nodes).build();
                let redlock = redlock.expect("good settings");
                let created = redlock.quota("prizes").create(7).await;
                created.expect("every master answers");
                if has_dead_master {
                    masters[2].set_condition(Condition::Down);
                }
                answers_releases.store(are_answered, Ordering::SeqCst);
                // The masters answer all other requests at once.
                let quota = redlock.quota(name);
                let call = async {
                    match units {
                        Some(units) => quota.take(units).await.map(drop),
                        None => quota.left().await.map(drop),
                    }
                };
                let result = tokio::time::timeout(Duration::from_millis(1), call).await;
                let is_over = result.is_ok();
                assert_eq!(is_over, are_answered, "{name}, {units:?}: {result:?}");
            }
        }
    }

    #[test]
    fn quota_record_in_another_format_is_rejected() {
        let quota = Redlock::in_memory(1).quota("prizes");
        for units_left in [0, 1, 10, u64::MAX] {
            let text = quota.0.text_with_kind(&units_left.to_string());
            assert_eq!(quota.parse_units(&text), Ok(units_left));
        }
        for other in [
            "",
            "quota",
            "quota ",
            "quota -1",
            "quota +1",
            "quota 1 ",
            "once 7",
            "quotas 1",
            "quota \u{1b}[31m",
        ] {
            let error = quota
                .parse_units(other.as_bytes())
                .expect_err(other)
                .to_string();
            assert!(
                error.contains("is not a quota") && error.contains("\"prizes\""),
                "{error}"
            );
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
    }
}
