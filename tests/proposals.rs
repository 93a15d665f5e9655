//! What numbers a process proposes to the masters: near their own clocks, or its locks need a second round
//! each.

mod support;

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::Redlock;
use quorate::node::{Node, Request};
use support::stubborn::Stubborn;
use support::stubborn::Treatment::Honest;
use support::take;

fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

/// Another client's clock is ahead, by less than a master holds against it.
#[tokio::test]
async fn a_process_draws_level_with_numbers_that_are_ahead_of_its_own() {
    const AHEAD: u64 = 400_000;
    let proposed = Arc::<Mutex<Vec<u64>>>::default();
    let nodes = ["a", "b", "c"].map(|name| {
        let proposed = proposed.clone();
        Stubborn::new(name, move |request| {
            if let Request::Acquire { proposal, .. } = request {
                let ahead = proposal.saturating_sub(wall_micros());
                proposed.lock().expect("no panic").push(ahead);
            }
            Honest
        })
    });
    let as_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(as_nodes.collect());
    let redlock = redlock.build().expect("good settings");
    let counter = (wall_micros() + AHEAD).to_string();
    for node in &nodes {
        node.master.with_master(|master, now| {
            master.put_text(now, b"quorate:fence:job", counter.as_bytes(), None);
        });
    }
    take(&redlock, "job").await.release().await;
    take(&redlock, "another").await.release().await;
    let proposed = proposed.lock().expect("no panic").clone();
    assert!(
        proposed[..3].iter().all(|ahead| *ahead < AHEAD / 4),
        "{proposed:?}"
    );
    // Some of it has passed since.
    assert!(
        proposed[3..].iter().all(|ahead| *ahead > AHEAD / 4),
        "{proposed:?}"
    );
}
