//! The end of the standard input, for who reads nothing of it.

use std::io::{self, Read};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{fstat, stat};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::sync::oneshot;

/// The time between two tries to read a terminal that belongs to others.
const RETRY: Duration = Duration::from_millis(250);

/// Reads the standard input to its end, on a thread of its own, and resolves then; never where it is `/dev/null`, which
/// background jobs and services have for want of an input.
pub(crate) async fn ended() {
    if is_null() {
        return std::future::pending().await;
    }
    let (tell, ended) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        read_to_the_end();
        drop(tell);
    });
    let _ = ended.await;
}

fn is_null() -> bool {
    let null = stat("/dev/null");
    let ours = fstat(io::stdin());
    ours.and_then(|ours| Ok((ours, null?)))
        .is_ok_and(|(ours, null)| (ours.st_rdev, ours.st_ino) == (null.st_rdev, null.st_ino))
}

fn read_to_the_end() {
    // In the background of a terminal a read would stop us, and the lock would be lost: so it fails.
    let mut background = SigSet::empty();
    background.add(Signal::SIGTTIN);
    let _ = background.thread_block();
    let mut chunk = [0; 4096];
    loop {
        match io::stdin().lock().read(&mut chunk) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) && is_others() => {
                std::thread::sleep(RETRY);
            }
            Err(_) => return,
        }
    }
}

/// Whether it is a terminal whose foreground is somebody else.
fn is_others() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp())
}
