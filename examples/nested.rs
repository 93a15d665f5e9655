//! Services that call each other under one lock: the order is the owner, and each joins it.
//!
//! `cargo run -p quorate --features testing --example nested`

use quorate::{Owner, Redlock, TryAcquire};

async fn ship(redlock: &Redlock, order: &Owner) -> Result<(), Box<dyn std::error::Error>> {
    let stock = order.acquire("stock").await?;
    println!("shipping, number {:?}", stock.fencing_token());
    // Another service, which knows the order's number only.
    let there = redlock.owner(order.id())?;
    let packing = there.acquire("stock").await?;
    println!("packing, number {:?}", packing.fencing_token());
    assert_eq!(stock.fencing_token(), packing.fencing_token());
    // Somebody else has to wait.
    let other = redlock.owner("order-4712")?;
    let refused = other.lock("stock").try_acquire().await?;
    assert!(matches!(refused, TryAcquire::Held(_)));
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = Redlock::in_memory(5);
    let order = redlock.owner("order-4711")?;
    let stock = order.acquire("stock").await?;
    ship(&redlock, &order).await?;
    assert!(
        stock.is_valid(),
        "the inner ones have ended, the outer one has not"
    );
    stock.release().await;
    println!("done");
    Ok(())
}
