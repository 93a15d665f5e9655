//! Sends signals to a process group, and checks their effect.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::Error;

/// Sends a signal to the server's process group: the server, and the helper processes that save or rewrite its data.
pub(crate) fn signal_group(process: &Child, signal: Signal) -> Result<(), Error> {
    let group = Pid::from_raw(process.id().cast_signed()).ok_or(Error::NotRunning)?;
    kill_process_group(group, signal).map_err(Error::io("signal the server"))
}

/// The state of a process as a letter, from `/proc` if the system has it, otherwise from `ps`.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state follows the last closing parenthesis. The program name in the parentheses may contain any
        // character.
        return stat.rsplit_once(')')?.1.trim_start().chars().next();
    }
    let ps = Command::new("ps")
        .args(["-o", "state=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    String::from_utf8_lossy(&ps.stdout).trim().chars().next()
}

/// Waits until `is_done` returns true, but at most for `patience`. Checks every millisecond and blocks this thread.
/// Returns whether `is_done` returned true.
pub fn within(patience: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if is_done() {
            return true;
        }
        if started.elapsed() >= patience {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
