//! Lends the terminal to the command.
//!
//! The command runs in a process group of its own, which is a background group of the terminal. The command may write,
//! but is stopped (`SIGTTIN`, `SIGTTOU`) when it reads from the terminal or changes its settings. Only then is its
//! group made the foreground group.
//!
//! Before that, Ctrl-C reaches the same processes as without `quorate`: the rest of the job (a script, the other
//! commands of a pipe), and `quorate` itself, which forwards the signal to the command. In `quorate run .. | less`, the
//! pager keeps the keyboard.

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

    /// Whether the group of the command is the foreground group because of [`lend`](Self::lend).
    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Makes `group` the foreground group, if the group of this process is in the foreground. Returns whether `group`
    /// is now in the foreground.
    pub(super) fn lend(&mut self, group: Pid) -> bool {
        if self.in_front(getpgrp()) {
            self.lent = self.put_in_front(group);
        }
        self.lent
    }

    /// Makes the group of this process the foreground group again, if the terminal was lent. Returns whether this
    /// succeeded.
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
        // A background process that calls tcsetpgrp would be stopped, unless it blocks SIGTTOU.
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

/// Whether a shell of the same session can continue this process after a stop. Without such a shell, for example if
/// this process is the session leader in a container, a stopped process would stay stopped.
pub(super) fn has_job_control() -> bool {
    getsid(Some(getppid())).is_ok_and(|theirs| getsid(None) == Ok(theirs))
}
