//! Children, our own and those that became ours.

use std::io;

use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

/// The next change of a child, of any: as the first process of a container we have children that we
/// never started. None when nothing has changed.
///
/// Only where nothing else waits for children of its own.
pub(super) fn changed() -> io::Result<Option<(Pid, WaitStatus)>> {
    loop {
        // Not the one of nix, which takes the end by a real-time signal for an error.
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(change) => {
                return Ok(change.map(|(pid, status)| (Pid::from_raw(pid.as_raw_pid()), status)));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for all children that have ended, where none of them is of interest.
pub(super) fn bury_orphans() {
    while let Ok(Some(_)) = changed() {}
}
