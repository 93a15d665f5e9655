//! Waits for child processes, including adopted orphans.

use std::io;

use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

/// The next state change of any child; `None` if there is none. As the first process of a container, this process has
/// children that it did not start.
///
/// Must not be used while other code waits for its own children.
pub(super) fn changed() -> io::Result<Option<(Pid, WaitStatus)>> {
    loop {
        // Not the function of nix, which returns an error if a real-time signal ended the child.
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(change) => {
                return Ok(change.map(|(pid, status)| (Pid::from_raw(pid.as_raw_pid()), status)));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reaps all children that have ended, and ignores how.
pub(super) fn reap_orphans() {
    while let Ok(Some(_)) = changed() {}
}
