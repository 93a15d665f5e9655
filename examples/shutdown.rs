//! A worker that ends well: on SIGTERM or Ctrl-C it finishes the step that it is at, gives its lock back, and lets
//! the last message leave before the runtime goes.
//!
//! `cargo run -p quorate --features testing --example shutdown` stops itself after a moment;
//! `QUORATE_MASTERS=redis://.. cargo run .. --example shutdown -- wait` runs until it is told.

use std::time::Duration;

use quorate::{AcquireError, Redlock, RedlockBuilder, Wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Works off one job after the other, each under its lock, until it is told to stop.
async fn work(redlock: Redlock, mut stop: watch::Receiver<bool>) -> Result<u32, AcquireError> {
    let mut done = 0;
    for job in 0.. {
        let lock = redlock.lock(format!("job:{job}")).wait(Wait::Forever);
        // Waiting for a lock is given up at once: dropping it leaves nothing behind.
        let guard = tokio::select! {
            guard = lock.acquire() => guard?,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        // A step that has begun is finished, unless its lock is lost.
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(30)) => done += 1,
            cause = guard.lost() => println!("job {job}: {cause}, given up"),
        }
        guard.release().await;
        if *stop.borrow() {
            break;
        }
    }
    Ok(done)
}

/// Until somebody wants us to end.
async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => println!("SIGTERM"),
        pressed = tokio::signal::ctrl_c() => pressed.map(|()| println!("Ctrl-C"))?,
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = match std::env::var_os("QUORATE_MASTERS") {
        Some(_) => RedlockBuilder::from_env()?.build()?,
        None => Redlock::in_memory(3),
    };
    let (stop, stopped) = watch::channel(false);
    let worker = tokio::spawn(work(redlock.clone(), stopped));
    if std::env::args().nth(1).is_some() {
        told_to_stop().await?;
    } else {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stop.send(true)?;
    let done = worker.await??;
    // On every way out: what was given back in the background has left before the runtime is dropped.
    let flushed = tokio::time::timeout(Duration::from_millis(500), redlock.flush()).await;
    println!("{done} jobs done, all given back: {}", flushed.is_ok());
    Ok(())
}
