//! The supervisor's connection to the guard process. The guard ends the command if the supervisor is dead or suspended,
//! or gets no CPU time.
//!
//! # Why like this
//!
//! A timer in `quorate` itself does not fire while `quorate` is suspended or gets no CPU time. The other ways to end
//! the command cover only a part of these cases:
//!
//! - **The parent-death signal of the kernel** ends only the command, not its children. It exists only on Linux, and
//!   says nothing about a suspended parent.
//! - **A cgroup** would end all children, but ordinary users usually lack the right to create one.
//!
//! The second process had two bugs of its own. If it had ended the command, `quorate` reported that the command had
//! ended by itself (`run_reports_a_lost_lock_if_the_guard_process_has_ended_the_command`). And it received new
//! deadlines up to 250 ms after a renewal. If `quorate` was stopped in between, the guard ended a command whose lock
//! was valid (`command_is_not_ended_if_quorate_is_stopped_just_after_a_renewal`).
//!
//! Not solved: a process that left the group (`setsid`) survives. If both processes are killed, the children of the
//! command survive.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::Pid;

use super::{binary, helper};

/// A running guard process. Dropping this value ends the guard **without** killing the process group of the command.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    orders_pipe: Option<ChildStdin>,
    report_pipe: Option<ChildStdout>,
    group: Option<Pid>,
    has_acted: bool,
    /// Whether the guard has ended and was reaped. Then no signal may be sent to its pid, because the pid may belong to
    /// another process.
    is_reaped: bool,
}

impl Guard {
    /// Starts a guard. It watches no process group until [`watch_group`](Self::watch_group) is called.
    pub(super) fn start() -> io::Result<Self> {
        let mut child = binary::own_command()
            .arg0("quorate")
            .arg(helper::GUARD)
            .stdin(Stdio::piped())
            // The guard must not inherit the stdout of this process. Otherwise, a program that reads this stdout would
            // also wait for the end of the guard.
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        let orders_pipe = child.stdin.take();
        if let Some(pipe) = &orders_pipe {
            // Writes to the guard must never block this process, not even if the guard is stopped and the pipe is full.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let report_pipe = child.stdout.take();
        if let Some(pipe) = &report_pipe {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self {
            child,
            orders_pipe,
            report_pipe,
            group: None,
            has_acted: false,
            is_reaped: false,
        })
    }

    /// Makes the guard watch the process group `group`.
    pub(super) fn watch_group(&mut self, group: Pid) -> io::Result<()> {
        self.group = Some(group);
        self.send_order(&helper::group_order(group))
    }

    /// Sends new deadlines to the guard. The guard sends SIGTERM to the process group at `now + terminate`, and SIGKILL
    /// at `now + kill`.
    pub(super) fn set_deadlines(
        &mut self,
        now: Duration,
        terminate: Duration,
        kill: Duration,
    ) -> io::Result<()> {
        let order = helper::until_order(now + terminate, now + kill);
        if self.send_order(&order).is_ok() {
            return Ok(());
        }
        // The send fails if the guard is dead or suspended. Replace the guard, and copy its state.
        let (group, has_acted) = (self.group, self.has_acted());
        *self = Self::start()?;
        self.has_acted = has_acted;
        if let Some(group) = group {
            self.watch_group(group)?;
        }
        self.send_order(&order)
    }

    /// Whether the guard has reported that it signals the process group. If so, `quorate` must report a lost lock: a
    /// later renewal does not stop the end of the command.
    pub(super) fn has_acted(&mut self) -> bool {
        if let Some(pipe) = &mut self.report_pipe {
            self.has_acted |= matches!(pipe.read(&mut [0; 8]), Ok(1..));
        }
        self.has_acted
    }

    /// Records that the guard has ended, if `pid` is its pid. The supervisor must call this for every process that it
    /// reaps.
    pub(super) fn note_reaped(&mut self, pid: Pid) {
        self.is_reaped |= pid.as_raw() == self.child.id().cast_signed();
    }

    fn send_order(&mut self, order: &str) -> io::Result<()> {
        match &mut self.orders_pipe {
            Some(pipe) => pipe.write_all(order.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Kill the guard first: a living guard kills the command when its pipe closes.
        if !self.is_reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        self.orders_pipe = None;
    }
}
