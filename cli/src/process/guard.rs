//! The supervisor's handle of the guard process.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::Pid;

use super::{binary, helper};

/// A running guard process. Dropping the handle ends the guard **without** ending the group.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    orders: Option<ChildStdin>,
    word: Option<ChildStdout>,
    group: Option<Pid>,
    acted: bool,
    /// The guard has ended and was reaped, so its pid may belong to another process.
    gone: bool,
}

impl Guard {
    /// Starts a guard that does not watch a group yet.
    pub(super) fn start() -> io::Result<Self> {
        let mut child = binary::own()
            .arg0("quorate")
            .arg(helper::GUARD)
            .stdin(Stdio::piped())
            // A pipe of its own, so that a reader of our stdout does not have to wait for the guard to end.
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        let orders = child.stdin.take();
        if let Some(pipe) = &orders {
            // A guard that was stopped by a signal must not block this process.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let word = child.stdout.take();
        if let Some(pipe) = &word {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self {
            child,
            orders,
            word,
            group: None,
            acted: false,
            gone: false,
        })
    }

    /// Makes the guard watch `group`.
    pub(super) fn watch(&mut self, group: Pid) -> io::Result<()> {
        self.group = Some(group);
        self.send(&helper::group_order(group))
    }

    /// Moves the deadlines of the guard: `terminate` and `kill` count from `now`.
    pub(super) fn until(
        &mut self,
        now: Duration,
        terminate: Duration,
        kill: Duration,
    ) -> io::Result<()> {
        let order = helper::until_order(now + terminate, now + kill);
        if self.send(&order).is_ok() {
            return Ok(());
        }
        // The guard was killed or stopped: start a new one.
        let (group, acted) = (self.group, self.acted());
        *self = Self::start()?;
        self.acted = acted;
        if let Some(group) = group {
            self.watch(group)?;
        }
        self.send(&order)
    }

    /// Whether the guard has signalled the group. The guard reports that before it sends the signal.
    ///
    /// If `quorate` got no processor time for a while, it may find that the lock was renewed in the end, and that the
    /// guard's signal ended the command. That counts as a loss of the lock, not as an end of the command by itself.
    pub(super) fn acted(&mut self) -> bool {
        if let Some(pipe) = &mut self.word {
            self.acted |= matches!(pipe.read(&mut [0; 8]), Ok(1..));
        }
        self.acted
    }

    /// Notes that this process was reaped; it may be the guard.
    pub(super) fn reaped(&mut self, pid: Pid) {
        self.gone |= pid.as_raw() == self.child.id().cast_signed();
    }

    fn send(&mut self, order: &str) -> io::Result<()> {
        match &mut self.orders {
            Some(pipe) => pipe.write_all(order.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Killed before its pipe closes, because the guard treats a closed pipe as the death of `quorate`.
        if !self.gone {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        self.orders = None;
    }
}
