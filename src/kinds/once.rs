//! Once a period: the last period done, under a lock.

use std::fmt;
use std::time::Duration;

use super::register::{Known, Register};
use super::value::{NamedValue, number};
use super::value_error::ValueError;
use crate::hold::guard::LockGuard;
use crate::outcome::LossCause;
use crate::redlock::Redlock;
use crate::settings::Wait;

/// What stands for no period done.
const NEVER: &str = "never";

/// Something that is done once a period over all machines: the nightly report, the monthly invoice.
///
/// Made by [`Redlock::once`]. Which period was done last stands on the masters, under the lock of the same name. A
/// lock that is kept for the period would not do: it ends with its ttl, and a restart forgets it.
///
/// Periods lie on a grid from 1970, UTC: a period of 24 h begins at midnight UTC. The wall clock of the caller says
/// which period it is. A machine whose clock is ahead does the next one early, and the others then leave it out;
/// none is done twice by it. A period that begins more than a minute after the masters' time is an error
/// ([`ValueError::Ahead`]) and not written down.
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
/// What it promises, what it does not, and what the masters need is the same as for a [`Quota`](crate::Quota): a
/// period is at worst left out by [`at_most_once`](Self::at_most_once), and never done twice by it.
#[derive(Clone, Debug)]
pub struct Once {
    value: NamedValue,
    period: Duration,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it tells whether the body ran"]
pub enum OnceOutcome<T> {
    /// The body ran, and this period is done.
    Done(T),
    /// The body ran, and that was not written down: this period may be done again.
    /// [`at_least_once`](Once::at_least_once) only.
    NotRecorded(T, ValueError),
    /// The body ran to its end, but the lock had ended before, and so another client may have begun the next period
    /// meanwhile. This period is done. [`at_most_once`](Once::at_most_once) only.
    Outlived(T, LossCause),
    /// This period was done before. The body did not run.
    AlreadyDone {
        /// How long until the next period begins that has not been done.
        next: Duration,
    },
}

/// Whether a period is to be done, for whoever holds the lock: [`Once::due`].
#[derive(Debug)]
#[must_use = "a turn that is not recorded comes again"]
pub enum Due<'a> {
    /// It is.
    Now(Turn<'a>),
    /// It was done before.
    AlreadyDone {
        /// How long until the next period begins that has not been done.
        next: Duration,
    },
}

/// The same, with the record as it was read.
enum Looked<'a> {
    Due(Turn<'a>),
    Done { next: Duration, known: Known<'a> },
}

/// A period that is to be done now, by the holder of the lock.
#[must_use = "a turn that is not recorded comes again"]
pub struct Turn<'a> {
    known: Known<'a>,
    done: Vec<u8>,
}

impl Turn<'_> {
    /// Writes down that this period is done: before the work for at most once, behind it for at least once.
    ///
    /// # Errors
    ///
    /// [`ValueError::Unknown`] where it may have been written down or not; all others have changed nothing. A lock
    /// records one turn: for the next period take it again.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have been written down or not.
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
    /// What is done once a `period` under this name; nothing is sent yet. The name is that of the lock under which
    /// it runs.
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        let value = NamedValue::new(self, name.as_ref(), "once");
        Once { value, period }
    }
}

impl Once {
    /// How long each call waits for its turn: whoever does it now keeps the others waiting until it is done.
    /// Default: the builder's.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.value.wait = Some(wait);
        self
    }

    /// Creates the record, with no period done. An operator's act, once, and not a default at start-up: **every**
    /// master must answer that it has none, for a record that is missing on some is not a new one.
    ///
    /// # Errors
    ///
    /// As [`Quota::create`](crate::Quota::create).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have been created or not.
    pub async fn create(&self) -> Result<(), ValueError> {
        self.millis()?;
        self.value.create(NEVER).await
    }

    /// Runs `body` under the lock, unless this period is done: first it is written down that it is, then the body
    /// runs. A crash in between leaves the period out. As in [`Redlock::scope`] the body is dropped when the lock
    /// is lost.
    ///
    /// # Errors
    ///
    /// [`ValueError::Stopped`] where the body was dropped; with all others it did not run. After
    /// [`ValueError::Unknown`] this period may count as done.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the body has begun, this period may count as done. Dropping it drops the body and releases
    /// in the background.
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

    /// Runs `body` under the lock, unless this period is done: first it runs, then it is written down where it
    /// gave `Ok`. It runs again after a crash in between, after an error of its own, and when the lock was lost;
    /// so it must bear being done twice.
    ///
    /// # Errors
    ///
    /// [`ValueError::Stopped`] where the body was dropped because the lock was lost; with all others it did not run.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and releases in the background; this period does not count as done then, unless
    /// the body had ended.
    pub async fn at_least_once<T, E>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, ValueError> {
        self.if_due(async |guard: &LockGuard, turn: Turn<'_>| {
            let done = match guard.while_held(body).await {
                // Where the lock ended before the body did, nothing can be recorded, and that is said.
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

    /// Removes the record from every master: an operator's act, the only way out where it is
    /// [lost](ValueError::Lost).
    ///
    /// # Errors
    ///
    /// As [`Quota::drop_quota`](crate::Quota::drop_quota).
    ///
    /// # Cancel safety
    ///
    /// Dropped on the way, it may be gone on some masters and not on others: call it again.
    pub async fn drop_record(&self) -> Result<(), ValueError> {
        self.value.remove().await
    }

    /// Whether this period is to be done, for a caller that holds the lock of this name itself, exclusively: with
    /// options of its own, or together with other work. It is the plain lock, and no permit of that name, taken by the
    /// `Redlock` that this was made with, or by a clone of it.
    ///
    /// Nothing is written by it, so that a lock that is held for longer can ask again in the next period, and record
    /// that one.
    ///
    /// # Errors
    ///
    /// [`ValueError`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, nothing has changed.
    pub async fn due<'a>(&self, guard: &'a LockGuard) -> Result<Due<'a>, ValueError> {
        Ok(match self.look(guard).await? {
            Looked::Due(turn) => Due::Now(turn),
            Looked::Done { next, .. } => Due::AlreadyDone { next },
        })
    }

    /// Gives the record again to masters that have lost it, under a lock as for [`due`](Self::due): the more have it,
    /// the more may lose it. For who is done with the lock and found its period done; all other calls do it
    /// themselves. Where some have lost it, this is the one write of that lock.
    ///
    /// # Errors
    ///
    /// As [`due`](Self::due). Whether the masters take it is not told.
    ///
    /// # Cancel safety
    ///
    /// Dropped, some masters may have been given it.
    pub async fn refill(&self, guard: &LockGuard) -> Result<(), ValueError> {
        let known = self.read(guard).await?;
        self.last(known.bytes())?;
        known.keep().await;
        Ok(())
    }

    async fn read<'a>(&self, guard: &'a LockGuard) -> Result<Known<'a>, ValueError> {
        if !self.value.is_under(guard) {
            let why = "the lock of this very name is needed, held exclusively and taken by the same Redlock";
            return Err(ValueError::Invalid(why));
        }
        Register::under(guard)?.read().await
    }

    async fn look<'a>(&self, guard: &'a LockGuard) -> Result<Looked<'a>, ValueError> {
        let period = self.millis()?;
        let known = self.read(guard).await?;
        let last = self.last(known.bytes())?;
        // Only now: the wait for the lock may have taken us into the next one.
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

    /// A period that the masters' clocks are far from was named by a clock that is wrong: written down, it would keep
    /// everybody from every period before it.
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

    /// Runs `body` under the lock, unless this period is done.
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

    /// The period in milliseconds.
    fn millis(&self) -> Result<u64, ValueError> {
        match u64::try_from(self.period.as_millis()) {
            Ok(period @ 1..=LONGEST) => Ok(period),
            Ok(0) => Err(ValueError::Invalid(
                "a period of nothing has no once: name one of a millisecond at least",
            )),
            _ => Err(ValueError::Invalid("a period of more than ten years")),
        }
    }

    fn done(&self, start: u64) -> Vec<u8> {
        self.value.text(&start.to_string())
    }

    /// The start of the last period done.
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

/// So many milliseconds a period may begin after the masters' time: clocks differ.
const SLACK: u64 = 60_000;

/// The masters' time in milliseconds since 1970, as the number of the lock tells it: it was drawn within a second of
/// it, or later than it.
fn masters_millis(guard: &LockGuard) -> u64 {
    let held_for = guard.core.coordinator.now();
    let held_for = held_for.saturating_since(guard.held.since()).as_millis();
    let drawn = guard.fencing_token().unwrap_or_default() / 1_000;
    drawn.saturating_add(u64::try_from(held_for).unwrap_or(u64::MAX))
}

/// Ten years in milliseconds: the grid must have had a line by now.
const LONGEST: u64 = 10 * 365 * 24 * 3_600_000;

/// The start of the period of `now`, if it is still to be done, or how long until one is. All in milliseconds since
/// 1970; `last` is the start of the last period done, on a grid that may have been another one.
fn on_the_grid(now: u64, period: u64, last: Option<u64>) -> Result<u64, Duration> {
    let start = now - now % period;
    match last {
        Some(last) if start <= last => {
            // The first line of the grid behind it: of another clock it may lie more than one away.
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

    /// Whose wall clock is so far ahead.
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
    async fn a_machine_whose_clock_is_far_ahead_writes_down_no_period_that_has_not_begun() {
        let day = Duration::from_secs(24 * 3600);
        for (ahead, runs) in [(Duration::from_secs(20), true), (day, false)] {
            let builder = Redlock::builder().in_memory(3);
            let builder = builder.runtime(Arc::new(Ahead(Tokio::default(), ahead)));
            let redlock = builder.build().expect("good settings");
            // A period of a second has begun less than a second ago.
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
    fn a_period_is_due_once_by_the_grid_whatever_the_clocks_say() {
        let hour = 3_600_000;
        let wait = |millis| Err(Duration::from_millis(millis));
        for (now, period, last, verdict) in [
            (7 * hour + 5, hour, None, Ok(7 * hour)),
            (7 * hour + 5, hour, Some(6 * hour), Ok(7 * hour)),
            (7 * hour + 5, hour, Some(7 * hour), wait(hour - 5)),
            (8 * hour, hour, Some(7 * hour), Ok(8 * hour)),
            // Done by a machine whose clock is ahead.
            (7 * hour + 5, hour, Some(9 * hour), wait(3 * hour - 5)),
            // Nobody's clock: the end of time has no next line.
            (7 * hour, hour, Some(u64::MAX), wait(u64::MAX - 7 * hour)),
            // The period was shorter before.
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
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let once = Redlock::in_memory(1).once("nightly", Duration::from_secs(60));
        assert_eq!(once.last(&once.value.text(NEVER)), Ok(None));
        assert_eq!(once.last(&once.done(7)), Ok(Some(7)));
        for other in ["once", "once x", "once -7", "quota 7", "never", "once 7 "] {
            let error = once.last(other.as_bytes()).expect_err(other).to_string();
            assert!(error.contains("is no once"), "{error}");
        }
    }
}
