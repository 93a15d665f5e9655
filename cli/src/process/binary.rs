//! Finds the binary of this process, so that helper processes can be started from it.

use std::io;
use std::path::Path;
use std::process::Command;

/// The running binary on Linux. This path is correct even after the file of the binary was replaced.
const OWN_BINARY: &str = "/proc/self/exe";

/// Creates a command that starts the binary of this process.
pub(super) fn own_command() -> Command {
    if Path::new(OWN_BINARY).exists() {
        return Command::new(OWN_BINARY);
    }
    Command::new(std::env::current_exe().unwrap_or_else(|_| "quorate".into()))
}

/// Checks that helper processes can be started.
///
/// # Errors
///
/// If `/proc` is not mounted. The message says how to mount it.
pub(crate) fn check_ready() -> io::Result<()> {
    if cfg!(target_os = "linux") && !Path::new(OWN_BINARY).exists() {
        return Err(io::Error::other(format!(
            "{OWN_BINARY} does not exist: /proc is not mounted, but quorate needs /proc to supervise a command; \
             run: mount -t proc proc /proc"
        )));
    }
    Ok(())
}
