//! The parent's handle on the guard process.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::Pid;

use super::{binary, helper};

/// A running guard. Dropping it ends the guard **without** ending the group.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    orders: Option<ChildStdin>,
    word: Option<ChildStdout>,
    group: Option<Pid>,
    acted: bool,
    /// Somebody ended it and it was waited for: its pid may be another's by now.
    gone: bool,
}

impl Guard {
    /// Starts a guard that does not answer for anything yet.
    pub(super) fn start() -> io::Result<Self> {
        let mut child = binary::own()
            .arg0("quorate")
            .arg(helper::GUARD)
            .stdin(Stdio::piped())
            // A pipe of its own: nobody who reads our output to its end should have to wait for the guard.
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        let orders = child.stdin.take();
        if let Some(pipe) = &orders {
            // A guard that somebody stopped must not be able to stop us.
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

    /// Makes the guard answer for `group`.
    pub(super) fn watch(&mut self, group: Pid) -> io::Result<()> {
        self.group = Some(group);
        self.send(&helper::group_order(group))
    }

    /// Moves the guard's deadlines: `terminate` and `kill` from `now` on.
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
        // Somebody killed or stopped the guard: a new one takes over.
        let (group, acted) = (self.group, self.acted());
        *self = Self::start()?;
        self.acted = acted;
        if let Some(group) = group {
            self.watch(group)?;
        }
        self.send(&order)
    }

    /// Whether the guard has signalled the group: it says so before it does.
    ///
    /// A `quorate` that was starved may find the lock renewed and the command dead of the guard's
    /// signal: that is a lock that ended the command, not a command that ended by itself.
    pub(super) fn acted(&mut self) -> bool {
        if let Some(pipe) = &mut self.word {
            self.acted |= matches!(pipe.read(&mut [0; 8]), Ok(1..));
        }
        self.acted
    }

    /// This process has ended and was waited for: perhaps it was the guard.
    pub(super) fn seen_off(&mut self, pid: Pid) {
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
        // Killed before its pipe closes, so that it never mistakes an orderly end for our death.
        if !self.gone {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        self.orders = None;
    }
}
