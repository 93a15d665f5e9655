//! Elects one of several machines as the leader, and reports each new leader to all machines.
//!
//! `cargo run -p quorate --features testing --example leader`

use std::time::Duration;

use quorate::{Observation, Redlock};

/// Prints the first three leaders.
async fn watch(mut observation: Observation) {
    let mut leaders = 0;
    while leaders < 3 {
        match observation.next().await {
            Some(leader) => {
                leaders += 1;
                let address = leader.note.and_then(|note| note.text);
                let address = address.unwrap_or_else(|| "unknown".to_owned());
                println!("term {}: {address} leads", leader.term);
            }
            None => println!("nobody leads"),
        }
    }
}

/// Waits until this candidate is the leader, leads for 50 ms, and resigns.
async fn candidate(redlock: Redlock, address: &str) -> Result<(), quorate::AcquireError> {
    let leadership = redlock.election("scheduler").campaign(address).await?;
    tokio::select! {
        cause = leadership.lost() => println!("{address} has lost the leadership: {cause}"),
        // The leader works here. It sends its term with each write, so that the resource can reject writes of earlier
        // leaders.
        () = tokio::time::sleep(Duration::from_millis(50)) => {
            println!("{address} has done its work as leader of term {}", leadership.term());
        }
    }
    leadership.resign().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = Redlock::in_memory(5);
    let observation = redlock.election("scheduler").observe()?;
    let ((), a, b, c) = tokio::join!(
        watch(observation),
        candidate(redlock.clone(), "10.0.0.1:9000"),
        candidate(redlock.clone(), "10.0.0.2:9000"),
        candidate(redlock.clone(), "10.0.0.3:9000"),
    );
    a.and(b).and(c)?;
    Ok(())
}
