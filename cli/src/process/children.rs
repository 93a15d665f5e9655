//! Waits for child processes. If this process is the first process of a container, these include orphans that it has
//! adopted.

use std::io;

use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

/// The next state change of any child; `None` if no child has changed its state. The child may be an orphan that this
/// process has adopted as the first process of a container.
///
/// Must not be used while other code of this process waits for a child, because this function would take that child's
/// exit code.
pub(super) fn changed() -> io::Result<Option<(Pid, WaitStatus)>> {
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
    while let Ok(Some(_)) = changed() {}
}
