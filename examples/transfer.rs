//! Transfers money between accounts. Each transfer locks both accounts in one call. The order of the names does not
//! matter: two opposite transfers cannot deadlock.
//!
//! `cargo run -p quorate --features testing --example transfer`

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::{Redlock, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = Redlock::builder()
        .in_memory(5)
        .wait(Wait::For(Duration::from_secs(10)))
        .build()?;
    let accounts = Arc::new([const { Mutex::new(100_i64) }; 3]);
    let mut transfers = Vec::new();
    for n in 0..12 {
        let (redlock, accounts) = (redlock.clone(), accounts.clone());
        transfers.push(tokio::spawn(async move {
            let (from, to) = (n % 3, (n + 1 + n / 6) % 3);
            let names = [from, to].map(|account| format!("account:{account}"));
            let guard = redlock.lock_all(names).acquire().await?;
            let balance = |account: usize| {
                accounts[account]
                    .lock()
                    .expect("the mutex must not be poisoned")
            };
            let before = *balance(from);
            tokio::time::sleep(Duration::from_millis(5)).await;
            *balance(from) = before - 10;
            *balance(to) += 10;
            println!(
                "moved 10 from account {from} to account {to}, fencing token {:?}",
                guard.fencing_token()
            );
            guard.release().await;
            Ok::<_, quorate::AcquireError>(())
        }));
    }
    for transfer in transfers {
        transfer.await??;
    }
    let sum: i64 = accounts
        .iter()
        .map(|account| *account.lock().expect("the mutex must not be poisoned"))
        .sum();
    println!("sum of all accounts: {sum}");
    assert_eq!(sum, 300);
    Ok(())
}
