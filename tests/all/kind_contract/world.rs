//! The masters and clients of the questions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Node};
use quorate::{AcquireError, Redlock, RedlockBuilder, ValueError, Wait};
use quorate_testbed::{Masters, Proxy, Reply};

use super::kind::{Acquired, Held, Kind};
use crate::support::slow::SlowNode;
use crate::support::{self, PATIENCE, ask_server, count_masters_with, eventually, ms};

/// The limit for a wait that must succeed.
pub(crate) const LONG_WAIT: Wait = Wait::For(PATIENCE);

/// The TTL of locks that must end or be renewed during a test: the shortest that the node timeout of the tests allows.
pub(crate) const SHORT_TTL: Duration = ms(2_000);

/// The beginnings of keys that stay on the masters after a release: fencing counters, stored values, the markers of
/// masters, and two keys that outlive each queue.
const PERMANENT_PREFIXES: [&str; 5] = [
    "quorate:fence:",
    "quorate:value:",
    "quorate:masters",
    "quorate:ticket:",
    "quorate:lines",
];

/// Three real masters, on which clients take locks of one kind.
pub(crate) struct World {
    pub(crate) kind: &'static dyn Kind,
    pub(crate) masters: Masters,
}

impl World {
    pub(crate) async fn new(kind: &'static dyn Kind) -> Self {
        let masters = support::masters(3);
        let world = Self { kind, masters };
        kind.prepare(&world.client()).await;
        world
    }

    pub(crate) fn settings(&self) -> RedlockBuilder {
        self.kind.settings(support::settings(self.masters.urls()))
    }

    pub(crate) fn client(&self) -> Redlock {
        self.settings().build().expect("good settings")
    }

    /// A client whose locks have the TTL [`SHORT_TTL`].
    pub(crate) fn brief_client(&self) -> Redlock {
        let settings = self.settings().ttl(SHORT_TTL);
        settings.build().expect("good settings")
    }

    /// A client that reaches each of these masters through a proxy, and the proxies in the same order.
    pub(crate) fn client_behind_proxies(
        &self,
        indices: &[usize],
        ttl: Duration,
    ) -> (Redlock, Vec<Proxy>) {
        let mut urls = self.masters.urls();
        let proxies = indices.iter().map(|&index| {
            let proxy = Proxy::start(self.masters[index].addr()).expect("a proxy");
            urls[index] = self.masters[index].url_at(proxy.addr());
            proxy
        });
        let proxies = proxies.collect();
        let settings = self.kind.settings(support::settings(urls)).ttl(ttl);
        (settings.build().expect("good settings"), proxies)
    }

    pub(crate) async fn acquire(&self, redlock: &Redlock) -> Box<dyn Held> {
        granted(self.kind.acquire(redlock, LONG_WAIT).await)
    }

    pub(crate) async fn acquire_as_rival(&self, redlock: &Redlock) -> Box<dyn Held> {
        granted(self.kind.acquire_as_rival(redlock, LONG_WAIT).await)
    }

    /// The keys of locks, waiters and notes on all masters.
    pub(crate) fn keys(&self) -> BTreeSet<(usize, String)> {
        let keys_of_master = |(index, master)| match ask_server(master, &["KEYS", "*"]) {
            Reply::Array(keys) => keys
                .into_iter()
                .map(move |key| (index, key.text().expect("a name").into_owned())),
            other => panic!("{other:?}"),
        };
        let all_keys = self.masters.iter().enumerate().flat_map(keys_of_master);
        let is_permanent = |key: &str| {
            PERMANENT_PREFIXES
                .iter()
                .any(|start| key.starts_with(start))
        };
        all_keys.filter(|(_, key)| !is_permanent(key)).collect()
    }

    /// The keys of locks and waiters. Holders write their notes after 100 ms, so notes are left out.
    pub(crate) fn keys_without_notes(&self) -> BTreeSet<(usize, String)> {
        let keys = self.keys().into_iter();
        keys.filter(|(_, key)| !key.starts_with("quorate:note:"))
            .collect()
    }

    /// Waits until every master has all lock keys of a held lock.
    pub(crate) async fn lock_keys_are_on_every_master(&self) {
        eventually("every master must have the lock keys", || {
            let mut keys = self.kind.lock_keys().iter();
            keys.all(|key| count_masters_with(&self.masters, key) == 3)
        })
        .await;
    }

    /// Waits until no master has a key of a lock, a waiter or a note.
    pub(crate) async fn no_keys_are_left(&self) {
        eventually("no master may have a key left", || self.keys().is_empty()).await;
    }

    /// The number of waiters on each master.
    pub(crate) fn queue_lengths(&self) -> Vec<i64> {
        let queue = format!("quorate:queue:{}", self.kind.queue());
        let queue_length = |master| ask_server(master, &["ZCARD", &queue]).int();
        let waiter_counts = self.masters.iter().map(queue_length);
        waiter_counts
            .map(|count| count.expect("a number"))
            .collect()
    }
}

/// Three masters in memory that delay requests and replies, each by its own number of milliseconds, and two clients of
/// them.
pub(crate) struct SlowWorld {
    kind: &'static dyn Kind,
    nodes: Vec<Arc<SlowNode>>,
    pub(crate) first_client: Redlock,
    pub(crate) second_client: Redlock,
}

impl SlowWorld {
    pub(crate) async fn new(kind: &'static dyn Kind, delays: [u64; 3]) -> Self {
        let mut number = 0;
        let nodes = delays.map(|delay| {
            number += 1;
            SlowNode::new(&format!("m{number}"), ms(delay), ms(delay))
        });
        let new_client = || {
            let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
            let builder = kind.settings(Redlock::builder().nodes(nodes.collect()));
            let retry = quorate::Retry::new(ms(1), ms(3)).seed(1);
            builder.retry(retry).build().expect("good settings")
        };
        let world = Self {
            kind,
            first_client: new_client(),
            second_client: new_client(),
            nodes: nodes.to_vec(),
        };
        kind.prepare(&world.first_client).await;
        world.flush().await;
        world
    }

    async fn flush(&self) {
        for redlock in [&self.first_client, &self.second_client] {
            let flush = tokio::time::timeout(PATIENCE, redlock.flush());
            flush.await.expect("the releases must end in time");
        }
    }

    /// Checks that no master has a lock key or a waiter when all releases are sent.
    pub(crate) async fn no_keys_are_left(&self, context: &str) {
        self.flush().await;
        let keys = self
            .kind
            .lock_keys()
            .iter()
            .chain([&"quorate:slot:line:job"]);
        for key in keys {
            let status = quorate_contract::requests::status(key.as_bytes());
            for node in &self.nodes {
                let state = node
                    .master
                    .with_master(|master, now| master.apply(now, &status));
                let Ok(Answer::State(state)) = state else {
                    panic!("{state:?}")
                };
                assert_eq!(state.holder, None, "{context}: {key}");
                assert!(
                    state.queue.is_empty(),
                    "{context}: {key}: {:?}",
                    state.queue
                );
            }
        }
    }
}

#[track_caller]
pub(crate) fn granted(acquired: Acquired) -> Box<dyn Held> {
    acquired.unwrap_or_else(|error| panic!("the lock must be acquired: {error}"))
}

/// The error of an acquire that must fail.
#[track_caller]
pub(crate) fn refused(acquired: Acquired) -> AcquireError {
    match acquired {
        Err(ValueError::NotAcquired(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the lock must not be acquired"),
    }
}

/// Checks that the lock is reported as held by another client.
#[track_caller]
pub(crate) fn refused_as_held(acquired: Acquired) {
    let error = refused(acquired);
    assert!(matches!(error, AcquireError::HeldByOther(_)), "{error}");
}
