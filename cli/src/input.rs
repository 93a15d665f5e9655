//! Waits for the end of standard input. The content of the input is ignored.

use std::io::{self, Read};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{fstat, stat};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::sync::oneshot;

use crate::output;

/// Time between two attempts to read from the terminal while this process is in the background.
const RETRY: Duration = Duration::from_millis(250);

/// Resolves at the end of standard input, but never if standard input is `/dev/null`. A service often has `/dev/null`
/// as its input, and `hold` would end immediately there.
pub(crate) async fn wait_for_end() {
    if is_dev_null() {
        return std::future::pending().await;
    }
    let (sender, receiver) = oneshot::channel::<()>();
    let read_and_drop_sender = move || {
        read_to_the_end();
        drop(sender);
    };
    if let Err(error) = std::thread::Builder::new().spawn(read_and_drop_sender) {
        output::print_error(&format!("cannot read standard input to its end: {error}"));
        return std::future::pending().await;
    }
    let _ = receiver.await;
}

fn is_dev_null() -> bool {
    let null = stat("/dev/null");
    let stdin = fstat(io::stdin());
    stdin
        .and_then(|stdin| Ok((stdin, null?)))
        .is_ok_and(|(stdin, null)| (stdin.st_rdev, stdin.st_ino) == (null.st_rdev, null.st_ino))
}

fn read_to_the_end() {
    // SIGTTIN would suspend a background process that reads from its terminal, and the lock would expire. If SIGTTIN is
    // blocked, the read fails instead.
    let mut background = SigSet::empty();
    background.add(Signal::SIGTTIN);
    let _ = background.thread_block();
    let mut chunk = [0; 4096];
    loop {
        match io::stdin().lock().read(&mut chunk) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) && is_in_background() => {
                std::thread::sleep(RETRY);
            }
            Err(_) => return,
        }
    }
}

/// Whether standard input is a terminal with another process group in its foreground.
fn is_in_background() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp())
}
