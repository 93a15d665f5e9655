//! Work that runs once per period. The last completed period is stored under a lock.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::error::ValueError;
use super::period::{Period, Periods};
use super::record::{OnceRecord, Stored};
use super::register::{KnownValue, Register};
use super::value::NamedValue;
use crate::hold::guard::LockGuard;
use crate::outcome::LossCause;
use crate::protocol::clocks::TimeVerdict;
use crate::redlock::Redlock;
use crate::settings::Wait;
use crate::waiting::Waiting;

/// Work that runs once per period across all machines, for example a nightly report or a monthly invoice.
///
/// Made by [`Redlock::once`]. The masters store a record of the last completed period, under the lock with the same
/// name.
///
/// Rules for periods:
///
/// - Periods are counted from 1970, UTC: a period of 24 h begins at midnight UTC. For days, weeks and months of a
///   calendar, use [`Redlock::once_in`].
/// - A call does the work of the period in which the call was made, by the caller's wall clock. This period does not
///   change while the call waits for the lock.
/// - If a machine's clock is ahead, this machine does the work of the next period early. The other machines then skip
///   that period.
/// - If the period of a call, or the last recorded period, begins more than a minute in the future by the clocks of a
///   majority of the masters, the call fails with [`ValueError::Ahead`]. If no majority of the clocks agrees about it,
///   the call fails with [`ValueError::ClocksDisagree`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), quorate::ValueError> {
/// use std::time::Duration;
/// use quorate::{OnceOutcome, Redlock};
///
/// # #[cfg(feature = "testing")] {
/// let redlock = Redlock::in_memory(5);
/// let nightly = redlock.once("nightly", Duration::from_secs(24 * 3600));
/// nightly.create().await?; // once, by an operator
///
/// match nightly.at_most_once(async |_| 20 + 22).await? {
///     OnceOutcome::Done(sum) => println!("done by us: {sum}"),
///     OnceOutcome::AlreadyDone { next } => println!("done by somebody; next in {next:?}"),
///     other => println!("{other:?}"),
/// }
/// # }
/// # Ok(()) }
/// ```
///
/// `Once` has the same requirements as [`Quota`](crate::Quota). [`at_most_once`](Self::at_most_once) never does the
/// work of a period twice, but can skip a period.
#[derive(Clone, Debug)]
pub struct Once {
    value: NamedValue,
    periods: Periods,
}

/// The result of [`Once::at_most_once`] or [`Once::at_least_once`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the outcome shows whether the body ran"]
pub enum OnceOutcome<T> {
    /// The body ran. This period is recorded as done, unless the body of [`at_least_once`](Once::at_least_once)
    /// returned an error.
    Done(T),
    /// The body of [`at_least_once`](Once::at_least_once) ran. This period could not be recorded as done afterwards, so
    /// its work may be done again.
    NotRecorded(T, ValueError),
    /// The body of [`at_most_once`](Once::at_most_once) ran to its end, but the lock was lost while it ran. Another
    /// client may have begun the next period before the body ended. This period is recorded as done.
    Outlived(T, LossCause),
    /// The work of this period was already done, so the body did not run.
    AlreadyDone {
        /// Time until the start of the next period that is not done yet.
        next: Duration,
    },
}

/// Whether the work of this period must be done now: the result of [`Once::due`].
#[derive(Debug)]
#[must_use = "if a period is not recorded as done, its work runs again"]
pub enum Due<'a> {
    /// The work of this period must be done now.
    Now(Turn<'a>),
    /// The work of this period was already done.
    AlreadyDone {
        /// Time until the start of the next period that is not done yet.
        next: Duration,
    },
}

/// The result of reading the stored record: whether the work of this period must be done now.
enum RecordState<'a> {
    Due(Turn<'a>),
    Done {
        next: Duration,
        value: KnownValue<'a>,
    },
}

/// A period whose work must be done now, by the holder of the lock.
#[must_use = "if a period is not recorded as done, its work runs again"]
pub struct Turn<'a> {
    value: KnownValue<'a>,
    /// The start of this period, in milliseconds since 1970.
    start: u64,
    /// The start of the last period that is recorded as done, in milliseconds since 1970; `None` if there is none.
    last: Option<u64>,
    note: String,
}

impl Turn<'_> {
    /// Stores `note` with the record, for example where the work runs. [`Once::record`] returns it. At most
    /// [`MAX_NOTE_LEN`](crate::MAX_NOTE_LEN) bytes. Default: no note.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Records this period as done. Call `record` before the work to do the work at most once, or after the work to do
    /// it at least once.
    ///
    /// # Errors
    ///
    /// [`ValueError::Unknown`] if the period may or may not have been recorded. After any other error, nothing was
    /// recorded.
    ///
    /// A guard can write the record only once. To write it again, acquire the lock again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the period may or may not have been recorded.
    pub async fn record(self) -> Result<(), ValueError> {
        let text = Stored::text(Some(self.start), &self.note)?;
        self.value.write(&text).await
    }

    /// Stores only the [note](Self::note). This period stays due. Call this method after the work has failed.
    ///
    /// # Errors
    ///
    /// Those of [`record`](Self::record).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the note may or may not have been stored.
    pub async fn leave_due(self) -> Result<(), ValueError> {
        let text = Stored::text(self.last, &self.note)?;
        self.value.write(&text).await
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl Redlock {
    /// Work that runs once per `period`, under the lock with this name. A period lasts at most ten years. This call
    /// sends nothing.
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        Once::new(self, name.as_ref(), Periods::Every(period))
    }

    /// Work that runs once in the given period, under the lock with this name. The period lasts at most ten years. This
    /// call sends nothing.
    ///
    /// The caller computes the period, usually with a date library: for example the current month in Europe/Berlin.
    /// `period.start` identifies the period, so all machines must compute the same start. The work of this period
    /// counts as done if a period with the same or a later start was recorded as done.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), quorate::ValueError> {
    /// use std::time::{Duration, SystemTime};
    /// use quorate::{OnceOutcome, Redlock};
    ///
    /// # #[cfg(feature = "testing")] {
    /// let redlock = Redlock::in_memory(5);
    /// let days = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n * 24 * 3600);
    /// let january_1970 = redlock.once_in("invoices", days(0)..days(31));
    /// january_1970.create().await?; // once, by an operator
    ///
    /// assert_eq!(january_1970.at_most_once(async |_| 42).await?, OnceOutcome::Done(42));
    /// # }
    /// # Ok(()) }
    /// ```
    pub fn once_in(&self, name: impl AsRef<[u8]>, period: Range<SystemTime>) -> Once {
        Once::new(self, name.as_ref(), Periods::One(period))
    }
}

impl Once {
    fn new(redlock: &Redlock, name: &[u8], periods: Periods) -> Self {
        let value = NamedValue::new(redlock, name, "once");
        Self { value, periods }
    }

    /// How long each call waits for the lock. A caller that does the work keeps the other callers waiting until the
    /// work is done. Default: the builder's `wait`.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.value.wait = Some(wait);
        self
    }

    /// Calls `observer` while a call waits for the lock, as [`LockRequest::waiting`](crate::LockRequest::waiting) does.
    #[must_use]
    pub fn waiting(mut self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.value.observer = Some(Arc::new(observer));
        self
    }

    /// Creates a record that contains no completed period. An operator calls this once; do not call it automatically at
    /// start-up. The call fails unless **every** master reports that it has no record. If one master has a record, the
    /// others may have lost theirs.
    ///
    /// # Errors
    ///
    /// Those of [`Quota::create`](crate::Quota::create).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the record may or may not have been created.
    pub async fn create(&self) -> Result<(), ValueError> {
        self.current_period()?;
        self.value.create(Stored::NEVER).await
    }

    /// Runs `body` under the lock, unless this period is already done. The period is recorded as done before the body
    /// runs. A crash between the recording and the body skips the work of this period. If the lock is lost, the body is
    /// dropped, as in [`Redlock::scope`].
    ///
    /// # Errors
    ///
    /// - [`ValueError::Stopped`]: the body was dropped.
    /// - Any other error: the body did not run. After [`ValueError::Unknown`], this period may be recorded as done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lock in the background. This period may be recorded as done
    /// even if the body had not begun.
    pub async fn at_most_once<T>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<OnceOutcome<T>, ValueError> {
        self.if_due(async |guard: &LockGuard, turn: Turn<'_>| {
            turn.record().await?;
            match guard.while_held(body).await {
                Ok(output) => Ok(OnceOutcome::Done(output)),
                Err((cause, Some(output))) => Ok(OnceOutcome::Outlived(output, cause)),
                Err((cause, None)) => Err(self.stopped_error(cause, true)),
            }
        })
        .await
    }

    /// Runs `body` under the lock, unless this period is already done. The period is recorded as done after the body
    /// has returned `Ok`. After a crash, an error of the body, or the loss of the lock, a later call runs the body
    /// again. So the body must be idempotent.
    ///
    /// # Errors
    ///
    /// - [`ValueError::Stopped`]: the body was dropped because the lock was lost.
    /// - Any other error: the body did not run. An error of the body itself is returned in [`OnceOutcome::Done`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and releases the lock in the background. The period is then not recorded as
    /// done, unless the body had already ended.
    pub async fn at_least_once<T, E>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, ValueError> {
        self.if_due(async |guard: &LockGuard, turn: Turn<'_>| {
            let output = match guard.while_held(body).await {
                // `Err((_, Some(done)))`: the body ended after the lock was lost, so `record` fails.
                Ok(output) | Err((_, Some(output))) => output,
                Err((cause, None)) => return Err(self.stopped_error(cause, false)),
            };
            if output.is_err() {
                return Ok(OnceOutcome::Done(output));
            }
            Ok(match turn.record().await {
                Ok(()) => OnceOutcome::Done(output),
                Err(error) => OnceOutcome::NotRecorded(output, error),
            })
        })
        .await
    }

    /// Removes from every master the record of the last completed period. Only an operator should do this. It is the
    /// only remedy if the record is [lost](ValueError::Lost). Returns true if any master had a record.
    ///
    /// # Errors
    ///
    /// Those of [`Quota::drop_quota`](crate::Quota::drop_quota).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the record may be removed from some masters only: call it again.
    pub async fn drop_record(&self) -> Result<bool, ValueError> {
        self.value.remove().await
    }

    /// Whether the work of this period must be done now. This call writes nothing.
    ///
    /// Use this method if you acquired the lock yourself. The requirements for `guard`:
    ///
    /// - It holds an exclusive lock on only one resource, which has the name of this `Once`.
    /// - The lock has no owner.
    /// - The guard comes from the `Redlock` that made this `Once`, or from a clone of that `Redlock`.
    ///
    /// "This period" is the period at the time of the call, even if you began to wait for the lock in an earlier
    /// period. To ask about an earlier period, use [`Redlock::once_in`] with that period.
    ///
    /// If the period is already done, you can keep the lock, call `due` again in the next period, and record that
    /// period.
    ///
    /// # Errors
    ///
    /// [`ValueError`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: reading changes nothing.
    pub async fn due<'a>(&self, guard: &'a LockGuard) -> Result<Due<'a>, ValueError> {
        Ok(
            match self.check_record(guard, self.current_period()?).await? {
                RecordState::Due(turn) => Due::Now(turn),
                RecordState::Done { next, .. } => Due::AlreadyDone { next },
            },
        )
    }

    /// Makes sure that a majority of the masters stores the record, and writes it again to masters that have lost it.
    ///
    /// Before this call, another client may still find the period due: perhaps only a minority stores the record. Call
    /// this method if [`due`](Self::due) returned [`Due::AlreadyDone`]. [`at_most_once`](Self::at_most_once) and
    /// [`at_least_once`](Self::at_least_once) refill the masters automatically.
    ///
    /// If this call has written the record, you must acquire the lock again before you can record a period.
    ///
    /// # Errors
    ///
    /// Those of [`due`](Self::due), and those of [`OnceRecord::refill`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some masters may have the record again.
    pub async fn refill(&self, guard: &LockGuard) -> Result<(), ValueError> {
        self.record(guard).await?.refill().await
    }

    /// Reads the record: the last completed period, and the stored note. `guard` must hold the lock that
    /// [`due`](Self::due) requires.
    ///
    /// # Errors
    ///
    /// Those of [`due`](Self::due).
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: reading changes nothing.
    pub async fn record<'a>(&self, guard: &'a LockGuard) -> Result<OnceRecord<'a>, ValueError> {
        let value = self.read(guard).await?;
        let Stored { last, note } = self.parse_record(value.bytes())?;
        let note = note.to_owned();
        Ok(OnceRecord { value, last, note })
    }

    async fn read<'a>(&self, guard: &'a LockGuard) -> Result<KnownValue<'a>, ValueError> {
        if !self.value.is_under(guard) {
            let why = "the guard must hold the lock with this name exclusively, and must come from the same Redlock";
            return Err(ValueError::Invalid(why));
        }
        Register::under(guard)?.read().await
    }

    async fn check_record<'a>(
        &self,
        guard: &'a LockGuard,
        period: Period,
    ) -> Result<RecordState<'a>, ValueError> {
        let mut value = self.read(guard).await?;
        let Stored { last, .. } = self.parse_record(value.bytes())?;
        if let Some(last) = last {
            self.check_has_begun(&mut value, last, true).await?;
        }
        let start = period.start;
        if let Some(next_start) = period.next_start_if_done(last) {
            let now_ms = self.value.redlock.core.coordinator.runtime.wall_micros() / 1_000;
            let until_next_period = Duration::from_millis(next_start.saturating_sub(now_ms));
            return Ok(RecordState::Done {
                next: until_next_period,
                value,
            });
        }
        self.check_has_begun(&mut value, start, false).await?;
        let note = String::new();
        Ok(RecordState::Due(Turn {
            value,
            start,
            last,
            note,
        }))
    }

    /// Rejects a period, unless a majority of the masters' clocks says that it has begun, or begins within
    /// [`CLOCK_SLACK_MS`] (one minute). The record stores only the start of the last period that is done, so all
    /// earlier periods would count as done as well.
    async fn check_has_begun(
        &self,
        value: &mut KnownValue<'_>,
        start: u64,
        recorded: bool,
    ) -> Result<(), ValueError> {
        let name = self.value.name();
        let earliest = start.saturating_sub(CLOCK_SLACK_MS).saturating_mul(1_000);
        Err(match value.judge_time(earliest).await {
            TimeVerdict::Past => return Ok(()),
            TimeVerdict::Future(micros) => ValueError::Ahead {
                name,
                ahead: Duration::from_micros(micros) + Duration::from_millis(CLOCK_SLACK_MS),
                recorded,
            },
            TimeVerdict::Unclear => ValueError::ClocksDisagree {
                name,
                clocks: value.clock_texts(),
                recorded,
            },
        })
    }

    /// Runs `body` under the lock, unless this period is already done.
    async fn if_due<T>(
        &self,
        body: impl AsyncFnOnce(&LockGuard, Turn<'_>) -> Result<OnceOutcome<T>, ValueError>,
    ) -> Result<OnceOutcome<T>, ValueError> {
        // Read the clock before waiting for the lock: a call belongs to the period in which it was made.
        let period = self.current_period()?;
        let run_if_due = async |guard: &LockGuard| match self.check_record(guard, period).await? {
            RecordState::Due(turn) => body(guard, turn).await,
            RecordState::Done { next, value } => {
                value.refill().await?;
                Ok(OnceOutcome::AlreadyDone { next })
            }
        };
        Box::pin(self.value.under_lock(run_if_due)).await
    }

    /// The period to which a call made now belongs; an error if the period is invalid.
    fn current_period(&self) -> Result<Period, ValueError> {
        let runtime = &self.value.redlock.core.coordinator.runtime;
        let period = self.periods.current_period(runtime.wall_micros() / 1_000);
        period.map_err(ValueError::Invalid)
    }

    /// The content of the stored record.
    fn parse_record<'a>(&self, bytes: &'a [u8]) -> Result<Stored<'a>, ValueError> {
        let rest = self.value.text_after_kind(bytes)?;
        Stored::read(rest).ok_or_else(|| self.value.other_kind_error(bytes))
    }

    fn stopped_error(&self, cause: LossCause, recorded: bool) -> ValueError {
        ValueError::Stopped {
            name: self.value.name(),
            cause,
            recorded,
        }
    }
}

/// How far in the future a period may begin by the masters' clocks, in milliseconds. Allows for small differences
/// between clocks.
const CLOCK_SLACK_MS: u64 = 60_000;

#[cfg(test)]
mod tests;
