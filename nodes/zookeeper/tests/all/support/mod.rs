//! A ZooKeeper server or ensemble for one test, and short helpers for requests to it.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::store::{Change, Commit, Committed, Listener, Session, Store, Wake};
use quorate_testbed::{ZooKeeper as Process, ZooKeeperOptions};
use quorate_zookeeper::{ZooKeeper, ZooKeeperListener, ZooKeeperSession, prepare};

/// How long a test waits for an expected event. After this time, the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The time for which a test checks that an event does not happen.
const QUIET_TIME: Duration = Duration::from_millis(150);
/// URL settings with timeouts that are long enough even on a busy machine.
const URL_SETTINGS: &str = "timeout=4s&session=10s";

/// A ZooKeeper server or ensemble with the znodes that a lock needs.
pub(crate) struct TestServer {
    pub(crate) zookeeper: Process,
}

impl TestServer {
    pub(crate) async fn start(options: ZooKeeperOptions) -> Self {
        let server = Self::start_unprepared(options).await;
        prepare(&server.url()).await.unwrap();
        server
    }

    /// Starts a ZooKeeper server or ensemble without the znodes that a lock needs.
    pub(crate) async fn start_unprepared(options: ZooKeeperOptions) -> Self {
        let start_task = tokio::task::spawn_blocking(move || Process::start_with(&options));
        let started = start_task.await.unwrap();
        let zookeeper = started.unwrap_or_else(|error| panic!("{error}"));
        Self { zookeeper }
    }

    pub(crate) fn url(&self) -> String {
        self.url_with(URL_SETTINGS)
    }

    pub(crate) fn url_with(&self, settings: &str) -> String {
        format!("{}?{settings}", self.zookeeper.url("/a/locks"))
    }

    pub(crate) fn store(&self) -> ZooKeeper {
        ZooKeeper::open(&self.url()).unwrap()
    }

    /// The number of watches that have fired, as counted by the server.
    pub(crate) fn watches_fired(&self) -> u64 {
        let counters = [
            "zk_sum_node_changed_watch_count",
            "zk_sum_node_created_watch_count",
            "zk_sum_node_deleted_watch_count",
            "zk_sum_node_children_watch_count",
        ];
        counters
            .iter()
            .map(|name| self.zookeeper.figure(0, name).expect(name))
            .sum()
    }
}

/// Defines a test that starts a ZooKeeper server or ensemble. Server options may follow the test's name; the default is
/// one server.
macro_rules! test {
    ($name:ident, $server:ident => $body:block) => {
        test!($name, ZooKeeperOptions::new(), $server => $body);
    };
    ($name:ident, $options:expr, $server:ident => $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Err(why) = quorate_testbed::ZooKeeper::available() {
                return quorate_testbed::not_run(stringify!($name), &why);
            }
            let $server = $crate::support::TestServer::start($options).await;
            $body
        }
    };
}
pub(crate) use test;

pub(crate) fn record_name(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

pub(crate) fn change(key: &str, version: u64, state: &[u8]) -> Change {
    Change {
        name: record_name(key),
        version,
        state: Some(state.to_vec()),
    }
}

pub(crate) fn version_check(key: &str, version: u64) -> Change {
    Change {
        name: record_name(key),
        version,
        state: None,
    }
}

pub(crate) fn commit(change: Change) -> Commit {
    Commit {
        changes: vec![change],
        ..Commit::default()
    }
}

pub(crate) fn wake(process: &str, word: &str) -> Wake {
    Wake {
        process: process.into(),
        word: word.as_bytes().to_vec(),
    }
}

pub(crate) async fn connect(server: &TestServer) -> ZooKeeperSession {
    server.store().connect().await.unwrap().0
}

pub(crate) async fn listen(server: &TestServer, process: &str) -> ZooKeeperListener {
    server.store().listen(process.into()).await.unwrap()
}

pub(crate) async fn reconnect(store: &ZooKeeper) -> ZooKeeperSession {
    let attempts = async {
        loop {
            match store.connect().await {
                Ok((session, _)) => return session,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, attempts)
        .await
        .expect("a session must be opened in time")
}

pub(crate) async fn load(session: &mut ZooKeeperSession, key: &str) -> (u64, Vec<u8>) {
    let mut loaded = session.load(&[record_name(key)]).await.unwrap().what;
    let record = loaded.remove(0);
    (record.version, record.state)
}

pub(crate) async fn commit_one(session: &mut ZooKeeperSession, change: Change) -> Committed {
    session
        .commit(&[commit(change)])
        .await
        .unwrap()
        .what
        .remove(0)
}

/// How many times the record was written since it was last created, computed from its version.
pub(crate) fn times_written(version: u64) -> u64 {
    (version & u64::from(u32::MAX)) + 1
}

/// Writes a record whose current version is `version` (0 if the record does not exist). Returns the new version.
pub(crate) async fn put(
    session: &mut ZooKeeperSession,
    key: &str,
    version: u64,
    state: &[u8],
) -> u64 {
    match commit_one(session, change(key, version, state)).await {
        Committed::Done(versions) => versions[0],
        Committed::Stale => panic!("the record {key} must have the version {version}"),
    }
}

pub(crate) async fn next_wake_up(listener: &mut ZooKeeperListener) -> Vec<Vec<u8>> {
    let wake_up = tokio::time::timeout(PATIENCE, listener.next()).await;
    wake_up.expect("a wake-up must arrive in time").unwrap()
}

/// Checks that no wake-up arrives within [`QUIET_TIME`]. The call also makes the listener set its watch.
pub(crate) async fn expect_no_wake_up(listener: &mut ZooKeeperListener) {
    let wake_up = tokio::time::timeout(QUIET_TIME, listener.next()).await;
    assert!(wake_up.is_err(), "no wake-up must arrive: {wake_up:?}");
}

/// A plain ZooKeeper client, for the actions of administrators.
pub(crate) async fn admin(server: &TestServer) -> zookeeper_client::Client {
    let address = server.zookeeper.addr(0).to_string();
    zookeeper_client::Client::connect(&address).await.unwrap()
}
