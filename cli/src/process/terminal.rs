//! Lends the terminal to the command: makes the command's process group the foreground group of the terminal.
//!
//! At first, the command's group is a background group. If the command reads from the terminal, or changes the terminal
//! settings, the kernel stops the command with `SIGTTIN` or `SIGTTOU`. Only then does `quorate` lend the terminal.
//!
//! Until then, the foreground group is the group of `quorate`. It may also contain the other commands of a pipe, for
//! example the pager of `quorate run .. | less`. Ctrl-C reaches this whole group, and `quorate` forwards the signal to
//! the command.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

/// The controlling terminal of this process, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    lent: bool,
}

impl Terminal {
    /// Opens the controlling terminal of this process, if there is one.
    pub(super) fn find() -> Self {
        Self {
            tty: File::options().read(true).write(true).open("/dev/tty").ok(),
            lent: false,
        }
    }

    /// Whether [`lend`](Self::lend) has made the group of the command the foreground group.
    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Makes `group` the foreground group of the terminal, if the group of this process is the foreground group.
    /// Returns whether `group` is in the foreground afterwards.
    pub(super) fn lend(&mut self, group: Pid) -> bool {
        if self.in_front(getpgrp()) {
            self.lent = self.put_in_front(group);
        }
        self.lent
    }

    /// If the terminal was lent, makes the group of this process the foreground group again, and returns true.
    /// Otherwise returns false.
    pub(super) fn take_back(&mut self) -> bool {
        std::mem::take(&mut self.lent) && self.put_in_front(getpgrp())
    }

    fn in_front(&self, group: Pid) -> bool {
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
        let done = tcsetpgrp(tty, group).is_ok();
        let _ = ttou.thread_unblock();
        done
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// True if the parent of this process, usually a shell, is in the same session. The shell can then continue this
/// process after SIGSTOP. If false, this process must not stop itself, because nobody would continue it.
pub(super) fn has_job_control() -> bool {
    let parent = getppid();
    // If the parent is outside of the container, `getppid` returns 0. `getsid(0)` returns the session of this process,
    // not of the parent.
    parent.as_raw() != 0 && getsid(Some(parent)).is_ok_and(|theirs| getsid(None) == Ok(theirs))
}
