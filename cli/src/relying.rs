//! The option `--terminate PID` of `quorate hold`: when the lock is lost, `quorate hold` sends SIGTERM to the process
//! PID, which relies on this lock.

use rustix::process::{Pid, Signal};

use crate::exit::Failure;
use crate::output;

/// The process PID of `--terminate PID`. It gets SIGTERM when the lock is lost.
pub(crate) struct RelyingProcess {
    pid: Pid,
    /// The pidfd of the process. It never refers to another process, even if the kernel reuses the pid.
    #[cfg(target_os = "linux")]
    process: std::os::fd::OwnedFd,
}

impl RelyingProcess {
    /// Finds the process with this pid.
    ///
    /// # Errors
    ///
    /// If there is no such process, or if this process lacks the right to signal that process.
    pub(crate) fn find(pid_number: i32) -> Result<Self, Failure> {
        let terminate_failure =
            |why: rustix::io::Errno| Failure::usage(format!("--terminate {pid_number}: {why}"));
        let pid = Pid::from_raw(pid_number).ok_or(terminate_failure(rustix::io::Errno::SRCH))?;
        rustix::process::test_kill_process(pid).map_err(terminate_failure)?;
        Ok(Self {
            pid,
            #[cfg(target_os = "linux")]
            process: rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
                .map_err(terminate_failure)?,
        })
    }

    /// Sends SIGTERM to the process. Prints a message if the signal cannot be sent.
    pub(crate) fn terminate(&self) {
        #[cfg(target_os = "linux")]
        let result = rustix::process::pidfd_send_signal(&self.process, Signal::TERM);
        #[cfg(not(target_os = "linux"))]
        let result = rustix::process::kill_process(self.pid, Signal::TERM);
        if let Err(error) = result {
            let pid = self.pid.as_raw_nonzero();
            output::print_message(format!("cannot send SIGTERM to process {pid}: {error}"));
        }
    }
}
