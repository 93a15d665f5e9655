//! A job every so often, on one machine of many: whoever leads does it, and another one goes on where that ends.
//!
//! `cargo run -p quorate --features testing --example periodic`
//!
//! Every machine runs `lead_and_work`. Here there are two in one process, over the same masters, and the first one
//! stops after three rounds, as by an update. What must not be done twice hands its term to what it writes to; what
//! is done once a day is better kept by `Redlock::once`.

use std::time::Duration;

use quorate::testing::Masters;
use quorate::{AcquireError, Leadership, Redlock};
use tokio::time::MissedTickBehavior;

/// One round of the job.
fn round(machine: &str, term: u64, number: u32) {
    println!("{machine}, term {term}: round {number}");
}

/// Leads for as long as it can, so many rounds at most.
async fn work(machine: &str, leads: &Leadership, rounds: u32) {
    let mut every = tokio::time::interval(Duration::from_millis(20));
    // After a stall there is one round, and not all that were missed.
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for number in 1..=rounds {
        tokio::select! {
            _ = every.tick() => {}
            cause = leads.lost() => {
                println!("{machine} leads no more: {cause}");
                return;
            }
        }
        // A tick and a loss may come together.
        if leads.is_valid() {
            round(machine, leads.term(), number);
        }
    }
}

async fn lead_and_work(redlock: Redlock, machine: &str, rounds: u32) -> Result<(), AcquireError> {
    let election = redlock.election("every-so-often");
    // A machine that stays would do this in a loop: leading may end at any time.
    let leads = election.campaign(machine).await?;
    work(machine, &leads, rounds).await;
    // The next one in line leads at once, and not after the ttl.
    leads.resign().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let masters = Masters::new(3);
    let machine = || Redlock::builder().in_memory_on(&masters).build();
    let (first, second) = tokio::join!(
        lead_and_work(machine()?, "machine 1", 3),
        lead_and_work(machine()?, "machine 2", 2),
    );
    first.and(second)?;
    Ok(())
}
