//! Services that call each other while they hold one lock. The lock's owner is an order of a customer, so each service
//! that works on this order can acquire the lock.

use quorate::{Owner, Redlock, TryAcquire};

async fn ship(redlock: &Redlock, order: &Owner) -> Result<(), Box<dyn std::error::Error>> {
    let stock = order.acquire("stock").await?;
    println!("shipping, fencing token {:?}", stock.fencing_token());
    // The other service gets only the id of the order. With this id it acts as the same owner.
    let same_owner = redlock.owner(order.id())?;
    let packing = same_owner.acquire("stock").await?;
    println!("packing, fencing token {:?}", packing.fencing_token());
    assert_eq!(stock.fencing_token(), packing.fencing_token());
    // A different order is a different owner, so its attempt is refused while the first order holds the lock.
    let other_owner = redlock.owner("order-4712")?;
    let second_attempt = other_owner.lock("stock").try_acquire().await?;
    assert!(matches!(second_attempt, TryAcquire::Held(_)));
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
        "the outer hold must stay valid after the inner holds have ended"
    );
    stock.release().await;
    println!("done");
    Ok(())
}
