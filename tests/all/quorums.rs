//! Tests of several quorums, of which each lock chooses one by its name (`examples/quorums.rs`), and of the memory that
//! one master needs for a lock.

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

/// The faults that were seen while clients of two successive steps of a change took all locks at the same time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wrong {
    /// How often two clients held one lock.
    overlaps: usize,
    /// How often a holder's token was not larger than the token of an earlier holder, so that a resource refuses it.
    refusals: usize,
}

/// The resource that one lock protects.
#[derive(Default)]
struct Resource {
    holders: usize,
    largest_token: u64,
    wrong: Wrong,
}

/// A master in memory whose clock differs from that of the other masters.
struct Skewed {
    name: NodeName,
    master: Mutex<Master>,
    ahead_us: i64,
}

impl Node for Skewed {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: NodeReply) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = u64::try_from(wall.expect("after 1970").as_micros()).expect("in range");
        let now = wall.saturating_add_signed(self.ahead_us);
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

/// Four quorums. The clocks of the masters of the last quorum are ahead by this many microseconds.
fn quorums_with_clock(ahead_us: i64) -> Vec<Quorum> {
    let node = |n| -> Arc<dyn Node> {
        Arc::new(Skewed {
            name: NodeName::new(format!("skewed-{n}")),
            master: Mutex::default(),
            ahead_us,
        })
    };
    let skewed = Redlock::builder().nodes((0..3).map(node).collect());
    let last = Quorum {
        name: "d",
        redlock: skewed.build().expect("good settings"),
    };
    quorums(["a", "b", "c"]).into_iter().chain([last]).collect()
}

/// More than the difference that masters allow between a token and their clock.
const APART_US: i64 = 1_100_000;

/// The names of three locks that move to another quorum if the last of these quorums is added or removed, and of one
/// lock that does not.
fn locks(four: &[Quorum]) -> Vec<String> {
    let moves = |name: &String| chosen(&four[..3], name).name != chosen(four, name).name;
    let (moved, same): (Vec<String>, Vec<String>) = names().into_iter().partition(moves);
    let moved = moved.into_iter().take(3);
    moved.chain(same.into_iter().take(1)).collect()
}

/// Two clients of the step `first` and two of the step `second` take all locks at the same time, each lock three times.
/// Returns the faults that were seen.
async fn play(names: &[String], first: &Quorums, second: &Quorums) -> Wrong {
    let names: Arc<Vec<String>> = Arc::new(names.to_vec());
    let resources: Arc<Vec<Mutex<Resource>>> =
        Arc::new(names.iter().map(|_| Mutex::default()).collect());
    let clients = [first, second, first, second].map(|client| {
        let (client, names, resources) = (client.clone(), names.clone(), resources.clone());
        tokio::spawn(async move {
            let all = names.iter().zip(resources.iter()).cycle();
            for (name, resource) in all.take(3 * names.len()) {
                let held = client
                    .acquire(name)
                    .await
                    .expect("each client must get the lock in its turn");
                {
                    let mut resource = resource.lock().expect("not poisoned");
                    resource.wrong.overlaps += usize::from(resource.holders > 0);
                    resource.wrong.refusals += usize::from(held.token <= resource.largest_token);
                    resource.largest_token = resource.largest_token.max(held.token);
                    resource.holders += 1;
                }
                tokio::time::sleep(ms(5)).await;
                resource.lock().expect("not poisoned").holders -= 1;
                for guard in held.guards {
                    guard.release().await;
                }
            }
        })
    });
    for client in clients {
        client.await.expect("no panic");
    }
    let mut all = Wrong::default();
    for resource in resources.iter() {
        let wrong = &resource.lock().expect("not poisoned").wrong;
        all.overlaps += wrong.overlaps;
        all.refusals += wrong.refusals;
    }
    all
}

/// The clients of the four steps that change the list of quorums from `old` to `new`, in the order of the steps.
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

/// Regression test: when a change had only two steps, a client that used both lists passed on the token of the old
/// quorum, although a client of only the new list had held the lock before it with a larger token.
#[tokio::test]
async fn each_lock_has_one_holder_and_rising_tokens_while_a_quorum_is_added_or_removed() {
    let changes = [0, APART_US, -APART_US].map(async |ahead| {
        for adds in [true, false] {
            let four = quorums_with_clock(ahead);
            let (old, new) = if adds {
                (&four[..3], &four[..])
            } else {
                (&four[..], &four[..3])
            };
            for pair in steps(old, new).windows(2) {
                let wrong = play(&locks(&four), &pair[0], &pair[1]).await;
                assert_eq!(wrong, Wrong::default(), "{ahead} {adds}");
            }
        }
    });
    futures::future::join_all(changes).await;
}

#[tokio::test]
async fn change_of_quorums_that_leaves_out_a_step_lets_holders_overlap_or_tokens_fall() {
    let four = quorums_with_clock(APART_US);
    let (names, steps) = (locks(&four), steps(&four[..3], &four));
    // Without the first step, clients of the old list pass on smaller tokens than those of the second step.
    let without_first = play(&names, &steps[0], &steps[2]).await;
    assert!(without_first.refusals > 0, "{without_first:?}");
    // Without the second step, a client of the first step does not lock in the new quorum.
    let four = quorums_with_clock(0);
    let (names, steps) = (locks(&four), self::steps(&four[..3], &four));
    let first = steps[1].acquire(&names[0]).await.expect("free");
    let second = steps[3].acquire(&names[0]).await.expect("a second holder");
    let mut all = first.guards.iter().chain(&second.guards);
    assert!(all.all(LockGuard::is_valid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_has_one_connection_to_each_master_however_many_locks_it_takes() {
    let masters = masters(3);
    let redlock = settings(masters.iter().map(Server::url));
    let redlock = redlock.wait(Wait::For(secs(20))).build().expect("good");
    let holds = (0..40).map(|n| redlock.acquire(format!("job {n}")));
    let held = futures::future::join_all(holds).await;
    let waits = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("job 0").await.map(drop) }
    });
    tokio::time::sleep(ms(200)).await;
    for master in &masters {
        let Reply::Bulk(list) = ask_server(master, &["CLIENT", "LIST"]) else {
            panic!("the reply to CLIENT LIST must be a text");
        };
        let list = String::from_utf8_lossy(&list).into_owned();
        let ours = list.lines().filter(|line| line.contains(" name=quorate/"));
        assert_eq!(ours.count(), 1, "{list}");
    }
    for guard in held {
        guard.expect("free").release().await;
    }
    waits
        .await
        .expect("no panic")
        .expect("the waiter must get the lock");
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

/// Prints the figures of docs/quorum-size.md. A figure may be wrong by half, because versions of the server differ.
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
