//! Waits for child processes.

use std::io;

use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

/// Returns the next state change of any child; `None` if no child has changed its state. If this process is the first
/// one of a container, the child may be an orphan that this process has adopted.
///
/// This function may reap any child. So no other code of this process may wait for a child at the same time.
pub(super) fn next_change() -> io::Result<Option<(Pid, WaitStatus)>> {
    loop {
        // Use `wait` of rustix, because `wait` of nix returns an error if a real-time signal ended the child.
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(change) => {
                return Ok(change.map(|(pid, status)| (Pid::from_raw(pid.as_raw_pid()), status)));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reaps all children that have ended, and ignores their exit codes.
pub(super) fn reap_orphans() {
    while let Ok(Some(_)) = next_change() {}
}
