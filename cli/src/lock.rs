//! The options for taking a lock and for waiting for it, shared by `run`, `once` and `hold`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::Args;
use quorate::{AcquireError, Fault, LockGuard, LockRequest, NodeOutcome, Phase, Redlock, Wait};

use crate::config::{self, MasterOptions};
use crate::deadline::Deadline;
use crate::errors::not_acquired;
use crate::exit::{self, Failure};
use crate::file::FileOptions;
use crate::kind::{Kind, KindArgs, Place};
use crate::patience::{Patience, be_patient, is_undecided};
use crate::process::{self, Signals};
use crate::settings::LockSettings;
use crate::waiting::WaitDisplay;

/// The assumed maximum duration of an acquire. [`Lock::max_hold_over`] adds it to the time since the end of the
/// acquire, because `max_hold` counts from the start of the acquire.
const SLACK: Duration = Duration::from_millis(300);

/// Arguments about the lock.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The name of the lock: any text that all clients agree on
    resource: OsString,

    /// Do not wait: exit with 75 if another client holds the lock
    ///
    /// The same as --wait none.
    #[arg(long = "try", env = "QUORATE_TRY", value_parser = clap::builder::BoolishValueParser::new())]
    try_once: bool,

    #[command(flatten)]
    given: LockSettings,

    /// Exit with N if the lock was held for the whole wait [default: 75]
    #[arg(
        short = 'E',
        hide_short_help = true,
        long,
        value_name = "N",
        env = "QUORATE_CONFLICT_EXIT_CODE"
    )]
    conflict_exit_code: Option<u8>,
}

/// A lock to acquire, with its options from the command line, the environment and the configuration file.
pub(crate) struct Lock {
    pub(crate) redlock: Redlock,
    pub(crate) resource: OsString,
    pub(crate) place: Place,
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// How long this process, before it exits, waits for answers to its release requests.
    pub(crate) parting: Duration,
    wait: Wait,
    note: Option<String>,
    /// How long this process stays connected at least, if a master does not vote because it may have restarted.
    watch: Duration,
}

/// How long a process must be connected to a restarted master to add to its age, which clients raise after each 32nd part
/// of `max_ttl`, but at least once per second.
fn watch(max_ttl: Duration) -> Duration {
    (max_ttl / 32).min(Duration::from_secs(1)) + Duration::from_millis(150)
}

/// Whether a master did not vote because it may have restarted.
fn is_guarded(error: &AcquireError) -> bool {
    let AcquireError::NoQuorum(missed) = error else {
        return false;
    };
    let mut outcomes = missed.reports.iter().map(|report| &report.outcome);
    outcomes.any(|outcome| matches!(outcome, NodeOutcome::Fault(Fault::Quarantined(_))))
}

impl LockArgs {
    /// Drops the value of `QUORATE_TRY`, because the command line contains `--wait`.
    pub(crate) fn do_wait(&mut self) {
        self.try_once = false;
    }

    /// The exit code if another client holds the lock for the whole wait.
    pub(crate) fn conflict_exit_code(&self) -> u8 {
        self.conflict_exit_code.unwrap_or(exit::HELD)
    }

    /// The name of the resource. A command that does not acquire the lock needs only the name.
    pub(crate) fn into_name(self) -> OsString {
        self.resource
    }

    /// Adds the options from the configuration file. Returns the lock and the contents of the file.
    pub(crate) fn complete(
        self,
        kind: KindArgs,
        masters: MasterOptions,
    ) -> Result<(Lock, FileOptions), Failure> {
        let (mut masters, file) = masters.complete()?;
        let settings = self.given.0.or(file.settings.clone());
        process::ready().map_err(Failure::internal)?;
        masters.settings_mut().ttl = settings.ttl;
        let ttl = masters.settings().ttl();
        if ttl.is_zero() {
            return Err(Failure::usage(
                "--ttl 0s: the lock would expire immediately; use for example --ttl 10s",
            ));
        }
        let wait = settings.wait.unwrap_or(Wait::Forever);
        let wait = if self.try_once { Wait::None } else { wait };
        if wait == Wait::None {
            be_patient(masters.settings_mut(), ttl);
        }
        let redlock = config::redlock(&masters, Some(ttl))?;
        let place = Place::new(&redlock, &masters);
        let lock = Lock {
            redlock,
            kind: kind.kind(&place, &self.resource)?,
            resource: self.resource,
            place,
            ttl,
            max_hold: settings.max_hold,
            parting: masters.parting(),
            wait,
            note: settings.note,
            watch: watch(masters.settings().max_ttl()),
        };
        lock.kind
            .check_ancestors(&lock.place, &lock.resource, lock.wait)?;
        Ok((lock, file))
    }
}

impl Lock {
    /// The smaller of the ttl and `max_hold`. The grace period must fit into it.
    pub(crate) fn room(&self) -> Duration {
        self.max_hold.map_or(self.ttl, |most| most.min(self.ttl))
    }

    /// Returns `max_hold` if the lock ended because this time had passed, otherwise `None`.
    ///
    /// `held_for` is the time since the end of the acquire. `deadline` states how long before `max_hold` the command is
    /// ended.
    pub(crate) fn max_hold_over(&self, held_for: Duration, deadline: Deadline) -> Option<Duration> {
        let (notice, _) = deadline.backstop();
        let reached = held_for + notice + SLACK.min(self.ttl / 4);
        self.max_hold.filter(|most| reached >= *most)
    }

    /// Whether this is a read lock, and an ancestor of this process already holds the same read lock.
    fn is_read_above(&self) -> bool {
        self.kind.is_read_above(&self.place, &self.resource)
    }

    /// The longest wait for this lock. If an ancestor process holds the same read lock, the wait is limited to one ttl.
    /// A queued writer may wait for the ancestor, which waits for this process: then the wait would never end.
    fn patience(&self) -> Wait {
        match self.wait {
            Wait::For(time) if self.is_read_above() => Wait::For(time.min(self.ttl)),
            Wait::Forever if self.is_read_above() => Wait::For(self.ttl),
            wait => wait,
        }
    }

    /// Acquires the lock.
    ///
    /// # Errors
    ///
    /// If another client holds the lock for the whole wait, if there is no quorum, or if a signal asks this process to
    /// end.
    pub(crate) async fn take(&self, signals: &mut Signals) -> Result<LockGuard, Failure> {
        tokio::select! {
            guard = self.acquire() => guard,
            sig = signals.next_that_ends() => {
                Err(Failure::cut_short(sig, "stopped while waiting for the lock; no lock is held"))
            }
        }
    }

    async fn acquire(&self) -> Result<LockGuard, Failure> {
        let began = Instant::now();
        let mut patience = Patience::begin();
        let error = loop {
            match self.request()?.acquire().await {
                Ok(guard) => return Ok(guard),
                Err(error)
                    if self.wait == Wait::None
                        && is_undecided(&error)
                        && patience.lets_ask_again().await => {}
                Err(error) => break error,
            }
        };
        if is_guarded(&error) {
            // The age of a restarted master grows only while a client is connected to it. If all clients are processes
            // that end at once, the master would never vote again.
            tokio::time::sleep(self.watch.saturating_sub(began.elapsed())).await;
        }
        let failure = not_acquired(error);
        if failure.code != exit::HELD || !self.is_read_above() {
            return Err(failure);
        }
        Err(failure.with(
            "; the outer quorate process holds the lock as a reader, and a writer is queued ahead of this inner reader",
        ))
    }

    fn request(&self) -> Result<LockRequest, Failure> {
        let mut lock = self.kind.request(&self.redlock, &self.resource)?;
        lock = lock.ttl(self.ttl).wait(self.patience());
        if let Some(max_hold) = self.max_hold {
            lock = lock.max_hold(max_hold);
        }
        if let Some(note) = &self.note {
            lock = lock.note(&**note);
        }
        if self.wait != Wait::None {
            let display = WaitDisplay::new(self.resource.as_bytes());
            lock = lock.waiting(move |seen| display.see(seen));
        }
        Ok(lock)
    }
}

/// The replies of the masters that refused to renew the lock, in brackets, for messages about a lost lock. Empty if no
/// master refused.
pub(crate) fn said(guard: &LockGuard) -> String {
    let report = guard.report().into_iter();
    let failed: Vec<String> = report
        .filter(|said| said.phase == Phase::Extend)
        // A missing reply (`NodeOutcome::Silent`) is not a refusal.
        .filter(|said| !matches!(said.outcome, NodeOutcome::Yes | NodeOutcome::Silent))
        .map(|said| said.to_string())
        .collect();
    if failed.is_empty() {
        return String::new();
    }
    format!(" [{}]", failed.join("; "))
}
