//! Tests of a client that spreads its locks over several sets of masters (`examples/quorums.rs`). The name of a lock
//! decides which set of masters the lock uses.

#[allow(
    dead_code,
    reason = "the example also has a `main` function, which the tests do not call"
)]
#[path = "../../examples/quorums.rs"]
mod example;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::node::{Node, NodeName, Reply as NodeReply, Request, memory::Master};
use quorate::runtime::BoxFuture;
use quorate::{LockGuard, Redlock, Wait};
use quorate_testbed::{Reply, Server};

use self::example::{Quorum, Quorums, quorum_of};
use crate::support::{ask_server, masters, ms, secs, settings};

fn quorums(names: impl IntoIterator<Item = &'static str>) -> Vec<Quorum> {
    let new_quorum = |name| Quorum {
        name,
        redlock: Redlock::in_memory(3),
    };
    names.into_iter().map(new_quorum).collect()
}

fn names() -> Vec<String> {
    (0..3_000).map(|n| format!("invoice-{n}")).collect()
}

#[test]
fn adding_a_set_of_masters_moves_locks_only_to_the_added_set() {
    let four_quorums = quorums(["a", "b", "c", "d"]);
    let mut locks = BTreeMap::new();
    for name in names() {
        let (old, new) = (
            quorum_of(&four_quorums[..3], &name).name,
            quorum_of(&four_quorums, &name).name,
        );
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

/// The violations that [`run_clients`] has seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Violations {
    /// The number of acquires that succeeded while another client held the same lock.
    overlaps: usize,
    /// The number of acquires whose token was not larger than an earlier holder's token. A protected resource would
    /// refuse such a token.
    refusals: usize,
}

/// The resource that one lock protects, with its current holders and the largest token so far.
#[derive(Default)]
struct Resource {
    holder_count: usize,
    largest_token: u64,
    violations: Violations,
}

/// A master in memory whose clock is ahead by `ahead_us` microseconds.
struct SkewedMaster {
    name: NodeName,
    master: Mutex<Master>,
    ahead_us: i64,
}

impl Node for SkewedMaster {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: NodeReply) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall_micros =
            u64::try_from(since_epoch.expect("after 1970").as_micros()).expect("in range");
        let now = wall_micros.saturating_add_signed(self.ahead_us);
        let answer = self
            .master
            .lock()
            .expect("not poisoned")
            .apply(now, &request);
        reply.answer(answer);
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// Four sets of masters. The clocks of the masters in the last set are ahead by `ahead_us` microseconds. If `ahead_us`
/// is negative, these clocks are behind.
fn quorums_with_clock(ahead_us: i64) -> Vec<Quorum> {
    let skewed_node = |n| -> Arc<dyn Node> {
        Arc::new(SkewedMaster {
            name: NodeName::new(format!("skewed-{n}")),
            master: Mutex::default(),
            ahead_us,
        })
    };
    let skewed = Redlock::builder().nodes((0..3).map(skewed_node).collect());
    let last_quorum = Quorum {
        name: "d",
        redlock: skewed.build().expect("good settings"),
    };
    quorums(["a", "b", "c"])
        .into_iter()
        .chain([last_quorum])
        .collect()
}

/// A clock difference, in microseconds. If a proposed token differs this much from a master's clock, the master
/// replaces the token.
const APART_US: i64 = 1_100_000;

/// The names of four locks. If the last of the four sets of masters is added or removed, three of these locks move to
/// another set, and one does not.
fn locks(four: &[Quorum]) -> Vec<String> {
    let has_moved = |name: &String| quorum_of(&four[..3], name).name != quorum_of(four, name).name;
    let (moved, unmoved): (Vec<String>, Vec<String>) = names().into_iter().partition(has_moved);
    let moved = moved.into_iter().take(3);
    moved.chain(unmoved.into_iter().take(1)).collect()
}

/// Runs four clients concurrently: two copies of the client `first` and two of the client `second`. Each client
/// acquires every lock three times. Returns the violations that occurred.
async fn run_clients(names: &[String], first: &Quorums, second: &Quorums) -> Violations {
    let names: Arc<Vec<String>> = Arc::new(names.to_vec());
    let resources: Arc<Vec<Mutex<Resource>>> =
        Arc::new(names.iter().map(|_| Mutex::default()).collect());
    let client_tasks = [first, second, first, second].map(|client| {
        let (client, names, resources) = (client.clone(), names.clone(), resources.clone());
        tokio::spawn(async move {
            let numbered_resources = names.iter().zip(resources.iter()).cycle();
            for (name, resource) in numbered_resources.take(3 * names.len()) {
                let held = client
                    .acquire(name)
                    .await
                    .expect("each client must get the lock in its turn");
                {
                    let mut resource = resource.lock().expect("not poisoned");
                    resource.violations.overlaps += usize::from(resource.holder_count > 0);
                    resource.violations.refusals +=
                        usize::from(held.token <= resource.largest_token);
                    resource.largest_token = resource.largest_token.max(held.token);
                    resource.holder_count += 1;
                }
                tokio::time::sleep(ms(5)).await;
                resource.lock().expect("not poisoned").holder_count -= 1;
                for guard in held.guards {
                    guard.release().await;
                }
            }
        })
    });
    for client in client_tasks {
        client.await.expect("no panic");
    }
    let mut total_violations = Violations::default();
    for resource in resources.iter() {
        let violations = &resource.lock().expect("not poisoned").violations;
        total_violations.overlaps += violations.overlaps;
        total_violations.refusals += violations.refusals;
    }
    total_violations
}

/// Four clients, one for each stage of a change from the sets of masters `old` to the sets `new`:
///
/// 1. a client that knows only `old`;
/// 2. a client in the first step of the change;
/// 3. a client in the second step of the change;
/// 4. a client that knows only `new`.
fn steps(old: &[Quorum], new: &[Quorum]) -> [Quorums; 4] {
    let (old, new) = (old.to_vec(), new.to_vec());
    [
        Quorums::One(old.clone()),
        Quorums::TokensOfOld {
            old: old.clone(),
            new: new.clone(),
        },
        Quorums::TokensOfNew {
            old,
            new: new.clone(),
        },
        Quorums::One(new),
    ]
}

/// Regression test: in an earlier version, clients took their tokens from the old set of masters during a change of the
/// sets. Such a token could be smaller than an earlier token from the new set.
#[tokio::test]
async fn each_lock_has_one_holder_while_a_set_of_masters_is_added_or_removed() {
    let change_tasks = [0, APART_US, -APART_US].map(async |ahead_us| {
        for is_addition in [true, false] {
            let four_quorums = quorums_with_clock(ahead_us);
            let (old, new) = if is_addition {
                (&four_quorums[..3], &four_quorums[..])
            } else {
                (&four_quorums[..], &four_quorums[..3])
            };
            for step_pair in steps(old, new).windows(2) {
                let violations =
                    run_clients(&locks(&four_quorums), &step_pair[0], &step_pair[1]).await;
                assert_eq!(
                    violations,
                    Violations::default(),
                    "{ahead_us} {is_addition}"
                );
            }
        }
    });
    futures::future::join_all(change_tasks).await;
}

#[tokio::test]
async fn adding_masters_breaks_exclusion_or_token_order_if_a_step_is_skipped() {
    let four = quorums_with_clock(APART_US);
    let (names, steps) = (locks(&four), steps(&four[..3], &four));
    // Go directly from step 0 of the change to step 2. Some clients then get smaller tokens than earlier holders.
    let without_first = run_clients(&names, &steps[0], &steps[2]).await;
    assert!(without_first.refusals > 0, "{without_first:?}");
    // Skip the second step of the change. Two clients get the lock, because they ask different sets of masters.
    let four = quorums_with_clock(0);
    let (names, steps) = (locks(&four), self::steps(&four[..3], &four));
    let first = steps[1].acquire(&names[0]).await.expect("free");
    let second = steps[3].acquire(&names[0]).await.expect("a second holder");
    let mut all_guards = first.guards.iter().chain(&second.guards);
    assert!(all_guards.all(LockGuard::is_valid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_with_many_locks_has_only_one_connection_to_each_master() {
    let masters = masters(3);
    let builder = settings(masters.iter().map(Server::url));
    let redlock = builder.wait(Wait::For(secs(20))).build().expect("good");
    let acquires = (0..40).map(|n| redlock.acquire(format!("job {n}")));
    let outcomes = futures::future::join_all(acquires).await;
    let waiter = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("job 0").await.map(drop) }
    });
    tokio::time::sleep(ms(200)).await;
    for master in &masters {
        let Reply::Bulk(list) = ask_server(master, &["CLIENT", "LIST"]) else {
            panic!("the reply to CLIENT LIST must be a text");
        };
        let list = String::from_utf8_lossy(&list).into_owned();
        let own_connections = list.lines().filter(|line| line.contains(" name=quorate/"));
        assert_eq!(own_connections.count(), 1, "{list}");
    }
    for outcome in outcomes {
        outcome.expect("free").release().await;
    }
    waiter
        .await
        .expect("no panic")
        .expect("the waiter must get the lock");
}

/// The memory that all keys on a master use together, in bytes.
fn used_memory(server: &Server) -> i64 {
    let Reply::Array(keys) = ask_server(server, &["KEYS", "*"]) else {
        panic!("the reply to KEYS must be a list");
    };
    let memory_usage = |key: &Reply| match key {
        Reply::Bulk(key) => {
            match ask_server(server, &["MEMORY", "USAGE", &String::from_utf8_lossy(key)]) {
                Reply::Int(bytes) => bytes,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    keys.iter().map(memory_usage).sum()
}

/// Measures and prints the memory use per lock. The figures in docs/quorum-size.md may differ from it by up to half,
/// because server versions differ.
#[tokio::test]
async fn quorum_size_page_states_the_measured_memory_use_per_lock() {
    let masters = masters(1);
    let urls = masters.iter().map(Server::url);
    let redlock = settings(urls).build().expect("good settings");
    let name = "invoices:2026-11-24";
    let empty_bytes = used_memory(&masters[0]);
    let guard = redlock.lock(name).ttl(secs(2)).await.expect("free");
    tokio::time::sleep(secs(1)).await;
    let held = used_memory(&masters[0]) - empty_bytes;
    let other = settings(masters.iter().map(Server::url))
        .build()
        .expect("good");
    let waiter = tokio::spawn(other.lock(name).wait(Wait::For(secs(20))).acquire());
    tokio::time::sleep(secs(1)).await;
    let waiter_bytes = used_memory(&masters[0]) - empty_bytes - held;
    waiter.abort();
    guard.release().await;
    tokio::time::sleep(secs(2)).await;
    let idle_bytes = used_memory(&masters[0]) - empty_bytes;
    println!(
        "bytes for a held lock: {held}, for a waiter: {waiter_bytes}, for an idle lock: {idle_bytes}"
    );
    let read_result =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/quorum-size.md"));
    let page = read_result.expect("the page");
    for (row_name, bytes) in [
        ("held lock", held),
        ("waiter", waiter_bytes),
        ("idle lock", idle_bytes),
    ] {
        let row = page
            .lines()
            .find(|line| line.starts_with("| memory of") && line.contains(row_name));
        let cell = row.and_then(|row| row.split('|').nth(2));
        let figure = cell.and_then(|cell| cell.trim().strip_suffix(" B"));
        let figure: i64 = figure
            .and_then(|figure| figure.parse().ok())
            .expect(row_name);
        assert!(
            (bytes - figure).abs() <= figure / 2,
            "docs/quorum-size.md states {figure} bytes for a {row_name}, but the server uses {bytes} bytes"
        );
    }
}
