//! The binary of this process, from which all helper processes are started.

use std::io;
use std::path::Path;
use std::process::Command;

/// The running binary on Linux; also correct after the file was replaced.
const OWN_BINARY: &str = "/proc/self/exe";

/// A command that starts this binary.
pub(super) fn own() -> Command {
    if Path::new(OWN_BINARY).exists() {
        return Command::new(OWN_BINARY);
    }
    Command::new(std::env::current_exe().unwrap_or_else(|_| "quorate".into()))
}

/// Checks, before anything is locked, that helper processes can be started.
///
/// # Errors
///
/// If `/proc` is not mounted; the message says how to mount it.
pub(crate) fn ready() -> io::Result<()> {
    if cfg!(target_os = "linux") && !Path::new(OWN_BINARY).exists() {
        return Err(io::Error::other(format!(
            "{OWN_BINARY} does not exist: /proc is not mounted, and quorate needs it to supervise a command; \
             mount it (mount -t proc proc /proc)"
        )));
    }
    Ok(())
}
