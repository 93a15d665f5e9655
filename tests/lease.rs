//! How long a lock lasts: renewal, its end, and what the holder is told of it.

mod support;

use support::{masters, ms, redlock, secs};

#[tokio::test]
async fn a_fixed_lease_that_ends_does_not_end_the_renewal_of_another_lock() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    let renewed = redlock.lock("a").ttl(ms(600)).acquire().await;
    let renewed = renewed.expect("free");
    let fixed = redlock.lock("b").fixed_lease().acquire().await;
    drop(fixed.expect("free"));
    tokio::time::sleep(secs(1)).await;
    assert!(renewed.is_valid(), "renewed beyond its first ttl");
}
