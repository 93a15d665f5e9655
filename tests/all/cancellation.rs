//! Tests that any future of the library can be dropped at any await point. Background releases then delete every key
//! that the dropped future has created. If a master does not answer, its keys are deleted as soon as it answers again.
//!
//! Each test polls its future k times and then drops it, for k = 1, 2, .. until the future completes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::polled::{MAX_POLLS, poll_then_drop};
use crate::support::slow::SlowNode;
use crate::support::{
    PATIENCE, ask_server, count_masters_with, eventually, masters, ms, secs, settings, take,
};
use quorate::node::Node;
use quorate::node::memory::{Condition, MemoryNode};
use quorate::{Redlock, RedlockBuilder, Retry, Wait};
use quorate_contract::requests;
use quorate_testbed::{Fault as Harm, Injected, Masters, Proxy, Way};

/// Masters in memory that delay requests and replies, and a client of them. Each master has its own delay.
struct SlowMasters {
    nodes: Vec<Arc<SlowNode>>,
    redlock: Redlock,
}

impl SlowMasters {
    fn new(distances: &[u64], adjust: impl FnOnce(RedlockBuilder) -> RedlockBuilder) -> Self {
        let slow_node =
            |(n, &delay): (usize, &u64)| SlowNode::new(&format!("far {n}"), ms(delay), ms(delay));
        let nodes: Vec<_> = distances.iter().enumerate().map(slow_node).collect();
        let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
        let builder = Redlock::builder()
            .nodes(dyn_nodes.collect())
            .retry(Retry::new(ms(1), ms(3)).seed(1));
        let redlock = adjust(builder).build().expect("good settings");
        Self { nodes, redlock }
    }

    /// The number of masters on which the lock has a holder or a queued waiter. Keys that outlive the lock, such as the
    /// fencing counter, are not counted.
    fn count_locked_masters(&self, resource: &str) -> usize {
        let is_locked = |node: &Arc<SlowNode>| {
            let request = requests::status(resource.as_bytes());
            let answer = node
                .master
                .with_master(|master, now| master.apply(now, &request));
            match answer {
                Ok(quorate::node::Answer::State(state)) => {
                    state.holder.is_some() || !state.queue.is_empty()
                }
                other => panic!("{other:?}"),
            }
        };
        self.nodes.iter().filter(|node| is_locked(node)).count()
    }

    async fn assert_no_key_is_left(&self, what: &str) {
        let flush = tokio::time::timeout(PATIENCE, self.redlock.flush());
        flush
            .await
            .unwrap_or_else(|_| panic!("{what}: the background releases must end in time"));
        assert_eq!(
            self.count_locked_masters("job"),
            0,
            "{what}: no key may be left"
        );
    }
}

/// Creates a future with `make_future`, drops it after a number of polls, and checks that no key is left. Repeats this for 1,
/// 2, .. polls, with masters that answer immediately and with masters that answer after some milliseconds.
async fn drop_at_every_point<F, T>(
    adjust: impl Fn(RedlockBuilder) -> RedlockBuilder,
    make_future: impl Fn(Redlock) -> F,
) where
    F: Future<Output = T>,
{
    for distances in [&[0, 0, 0][..], &[1, 2, 4], &[3, 0, 0, 3, 8]] {
        for polls in 1..=MAX_POLLS {
            let slow_masters = SlowMasters::new(distances, &adjust);
            let is_complete = poll_then_drop(make_future(slow_masters.redlock.clone()), polls)
                .await
                .is_some();
            slow_masters
                .assert_no_key_is_left(&format!("{distances:?} after {polls} polls"))
                .await;
            if is_complete {
                assert!(
                    polls > 1 || distances[0] == 0,
                    "with delayed answers, the future must not complete at its first poll"
                );
                break;
            }
            assert!(
                polls < MAX_POLLS,
                "{distances:?}: the future must complete in fewer than {MAX_POLLS} polls"
            );
        }
    }
}

fn unchanged(builder: RedlockBuilder) -> RedlockBuilder {
    builder
}

#[tokio::test(start_paused = true)]
async fn try_acquire_dropped_at_any_await_point_leaves_no_key() {
    drop_at_every_point(unchanged, async |redlock| {
        drop(redlock.try_acquire("job").await.expect("free"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn release_dropped_at_any_await_point_leaves_no_key() {
    drop_at_every_point(unchanged, async |redlock| {
        redlock.acquire("job").await.expect("free").release().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn extension_dropped_at_any_await_point_leaves_no_key() {
    drop_at_every_point(unchanged, async |redlock| {
        let guard = redlock.acquire("job").await.expect("free");
        guard.extend(secs(20)).await.expect("extended");
        guard.extend(secs(25)).await.expect("extended");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wait_for_lock_loss_leaves_no_key_if_dropped_at_any_await_point() {
    drop_at_every_point(unchanged, async |redlock| {
        let guard = redlock.acquire("job").await.expect("free");
        let lost_future = guard.lost();
        futures::future::join(lost_future, async {
            tokio::time::sleep(ms(20)).await;
            guard.release().await;
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn scope_dropped_at_any_await_point_leaves_no_key() {
    drop_at_every_point(unchanged, async |redlock| {
        redlock
            .scope("job", async |guard| {
                for _ in 0..5 {
                    tokio::time::sleep(ms(3)).await;
                    assert!(guard.is_valid());
                }
            })
            .await
            .expect("done");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn acquire_with_a_token_confirmation_dropped_at_any_await_point_leaves_no_key() {
    for polls in 1..=MAX_POLLS {
        let slow_masters = SlowMasters::new(&[1, 2, 4], unchanged);
        // The masters have different fencing counters, so the acquire also sends confirm requests.
        for (n, node) in slow_masters.nodes.iter().enumerate() {
            node.master.with_master(|master, now| {
                let counter_ahead = (now + 2_000_000 + n as u64).to_string();
                master.put_text(now, b"quorate:fence:job", counter_ahead.as_bytes(), None);
            });
        }
        let acquire = async { drop(slow_masters.redlock.acquire("job").await.expect("free")) };
        let is_complete = poll_then_drop(acquire, polls).await.is_some();
        slow_masters
            .assert_no_key_is_left(&format!("after {polls} polls"))
            .await;
        if is_complete {
            assert!(
                polls > 2,
                "an acquire with a second round of requests must need more than two polls"
            );
            return;
        }
    }
    panic!("the future must complete in at most {MAX_POLLS} polls");
}

#[tokio::test]
async fn acquire_without_a_majority_deletes_its_lock_key_on_masters_that_never_answered() {
    let nodes: Vec<_> = (0..5).map(|n| MemoryNode::new(&format!("{n}"))).collect();
    for down_node in &nodes[..3] {
        down_node.set_condition(Condition::Mute);
    }
    let dyn_nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    let build_result = Redlock::builder().nodes(dyn_nodes.collect()).build();
    let redlock = build_result.expect("good settings");
    let error = redlock.lock("job").wait(Wait::For(ms(50))).acquire().await;
    error.expect_err("no quorum");
    for node in &nodes {
        let request = requests::status(b"job");
        let answer = node.with_master(|master, now| master.apply(now, &request));
        let Ok(quorate::node::Answer::State(state)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            state.holder, None,
            "the key must be deleted even if no answer to the acquire arrives"
        );
    }
}

/// Real masters, a proxy in front of each, and a client that reaches the masters through the proxies.
struct ProxiedMasters {
    masters: Masters,
    proxies: Vec<Proxy>,
    redlock: Redlock,
}

impl ProxiedMasters {
    fn new(n: usize) -> Self {
        let masters = masters(n);
        let proxy = |n: usize| Proxy::start(masters[n].addr()).expect("a proxy");
        let proxies: Vec<_> = (0..n).map(proxy).collect();
        let urls = proxies.iter().zip(masters.iter());
        let urls = urls.map(|(proxy, master)| master.url_at(proxy.addr()));
        let redlock = settings(urls)
            .node_timeout(secs(1))
            .build()
            .expect("good settings");
        Self {
            masters,
            proxies,
            redlock,
        }
    }

    fn latency(&self, delay: Duration) -> Vec<Injected> {
        let latency = |proxy| Harm::latency(Way::Both, delay).inject(proxy);
        self.proxies.iter().map(latency).collect()
    }

    async fn flush(&self) {
        let flush = tokio::time::timeout(PATIENCE, self.redlock.flush());
        flush
            .await
            .expect("the background releases must end in time");
    }

    /// The number of lock keys plus the number of queue keys of `job`, summed over all masters.
    fn count_keys(&self) -> usize {
        count_masters_with(&self.masters, "job")
            + count_masters_with(&self.masters, "quorate:queue:job")
    }
}

type NamedCall = (
    &'static str,
    fn(Redlock) -> Pin<Box<dyn Future<Output = ()>>>,
);

const CALLS: [NamedCall; 4] = [
    ("acquire", |redlock| {
        Box::pin(async move { drop(redlock.acquire("job").await.expect("free")) })
    }),
    ("release", |redlock| {
        Box::pin(async move {
            redlock.acquire("job").await.expect("free").release().await;
        })
    }),
    ("extend", |redlock| {
        Box::pin(async move {
            let guard = redlock.acquire("job").await.expect("free");
            guard.extend(secs(20)).await.expect("extended");
        })
    }),
    ("scope", |redlock| {
        Box::pin(async move {
            let body = async |_: &_| tokio::time::sleep(ms(5)).await;
            redlock.scope("job", body).await.expect("done");
        })
    }),
];

#[tokio::test]
async fn future_dropped_at_any_time_leaves_no_key_on_real_masters_with_network_latency() {
    let proxied = ProxiedMasters::new(3);
    take(&proxied.redlock, "job").await.release().await;
    let _far = proxied.latency(ms(2));
    for (name, call) in CALLS {
        for polls in 1..=MAX_POLLS {
            let is_complete = poll_then_drop(call(proxied.redlock.clone()), polls)
                .await
                .is_some();
            proxied.flush().await;
            assert_eq!(
                proxied.count_keys(),
                0,
                "{name}, dropped after {polls} polls, must leave no key"
            );
            if is_complete {
                break;
            }
        }
        // Also drop the futures after fixed times from 0 to 11.5 ms, independently of their polls.
        for limit in (0..24).map(|n| Duration::from_micros(500 * n)) {
            let _ = tokio::time::timeout(limit, call(proxied.redlock.clone())).await;
            proxied.flush().await;
            assert_eq!(
                proxied.count_keys(),
                0,
                "{name}, dropped after {limit:?}, must leave no key"
            );
        }
    }
}

/// A client with the default node timeout of 50 ms and a connect timeout of 500 ms, for tests in which a master stops
/// answering.
fn client_with_short_timeouts(masters: &Masters) -> Redlock {
    let masters_builder = settings(masters.urls());
    let builder = masters_builder
        .node_timeout(ms(50))
        .connect_timeout(ms(500));
    builder.build().expect("good settings")
}

#[tokio::test]
async fn dropped_acquire_leaves_no_key_on_a_stopped_master_that_resumes() {
    for round in 0..3 {
        let proxied = ProxiedMasters::new(3);
        let direct_client = client_with_short_timeouts(&proxied.masters);
        take(&direct_client, "job").await.release().await;
        direct_client.flush().await;
        proxied.masters[0].stop().expect("stopped");
        // The first poll sends an acquire request to every master. The stopped master does not read its request yet.
        let polls = 1 + round;
        poll_then_drop(direct_client.acquire("job"), polls).await;
        // The client's connect timeout is 500 ms. Stop the master for a shorter, a similar and a longer time.
        tokio::time::sleep([ms(20), ms(550), ms(1500)][round]).await;
        proxied.masters[0].cont().expect("continued");
        eventually("no master may have a key left", || {
            proxied.count_keys() == 0
        })
        .await;
        // Each master receives this acquire after all requests of the dropped acquire, and executes it after them.
        take(&direct_client, "other").await.release().await;
        tokio::time::sleep(ms(200)).await;
        assert_eq!(proxied.count_keys(), 0);
    }
}

#[tokio::test]
async fn release_deletes_the_lock_key_after_a_stopped_master_resumes() {
    let masters = masters(3);
    let redlock = client_with_short_timeouts(&masters);
    let guard = take(&redlock, "job").await;
    eventually("all masters must have the key", || {
        count_masters_with(&masters, "job") == 3
    })
    .await;
    masters[0].stop().expect("stopped");
    // During this acquire, the client notices that one master does not answer. So it delays the release of `guard`
    // below to that master until the master answers again.
    take(&redlock, "other").await.release().await;
    tokio::time::sleep(ms(100)).await;
    let started_at = Instant::now();
    let released = guard.release().await;
    assert!(
        started_at.elapsed() < secs(5),
        "the release must not wait for the stopped master"
    );
    assert!(released.was_valid);
    tokio::time::sleep(ms(800)).await;
    masters[0].cont().expect("continued");
    eventually("no master may have a key left", || {
        count_masters_with(&masters, "job") == 0
    })
    .await;
}

#[tokio::test]
async fn dropped_guard_deletes_its_lock_keys_even_if_all_connections_were_cut() {
    let proxied = ProxiedMasters::new(3);
    for _ in 0..10 {
        let guard = take(&proxied.redlock, "job").await;
        eventually("all masters must have the key", || {
            count_masters_with(&proxied.masters, "job") == 3
        })
        .await;
        for proxy in &proxied.proxies {
            proxy.reset_all();
        }
        drop(guard);
        eventually("no master may have a key left", || {
            proxied.count_keys() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn releases_to_unreachable_masters_are_delivered_when_the_masters_can_be_reached() {
    let proxied = ProxiedMasters::new(3);
    let guard = take(&proxied.redlock, "job").await;
    eventually("all masters must have the key", || {
        count_masters_with(&proxied.masters, "job") == 3
    })
    .await;
    let refused: Vec<_> = proxied
        .proxies
        .iter()
        .map(|p| Harm::Refuse.inject(p))
        .collect();
    for proxy in &proxied.proxies {
        proxy.reset_all();
    }
    tokio::time::sleep(ms(100)).await;
    let released = guard.release().await;
    assert_eq!(released.unreachable, 3, "{released:?}");
    tokio::time::sleep(ms(300)).await;
    assert_eq!(count_masters_with(&proxied.masters, "job"), 3);
    drop(refused);
    eventually("no master may have a key left", || {
        proxied.count_keys() == 0
    })
    .await;
    let ttl = ask_server(&proxied.masters[0], &["TTL", "job"]).int();
    assert_eq!(
        ttl,
        Some(-2),
        "the key must be deleted long before its TTL expires"
    );
}
