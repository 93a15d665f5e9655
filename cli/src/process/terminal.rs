//! Lending the terminal to the command.
//!
//! The command runs in a process group of its own, which to the terminal is a background group: it
//! may write, and it is stopped (`SIGTTIN`, `SIGTTOU`) when it reads or changes settings. At that
//! moment, and not before, it is made the foreground group. Until then a Ctrl-C reaches `quorate` and
//! the rest of its own job (a script, the other commands of a pipe) as it would without `quorate`,
//! and is passed on; a pager behind `quorate run .. | less` keeps its keyboard.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

/// The controlling terminal, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    lent: bool,
}

impl Terminal {
    /// Looks for the controlling terminal.
    pub(super) fn find() -> Self {
        Self {
            tty: File::options().read(true).write(true).open("/dev/tty").ok(),
            lent: false,
        }
    }

    /// Whether the command's group is in the foreground because we put it there.
    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Makes `group` the foreground group, if we are in the foreground ourselves.
    pub(super) fn lend(&mut self, group: Pid) -> bool {
        if self.in_front(getpgrp()) {
            self.lent = self.put_in_front(group);
        }
        self.lent
    }

    /// Takes the terminal back, if it was lent.
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
        // A background group that does this is stopped, unless it blocks the signal.
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

/// Whether somebody could continue us after a stop: a shell in our session. Without one (a session
/// leader in a container, say) a stop would be for ever.
pub(super) fn has_job_control() -> bool {
    getsid(Some(getppid())).is_ok_and(|theirs| getsid(None) == Ok(theirs))
}
