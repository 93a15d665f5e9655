//! Twenty shops ask for ten prizes, while masters lose their memory one after the other. Ten prizes are handed out.
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
    prizes.create(10).await?; // an operator does this once

    let mut handed_out = 0;
    for shop in 0..20 {
        // One master after the other comes back empty. The next take writes the number to it again.
        masters[shop % masters.len()].forget();
        match prizes.take(1).await? {
            Take::Taken { left } => {
                handed_out += 1;
                println!("shop {shop}: got a prize, {left} left");
            }
            Take::SoldOut { .. } => println!("shop {shop}: sold out"),
        }
    }
    println!("{handed_out} prizes were handed out");

    // If a majority forgets the number at the same time, it is lost: nothing more is handed out.
    for master in &masters[..3] {
        master.forget();
    }
    match prizes.take(1).await {
        Err(ValueError::Lost(trouble)) => {
            println!(
                "the number is lost on {} masters of 5",
                silent(&trouble.reports)
            );
        }
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}

/// The number of masters that have no value.
fn silent(reports: &[quorate::NodeReport]) -> usize {
    let none = |said: &&quorate::NodeReport| said.outcome == quorate::NodeOutcome::NoValue;
    reports.iter().filter(none).count()
}
