//! A worker with a graceful shutdown: on SIGTERM or Ctrl-C it finishes the current job, releases the job's lock, and
//! ends.
//!
//! `cargo run -p quorate --features testing --example shutdown` stops by itself after 200 ms.
//! `QUORATE_MASTERS=redis://.. cargo run .. --example shutdown -- wait` runs until it receives a signal.

use std::time::Duration;

use quorate::{AcquireError, Redlock, RedlockBuilder, Wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Runs one job after the other, each under its own lock, until `stop` is true.
async fn work(redlock: Redlock, mut stop: watch::Receiver<bool>) -> Result<u32, AcquireError> {
    let mut jobs_done = 0;
    for job in 0.. {
        let lock = redlock.lock(format!("job:{job}")).wait(Wait::Forever);
        // When `stop` becomes true, cancel the wait for the lock. The wait leaves no keys on the masters.
        let guard = tokio::select! {
            guard = lock.acquire() => guard?,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        // Finish a job that has begun, unless its lock is lost.
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(30)) => jobs_done += 1,
            cause = guard.lost() => println!("job {job}: {cause}, abandoned"),
        }
        guard.release().await;
        if *stop.borrow() {
            break;
        }
    }
    Ok(jobs_done)
}

/// Returns when the process receives SIGTERM or Ctrl-C.
async fn stop_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => println!("SIGTERM"),
        result = tokio::signal::ctrl_c() => result.map(|()| println!("Ctrl-C"))?,
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
        stop_signal().await?;
    } else {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stop.send(true)?;
    let jobs_done = worker.await??;
    // Send all background releases before the runtime is dropped.
    let flush_result = tokio::time::timeout(Duration::from_millis(500), redlock.flush()).await;
    println!(
        "{jobs_done} jobs done, all locks released: {}",
        flush_result.is_ok()
    );
    Ok(())
}
