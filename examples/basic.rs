//! Acquires a lock, does the work, and releases the lock.
//!
//! `cargo run -p quorate --features testing --example basic -- redis://127.0.0.1:7001 redis://127.0.0.1:7002 redis://127.0.0.1:7003`
//! uses the three masters at these addresses. Without addresses the example uses three masters in memory.

use std::time::Duration;

use quorate::{Redlock, TryAcquire, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let masters: Vec<String> = std::env::args().skip(1).collect();
    let redlock = if masters.is_empty() {
        Redlock::in_memory(3)
    } else {
        Redlock::builder().masters(masters).build()?
    };

    let guard = redlock
        .lock("nightly-report")
        .wait(Wait::For(Duration::from_secs(5)))
        .acquire()
        .await?;
    println!("held, fencing token {:?}", guard.fencing_token());

    // If another client holds the lock, `try_acquire` returns `Held`, not an error.
    match redlock.try_acquire("nightly-report").await? {
        TryAcquire::Acquired(_) => {
            println!("unexpected: the second attempt got the lock that this example holds");
        }
        TryAcquire::Held(refusal) => {
            println!(
                "a second attempt is refused; without a renewal the lock expires in {:?}",
                refusal.ttl_left
            );
        }
    }

    for report in guard.report() {
        println!("  {report} after {:?}", report.latency.unwrap_or_default());
    }
    let released = guard.release().await;
    println!("released on {} masters", released.on);
    Ok(())
}
