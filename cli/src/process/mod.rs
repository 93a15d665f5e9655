//! The supervisor of `quorate run`: one command, one process group, ended before its lock ends.
//!
//! What it promises, and who keeps the promise:
//!
//! | event | what happens | kept by |
//! |---|---|---|
//! | the lock cannot be renewed | `SIGTERM` a grace period before, `SIGKILL` before the validity ends | the supervisor, by [`Deadline`] |
//! | a majority says the lock is not ours | `SIGKILL` at once: another holder may already be at work | the supervisor |
//! | `quorate` is stopped or starved | the same signals, a little later, still inside the validity | the guard process |
//! | `quorate` is killed with `SIGKILL` | the whole group is killed at once | the guard, and the parent-death signal for the command itself |
//! | `quorate` and the guard are both killed | the command is killed at once, what it started is not | the parent-death signal (Linux) |
//! | a signal comes in | the group gets it | the supervisor |
//!
//! The command is started through a trampoline, a second start of our own binary that sets the
//! parent-death signal, stops itself until the guard knows its group, and then `exec`s. The
//! parent-death signal belongs to the **thread** that started the child: [`supervise`] must run on the
//! main thread, which lives as long as the process.
//!
//! What it deliberately does not do: it does not follow processes that leave the group (`setsid`,
//! the jobs of an interactive shell), and it leaves alone what a command leaves running in the
//! background when it ends by itself.

mod guard;
pub(crate) mod helper;
mod signals;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::deadline::{Action, Deadline};
use crate::exit;
use guard::Guard;
pub(crate) use signals::Signals;
use terminal::Terminal;

/// The longest sleep between two looks at the lock. Timers stand still while the machine sleeps, the
/// validity does not.
const TICK: Duration = Duration::from_millis(250);

/// What the supervisor needs to know about the lock.
pub(crate) trait Lease {
    /// The validity left; zero once it is over.
    fn remaining(&self) -> Duration;
    /// Resolves with the reason once the lock is known to be lost.
    fn lost(&self) -> impl Future<Output = String>;
}

/// The command to run.
#[derive(Debug, Clone)]
pub(crate) struct Job<'a> {
    /// Program and arguments; never empty.
    pub(crate) argv: &'a [OsString],
    /// Variables to set (`Some`) or to remove (`None`).
    pub(crate) env: &'a [(&'a str, Option<OsString>)],
}

/// How a supervised command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, or by a signal that was not ours: its exit code.
    ByItself(u8),
    /// Because the lock was about to end, or had ended.
    Lost(String),
}

/// Runs `job` for as long as `lease` lasts.
///
/// # Errors
///
/// When a process cannot be started at all. A command that is missing or not executable is an
/// [`Ended::ByItself`] with 127 or 126: the trampoline has already said so on stderr.
pub(crate) async fn supervise(
    job: Job<'_>,
    lease: &impl Lease,
    plan: Deadline,
    signals: &mut Signals,
) -> io::Result<Ended> {
    let guard = Guard::start()?;
    let pid = start(&job)?;
    let mut watch = Watch {
        pid,
        guard,
        plan,
        terminal: Terminal::find(),
        running: false,
        terminated: None,
        code: None,
        pending: Vec::new(),
    };
    let outcome = watch.until_the_end(lease, signals).await;
    if outcome.is_err() {
        watch.signal(Signal::SIGKILL);
    }
    outcome
}

/// Where our own binary is, also after it was replaced on disk.
fn own_binary() -> PathBuf {
    let this = PathBuf::from("/proc/self/exe");
    if this.exists() {
        this
    } else {
        std::env::current_exe().unwrap_or_else(|_| PathBuf::from("quorate"))
    }
}

/// Starts the trampoline in a group of its own. It waits, stopped, until it is continued.
fn start(job: &Job<'_>) -> io::Result<Pid> {
    let mut command = Command::new(own_binary());
    command
        .arg0("quorate")
        .arg(helper::TRAMPOLINE)
        .arg(std::process::id().to_string())
        .args(job.argv)
        .process_group(0);
    for (name, value) in job.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // The child is waited for by its pid: stops are of interest as well, and `Child` hides them.
    let child = command.spawn()?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

/// One running command.
struct Watch {
    pid: Pid,
    guard: Guard,
    plan: Deadline,
    terminal: Terminal,
    /// False until the trampoline has stopped and was continued.
    running: bool,
    /// When `SIGTERM` was sent because of the lock.
    terminated: Option<Instant>,
    /// The exit code, once the command itself has ended.
    code: Option<u8>,
    /// Signals to pass on, after the lock was looked at.
    pending: Vec<Signal>,
}

impl Watch {
    async fn until_the_end(
        &mut self,
        lease: &impl Lease,
        signals: &mut Signals,
    ) -> io::Result<Ended> {
        let mut lost = std::pin::pin!(lease.lost());
        loop {
            self.reap()?;
            if let Some(ended) = self.ended(lease) {
                return Ok(ended);
            }
            let Some(nap) = self.look(lease)? else {
                return Ok(Ended::Lost(self.finish(lost.as_mut()).await));
            };
            for sig in std::mem::take(&mut self.pending) {
                self.pass_on(sig);
            }
            tokio::select! {
                cause = &mut lost => {
                    self.signal(Signal::SIGKILL);
                    self.bury();
                    return Ok(Ended::Lost(cause));
                }
                sig = signals.next() => {
                    if sig != Signal::SIGCHLD {
                        self.pending.push(sig);
                    }
                }
                () = tokio::time::sleep(nap.min(self.tick())) => {}
            }
        }
    }

    /// Shorter naps while there is something to wait for that sends no signal of its own.
    fn tick(&self) -> Duration {
        if self.code.is_some() || !self.running {
            Duration::from_millis(10)
        } else {
            TICK
        }
    }

    /// Acts on the validity that is left; `None` when the command was ended by force.
    fn look(&mut self, lease: &impl Lease) -> io::Result<Option<Duration>> {
        let now = helper::now(); // before the validity is read: late is the safe side
        let remaining = lease.remaining();
        self.hear_the_guard();
        let since = self.terminated.map(|at| at.elapsed());
        let action = self.plan.decide(remaining, since);
        let (mut terminate, end) = self.plan.backstop();
        match action {
            Action::Kill => {
                self.signal(Signal::SIGKILL);
                self.bury();
                return Ok(None);
            }
            Action::Terminate(_) if since.is_none() => {
                self.terminated = Some(Instant::now());
                self.signal(Signal::SIGTERM);
                // A command that stands still cannot obey.
                self.signal(Signal::SIGCONT);
            }
            _ => {}
        }
        if self.terminated.is_some() {
            terminate = end; // asked once is enough
        }
        self.guard.until(
            now,
            remaining.saturating_sub(terminate),
            remaining.saturating_sub(end),
        )?;
        let (Action::KeepRunning(nap) | Action::Terminate(nap)) = action else {
            return Ok(None);
        };
        Ok(Some(nap))
    }

    /// The cause of a loss that the deadline found: the library's word for it, if it has one by now.
    async fn finish(&self, lost: std::pin::Pin<&mut impl Future<Output = String>>) -> String {
        tokio::time::timeout(Duration::from_millis(50), lost)
            .await
            .unwrap_or_else(|_| "no majority renewed it before its validity ended".to_owned())
    }

    /// Whether all is over, and how.
    fn ended(&mut self, lease: &impl Lease) -> Option<Ended> {
        let code = self.code?;
        self.hear_the_guard();
        if self.terminated.is_none() {
            if lease.remaining().is_zero() {
                self.signal(Signal::SIGKILL);
                return Some(Ended::Lost(
                    "it was not renewed while quorate stood still".to_owned(),
                ));
            }
            return Some(Ended::ByItself(code));
        }
        // The lock is ending: wait for the rest of the group, which got the SIGTERM as well.
        (killpg(self.pid, None) == Err(Errno::ESRCH)).then(|| {
            Ended::Lost("it could not be renewed in time; the command ended when asked".to_owned())
        })
    }

    /// Takes note of what the guard did for us while we were stopped or starved.
    fn hear_the_guard(&mut self) {
        if self.terminated.is_none() && self.guard.acted() {
            self.terminated = Some(Instant::now());
        }
    }

    /// Takes note of what the command did: ended, or stopped.
    fn reap(&mut self) -> io::Result<()> {
        while self.code.is_none() {
            let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
            match waitpid(self.pid, Some(flags)) {
                Ok(WaitStatus::Exited(_, code)) => self.over(code as u8),
                Ok(WaitStatus::Signaled(_, sig, _)) => {
                    self.killed_by(sig);
                }
                Ok(WaitStatus::Stopped(_, sig)) => self.stopped(sig)?,
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn over(&mut self, code: u8) {
        self.terminal.take_back();
        self.code = Some(code);
    }

    fn killed_by(&mut self, sig: Signal) {
        let had_the_keyboard = self.terminal.take_back();
        self.code = Some(exit::signalled(sig as i32));
        if had_the_keyboard && matches!(sig, Signal::SIGINT | Signal::SIGQUIT) {
            // The key was meant for the whole job: the script around us hears of it as well.
            let _ = kill(Pid::from_raw(0), sig);
        }
    }

    fn stopped(&mut self, sig: Signal) -> io::Result<()> {
        if !self.running {
            // The trampoline is ready. From here on the guard answers for the group.
            self.guard.watch(self.pid)?;
            self.running = true;
            self.signal(Signal::SIGCONT);
            return Ok(());
        }
        match sig {
            Signal::SIGTTIN | Signal::SIGTTOU if self.terminal.lend(self.pid) => {
                self.signal(Signal::SIGCONT);
            }
            Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU if self.terminal.is_lent() => {
                self.terminal.take_back();
                self.stop_with_it();
            }
            // In the background and in need of the keyboard: stop, as any job would, until `fg`.
            Signal::SIGTTIN | Signal::SIGTTOU if terminal::has_job_control() => self.stop_with_it(),
            // Stopped by somebody else's hand: their business. The lock is kept.
            _ => {}
        }
        Ok(())
    }

    /// Stops our own job, so that the shell comes back. The lock is not renewed meanwhile: the guard
    /// ends the command in time if nobody continues us before.
    fn stop_with_it(&mut self) {
        if terminal::has_job_control() {
            let _ = kill(Pid::from_raw(0), Signal::SIGSTOP);
        }
        self.pending.push(Signal::SIGCONT);
    }

    fn pass_on(&mut self, sig: Signal) {
        if !self.running {
            self.pending.push(sig);
            return;
        }
        self.signal(sig);
        if sig == Signal::SIGTSTP {
            self.stop_with_it();
        }
    }

    fn signal(&self, sig: Signal) {
        // A group that is gone needs no signal.
        let _ = killpg(self.pid, sig);
    }

    /// Waits for the command after `SIGKILL`, so that it is gone when we say that it is gone.
    fn bury(&mut self) {
        let patience = Instant::now() + Duration::from_secs(1);
        while self.code.is_none() && Instant::now() < patience {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => self.over(code as u8),
                Ok(WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                    self.over(exit::signalled(Signal::SIGKILL as i32));
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}
