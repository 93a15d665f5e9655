//! Twenty shops each request one of ten prizes, while the masters lose their data one after another. Exactly ten prizes
//! are handed out.
//!
//! `cargo run -p quorate --features testing --example prizes`

use std::sync::Arc;

use quorate::node::Node;
use quorate::node::memory::MemoryNode;
use quorate::{Redlock, Take, ValueError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let masters: Vec<MemoryNode> = (1..=5)
        .map(|n| MemoryNode::new(&format!("master-{n}")))
        .collect();
    let nodes = masters
        .iter()
        .map(|master| Arc::new(master.clone()) as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(nodes.collect()).build()?;

    let prizes = redlock.quota("prizes");
    prizes.create(10).await?; // in production, an operator does this once

    let mut handed_out = 0;
    for shop in 0..20 {
        // Simulate a restart of one master, which loses its data. The next `take` restores the number of remaining
        // prizes on that master.
        masters[shop % masters.len()].forget();
        match prizes.take(1).await? {
            Take::Taken { left } => {
                handed_out += 1;
                println!("shop {shop}: got a prize, {left} prizes left");
            }
            Take::SoldOut { .. } => println!("shop {shop}: sold out"),
        }
    }
    println!("{handed_out} prizes were handed out");

    // If a majority of the masters loses the number of remaining prizes at the same time, the number cannot be
    // restored. Then no further prize is handed out.
    for master in &masters[..3] {
        master.forget();
    }
    match prizes.take(1).await {
        Err(ValueError::Lost(trouble)) => {
            println!(
                "{} of 5 masters have lost the number of remaining prizes",
                count_without_value(&trouble.reports)
            );
        }
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}

/// Counts the masters that no longer store the number of remaining prizes.
fn count_without_value(reports: &[quorate::NodeReport]) -> usize {
    let has_no_value =
        |report: &&quorate::NodeReport| report.outcome == quorate::NodeOutcome::NoValue;
    reports.iter().filter(has_no_value).count()
}
