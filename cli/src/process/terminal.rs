//! Lends the terminal to the command: makes the command's process group the foreground group of the terminal.
//!
//! At first, the command's group is in the background. If the command needs the terminal, the kernel suspends it with
//! `SIGTTIN` or `SIGTTOU`. Then `quorate` lends the terminal.
//!
//! While the command is in the background, Ctrl-C reaches `quorate`, which forwards the signal. In the foreground, the
//! command gets the signal directly.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

/// The controlling terminal of this process, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    is_lent: bool,
}

impl Terminal {
    /// Opens the controlling terminal of this process, if there is one.
    pub(super) fn open() -> Self {
        Self {
            tty: File::options().read(true).write(true).open("/dev/tty").ok(),
            is_lent: false,
        }
    }

    /// Whether [`lend`](Self::lend) has made the group of the command the foreground group.
    pub(super) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// If the group of this process is in the foreground of the terminal, puts `group` there instead. Returns whether
    /// `group` is in the foreground afterwards.
    pub(super) fn lend(&mut self, group: Pid) -> bool {
        if self.is_in_front(getpgrp()) {
            self.is_lent = self.put_in_front(group);
        }
        self.is_lent
    }

    /// If the terminal was lent, makes the group of this process the foreground group again, and returns true.
    /// Otherwise returns false.
    pub(super) fn take_back(&mut self) -> bool {
        std::mem::take(&mut self.is_lent) && self.put_in_front(getpgrp())
    }

    fn is_in_front(&self, group: Pid) -> bool {
        self.tty
            .as_ref()
            .is_some_and(|tty| tcgetpgrp(tty) == Ok(group))
    }

    fn put_in_front(&self, group: Pid) -> bool {
        let Some(tty) = &self.tty else {
            return false;
        };
        // Block SIGTTOU, because it would stop a background process that calls tcsetpgrp.
        let mut ttou = SigSet::empty();
        ttou.add(Signal::SIGTTOU);
        let _ = ttou.thread_block();
        let is_moved = tcsetpgrp(tty, group).is_ok();
        let _ = ttou.thread_unblock();
        is_moved
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Whether the parent process, usually a shell, is in the session of this process. Only such a parent would continue
/// this process, so without one, this process must not suspend itself.
pub(super) fn has_job_control() -> bool {
    let parent = getppid();
    // If the parent runs outside of this container, `getppid` returns 0. Exclude 0: `getsid(0)` would return the
    // session of this process.
    parent.as_raw() != 0
        && getsid(Some(parent)).is_ok_and(|parent_session| getsid(None) == Ok(parent_session))
}
