//! A periodic job on one of many machines. The leader runs it, and another machine continues when the leader stops.
//!
//! `cargo run -p quorate --features testing --example periodic`
//!
//! Every machine runs `lead_and_work`. This example simulates two machines in one process. The first machine stops
//! after three rounds.
//!
//! - If a round must not run twice, pass the term with each write to the resource. The resource can then reject writes
//!   of an earlier leader.
//! - For a job that runs once a day, use `Redlock::once` instead.

use std::time::Duration;

use quorate::testing::Masters;
use quorate::{AcquireError, Leadership, Redlock};
use tokio::time::MissedTickBehavior;

/// Does one round of the job.
fn print_round(machine: &str, term: u64, number: u32) {
    println!("{machine}, leader of term {term}, runs round {number} of the job");
}

/// Runs `rounds` rounds of the job. Stops earlier if the leadership is lost.
async fn run_rounds(machine: &str, leadership: &Leadership, rounds: u32) {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    // If this process stalls and misses several rounds, run only one of them afterwards.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for number in 1..=rounds {
        tokio::select! {
            _ = ticks.tick() => {}
            cause = leadership.lost() => {
                println!("{machine} has lost the leadership: {cause}");
                return;
            }
        }
        // `select!` can choose the tick although the leadership is already lost, so check the leadership here.
        if leadership.is_valid() {
            print_round(machine, leadership.term(), number);
        }
    }
}

async fn lead_and_work(redlock: Redlock, machine: &str, rounds: u32) -> Result<(), AcquireError> {
    let election = redlock.election("every-so-often");
    // A real service runs the following statements in a loop, because the leadership may end at any time.
    let leadership = election.campaign(machine).await?;
    run_rounds(machine, &leadership, rounds).await;
    // `resign` lets the next candidate lead immediately. Without `resign`, the next candidate would wait until the TTL
    // has expired.
    leadership.resign().await;
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
