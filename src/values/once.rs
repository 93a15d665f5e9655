//! Work that runs once per period: the last period done, stored under a lock.

use std::fmt;
use std::time::Duration;

use super::error::ValueError;
use super::register::{Known, Register};
use super::value::{NamedValue, number};
use crate::hold::guard::LockGuard;
use crate::outcome::LossCause;
use crate::redlock::Redlock;
use crate::settings::Wait;

/// The stored text of a record that shows no period as done.
const NEVER: &str = "never";

/// Work that runs once per period over all machines, for example a nightly report or a monthly invoice.
///
/// Made by [`Redlock::once`]. The masters store a record of the last period done, under the lock with the same name.
/// Holding a lock for the whole period would not be enough, because the lock ends with its ttl and a restart forgets
/// it.
///
/// Periods are counted from 1970, UTC: a period of 24 h begins at midnight UTC. The wall clock of the caller determines
/// the period. A machine whose clock is ahead runs the next period early, and the other machines then skip it; no
/// period runs twice because of that. A period that begins more than a minute after the masters' time is an error
/// ([`ValueError::Ahead`]) and is not recorded.
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
/// The promises, their limits and the requirements on the masters are those of a [`Quota`](crate::Quota).
/// [`at_most_once`](Self::at_most_once) never runs a period twice; at worst it skips one.
#[derive(Clone, Debug)]
pub struct Once {
    value: NamedValue,
    period: Duration,
}

/// The result of [`Once::at_most_once`] or [`Once::at_least_once`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the outcome shows whether the body ran"]
pub enum OnceOutcome<T> {
    /// The body ran, and this period is recorded as done.
    Done(T),
    /// The body ran, but recording the period failed, so the work of this period may be done again. Only
    /// [`at_least_once`](Once::at_least_once) returns this.
    NotRecorded(T, ValueError),
    /// The body ran to its end, but the lock had ended before, so another client may have begun the next period
    /// meanwhile. This period is recorded as done. Only [`at_most_once`](Once::at_most_once) returns this.
    Outlived(T, LossCause),
    /// The work of this period was already done, so the body did not run.
    AlreadyDone {
        /// Time until the start of the next period that is not done yet.
        next: Duration,
    },
}

/// Whether the work of this period must be done now; see [`Once::due`].
#[derive(Debug)]
#[must_use = "a period that is not recorded is done again"]
pub enum Due<'a> {
    /// The work of this period must be done now.
    Now(Turn<'a>),
    /// The work of this period was already done.
    AlreadyDone {
        /// Time until the start of the next period that is not done yet.
        next: Duration,
    },
}

/// The content of [`Due`], together with the stored record that was read.
enum Looked<'a> {
    Due(Turn<'a>),
    Done { next: Duration, known: Known<'a> },
}

/// A period whose work must be done now, by the holder of the lock.
#[must_use = "a period that is not recorded is done again"]
pub struct Turn<'a> {
    known: Known<'a>,
    done: Vec<u8>,
}

impl Turn<'_> {
    /// Records this period as done. To do the work at most once, call `record` before the work; to do it at least once,
    /// call it after the work.
    ///
    /// # Errors
    ///
    /// [`ValueError::Unknown`] if the period may or may not have been recorded. All other errors have changed nothing.
    /// A lock can record only one period: acquire it again for the next period.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the period may or may not have been recorded.
    pub async fn record(self) -> Result<(), ValueError> {
        self.known.write(&self.done).await
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl Redlock {
    /// Work that runs once per `period`, at most ten years, under the lock with this name. Nothing is sent yet.
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        let value = NamedValue::new(self, name.as_ref(), "once");
        Once { value, period }
    }
}

impl Once {
    /// How long each call waits for the lock. A caller that does the work keeps the other callers waiting until the
    /// work is done. Default: the builder's `wait`.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.value.wait = Some(wait);
        self
    }

    /// Creates the record, with no period done. An operator does this once; do not do it automatically at start-up.
    /// **Every** master must report that it has no record, because a record that is missing on some masters may have
    /// been lost.
    ///
    /// # Errors
    ///
    /// Those of [`Quota::create`](crate::Quota::create).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the record may or may not have been created.
    pub async fn create(&self) -> Result<(), ValueError> {
        self.millis()?;
        self.value.create(NEVER).await
    }

    /// Runs `body` under the lock, unless this period is already done. The period is recorded as done before the body
    /// runs, so a crash in between skips the period. As in [`Redlock::scope`], the body is dropped when the lock is
    /// lost.
    ///
    /// # Errors
    ///
    /// [`ValueError::Stopped`] if the body was dropped; after any other error it did not run. After
    /// [`ValueError::Unknown`] this period may be recorded as done.
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
                Ok(done) => Ok(OnceOutcome::Done(done)),
                Err((cause, Some(done))) => Ok(OnceOutcome::Outlived(done, cause)),
                Err((cause, None)) => Err(self.stopped(cause, true)),
            }
        })
        .await
    }

    /// Runs `body` under the lock, unless this period is already done. The period is recorded as done after the body
    /// has returned `Ok`. After a crash, an error of the body, or the loss of the lock, the body runs again, so it must
    /// be idempotent.
    ///
    /// # Errors
    ///
    /// [`ValueError::Stopped`] if the body was dropped because the lock was lost; after any other error it did not run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and releases the lock in the background. This period is then not recorded as
    /// done, unless the body had ended.
    pub async fn at_least_once<T, E>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, ValueError> {
        self.if_due(async |guard: &LockGuard, turn: Turn<'_>| {
            let done = match guard.while_held(body).await {
                // If the lock ended before the body did, recording fails below, and the result is `NotRecorded`.
                Ok(done) | Err((_, Some(done))) => done,
                Err((cause, None)) => return Err(self.stopped(cause, false)),
            };
            if done.is_err() {
                return Ok(OnceOutcome::Done(done));
            }
            Ok(match turn.record().await {
                Ok(()) => OnceOutcome::Done(done),
                Err(error) => OnceOutcome::NotRecorded(done, error),
            })
        })
        .await
    }

    /// Removes the record of the last period done from every master. An operator does this; it is the only remedy if
    /// the record is [lost](ValueError::Lost).
    ///
    /// # Errors
    ///
    /// Those of [`Quota::drop_quota`](crate::Quota::drop_quota).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the record may be removed from some masters only: call it again.
    pub async fn drop_record(&self) -> Result<(), ValueError> {
        self.value.remove().await
    }

    /// Whether the work of this period must be done now. Use this method if you hold the lock with this name yourself,
    /// for example with your own options. The lock must be a plain, exclusive lock on a single resource, taken by the
    /// `Redlock` that made this value or by a clone of it.
    ///
    /// This call writes nothing. If the period is already done, keep the lock and call `due` again in the next period,
    /// which this lock can then record.
    ///
    /// # Errors
    ///
    /// [`ValueError`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point; nothing has changed.
    pub async fn due<'a>(&self, guard: &'a LockGuard) -> Result<Due<'a>, ValueError> {
        Ok(match self.look(guard).await? {
            Looked::Due(turn) => Due::Now(turn),
            Looked::Done { next, .. } => Due::AlreadyDone { next },
        })
    }

    /// Writes the record again to masters that have lost it, so that the record survives if more masters lose it. Use
    /// this method if you hold the lock yourself (see [`due`](Self::due)) and the period was already done. All other
    /// methods write the record again without being asked. Each lock allows one write. This call uses it up if some
    /// masters have lost the record.
    ///
    /// # Errors
    ///
    /// Those of [`due`](Self::due). The result does not show whether the masters accepted the record.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some masters may have the record again.
    pub async fn refill(&self, guard: &LockGuard) -> Result<(), ValueError> {
        let known = self.read(guard).await?;
        self.last(known.bytes())?;
        known.keep().await;
        Ok(())
    }

    async fn read<'a>(&self, guard: &'a LockGuard) -> Result<Known<'a>, ValueError> {
        if !self.value.is_under(guard) {
            let why = "the guard must hold the lock with this name exclusively, and must come from the same Redlock";
            return Err(ValueError::Invalid(why));
        }
        Register::under(guard)?.read().await
    }

    async fn look<'a>(&self, guard: &'a LockGuard) -> Result<Looked<'a>, ValueError> {
        let period = self.millis()?;
        let known = self.read(guard).await?;
        let last = self.last(known.bytes())?;
        // Read the clock only now: a new period may have begun during the wait for the lock.
        let now = guard.core.coordinator.runtime.wall_micros() / 1_000;
        let masters = masters_millis(guard);
        if let Some(last) = last {
            self.has_come(last, masters, true)?;
        }
        match on_the_grid(now, period, last) {
            Ok(start) => {
                self.has_come(start, masters, false)?;
                let done = self.done(start);
                Ok(Looked::Due(Turn { known, done }))
            }
            Err(next) => Ok(Looked::Done { next, known }),
        }
    }

    /// Rejects a period that begins more than [`SLACK`] (one minute) after the masters' time, because some clock is
    /// wrong. If such a period were recorded as done, no period before it could be done any more.
    fn has_come(&self, start: u64, masters: u64, recorded: bool) -> Result<(), ValueError> {
        let ahead = start.saturating_sub(masters);
        if ahead <= SLACK {
            return Ok(());
        }
        Err(ValueError::Ahead {
            name: self.value.name(),
            ahead: Duration::from_millis(ahead),
            recorded,
        })
    }

    /// Runs `body` under the lock, unless this period is already done.
    async fn if_due<T>(
        &self,
        body: impl AsyncFnOnce(&LockGuard, Turn<'_>) -> Result<OnceOutcome<T>, ValueError>,
    ) -> Result<OnceOutcome<T>, ValueError> {
        self.millis()?;
        let run = async |guard: &LockGuard| match self.look(guard).await? {
            Looked::Due(turn) => body(guard, turn).await,
            Looked::Done { next, known } => {
                known.keep().await;
                Ok(OnceOutcome::AlreadyDone { next })
            }
        };
        self.value.under_lock(run).await
    }

    /// The length of the period in milliseconds, from 1 to [`LONGEST`].
    fn millis(&self) -> Result<u64, ValueError> {
        match u64::try_from(self.period.as_millis()) {
            Ok(period @ 1..=LONGEST) => Ok(period),
            Ok(0) => Err(ValueError::Invalid(
                "the period is 0: it must be at least 1ms",
            )),
            _ => Err(ValueError::Invalid(
                "the period is longer than ten years, which is the maximum",
            )),
        }
    }

    fn done(&self, start: u64) -> Vec<u8> {
        self.value.text(&start.to_string())
    }

    /// The start of the last period done, in milliseconds since 1970; `None` if no period has been done.
    fn last(&self, bytes: &[u8]) -> Result<Option<u64>, ValueError> {
        match self.value.rest(bytes)? {
            NEVER => Ok(None),
            start => {
                let start = number(start).ok_or_else(|| self.value.strange(bytes))?;
                Ok(Some(start))
            }
        }
    }

    fn stopped(&self, cause: LossCause, recorded: bool) -> ValueError {
        ValueError::Stopped {
            name: self.value.name(),
            cause,
            recorded,
        }
    }
}

/// How many milliseconds after the masters' time a period may begin, because clocks differ.
const SLACK: u64 = 60_000;

/// An estimate of the masters' time in milliseconds since 1970: the fencing token (a time in microseconds) plus the
/// time since the acquire. A granted token is at least the time of the granting master minus one second.
fn masters_millis(guard: &LockGuard) -> u64 {
    let held_for = guard.core.coordinator.now();
    let held_for = held_for.saturating_since(guard.held.since()).as_millis();
    let drawn = guard.fencing_token().unwrap_or_default() / 1_000;
    drawn.saturating_add(u64::try_from(held_for).unwrap_or(u64::MAX))
}

/// The maximum length of a period in milliseconds: ten years.
const LONGEST: u64 = 10 * 365 * 24 * 3_600_000;

/// Returns the start of the period that contains `now` if that period must be done. Otherwise returns, as an error, the
/// time until the next period that is not done. Times are in milliseconds since 1970. `last` is the start of the last
/// period done, whose length may have been different.
fn on_the_grid(now: u64, period: u64, last: Option<u64>) -> Result<u64, Duration> {
    let start = now - now % period;
    match last {
        Some(last) if start <= last => {
            // The first period start after `last`. A wrong clock may have recorded `last`, so the start may be more
            // than one period away.
            let next = (last - last % period).saturating_add(period);
            Err(Duration::from_millis(next - now))
        }
        _ => Ok(start),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::protocol::instant::Instant;
    use crate::runtime::{BoxFuture, Runtime, Tokio};

    /// A runtime whose wall clock is ahead by the given time.
    struct Ahead(Tokio, Duration);

    impl Runtime for Ahead {
        fn now(&self) -> Instant {
            self.0.now()
        }

        fn wall_micros(&self) -> u64 {
            self.0.wall_micros() + self.1.as_micros() as u64
        }

        fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
            self.0.sleep_until(at)
        }

        fn spawn(&self, task: BoxFuture<()>) -> bool {
            self.0.spawn(task)
        }

        fn random(&self, bytes: &mut [u8]) {
            self.0.random(bytes);
        }
    }

    #[tokio::test]
    async fn machine_with_a_clock_far_ahead_records_no_future_period() {
        let day = Duration::from_secs(24 * 3600);
        for (ahead, runs) in [(Duration::from_secs(20), true), (day, false)] {
            let builder = Redlock::builder().in_memory(3);
            let builder = builder.runtime(Arc::new(Ahead(Tokio::default(), ahead)));
            let redlock = builder.build().expect("good settings");
            // A period of one second began less than a second ago.
            let once = redlock.once("often", Duration::from_secs(1));
            once.create().await.expect("all there");
            let outcome = once.at_most_once(async |_| ()).await;
            if runs {
                assert_eq!(outcome, Ok(OnceOutcome::Done(())));
                continue;
            }
            let error = outcome.expect_err("a day ahead");
            let ours = matches!(
                error,
                ValueError::Ahead {
                    recorded: false,
                    ..
                }
            );
            assert!(ours, "{error}");
            assert!(error.to_string().contains("clock"), "{error}");
        }
    }

    #[test]
    fn period_is_due_once_whatever_the_clocks_show() {
        let hour = 3_600_000;
        let wait = |millis| Err(Duration::from_millis(millis));
        for (now, period, last, verdict) in [
            (7 * hour + 5, hour, None, Ok(7 * hour)),
            (7 * hour + 5, hour, Some(6 * hour), Ok(7 * hour)),
            (7 * hour + 5, hour, Some(7 * hour), wait(hour - 5)),
            (8 * hour, hour, Some(7 * hour), Ok(8 * hour)),
            // The last period was done by a machine whose clock is ahead.
            (7 * hour + 5, hour, Some(9 * hour), wait(3 * hour - 5)),
            // The last period was recorded by an impossible clock: no start follows the maximum.
            (7 * hour, hour, Some(u64::MAX), wait(u64::MAX - 7 * hour)),
            // The last period was recorded when the period was shorter.
            (7 * hour, 24 * hour, Some(6 * hour), wait(17 * hour)),
        ] {
            assert_eq!(
                on_the_grid(now, period, last),
                verdict,
                "{now} {period} {last:?}"
            );
        }
    }

    #[test]
    fn only_text_in_the_format_of_a_once_record_is_read_as_one() {
        let once = Redlock::in_memory(1).once("nightly", Duration::from_secs(60));
        assert_eq!(once.last(&once.value.text(NEVER)), Ok(None));
        assert_eq!(once.last(&once.done(7)), Ok(Some(7)));
        for other in ["once", "once x", "once -7", "quota 7", "never", "once 7 "] {
            let error = once.last(other.as_bytes()).expect_err(other).to_string();
            assert!(error.contains("is no once"), "{error}");
        }
    }
}
