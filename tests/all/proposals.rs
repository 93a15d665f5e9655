//! Tests of the fencing tokens that a process proposes to the masters. If a proposal differs too much from the masters'
//! clocks, the lock needs a second round of requests.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::stubborn::Stubborn;
use crate::support::stubborn::Treatment::Answered;
use crate::support::take;
use quorate::Redlock;
use quorate::node::{Node, Request};

fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.expect("after 1970").as_micros() as u64
}

/// Another client with a fast clock has raised the fencing counters of one lock. From then on, this process must
/// propose larger tokens for other locks too.
#[tokio::test]
async fn process_adapts_its_token_proposals_to_fencing_counters_ahead_of_its_clock() {
    const AHEAD_US: u64 = 400_000;
    for step in [0, 20_000] {
        let proposed_ahead = Arc::<Mutex<Vec<u64>>>::default();
        let nodes = ["a", "b", "c"].map(|name| {
            let proposed_ahead = proposed_ahead.clone();
            Stubborn::new(name, move |request| {
                if let Request::Acquire { proposal, .. } = request {
                    let counter_base = proposal.saturating_sub(wall_micros());
                    proposed_ahead.lock().expect("no panic").push(counter_base);
                }
                Answered
            })
        });
        let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let redlock = Redlock::builder().nodes(dyn_nodes.collect());
        let redlock = redlock.build().expect("good settings");
        let counter_base = wall_micros() + AHEAD_US;
        for (number, node) in nodes.iter().enumerate() {
            let counter_text = (counter_base + step * number as u64).to_string();
            node.master.with_master(|master, now| {
                master.put_text(now, b"quorate:fence:job", counter_text.as_bytes(), None);
            });
        }
        take(&redlock, "job").await.release().await;
        take(&redlock, "another").await.release().await;
        let proposed_ahead = proposed_ahead.lock().expect("no panic").clone();
        let (first_attempt, second_attempt) = proposed_ahead.split_at(3);
        assert!(
            first_attempt.iter().all(|base| *base < AHEAD_US / 4),
            "{first_attempt:?}"
        );
        // Require only a quarter of `AHEAD_US`, because the clock advances during the test.
        assert!(
            second_attempt.iter().all(|base| *base > AHEAD_US / 4),
            "{second_attempt:?}"
        );
    }
}

/// Another client gets a larger fencing token while the first client confirms its own token. The first client must then
/// use a token that is larger still.
#[tokio::test]
async fn unconfirmed_token_is_raised_again_if_another_client_gets_a_larger_token() {
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let minimum = wall_micros() + 700_000;
    for (number, node) in nodes.iter().enumerate() {
        let counter = wall_micros() + 100_000 * (number as u64 + 1);
        let put_counter = |node: &Stubborn, counter: u64| {
            let counter = counter.to_string();
            node.master.with_master(|master, now| {
                master.put_text(now, b"quorate:fence:job", counter.as_bytes(), None);
            });
        };
        put_counter(node, counter);
        let (weak_node, mut is_first) = (Arc::downgrade(node), true);
        node.set_rule(move |request| {
            if let (Request::Confirm { .. }, Some(node)) = (request, weak_node.upgrade())
                && std::mem::replace(&mut is_first, false)
            {
                put_counter(&node, minimum + number as u64);
            }
            Answered
        });
    }
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(dyn_nodes.collect());
    let redlock = redlock.build().expect("good settings");
    let guard = take(&redlock, "job").await;
    assert_eq!(guard.fencing_token(), Some(minimum + 2));
    guard.release().await;
}

/// Tests a reader that joins a shared lock and gets the lock's old fencing token. The process must not base later
/// proposals on this token.
#[tokio::test]
async fn reader_that_joins_a_shared_lock_does_not_lower_later_token_proposals() {
    let time_behind = Arc::<Mutex<Vec<u64>>>::default();
    let nodes = ["a", "b", "c"].map(|name| {
        let time_behind = time_behind.clone();
        Stubborn::new(name, move |request| {
            if let Request::Acquire { proposal, .. } = request {
                let now = wall_micros();
                time_behind
                    .lock()
                    .expect("no panic")
                    .push(now.saturating_sub(*proposal));
            }
            Answered
        })
    });
    let client = || {
        let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let redlock = Redlock::builder().nodes(nodes.collect());
        redlock.build().expect("good settings")
    };
    let (is_first, second) = (client(), client());
    let first_reader = is_first.lock("doc").shared().acquire().await.expect("free");
    let second_reader = second
        .lock("doc")
        .shared()
        .acquire()
        .await
        .expect("the reader must share the lock with the other readers");
    assert_eq!(first_reader.fencing_token(), second_reader.fencing_token());
    time_behind.lock().expect("no panic").clear();
    take(&second, "job").await.release().await;
    let time_behind = time_behind.lock().expect("no panic").clone();
    // A proposal that is based on the old token would be at least 1 s behind the clock.
    assert!(
        time_behind.iter().all(|behind| *behind < 900_000),
        "{time_behind:?}"
    );
}
