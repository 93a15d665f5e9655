//! Decides whether the command of `quorate once` must run in the current period, and records its start and its end on
//! the masters.

use std::time::{Duration, SystemTime};

use quorate::{Due, LockGuard, Once, Redlock, Turn, ValueError, Wait};

use crate::errors::record_failure;
use crate::exit::{self, Failure};
use crate::job_period::{DoneRecord, JobPeriod};
use crate::last_run::LastRun;
use crate::output;
use crate::process::Signals;

/// How long [`UnrecordedEnd::record`] waits for the lock.
const END_NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the command must run in the period of this call.
pub(crate) enum Decision<'a> {
    Run(DueRun<'a>),
    /// The period is already done.
    Skip(DoneRecord),
}

/// A run of the command that is due. Nothing is recorded yet.
#[must_use]
pub(crate) enum DueRun<'a> {
    /// `quorate run`: the command runs without a period, and nothing will be recorded.
    WithoutPeriod,
    /// With `--at-least`.
    AtLeastOnce(Turn<'a>),
    /// Without `--at-least`.
    AtMostOnce(Turn<'a>),
}

/// The data to store on the masters after the command has ended.
#[must_use]
pub(crate) enum StartedRun<'a> {
    /// Nothing must be recorded: the command runs without a period (`quorate run`).
    WithoutPeriod,
    /// With `--at-least`: record how the command ended. If it succeeded, also record the period as done.
    AtLeastOnce(Turn<'a>, LastRun),
    /// Without `--at-least`: record only how the command ended. The period was recorded as done before the command
    /// started.
    AtMostOnce(LastRun),
}

/// The end of a command.
///
/// One acquired lock allows only one write of the record. Without `--at-least`, the period was recorded before the run,
/// so recording the end needs another acquire.
#[must_use]
pub(crate) struct UnrecordedEnd {
    /// The run whose end must still be recorded; `None` if there is nothing to record.
    run: Option<LastRun>,
    /// The exit code of the command.
    code: u8,
}

/// Reads the record, and decides whether the command must run in the period of this call. Writes nothing, except that
/// it restores the record on masters that have lost it.
///
/// `guard` must hold the lock of `once`.
///
/// # Errors
///
/// If the record cannot be read, or if a signal asks this process to end.
pub(crate) async fn decide<'a>(
    once: &Once,
    period: &JobPeriod,
    guard: &'a LockGuard,
    signals: &mut Signals,
) -> Result<Decision<'a>, Failure> {
    let due = unless_signalled(once.due(guard), signals).await?;
    Ok(match due.map_err(record_failure)? {
        Due::AlreadyDone { .. } => {
            let record = read_and_refill(once, guard);
            let record = unless_signalled(record, signals).await?;
            Decision::Skip(record.map_err(record_failure)?)
        }
        Due::Now(turn) if period.at_least() => Decision::Run(DueRun::AtLeastOnce(turn)),
        Due::Now(turn) => Decision::Run(DueRun::AtMostOnce(turn)),
    })
}

/// Reads the record of a period that is done, makes sure that a majority of the masters stores it, and restores it on
/// masters that have lost it.
///
/// # Errors
///
/// If a majority may not store the record. Another machine may then find the period due.
async fn read_and_refill(once: &Once, guard: &LockGuard) -> Result<DoneRecord, ValueError> {
    let record = once.record(guard).await?;
    let done_record = DoneRecord {
        last_start: record.last(),
        last_run: LastRun::from_note(record.note()),
    };
    record.refill().await?;
    Ok(done_record)
}

/// Prints why the command does not run. With `--quiet`, prints this only if the record looks wrong: in most calls,
/// another machine has simply run the command.
pub(crate) fn print_skip(period: &JobPeriod, name: &[u8], record: &DoneRecord) {
    let message = period.skip_message(name, record, SystemTime::now());
    if message.is_suspicious {
        output::print_message(message.text);
    } else {
        output::print_notice(message.text);
    }
}

impl<'a> DueRun<'a> {
    /// Whether the period must be recorded before the command starts.
    pub(crate) fn is_recorded_before_the_start(&self) -> bool {
        matches!(self, Self::AtMostOnce(_))
    }

    /// Without `--at-least`, records the period as done. The caller must have prepared everything for the start of the
    /// command, because a later failure cannot undo the record.
    ///
    /// # Errors
    ///
    /// If the record cannot be written, or if a signal asks this process to end. The command must then not be started.
    pub(crate) async fn record_start(
        self,
        period: Option<&JobPeriod>,
        name: &[u8],
        signals: &mut Signals,
    ) -> Result<StartedRun<'a>, Failure> {
        let turn = match self {
            Self::WithoutPeriod => return Ok(StartedRun::WithoutPeriod),
            Self::AtLeastOnce(turn) => {
                return Ok(StartedRun::AtLeastOnce(turn, LastRun::started_now()));
            }
            Self::AtMostOnce(turn) => turn,
        };
        // Yield once, so that the runtime delivers pending signals.
        unless_signalled(tokio::task::yield_now(), signals).await?;
        let run = LastRun::started_now();
        match turn.note(run.note()).record().await {
            Ok(()) => Ok(StartedRun::AtMostOnce(run)),
            Err(error) => {
                let may_be_recorded = matches!(error, ValueError::Unknown(_));
                let next_run_text = period.filter(|_| may_be_recorded).map(|period| {
                    let next_run_text = period.next_run_text(name);
                    format!("; the command did not run; if the period is recorded, {next_run_text}")
                });
                Err(record_failure(error).with_suffix(&next_run_text.unwrap_or_default()))
            }
        }
    }
}

impl StartedRun<'_> {
    /// With `--at-least`, records how the command ended. If the exit code is 0, also records the period as done.
    ///
    /// Without `--at-least`, records nothing. The caller must release the lock, and then call
    /// [`UnrecordedEnd::record`].
    pub(crate) async fn record_result(self, code: u8) -> UnrecordedEnd {
        let run = match self {
            Self::WithoutPeriod => None,
            Self::AtMostOnce(run) => Some(run),
            Self::AtLeastOnce(turn, run) => {
                let turn = turn.note(run.with_end(code).note());
                if code != 0 {
                    let result = turn.leave_due().await;
                    warn_if_unrecorded(code, result.map_err(|error| error.details()));
                } else if let Err(error) = turn.record().await {
                    output::print_message(format!(
                        "the command succeeded, but this success could not be recorded, so the command may run again in this period: {}",
                        error.details()
                    ));
                }
                None
            }
        };
        UnrecordedEnd { run, code }
    }
}

impl UnrecordedEnd {
    /// If the command failed, prints when it runs again, also with `--quiet`: a job that prints nothing would otherwise
    /// fail unnoticed. Then acquires the lock again, and records how the command ended.
    ///
    /// Records nothing if the lock is not free within [`END_NOTE_TIMEOUT`], or if a later run is already recorded.
    pub(crate) async fn record(self, redlock: &Redlock, name: &[u8], period: &JobPeriod) {
        let Self { run, code } = self;
        if code != exit::OK {
            output::print_message(period.failure_text(name, code));
        }
        let Some(run) = run else {
            return;
        };
        let once = redlock.once_in(name, period.range().clone());
        let work = async {
            let wait = Wait::For(END_NOTE_TIMEOUT);
            let guard = redlock.lock(name).wait(wait).acquire().await;
            let guard = guard.map_err(ValueError::NotAcquired)?;
            let record = once.record(&guard).await?;
            if record.note() == run.note() {
                record.set_note(&run.with_end(code).note()).await?;
            }
            guard.release().await;
            Ok(())
        };
        let result = match tokio::time::timeout(2 * END_NOTE_TIMEOUT, work).await {
            Ok(result) => result.map_err(|error: ValueError| error.details()),
            Err(_) => Err("the masters did not answer in time".to_owned()),
        };
        warn_if_unrecorded(code, result);
    }
}

/// If `result` is an error, prints a warning that the command's exit code could not be recorded.
fn warn_if_unrecorded(code: u8, result: Result<(), String>) {
    if let Err(error) = result {
        output::print_notice(format!(
            "warning: the command ended with exit code {code}, but quorate could not record this exit code: \
             {error}"
        ));
    }
}

/// Runs `work`. Fails if a signal that asks this process to end arrives first.
async fn unless_signalled<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        sig = signals.next_ending_signal() => {
            let message = "the command did not run; nothing is recorded, and no lock is held";
            Err(Failure::interrupted(sig, message))
        }
        result = work => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test]
    async fn waiting_for_a_future_fails_if_a_signal_is_pending() {
        let mut signals = Signals::receive().expect("a stream of signals");
        let result = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        assert!(result.is_ok(), "{result:?}");
        // Use SIGALRM, because no other test in this process uses it.
        raise(Signal::SIGALRM).expect("the test must be able to send SIGALRM to itself");
        let interrupted = unless_signalled(tokio::task::yield_now(), &mut signals).await;
        let failure = interrupted.expect_err("a failure");
        assert_eq!(failure.signal, Some(Signal::SIGALRM), "{failure:?}");
    }
}
