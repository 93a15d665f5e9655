//! A semaphore with three permits limits twelve callers of an API to three calls at a time.
//!
//! `cargo run -p quorate --features testing --example permits`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate::{Redlock, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = Redlock::builder()
        .in_memory(5)
        .wait(Wait::For(Duration::from_secs(10)))
        .build()?;
    let calls = Arc::new(AtomicUsize::new(0));
    let mut callers = Vec::new();
    for caller in 0..12 {
        let (redlock, calls) = (redlock.clone(), calls.clone());
        callers.push(tokio::spawn(async move {
            let permit = redlock.semaphore("api", 3).acquire().await?;
            let at_once = calls.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(at_once <= 3);
            println!(
                "caller {caller} has slot {:?} of the semaphore; {at_once} calls are running now",
                permit.slot()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
            calls.fetch_sub(1, Ordering::SeqCst);
            permit.release().await;
            Ok::<_, quorate::AcquireError>(())
        }));
    }
    for caller in callers {
        caller.await??;
    }
    Ok(())
}
