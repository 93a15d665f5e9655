//! An etcd cluster for one test, and short helpers for requests to it.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::Fault;
use quorate::node::store::{
    Change, Commit, Committed, Listener as _, Session as _, Store as _, Wake,
};
use quorate_etcd::{Etcd, EtcdListener, EtcdSession, prepare};
use quorate_testbed::{Etcd as Process, EtcdOptions};

/// How long a test waits for an expected event. After this time, the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The time for which a test checks that an event does not happen.
const QUIET_TIME: Duration = Duration::from_millis(150);
/// URL settings with a timeout that is long enough even on a busy machine.
const SETTINGS: &str = "timeout=4s";

/// An etcd cluster with its identity key.
pub(crate) struct Cluster {
    pub(crate) etcd: Process,
}

impl Cluster {
    pub(crate) async fn start(options: EtcdOptions) -> Self {
        let cluster = Self::start_unprepared(options).await;
        prepare(&cluster.url()).await.unwrap();
        cluster
    }

    /// Starts a cluster without the identity key.
    pub(crate) async fn start_unprepared(options: EtcdOptions) -> Self {
        let start = tokio::task::spawn_blocking(move || Process::start_with(&options));
        let started = start.await.unwrap();
        let etcd = started.unwrap_or_else(|error| panic!("{error}"));
        Self { etcd }
    }

    pub(crate) fn url(&self) -> String {
        self.url_of("")
    }

    /// The URL with this text before the hosts, for example `user:password@`.
    pub(crate) fn url_of(&self, login: &str) -> String {
        let url = self.etcd.url("locks");
        let url = url.replacen("://", &format!("://{login}"), 1);
        format!("{url}?{SETTINGS}")
    }

    pub(crate) fn store(&self) -> Etcd {
        Etcd::open(&self.url()).unwrap()
    }

    pub(crate) async fn session(&self) -> EtcdSession {
        connect(&self.store()).await
    }

    pub(crate) async fn listener(&self, process: &str) -> EtcdListener {
        self.store().listen(process.into()).await.unwrap()
    }

    /// The revision of the cluster.
    pub(crate) fn revision(&self) -> u64 {
        let output = self.ctl("get x --write-out=json");
        let (_, rest) = output.split_once("\"revision\":").expect("a revision");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap_or_default().parse().expect("a number")
    }

    /// Runs `etcdctl` with these arguments, separated by spaces.
    pub(crate) fn ctl(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = self.etcd.ctl(&arguments);
        output.unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }
}

/// Defines a test that starts a cluster. Options of the cluster may follow the test's name; the default is one member.
macro_rules! test {
    ($name:ident, $cluster:ident => $body:block) => {
        test!($name, quorate_testbed::EtcdOptions::new(), $cluster => $body);
    };
    ($name:ident, $options:expr, $cluster:ident => $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some(why) = <quorate_testbed::Etcd as quorate_testbed::TestServer>::missing() {
                return quorate_testbed::not_run(stringify!($name), &why);
            }
            let $cluster = $crate::support::Cluster::start($options).await;
            $body
        }
    };
}
pub(crate) use test;

pub(crate) async fn connect(store: &Etcd) -> EtcdSession {
    store
        .connect()
        .await
        .unwrap_or_else(|fault| panic!("{fault}"))
        .0
}

/// The fault with which a cluster refuses a connection.
pub(crate) async fn connect_fault(url: &str) -> Fault {
    store_fault(&Etcd::open(url).unwrap()).await
}

pub(crate) async fn store_fault(store: &Etcd) -> Fault {
    let outcome = tokio::time::timeout(PATIENCE, store.connect()).await;
    match outcome.expect("an answer") {
        Ok(_) => panic!("the connection must be refused"),
        Err(fault) => fault,
    }
}

/// Opens a session as soon as the cluster permits it.
pub(crate) async fn reconnect(store: &Etcd) -> EtcdSession {
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

pub(crate) fn name(key: &str) -> Arc<[u8]> {
    key.as_bytes().into()
}

pub(crate) fn change(key: &str, version: u64, state: &[u8]) -> Change {
    let state = Some(state.to_vec());
    let name = name(key);
    Change {
        name,
        version,
        state,
    }
}

pub(crate) fn check(key: &str, version: u64) -> Change {
    Change {
        state: None,
        ..change(key, version, b"")
    }
}

pub(crate) fn of(changes: Vec<Change>) -> Commit {
    Commit {
        changes,
        ..Commit::default()
    }
}

pub(crate) fn waking(change: Change, process: &str, words: &[&[u8]]) -> Commit {
    let wake = |word: &&[u8]| Wake {
        process: process.into(),
        word: word.to_vec(),
    };
    Commit {
        wakes: words.iter().map(wake).collect(),
        ..of(vec![change])
    }
}

pub(crate) async fn commit(session: &mut EtcdSession, commits: &[Commit]) -> Vec<Committed> {
    session
        .commit(commits)
        .await
        .unwrap_or_else(|fault| panic!("{fault}"))
        .what
}

pub(crate) async fn load(session: &mut EtcdSession, key: &str) -> (u64, Vec<u8>) {
    let mut loaded = session.load(&[name(key)]).await.unwrap().what;
    let record = loaded.remove(0);
    (record.version, record.state)
}

/// Writes a record whose current version is `version` (0 if the record does not exist). Returns the new version.
pub(crate) async fn put(session: &mut EtcdSession, key: &str, version: u64, state: &[u8]) -> u64 {
    match &commit(session, &[of(vec![change(key, version, state)])]).await[0] {
        Committed::Done(versions) => versions[0],
        Committed::Stale => panic!("the record {key} must have the version {version}"),
    }
}

/// The revision of a record with this version.
pub(crate) fn revision(version: u64) -> u64 {
    version & ((1 << 44) - 1)
}

pub(crate) async fn next_wake_up(listener: &mut EtcdListener) -> Vec<Vec<u8>> {
    let wake_up = tokio::time::timeout(PATIENCE, listener.next()).await;
    wake_up.expect("a wake-up must arrive in time").unwrap()
}

/// Checks that no wake-up arrives within [`QUIET_TIME`].
pub(crate) async fn expect_no_wake_up(listener: &mut EtcdListener) {
    let wake_up = tokio::time::timeout(QUIET_TIME, listener.next()).await;
    assert!(wake_up.is_err(), "no wake-up must arrive: {wake_up:?}");
}
