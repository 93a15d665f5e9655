//! Runs a body while the lock is held. If the lock is lost, the body is dropped at its next `await`.
//!
//! `cargo run -p quorate --features testing --example scope`

use std::time::Duration;

use quorate::{Redlock, ScopeError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = Redlock::in_memory(5);

    let sum = redlock
        .scope("sum", async |guard| {
            println!("inside, fencing token {:?}", guard.fencing_token());
            tokio::time::sleep(Duration::from_millis(20)).await;
            20 + 22
        })
        .await?;
    println!("the body returned {sum}");

    // An operator force-releases the lock while the body runs. The body is stopped, and the caller gets an error.
    let breaking_client = redlock.clone();
    let breaker = async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        breaking_client.break_lock("stubborn").await
    };
    let stubborn = redlock
        .lock("stubborn")
        .ttl(Duration::from_secs(1))
        .scope(async |_| {
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    let (scope_result, break_result) = tokio::join!(stubborn, breaker);
    break_result?;
    match scope_result {
        Err(ScopeError::Lost { cause, .. }) => {
            println!("the scope stopped its endless closure: {cause}");
        }
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
