//! Tests of several quorums, of which each lock chooses one by its name (`examples/quorums.rs`), and of the memory that
//! one master needs for a lock.

#[allow(
    dead_code,
    reason = "the example also has a `main` function, which the tests do not call"
)]
#[path = "../../examples/quorums.rs"]
mod example;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use quorate::{Redlock, Wait};
use quorate_testbed::{Reply, Server};

use self::example::{Quorum, Quorums, chosen};
use crate::support::{ask_server, masters, ms, secs, settings};

fn quorums(names: impl IntoIterator<Item = &'static str>) -> Vec<Quorum> {
    let quorum = |name| Quorum {
        name,
        redlock: Redlock::in_memory(3),
    };
    names.into_iter().map(quorum).collect()
}

fn names() -> Vec<String> {
    (0..3_000).map(|n| format!("invoice-{n}")).collect()
}

#[test]
fn locks_are_spread_evenly_over_quorums_and_move_only_to_an_added_quorum() {
    let four = quorums(["a", "b", "c", "d"]);
    let mut locks = BTreeMap::new();
    for name in names() {
        let (old, new) = (chosen(&four[..3], &name).name, chosen(&four, &name).name);
        assert!(
            old == new || new == "d",
            "the lock {name} moves from quorum {old} to {new}, although only locks of \
             the added quorum may move"
        );
        *locks.entry(new).or_insert(0) += 1;
    }
    assert!(
        locks.values().all(|count| (600..900).contains(count)),
        "{locks:?}"
    );
}

/// Clients of two steps of the change take all locks at the same time. Returns how often two clients held one lock.
async fn overlaps(first: &Quorums, second: &Quorums) -> usize {
    let names: Arc<Vec<String>> = Arc::new(names().into_iter().take(20).collect());
    let holders: Arc<Vec<AtomicU32>> = Arc::new(names.iter().map(|_| AtomicU32::new(0)).collect());
    let overlaps = Arc::new(AtomicUsize::new(0));
    let clients = [first, second, first, second].map(|client| {
        let (client, names) = (client.clone(), names.clone());
        let (holders, overlaps) = (holders.clone(), overlaps.clone());
        tokio::spawn(async move {
            for (name, holders) in names.iter().zip(holders.iter()) {
                let guards = client
                    .acquire(name)
                    .await
                    .expect("each client must get the lock in its turn");
                if holders.fetch_add(1, Ordering::SeqCst) > 0 {
                    overlaps.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(ms(10)).await;
                holders.fetch_sub(1, Ordering::SeqCst);
                for guard in guards {
                    guard.release().await;
                }
            }
        })
    });
    for client in clients {
        client.await.expect("no panic");
    }
    overlaps.load(Ordering::SeqCst)
}

#[tokio::test]
async fn adding_a_quorum_in_two_steps_never_allows_two_holders_of_a_lock() {
    let four = quorums(["a", "b", "c", "d"]);
    let client = |now: &[Quorum], next: Option<&[Quorum]>| Quorums {
        now: now.to_vec(),
        next: next.map(<[Quorum]>::to_vec),
    };
    let old = client(&four[..3], None);
    let both = client(&four[..3], Some(&four));
    let new = client(&four, None);
    assert_eq!(overlaps(&old, &both).await, 0);
    assert_eq!(overlaps(&both, &new).await, 0);
    assert!(
        overlaps(&old, &new).await > 0,
        "two holders must overlap if one of the two steps is left out"
    );
}

/// The memory of all keys on a master, in bytes.
fn bytes(server: &Server) -> i64 {
    let Reply::Array(keys) = ask_server(server, &["KEYS", "*"]) else {
        panic!("the reply to KEYS must be a list");
    };
    let usage = |key: &Reply| match key {
        Reply::Bulk(key) => {
            match ask_server(server, &["MEMORY", "USAGE", &String::from_utf8_lossy(key)]) {
                Reply::Int(bytes) => bytes,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    keys.iter().map(usage).sum()
}

/// Prints the figures of docs/quorum-size.md. Versions of the server differ, so a figure may be wrong by half.
#[tokio::test]
async fn memory_per_lock_waiter_and_idle_counter_is_as_quorum_size_md_states() {
    let masters = masters(1);
    let urls = masters.iter().map(Server::url);
    let redlock = settings(urls).build().expect("good settings");
    let name = "invoices:2026-11-24";
    let empty = bytes(&masters[0]);
    let guard = redlock.lock(name).ttl(secs(2)).await.expect("free");
    tokio::time::sleep(secs(1)).await;
    let held = bytes(&masters[0]) - empty;
    let other = settings(masters.iter().map(Server::url))
        .build()
        .expect("good");
    let waits = tokio::spawn(other.lock(name).wait(Wait::For(secs(20))).acquire());
    tokio::time::sleep(secs(1)).await;
    let waiter = bytes(&masters[0]) - empty - held;
    waits.abort();
    guard.release().await;
    tokio::time::sleep(secs(2)).await;
    let idle = bytes(&masters[0]) - empty;
    println!("bytes for a held lock: {held}, for a waiter: {waiter}, for an idle lock: {idle}");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/quorum-size.md"));
    let page = page.expect("the page");
    for (what, bytes) in [("held lock", held), ("waiter", waiter), ("idle lock", idle)] {
        let row = page
            .lines()
            .find(|line| line.starts_with("| memory of") && line.contains(what));
        let cell = row.and_then(|row| row.split('|').nth(2));
        let figure = cell.and_then(|cell| cell.trim().strip_suffix(" B"));
        let figure: i64 = figure.and_then(|figure| figure.parse().ok()).expect(what);
        assert!(
            (bytes - figure).abs() <= figure / 2,
            "the page says {figure} bytes for a {what}, but it takes {bytes}"
        );
    }
}
