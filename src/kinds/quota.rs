//! So many pieces and no more: a number under a lock.

use super::register::Register;
use super::value::{NamedValue, number};
use super::value_error::ValueError;
use crate::hold::guard::LockGuard;
use crate::redlock::Redlock;
use crate::settings::Wait;

/// Pieces that are handed out one by one over all machines, and never more than there are: prizes, seats, licences.
///
/// Made by [`Redlock::quota`]. What is left stands on the masters, under the lock of the same name, which each call
/// takes and gives back. Which number is the right one is decided by fencing numbers and majorities, not by clocks:
/// no pause, no late or repeated message and no wrong clock hands a piece out twice.
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
/// # What it promises, and where that ends
///
/// - Never more than were created are handed out, also while masters lose their memory one after another, as long
///   as a [`take`](Self::take) or [`left`](Self::left) succeeds between one and the next. If a majority loses it before that, the quota says
///   [`Lost`](ValueError::Lost) and hands out nothing.
/// - A piece may be wasted: by a crash in the middle, by a future that is dropped, by an
///   [`Unknown`](ValueError::Unknown) write. None is handed out twice by it.
/// - The masters must not evict (`noeviction`). To stop a majority of them on purpose they must lose nothing:
///   `appendfsync always`, and the restart guard [`Off`](crate::RestartGuard::Off) on every client.
/// - It needs fencing numbers: not with `fencing(false)`.
///
/// Who has a database does better with one statement there: `UPDATE .. SET left = left - 1 WHERE left > 0`.
///
/// # Cost
///
/// One round trip beyond the lock for a [`take`](Self::take), which gives the lock back together with its write, and two
/// where a master has not answered the read by then; one for [`left`](Self::left), and another where a master is given
/// back what it has lost.
#[derive(Clone, Debug)]
pub struct Quota(NamedValue);

/// What came of [`Quota::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only what was taken may be handed out"]
pub enum Take {
    /// They are the caller's, and nobody else's.
    Taken {
        /// How many are left.
        left: u64,
    },
    /// There are fewer than were asked for. None was taken.
    SoldOut {
        /// How many are left.
        left: u64,
    },
}

impl Redlock {
    /// The quota of this name; nothing is sent yet. The name is that of the lock under which it stands: who
    /// holds that lock keeps everybody from the quota.
    pub fn quota(&self, name: impl AsRef<[u8]>) -> Quota {
        Quota(NamedValue::new(self, name.as_ref(), "quota"))
    }
}

impl Quota {
    /// How long each call waits for its turn. Default: the builder's.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.0.wait = Some(wait);
        self
    }

    /// Creates it with so many pieces. An operator's act, once, and not a default at start-up: **every** master must
    /// answer that it has none, for a quota that is missing on some is not a new one.
    ///
    /// # Errors
    ///
    /// [`ValueError::Exists`] where a master has one, [`ValueError::Incomplete`] where one does not answer, and what
    /// [`take`](Self::take) fails with. After [`ValueError::Unknown`] look with [`left`](Self::left); where it is
    /// neither there nor missing, [drop it](Self::drop_quota) and begin anew.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have been created or not.
    pub async fn create(&self, pieces: u64) -> Result<(), ValueError> {
        if pieces == 0 {
            let why = "a quota of no pieces hands out nothing: create it with one at least";
            return Err(ValueError::Invalid(why));
        }
        self.0.create(&pieces.to_string()).await
    }

    /// Takes so many pieces, all or none.
    ///
    /// # Errors
    ///
    /// [`ValueError`]: [`Unknown`](ValueError::Unknown) when too few masters said that they wrote it down; the
    /// pieces are nobody's then, and another call takes others. [`Missing`](ValueError::Missing),
    /// [`Lost`](ValueError::Lost), [`NoQuorum`](ValueError::NoQuorum) and the other errors have taken nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropped on the way, the pieces may be wasted. They are never handed out twice.
    pub async fn take(&self, pieces: u64) -> Result<Take, ValueError> {
        if pieces == 0 {
            return Err(ValueError::Invalid("take one piece at least"));
        }
        let take = |bytes: &[u8]| {
            let left = self.pieces(bytes)?;
            Ok(match left.checked_sub(pieces) {
                None => (None, Take::SoldOut { left }),
                Some(left) => {
                    let rest = self.0.text(&left.to_string());
                    (Some(rest), Take::Taken { left })
                }
            })
        };
        self.0.change(take).await
    }

    /// How many are left.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take); nothing is taken.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, nothing has changed.
    pub async fn left(&self) -> Result<u64, ValueError> {
        let look = async |guard: &LockGuard| {
            let known = Register::under(guard)?.read().await?;
            let left = self.pieces(known.bytes())?;
            known.keep().await;
            Ok(left)
        };
        self.0.under_lock(look).await
    }

    /// Removes it from every master: an operator's act, the only way out where it is [lost](ValueError::Lost).
    ///
    /// # Errors
    ///
    /// [`ValueError::Incomplete`] where a master did not answer: it is gone on the others, and the next call goes on.
    ///
    /// # Cancel safety
    ///
    /// Dropped on the way, it may be gone on some masters and not on others: call it again.
    pub async fn drop_quota(&self) -> Result<(), ValueError> {
        self.0.remove().await
    }

    fn pieces(&self, bytes: &[u8]) -> Result<u64, ValueError> {
        let pieces = number(self.0.rest(bytes)?);
        pieces.ok_or_else(|| self.0.strange(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_read_as_it_was_written_and_nothing_else_is_one() {
        let quota = Redlock::in_memory(1).quota("prizes");
        for left in [0, 1, 10, u64::MAX] {
            let text = quota.0.text(&left.to_string());
            assert_eq!(quota.pieces(&text), Ok(left));
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
            let error = quota.pieces(other.as_bytes()).expect_err(other).to_string();
            assert!(
                error.contains("is no quota") && error.contains("\"prizes\""),
                "{error}"
            );
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
    }
}
