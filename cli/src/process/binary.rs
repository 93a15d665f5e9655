//! Our own binary, from which all helpers are started.

use std::io;
use std::path::Path;
use std::process::Command;

/// Where our own binary is on Linux, also after it was replaced on disk.
const OWN_BINARY: &str = "/proc/self/exe";

/// Our own binary, to start helpers from.
pub(super) fn own() -> Command {
    if Path::new(OWN_BINARY).exists() {
        return Command::new(OWN_BINARY);
    }
    Command::new(std::env::current_exe().unwrap_or_else(|_| "quorate".into()))
}

/// Looks, before anything is locked, whether a command can be started at all.
///
/// # Errors
///
/// What is missing, and what to do about it.
pub(crate) fn ready() -> io::Result<()> {
    if cfg!(target_os = "linux") && !Path::new(OWN_BINARY).exists() {
        return Err(io::Error::other(format!(
            "{OWN_BINARY} does not exist: /proc is not mounted, and quorate needs it to supervise a command; \
             mount it (mount -t proc proc /proc)"
        )));
    }
    Ok(())
}
