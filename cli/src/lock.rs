//! The options for taking a lock and for waiting for it, shared by `run`, `once` and `hold`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::Args;
use quorate::{AcquireError, Fault, LockGuard, LockRequest, NodeOutcome, Phase, Redlock, Wait};

use crate::config::{self, MasterOptions};
use crate::deadline::Deadline;
use crate::errors::acquire_failure;
use crate::exit::{self, Failure};
use crate::file::FileOptions;
use crate::kind::{Kind, KindArgs, LockSpace};
use crate::patience::{Patience, is_undecided, lengthen_timeouts};
use crate::process::{self, Signals};
use crate::settings::LockSettings;
use crate::waiting::WaitDisplay;

/// The assumed maximum duration of an acquire. [`Lock::reached_max_hold`] adds it to the time since the end of the
/// acquire, because `max_hold` counts from the start of the acquire.
const ACQUIRE_ALLOWANCE: Duration = Duration::from_millis(300);

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
    lock_settings: LockSettings,

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
    pub(crate) space: LockSpace,
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// How long this process, before it exits, waits for answers to its release requests.
    pub(crate) release_timeout: Duration,
    wait: Wait,
    note: Option<String>,
    /// How long this process stays connected at least, if a master does not vote because it may have restarted.
    min_connection_time: Duration,
}

/// How long a process must be connected to a restarted master to add to its age, which clients raise after each 32nd part
/// of `max_ttl`, but at least once per second.
fn min_connection_time(max_ttl: Duration) -> Duration {
    (max_ttl / 32).min(Duration::from_secs(1)) + Duration::from_millis(150)
}

/// Whether a master did not vote because it may have restarted.
fn has_quarantined_master(error: &AcquireError) -> bool {
    let AcquireError::NoQuorum(no_quorum_failure) = error else {
        return false;
    };
    let mut outcomes = no_quorum_failure
        .reports
        .iter()
        .map(|report| &report.outcome);
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
        let settings = self.lock_settings.settings.or(file.settings.clone());
        process::check_ready().map_err(Failure::internal)?;
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
            lengthen_timeouts(masters.settings_mut(), ttl);
        }
        let redlock = config::redlock(&masters, Some(ttl))?;
        let lock_space = LockSpace::new(&redlock, &masters);
        let lock = Lock {
            redlock,
            kind: kind.kind(&lock_space, &self.resource)?,
            resource: self.resource,
            space: lock_space,
            ttl,
            max_hold: settings.max_hold,
            release_timeout: masters.release_timeout(),
            wait,
            note: settings.note,
            min_connection_time: min_connection_time(masters.settings().max_ttl()),
        };
        lock.kind
            .check_ancestors(&lock.space, &lock.resource, lock.wait)?;
        Ok((lock, file))
    }
}

impl Lock {
    /// The smaller of the ttl and `max_hold`. The grace period must fit into it.
    pub(crate) fn max_validity(&self) -> Duration {
        self.max_hold
            .map_or(self.ttl, |max_hold| max_hold.min(self.ttl))
    }

    /// Returns `max_hold` if the lock ended because this time had passed, otherwise `None`.
    ///
    /// `held_for` is the time since the end of the acquire. `deadline` states how long before `max_hold` the command is
    /// ended.
    pub(crate) fn reached_max_hold(
        &self,
        held_for: Duration,
        deadline: Deadline,
    ) -> Option<Duration> {
        let (notice, _) = deadline.guard_process_times();
        let elapsed = held_for + notice + ACQUIRE_ALLOWANCE.min(self.ttl / 4);
        self.max_hold.filter(|max_hold| elapsed >= *max_hold)
    }

    /// Whether this is a read lock, and an ancestor of this process already holds the same read lock.
    fn is_read_by_ancestor(&self) -> bool {
        self.kind.is_read_by_ancestor(&self.space, &self.resource)
    }

    /// The longest wait for this lock. If an ancestor process holds the same read lock, the wait is limited to one ttl.
    /// A queued writer may wait for the ancestor, which waits for this process: then the wait would never end.
    fn effective_wait(&self) -> Wait {
        match self.wait {
            Wait::For(time) if self.is_read_by_ancestor() => Wait::For(time.min(self.ttl)),
            Wait::Forever if self.is_read_by_ancestor() => Wait::For(self.ttl),
            wait => wait,
        }
    }

    /// Acquires the lock.
    ///
    /// # Errors
    ///
    /// If another client holds the lock for the whole wait, if there is no quorum, or if a signal asks this process to
    /// end.
    pub(crate) async fn acquire_unless_signalled(
        &self,
        signals: &mut Signals,
    ) -> Result<LockGuard, Failure> {
        tokio::select! {
            guard = self.acquire() => guard,
            sig = signals.next_ending_signal() => {
                Err(Failure::interrupted(sig, "stopped while waiting for the lock; no lock is held"))
            }
        }
    }

    async fn acquire(&self) -> Result<LockGuard, Failure> {
        let started_at = Instant::now();
        let mut retries = Patience::begin();
        let error = loop {
            match self.request()?.acquire().await {
                Ok(guard) => return Ok(guard),
                Err(error)
                    if self.wait == Wait::None
                        && is_undecided(&error)
                        && retries.pause_to_retry().await => {}
                Err(error) => break error,
            }
        };
        if has_quarantined_master(&error) {
            // The age of a restarted master grows only while a client is connected to it. If all clients are processes
            // that end at once, the master would never vote again.
            tokio::time::sleep(
                self.min_connection_time
                    .saturating_sub(started_at.elapsed()),
            )
            .await;
        }
        let failure = acquire_failure(error);
        if failure.code != exit::HELD || !self.is_read_by_ancestor() {
            return Err(failure);
        }
        Err(failure.with_suffix(
            "; the outer quorate process holds the lock as a reader, and a writer is queued ahead of this inner reader",
        ))
    }

    fn request(&self) -> Result<LockRequest, Failure> {
        let mut request = self.kind.request(&self.redlock, &self.resource)?;
        request = request.ttl(self.ttl).wait(self.effective_wait());
        if let Some(max_hold) = self.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(note) = &self.note {
            request = request.note(&**note);
        }
        if self.wait != Wait::None {
            let display = WaitDisplay::new(self.resource.as_bytes());
            request = request.waiting(move |waiting| display.update(waiting));
        }
        Ok(request)
    }
}

/// The replies of the masters that refused to renew the lock, in brackets, for messages about a lost lock. Empty if no
/// master refused.
pub(crate) fn renewal_errors(guard: &LockGuard) -> String {
    let replies = guard.report().into_iter();
    let failed: Vec<String> = replies
        .filter(|reply| reply.phase == Phase::Extend)
        // A missing reply (`NodeOutcome::Silent`) is not a refusal.
        .filter(|reply| !matches!(reply.outcome, NodeOutcome::Yes | NodeOutcome::Silent))
        .map(|reply| reply.to_string())
        .collect();
    if failed.is_empty() {
        return String::new();
    }
    format!(" [{}]", failed.join("; "))
}
