//! The supervisor of `quorate run`: runs one command in its own process group, and ends it before the lock expires.
//!
//! | event | reaction | performed by |
//! |---|---|---|
//! | the lock cannot be renewed | before the lock expires, the group gets `SIGTERM`, and after the grace period
//! `SIGKILL` | the supervisor, by [`Deadline`] |
//! | a majority of the masters reports that the lock is lost | the group gets `SIGKILL` immediately | the supervisor |
//! | `quorate` is suspended, or gets no CPU time | before the lock expires, the group gets `SIGTERM` and then `SIGKILL`
//! | the guard process |
//! | `quorate` gets `SIGKILL` | the group gets `SIGKILL` immediately | the guard process |
//! | `quorate` and the guard process both get `SIGKILL` | the command gets `SIGKILL` immediately, but its children do
//! not | the kernel (parent-death signal, Linux only) |
//! | `quorate` receives a signal | `quorate` forwards the signal to the group | the supervisor |
//! | the user presses Ctrl-C a second time within 5 s | the group gets `SIGTERM`, and after the grace period or a third
//! Ctrl-C `SIGKILL` | [`Interrupts`] |
//! | the command runs as another user, so `quorate` has no right to signal it | the command continues to run, and
//! `quorate` prints a warning | the supervisor |
//! | an orphan ends, and `quorate` is the first process of its container | `quorate` reaps the orphan | the supervisor
//! |
//!
//! [`supervise`] must run on the main thread, because the kernel sends the parent-death signal when the **thread** that
//! started the child ends.
//!
//! Limits of the supervisor:
//!
//! - A process that has left the group, for example by `setsid`, gets no signal.
//! - When the command ends by itself, its background processes continue to run. A message names them.
//! - It creates no cgroup, because ordinary users usually lack the right to create one.

mod binary;
mod captured;
mod children;
mod group;
mod guard;
pub(crate) mod helper;
mod interrupts;
mod program;
mod signals;
mod terminal;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, PipeWriter, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rustix::process::WaitStatus;

use crate::deadline::{Action, Deadline};
use crate::{exit, output};
pub(crate) use binary::check_ready;
pub(crate) use captured::CapturedOutput;
use group::Group;
pub(crate) use group::Members;
use guard::Guard;
pub(crate) use helper::die_of;
use interrupts::Interrupts;
pub(crate) use program::check_program;
pub(crate) use signals::{Signals, interruptible, repair_inherited};
use terminal::Terminal;

/// Longest time between two checks of the lock's validity. Timers do not count the time for which the machine sleeps.
/// With this limit, a check follows soon after the machine wakes up.
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// After the command has ended, `quorate` waits at most this long for the end of the other processes in the command's
/// group. A message then names those that still run.
const SURVIVOR_GRACE: Duration = Duration::from_millis(100);
/// How long a process may take to end after `SIGKILL`, before it is reported as still running.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// The lock under which the command runs. The trait has only the functions that the supervisor needs.
pub(crate) trait Lease {
    /// How long the lock is still valid; zero once its validity has ended.
    fn remaining(&self) -> Duration;
    /// Resolves when the lock is known to be lost, and returns the reason.
    fn lost(&self) -> impl Future<Output = String>;
    /// Resolves when the validity has been extended after this call.
    fn extended(&self) -> impl Future<Output = ()>;
}

/// The command to run.
#[derive(Debug, Clone)]
pub(crate) struct Job<'a> {
    /// The program and its arguments; never empty.
    pub(crate) argv: &'a [OsString],
    /// Environment variables to set (`Some`) or to remove (`None`).
    pub(crate) env: &'a [(&'a str, Option<OsString>)],
    /// Files that receive the output of the command; `None` if the command inherits stdout and stderr of this process.
    pub(crate) output: Option<&'a CapturedOutput>,
}

/// How a supervised command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// The command ended while the lock was still valid.
    ByItself {
        /// The exit code of the command, as a shell shows it.
        code: u8,
        /// The signal with which `quorate` must end itself; `None` if it must exit with `code`. It is the signal that
        /// ended the command, if one of these conditions holds:
        ///
        /// - `quorate` received the same signal.
        /// - The command was in the foreground of the terminal, and the user typed Ctrl-C (SIGINT) or Ctrl-\ (SIGQUIT).
        ///
        /// If the user typed Ctrl-C twice, and another signal ended the command, it is SIGINT.
        signal: Option<Signal>,
        /// Other processes of the command's group that are still running; `None` if there are none. `quorate` does not
        /// stop them.
        survivors: Option<Members>,
    },
    /// The command was ended because the lock was lost or was about to expire.
    Lost {
        /// Why the lock was lost.
        cause: String,
        /// What happened to the command: it ended on `SIGTERM`, was killed, or is still running.
        fate: Fate,
    },
}

/// The fate of a command whose lock was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The command ended in time after `SIGTERM`.
    EndedOnSigterm,
    /// The command was killed with `SIGKILL`.
    Killed,
    /// These processes of the command's group could not be stopped.
    StillRunning(Members),
}

impl Fate {
    /// The fate of a command after [`Supervisor::stop`]. `survivors` are the processes that still run; `None` if all
    /// ended.
    fn from_survivors(survivors: Option<Members>) -> Self {
        survivors.map_or(Self::Killed, Self::StillRunning)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndedOnSigterm => f.write_str("the command ended on SIGTERM"),
            Self::Killed => f.write_str("the command was stopped"),
            Self::StillRunning(survivors) => write!(
                f,
                "the command could NOT be stopped: {survivors} {} still running",
                survivors.verb("is", "are")
            ),
        }
    }
}

/// A command whose processes have been started, but which does not run yet. Dropping this value ends the processes.
#[must_use]
pub(crate) struct PreparedCommand(Supervisor);

/// Starts the guard and the trampoline of the command `job`. The trampoline waits, and becomes the command in
/// [`PreparedCommand::supervise`].
///
/// Until the end of `supervise`, `signals` reaps no children. Otherwise the supervisor would not receive the exit code of
/// the command.
///
/// # Errors
///
/// If a helper process cannot be started. The command then never starts.
pub(crate) fn prepare(
    job: Job<'_>,
    deadline: Deadline,
    signals: &mut Signals,
) -> io::Result<PreparedCommand> {
    let guard = Guard::start()?;
    let terminal = Terminal::open();
    // Nothing may fail between the start of the trampoline and the `Supervisor`, which kills it when it is dropped.
    let (pid, start_pipe) = start(&job)?;
    let mut supervisor = Supervisor {
        pid,
        group: Group(pid),
        guard,
        deadline,
        terminal,
        start_pipe: Some(start_pipe),
        terminated_at: None,
        is_termination_due: false,
        end: None,
        received_signals: SigSet::empty(),
        interrupts: Interrupts::default(),
        runs_as_other_user: false,
        is_finished: false,
        pending_signals: Vec::new(),
    };
    // The guard kills the waiting trampoline if this process dies before the command starts.
    supervisor.guard.watch_group(pid)?;
    signals.leave_children_to_supervisor(true);
    Ok(PreparedCommand(supervisor))
}

/// Prepares the command `job`, and runs it under the lock `lease` (see [`prepare`] and [`PreparedCommand::supervise`]).
///
/// # Errors
///
/// Those of both.
pub(crate) async fn supervise(
    job: Job<'_>,
    lease: &impl Lease,
    deadline: Deadline,
    signals: &mut Signals,
) -> io::Result<CommandOutcome> {
    prepare(job, deadline, signals)?
        .supervise(lease, signals)
        .await
}

impl PreparedCommand {
    /// Runs the command under the lock `lease`, and ends the command before the lock expires.
    ///
    /// If this future panics or is dropped, the command is killed before the lock is released: the future borrows
    /// `lease`, so it drops its [`Supervisor`] before the caller can drop the guard of the lock.
    ///
    /// # Errors
    ///
    /// If a helper process cannot be watched. A command that is missing or not executable is not an error: the result
    /// is [`CommandOutcome::ByItself`] with exit code 127 or 126, and the trampoline prints the reason.
    pub(crate) async fn supervise(
        self,
        lease: &impl Lease,
        signals: &mut Signals,
    ) -> io::Result<CommandOutcome> {
        let Self(mut supervisor) = self;
        let result = supervisor.supervise_to_end(lease, signals).await;
        supervisor.is_finished = result.is_ok();
        signals.leave_children_to_supervisor(false);
        result.map_err(|error| match supervisor.stop() {
            None => error,
            Some(survivors) => io::Error::new(
                error.kind(),
                format!("{error}; the command could NOT be stopped: {survivors}"),
            ),
        })
    }
}

/// Starts the trampoline in a process group of its own. The trampoline waits for one byte in the returned pipe before it
/// runs the command.
fn start(job: &Job<'_>) -> io::Result<(Pid, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    // The trampoline inherits this end of the pipe. This process closes its copy at the end of this function.
    fcntl(&reader, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut command = binary::own_command();
    command
        .arg0("quorate")
        .arg(helper::TRAMPOLINE)
        .arg(std::process::id().to_string())
        .arg(reader.as_raw_fd().to_string())
        .args(job.argv)
        .process_group(0);
    if let Some(captured) = job.output {
        captured.redirect(&mut command)?;
    }
    for (name, value) in job.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Keep only the pid. Wait with [`children::next_change`], because `Child` does not report that a child was
    // suspended.
    let child = command.spawn()?;
    Ok((Pid::from_raw(child.id().cast_signed()), writer))
}

/// How the command's own process ended, regardless of other processes in its group.
#[derive(Debug, Clone, Copy)]
struct CommandEnd {
    code: u8,
    /// The signal by which `quorate` must end itself; `None` if it must exit with `code` (see
    /// [`CommandOutcome::ByItself`]).
    signal: Option<Signal>,
    ended_at: Instant,
}

/// One running command. Dropping this value before the command has ended kills the process group.
struct Supervisor {
    pid: Pid,
    group: Group,
    guard: Guard,
    deadline: Deadline,
    terminal: Terminal,
    /// The pipe that makes the trampoline become the command; `None` once the command was started.
    start_pipe: Option<PipeWriter>,
    /// When the supervisor or the guard sent `SIGTERM` because the lock was about to expire; `None` if neither did.
    terminated_at: Option<Instant>,
    /// Whether the last check found that it is time for `SIGTERM`. Only the next check sends it.
    is_termination_due: bool,
    /// How the command's own process ended; `None` while it runs.
    end: Option<CommandEnd>,
    /// The signals that `quorate` has received so far.
    received_signals: SigSet,
    interrupts: Interrupts,
    /// Whether the user was warned that this process lacks the right to signal the command.
    runs_as_other_user: bool,
    /// Whether the command has ended or was killed. If false, dropping this value kills the group.
    is_finished: bool,
    /// Signals to forward to the command, after the next check of the lock.
    pending_signals: Vec<Signal>,
}

impl Supervisor {
    async fn supervise_to_end(
        &mut self,
        lease: &impl Lease,
        signals: &mut Signals,
    ) -> io::Result<CommandOutcome> {
        let mut lost = std::pin::pin!(lease.lost());
        loop {
            // Create this future before the check of the lock, so that a renewal after the check ends the pause. The
            // guard then gets the new deadlines at once: otherwise, if this process were suspended soon after the
            // renewal, the guard would end the command by the old deadlines.
            let extended = lease.extended();
            self.reap()?;
            if let Some(outcome) = self.outcome_if_ended(lease) {
                return Ok(outcome);
            }
            let Some(pause) = self.check_validity(lease)? else {
                let fate = Fate::from_survivors(self.stop());
                let cause = Self::cause_of_loss(lost.as_mut()).await;
                return Ok(CommandOutcome::Lost { cause, fate });
            };
            self.start_command();
            for sig in std::mem::take(&mut self.pending_signals) {
                self.forward(sig);
            }
            if self.end.is_none()
                && self
                    .interrupts
                    .must_kill(self.deadline.grace(), Instant::now())
            {
                let _ = self.group.signal(Signal::SIGKILL);
            }
            tokio::select! {
                cause = &mut lost => {
                    let fate = Fate::from_survivors(self.stop());
                    return Ok(CommandOutcome::Lost { cause, fate });
                }
                sig = signals.next() => {
                    if sig != Signal::SIGCHLD {
                        self.received_signals.add(sig);
                        self.pending_signals.push(sig);
                    }
                }
                () = extended => {}
                () = tokio::time::sleep(pause.min(self.tick())) => {}
            }
        }
    }

    /// The longest time until the next check of the command. Usually, it is [`MAX_PAUSE`]. It is 10 ms in these cases:
    ///
    /// - The command has not been started yet.
    /// - The command has ended, but other processes of its group may still run. No signal reports the end of those
    ///   processes.
    fn tick(&self) -> Duration {
        if self.end.is_some() || self.start_pipe.is_some() {
            Duration::from_millis(10)
        } else {
            MAX_PAUSE
        }
    }

    /// Lets the trampoline become the command, unless the lock is about to expire.
    fn start_command(&mut self) {
        if self.is_termination_due || self.terminated_at.is_some() {
            return;
        }
        if let Some(mut pipe) = self.start_pipe.take() {
            // An error means that the trampoline has ended, which `reap` notices.
            let _ = pipe.write_all(b"!");
        }
    }

    /// Checks the remaining validity of the lock. If it ends soon, sends SIGTERM. Updates the guard's deadlines.
    ///
    /// Returns the time until the next check, or `None` if the command must be killed now.
    fn check_validity(&mut self, lease: &impl Lease) -> io::Result<Option<Duration>> {
        let now = helper::boot_time(); // read this first, so that the guard's deadlines are early rather than late
        let remaining = lease.remaining();
        self.note_guard_action();
        self.warn_about_other_user();
        let since_sigterm = self.terminated_at.map(|at| at.elapsed());
        let action = self.deadline.decide(remaining, since_sigterm);
        let (mut terminate_before, kill_before) = self.deadline.guard_process_times();
        match action {
            Action::Kill => return Ok(None),
            Action::Terminate(pause) if since_sigterm.is_none() && !self.is_termination_due => {
                // If this process got no CPU time until now, the replies to a renewal may have arrived, but were not
                // read yet. Read them, and decide again.
                self.is_termination_due = true;
                return Ok(Some(pause.min(helper::CONFIRM_AFTER)));
            }
            Action::Terminate(_) if since_sigterm.is_none() => {
                self.terminated_at = Some(Instant::now());
                let _ = self.group.signal(Signal::SIGTERM);
                // Continue the command if it is stopped, because a stopped command cannot handle SIGTERM.
                let _ = self.group.signal(Signal::SIGCONT);
            }
            _ => {}
        }
        self.is_termination_due &= self.terminated_at.is_some();
        if self.terminated_at.is_some() {
            terminate_before = kill_before; // SIGTERM was sent already, so the guard only has to kill
        }
        self.guard.set_deadlines(
            now,
            remaining.saturating_sub(terminate_before),
            remaining.saturating_sub(kill_before),
        )?;
        let (Action::KeepRunning(pause) | Action::Terminate(pause)) = action else {
            return Ok(None);
        };
        Ok(Some(pause))
    }

    /// Prints a warning if this process lacks the right to signal the command.
    fn warn_about_other_user(&mut self) {
        if self.end.is_none()
            && !self.runs_as_other_user
            && kill(self.pid, None) == Err(Errno::EPERM)
        {
            self.runs_as_other_user = true;
            output::print_message_if_writable(
                "the command now runs as another user (sudo, su, set-uid): quorate cannot stop it, not even when \
                 the lock expires; start quorate as that user instead: sudo quorate run ..",
            );
        }
    }

    /// Returns the reason why the lock is lost, as `lost` reports it. If `lost` takes more than 50 ms, returns a
    /// general reason.
    async fn cause_of_loss(lost: std::pin::Pin<&mut impl Future<Output = String>>) -> String {
        tokio::time::timeout(Duration::from_millis(50), lost)
            .await
            .unwrap_or_else(|_| {
                "no majority of the masters renewed the lock before it expired".to_owned()
            })
    }

    /// How the command ended. `None` if the command still runs, or if the supervisor must wait for other processes of
    /// the command's group.
    fn outcome_if_ended(&mut self, lease: &impl Lease) -> Option<CommandOutcome> {
        let CommandEnd {
            code,
            signal,
            ended_at,
        } = self.end?;
        self.note_guard_action();
        if self.terminated_at.is_some() {
            // The group got SIGTERM because the lock was about to end. Wait until the whole group has ended.
            return self
                .group
                .living_members()
                .is_none()
                .then(|| CommandOutcome::Lost {
                    cause: "the lock could not be renewed in time".to_owned(),
                    // Exit code 137 means that SIGKILL ended the command.
                    fate: if code == exit::code_of_signal(Signal::SIGKILL as i32) {
                        Fate::Killed
                    } else {
                        Fate::EndedOnSigterm
                    },
                });
        }
        if lease.remaining().is_zero() {
            return Some(CommandOutcome::Lost {
                cause: "the lock expired while quorate was suspended".to_owned(),
                fate: Fate::from_survivors(self.stop()),
            });
        }
        let survivors = self.group.living_members();
        // Wait for [`SURVIVOR_GRACE`] before reporting other processes of the group, because they often end shortly
        // after the command.
        (survivors.is_none() || ended_at.elapsed() >= SURVIVOR_GRACE).then_some(
            CommandOutcome::ByItself {
                code,
                signal,
                survivors,
            },
        )
    }

    /// If the guard process has signalled the group, records that the group has got a signal because of the lock.
    fn note_guard_action(&mut self) {
        if self.terminated_at.is_none() && self.guard.has_acted() {
            self.terminated_at = Some(Instant::now());
        }
    }

    /// Handles every child process that has ended or stopped since the last call.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, status) = match children::next_change() {
                Ok(Some(change)) => change,
                Ok(None) => return Ok(()),
                // No child is left: the command was reaped earlier.
                Err(_) if self.end.is_some() => return Ok(()),
                Err(error) => return Err(error),
            };
            if pid == self.pid {
                self.record_status(status);
            } else if !status.stopped() {
                self.guard.note_reaped(pid);
            }
        }
    }

    fn record_status(&mut self, status: WaitStatus) {
        if let Some(sig) = status.stopping_signal() {
            self.handle_stop(sig);
            return;
        }
        let had_the_keyboard = self.terminal.take_back();
        let ended_by = status.terminating_signal();
        let code = match ended_by {
            Some(n) => exit::code_of_signal(n),
            None => status.exit_status().unwrap_or_default() as u8,
        };
        let sig = ended_by.and_then(|n| Signal::try_from(n).ok());
        let is_typed =
            |sig: &Signal| had_the_keyboard && matches!(sig, Signal::SIGINT | Signal::SIGQUIT);
        if let Some(sig) = sig.filter(is_typed) {
            // The terminal sent this signal only to the command's group. Send it to the group of `quorate` as well,
            // which may contain the script that started `quorate`.
            let _ = kill(Pid::from_raw(0), sig);
        }
        let interrupted = self.interrupts.has_terminated().then_some(Signal::SIGINT);
        self.end = Some(CommandEnd {
            code,
            signal: sig
                .filter(|sig| self.received_signals.contains(*sig) || is_typed(sig))
                .or(sig.and(interrupted)),
            ended_at: Instant::now(),
        });
    }

    fn handle_stop(&mut self, sig: i32) {
        let Ok(sig) = Signal::try_from(sig) else {
            return;
        };
        match sig {
            Signal::SIGTTIN | Signal::SIGTTOU if self.terminal.lend(self.pid) => {
                let _ = self.group.signal(Signal::SIGCONT);
            }
            Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU if self.terminal.is_lent() => {
                self.terminal.take_back();
                self.stop_with_command();
            }
            // The command used the terminal from the background. Suspend `quorate` too, until the user types `fg`.
            Signal::SIGTTIN | Signal::SIGTTOU if terminal::has_job_control() => {
                self.stop_with_command();
            }
            // Another process suspended the command and may continue it. Keep the lock.
            _ => {}
        }
    }

    /// Suspends the process group of `quorate`, so that the shell gets the terminal back.
    ///
    /// A suspended `quorate` does not renew the lock. Shortly before the lock expires, the guard process ends the
    /// command, even if `quorate` is still suspended.
    fn stop_with_command(&mut self) {
        if terminal::has_job_control() {
            let _ = kill(Pid::from_raw(0), Signal::SIGSTOP);
        }
        self.pending_signals.push(Signal::SIGCONT);
    }

    fn forward(&mut self, sig: Signal) {
        if self.start_pipe.is_some() {
            self.pending_signals.push(sig);
            return;
        }
        let sig = match sig {
            Signal::SIGINT => self.interrupts.signal_to_forward(Instant::now()),
            sig => sig,
        };
        if sig == Signal::SIGTERM && self.interrupts.has_terminated() {
            output::print_message_if_writable("second Ctrl-C: stopping the command");
            // Continue the command if it is stopped, because a stopped command cannot handle SIGTERM.
            let _ = self.group.signal(Signal::SIGCONT);
        }
        if self.group.signal(sig).is_err() {
            output::print_message_if_writable(format!(
                "cannot forward {sig}: the command runs as another user; the lock is still held"
            ));
        }
        if sig == Signal::SIGTSTP {
            self.stop_with_command();
        }
    }

    /// Kills the group and waits up to [`KILL_TIMEOUT`] until all its processes have ended. Returns the processes that
    /// are still running; `None` if all ended. Blocks the thread.
    fn stop(&mut self) -> Option<Members> {
        self.is_finished = true;
        // Ignore errors here: the loop below finds the processes that are still running.
        let _ = self.group.signal(Signal::SIGKILL);
        let give_up_at = Instant::now() + KILL_TIMEOUT;
        loop {
            let has_ended = self.reap().is_err() || self.end.is_some();
            let living_members = self.group.living_members();
            if has_ended && living_members.is_none() {
                return None;
            }
            if Instant::now() >= give_up_at {
                return living_members;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if !self.is_finished
            && let Some(survivors) = self.stop()
        {
            output::print_message(format!("the command could NOT be stopped: {survivors}"));
        }
    }
}
