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
//! | a set-uid program may not be signalled | it goes on, and that is said, with its pid: never that it was stopped | the supervisor |
//! | orphans of a container end, and we are its first process | they are waited for | the supervisor |
//!
//! The command is started through a trampoline, a second start of our own binary that sets the
//! parent-death signal, stops itself until the guard knows its group, and then `exec`s. The
//! parent-death signal belongs to the **thread** that started the child: [`supervise`] must run on the
//! main thread, which lives as long as the process.
//!
//! What it deliberately does not do: it does not follow processes that leave the group (`setsid`,
//! the jobs of an interactive shell), and it leaves alone, but names, what a command leaves running in
//! the background when it ends by itself. It does not adopt orphans (as a subreaper could): who is alive
//! in the group is read from `/proc`, where also those stand that are nobody's children of ours. It makes no
//! cgroup: an ordinary user has none to make it in, save where systemd hands one down.

mod binary;
mod children;
mod group;
mod guard;
pub(crate) mod helper;
mod program;
mod signals;
mod terminal;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rustix::process::WaitStatus;

use crate::deadline::{Action, Deadline};
use crate::{exit, output};
pub(crate) use binary::ready;
use group::Group;
pub(crate) use group::Members;
use guard::Guard;
pub(crate) use helper::die_of;
pub(crate) use program::look_for;
pub(crate) use signals::{Signals, put_right, unless_asked_to_end};
use terminal::Terminal;

/// The longest sleep between two looks at the lock. Timers stand still while the machine sleeps, the
/// validity does not.
const TICK: Duration = Duration::from_millis(250);
/// How long those who end together with the command may take.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How long a process may take to end after `SIGKILL`.
const BURIAL: Duration = Duration::from_secs(1);

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
    /// By itself, or by a signal that did not come from the lock.
    ByItself {
        /// Its exit code, as a shell shows it.
        code: u8,
        /// The signal that ended it, if that came in through us: then it is ours as well.
        signal: Option<Signal>,
        /// Who of its group is still at work, and left alone.
        left: Option<Members>,
    },
    /// Because the lock was about to end, or had ended.
    Lost {
        /// Why there is no lock any more.
        cause: String,
        /// What became of the command.
        fate: Fate,
    },
}

/// What became of a command whose lock was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It ended in time after `SIGTERM`.
    EndedOnSigterm,
    /// It was killed.
    Killed,
    /// These processes of its group could not be stopped.
    StillRunning(Members),
}

impl Fate {
    /// The fate of a command after [`Watch::stop`].
    fn of(survivors: Option<Members>) -> Self {
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
        group: Group(pid),
        guard,
        plan,
        terminal: Terminal::find(),
        running: false,
        terminated: None,
        end: None,
        heard: SigSet::empty(),
        denied: false,
        over: false,
        pending: Vec::new(),
    };
    let outcome = watch.until_the_end(lease, signals).await;
    watch.over = outcome.is_ok();
    outcome.map_err(|error| match watch.stop() {
        None => error,
        Some(survivors) => io::Error::new(
            error.kind(),
            format!("{error}; the command could NOT be stopped: {survivors}"),
        ),
    })
}

/// Starts the trampoline in a group of its own. It waits, stopped, until it is continued.
fn start(job: &Job<'_>) -> io::Result<Pid> {
    let mut command = binary::own();
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

/// How the command itself ended.
#[derive(Debug, Clone, Copy)]
struct CommandEnd {
    code: u8,
    /// It died of a signal that had come in through us, or from the keyboard that it had of us.
    signal: Option<Signal>,
    at: Instant,
}

/// One running command. Dropped before its end was seen, as by a panic, it stops the group.
struct Watch {
    pid: Pid,
    group: Group,
    guard: Guard,
    plan: Deadline,
    terminal: Terminal,
    /// False until the trampoline has stopped and was continued.
    running: bool,
    /// When `SIGTERM` was sent because of the lock.
    terminated: Option<Instant>,
    /// How the command itself ended, once it has.
    end: Option<CommandEnd>,
    /// The signals that came in so far.
    heard: SigSet,
    /// It has been said that the command is not ours to signal.
    denied: bool,
    /// Nobody is to be stopped any more.
    over: bool,
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
                let fate = Fate::of(self.stop());
                let cause = Self::finish(lost.as_mut()).await;
                return Ok(Ended::Lost { cause, fate });
            };
            for sig in std::mem::take(&mut self.pending) {
                self.pass_on(sig);
            }
            tokio::select! {
                cause = &mut lost => {
                    let fate = Fate::of(self.stop());
                    return Ok(Ended::Lost { cause, fate });
                }
                sig = signals.next() => {
                    if sig != Signal::SIGCHLD {
                        self.heard.add(sig);
                        self.pending.push(sig);
                    }
                }
                () = tokio::time::sleep(nap.min(self.tick())) => {}
            }
        }
    }

    /// Shorter naps while there is something to wait for that sends no signal of its own.
    fn tick(&self) -> Duration {
        if self.end.is_some() || !self.running {
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
        self.look_at_its_user();
        let since = self.terminated.map(|at| at.elapsed());
        let action = self.plan.decide(remaining, since);
        let (mut terminate, end) = self.plan.backstop();
        match action {
            Action::Kill => return Ok(None),
            Action::Terminate(_) if since.is_none() => {
                self.terminated = Some(Instant::now());
                let _ = self.group.signal(Signal::SIGTERM);
                // A command that stands still cannot obey.
                let _ = self.group.signal(Signal::SIGCONT);
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

    /// Says in time that the command is none that we could stop.
    fn look_at_its_user(&mut self) {
        if self.end.is_none() && !self.denied && kill(self.pid, None) == Err(Errno::EPERM) {
            self.denied = true;
            output::say_in_passing(
                "the command now runs as another user (sudo, su, set-uid): quorate cannot stop it, not even when \
                 the lock expires; start quorate as that user instead: sudo quorate run ..",
            );
        }
    }

    /// The cause of a loss that the deadline found: the library's word for it, if it has one by now.
    async fn finish(lost: std::pin::Pin<&mut impl Future<Output = String>>) -> String {
        tokio::time::timeout(Duration::from_millis(50), lost)
            .await
            .unwrap_or_else(|_| {
                "no majority of the masters renewed it before it expired".to_owned()
            })
    }

    /// Whether all is over, and how.
    fn ended(&mut self, lease: &impl Lease) -> Option<Ended> {
        let CommandEnd { code, signal, at } = self.end?;
        self.hear_the_guard();
        if self.terminated.is_some() {
            // The lock is ending: wait for the rest of the group, which got the SIGTERM as well.
            return self.group.alive().is_none().then(|| Ended::Lost {
                cause: "it could not be renewed in time".to_owned(),
                // The guard may have had to kill it.
                fate: if code == exit::signalled(Signal::SIGKILL as i32) {
                    Fate::Killed
                } else {
                    Fate::EndedOnSigterm
                },
            });
        }
        if lease.remaining().is_zero() {
            return Some(Ended::Lost {
                cause: "it expired while quorate was suspended".to_owned(),
                fate: Fate::of(self.stop()),
            });
        }
        let left = self.group.alive();
        // Those that end with it, of the same signal perhaps, are not left behind.
        (left.is_none() || at.elapsed() >= AFTERMATH).then_some(Ended::ByItself {
            code,
            signal,
            left,
        })
    }

    /// Takes note of what the guard did for us while we were stopped or starved.
    fn hear_the_guard(&mut self) {
        if self.terminated.is_none() && self.guard.acted() {
            self.terminated = Some(Instant::now());
        }
    }

    /// Takes note of what the children did: ended, or stopped.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, status) = match children::changed() {
                Ok(Some(change)) => change,
                Ok(None) => return Ok(()),
                // No children at all; that of interest has been seen off before.
                Err(_) if self.end.is_some() => return Ok(()),
                Err(error) => return Err(error),
            };
            if pid == self.pid {
                self.note(status)?;
            } else if !status.stopped() {
                self.guard.seen_off(pid);
            }
        }
    }

    fn note(&mut self, status: WaitStatus) -> io::Result<()> {
        if let Some(sig) = status.stopping_signal() {
            return self.stopped(sig);
        }
        let had_the_keyboard = self.terminal.take_back();
        let ended_by = status.terminating_signal();
        let code = match ended_by {
            Some(n) => exit::signalled(n),
            None => status.exit_status().unwrap_or_default() as u8,
        };
        let sig = ended_by.and_then(|n| Signal::try_from(n).ok());
        let typed =
            |sig: &Signal| had_the_keyboard && matches!(sig, Signal::SIGINT | Signal::SIGQUIT);
        if let Some(sig) = sig.filter(typed) {
            // The key was meant for the whole job: the script around us hears of it as well.
            let _ = kill(Pid::from_raw(0), sig);
        }
        self.end = Some(CommandEnd {
            code,
            signal: sig.filter(|sig| self.heard.contains(*sig) || typed(sig)),
            at: Instant::now(),
        });
        Ok(())
    }

    fn stopped(&mut self, sig: i32) -> io::Result<()> {
        if !self.running {
            // The trampoline is ready. From here on the guard answers for the group.
            self.guard.watch(self.pid)?;
            self.running = true;
            self.group.signal(Signal::SIGCONT)?;
            return Ok(());
        }
        let Ok(sig) = Signal::try_from(sig) else {
            return Ok(());
        };
        match sig {
            Signal::SIGTTIN | Signal::SIGTTOU if self.terminal.lend(self.pid) => {
                let _ = self.group.signal(Signal::SIGCONT);
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
        if self.group.signal(sig).is_err() {
            output::say_in_passing(format!(
                "cannot forward {sig}: the command runs as another user; the lock is still held"
            ));
        }
        if sig == Signal::SIGTSTP {
            self.stop_with_it();
        }
    }

    /// Ends the group by force and looks whether that came true; whoever is left could not be stopped.
    /// It blocks: nothing is as urgent as this.
    fn stop(&mut self) -> Option<Members> {
        self.over = true;
        // What came of it is seen below.
        let _ = self.group.signal(Signal::SIGKILL);
        let patience = Instant::now() + BURIAL;
        loop {
            let gone = self.reap().is_err() || self.end.is_some();
            let alive = self.group.alive();
            if gone && alive.is_none() {
                return None;
            }
            if Instant::now() >= patience {
                return alive;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.over
            && let Some(survivors) = self.stop()
        {
            output::say(format!("the command could NOT be stopped: {survivors}"));
        }
    }
}
