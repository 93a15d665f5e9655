//! Tests of locks whose masters are stores (databases or ZooKeeper) with faults: a store answers late, loses its last
//! changes, or loses records.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use quorate::node::store::{
    Change, Clocked, Commit, Committed, Greeting, NamedRecord, Record, Session, Store, StoreNode,
    Table, Traits,
};
use quorate::node::{Fault, NodeName, ServerRun};
use quorate::{Inspection, Redlock, RedlockBuilder, RestartGuard, Take, ValueError};

use crate::support::{eventually, ms, secs};

/// A store with one version counter for all records, like a database. If the store restarts with old data, the counter
/// also gets its old value.
#[derive(Clone)]
struct TestStore {
    name: NodeName,
    has_clock: bool,
    /// The delay between the store's clock reading and its answer, in milliseconds.
    delay_ms: Arc<AtomicU64>,
    state: Arc<Mutex<ServerState>>,
}

#[derive(Clone, Default)]
struct ServerState {
    records: BTreeMap<Vec<u8>, Record>,
    last_version: u64,
    run: u64,
    /// The number of further commits that the server executes before it closes the connection. `None` if it does not
    /// close the connection.
    commits_until_close: Option<usize>,
    /// True if the server reports an uptime of only one second.
    is_young: bool,
    /// True if the store cannot list its records.
    cannot_list: bool,
    /// The time that the store takes to accept a connection, in milliseconds.
    connect_delay_ms: u64,
    /// The name that the server reports for itself. `None` if it has none.
    server: Option<&'static str>,
    /// The number of further connection attempts that panic, as a bug in a driver may.
    remaining_panics: usize,
}

/// A session with the store, and the number of the server run in which the session began. The session ends when the
/// server restarts.
struct TestSession(TestStore, u64);

impl TestStore {
    fn new(has_clock: bool) -> Self {
        Self {
            name: NodeName::new("books"),
            has_clock,
            delay_ms: Arc::default(),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().expect("no panic")
    }

    /// Simulates a crash and a restart of the server, which then has the data `disk`.
    fn restart_with(&self, disk: ServerState) {
        let run = self.state().run + 1;
        *self.state() = ServerState { run, ..disk };
    }

    /// The uptime that the server reports: one second if `is_young` is true, and otherwise an hour, which is longer than
    /// any lease in these tests.
    fn uptime(&self) -> Duration {
        secs(if self.state().is_young { 1 } else { 3600 })
    }

    /// Panics if `State::remaining_panics` says so.
    fn panic_if_due(&self) {
        let mut state = self.state();
        let remaining_panics = state.remaining_panics > 0;
        state.remaining_panics = state.remaining_panics.saturating_sub(1);
        drop(state);
        assert!(!remaining_panics, "odd weather");
    }

    fn redlock(&self) -> RedlockBuilder {
        Redlock::builder()
            .ttl(secs(4))
            .max_ttl(secs(4))
            .node(StoreNode::new(self.clone()))
    }
}

impl Store for TestStore {
    type Session = TestSession;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        Traits::new(secs(1)).without_wakes()
    }

    async fn connect(&self) -> Result<(TestSession, Greeting), Fault> {
        let connect_delay_ms = self.state().connect_delay_ms;
        tokio::time::sleep(ms(connect_delay_ms)).await;
        self.panic_if_due();
        let run = self.state().run;
        let mut greeting = Greeting::new(ServerRun::new(run.to_string()));
        if let Some(server) = self.state().server {
            greeting = greeting.server(server);
        }
        let session = TestSession(self.clone(), run);
        Ok((session, greeting.uptime(self.uptime())))
    }

    async fn listen(&self, _: Arc<str>) -> Result<Self::Listener, Fault> {
        Err(Fault::Unsupported("nobody is woken".into()))
    }

    async fn inspect(&self) -> Inspection {
        let mut inspection = Inspection::new(self.name.clone());
        inspection.run_id = Some(self.state().run.to_string());
        inspection.identity = Some("the server of the books".into());
        inspection.uptime = Some(self.uptime());
        inspection
    }
}

impl TestSession {
    async fn run_on_server<T>(
        &self,
        run_on_server: impl FnOnce(&mut ServerState) -> T,
    ) -> Result<Clocked<T>, Fault> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let clock = since_epoch.expect("a clock").as_micros() as u64;
        let load_result = {
            let mut state = self.0.state();
            if state.run != self.1 {
                return Err(Fault::Disconnected("it has restarted".into()));
            }
            run_on_server(&mut state)
        };
        let delay_ms = self.0.delay_ms.load(Ordering::Relaxed);
        if delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        }
        let clock = self.0.has_clock.then_some(clock);
        Ok(Clocked {
            what: load_result,
            clock,
        })
    }
}

impl ServerState {
    fn record(&self, name: &[u8]) -> Record {
        self.records.get(name).cloned().unwrap_or_default()
    }

    fn commit(&mut self, commit: &Commit) -> Committed {
        let is_current = |change: &Change| self.record(&change.name).version == change.version;
        if !commit.changes.iter().all(is_current) {
            return Committed::Stale;
        }
        let mut versions = Vec::new();
        for Change {
            name,
            version,
            state,
        } in &commit.changes
        {
            let mut version = *version;
            if let Some(state) = state {
                if version == 0 {
                    self.last_version += 1_000;
                    version = self.last_version;
                }
                version += 1;
                let state = state.clone();
                let record = Record::new(version, state);
                self.records.insert(name.to_vec(), record);
            }
            versions.push(version);
        }
        Committed::Done(versions)
    }
}

impl Session for TestSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let load_records =
            |state: &mut ServerState| names.iter().map(|name| state.record(name)).collect();
        self.run_on_server(load_records).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let result = self.run_on_server(|state| {
            if let Some(remaining) = &mut state.commits_until_close {
                *remaining = remaining.checked_sub(commits.len()).ok_or(())?;
            }
            Ok(commits.iter().map(|commit| state.commit(commit)).collect())
        });
        let Clocked { what, clock } = result.await?;
        let what = what.map_err(|()| Fault::Down("closing".into()))?;
        Ok(Clocked { what, clock })
    }

    async fn page(&mut self, _: u64, _: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        if self.0.state().cannot_list {
            return Err(Fault::Server("no names today".into()));
        }
        self.run_on_server(|_| Vec::new()).await
    }

    async fn remove(&mut self, _: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        Ok(())
    }
}

/// Acquires the lock without joining the queue, by repeated attempts until the lock is free.
async fn acquire_when_free(redlock: &Redlock, resource: &str) -> quorate::LockGuard {
    let started_at = std::time::Instant::now();
    loop {
        let attempt = redlock.lock(resource).renewal(false).try_acquire().await;
        if let Ok(Some(guard)) = attempt.map(quorate::TryAcquire::acquired) {
            return guard;
        }
        assert!(
            started_at.elapsed() < secs(20),
            "{resource} must become free"
        );
        tokio::time::sleep(ms(5)).await;
    }
}

#[tokio::test]
async fn panic_of_a_driver_is_a_fault_that_is_permanent_after_three_in_a_row() {
    let store = TestStore::new(true);
    let builder = store.redlock().wait(quorate::Wait::Forever);
    let redlock = builder.build().expect("good settings");
    // After two panics, the third connection succeeds.
    store.state().remaining_panics = 2;
    let guard = tokio::time::timeout(secs(20), redlock.acquire("x")).await;
    guard
        .expect("in time")
        .expect("the lock must be free")
        .release()
        .await;
    // The session ends, and each attempt to open another one panics.
    store.state().remaining_panics = usize::MAX;
    store.state().run += 1;
    let outcome = tokio::time::timeout(secs(20), redlock.acquire("x")).await;
    let error = outcome.expect("in time").map(drop).expect_err("no session");
    let details = error.details();
    assert!(
        details.contains("internal failure of the client: odd weather"),
        "{details}"
    );
    assert!(details.contains("waiting does not help"), "{details}");
    store.state().remaining_panics = 0;
    // Until the next connection attempt, the permanent fault ends each acquire.
    let second_outcome = tokio::time::timeout(secs(20), async {
        while redlock.acquire("x").await.is_err() {
            tokio::time::sleep(ms(50)).await;
        }
    });
    second_outcome.await.expect("the master must be used again");
}

#[tokio::test]
async fn lock_extended_at_a_slow_store_is_invalid_when_another_client_gets_it() {
    let slow_store = TestStore::new(true);
    let quick_store = TestStore {
        delay_ms: Arc::default(),
        ..slow_store.clone()
    };
    slow_store.delay_ms.store(300, Ordering::Relaxed);
    let (first_client, second_client) =
        (slow_store.redlock().build(), quick_store.redlock().build());
    let (first_client, second_client) = (first_client.expect("good"), second_client.expect("good"));
    let outcome = first_client.lock("nightly").renewal(false).acquire().await;
    let guard = outcome.expect("free");
    guard
        .extend(secs(4))
        .await
        .expect("the extension must succeed, because the lock is still held");
    let _next = acquire_when_free(&second_client, "nightly").await;
    assert!(
        !guard.is_valid(),
        "the guard must be invalid when the next client gets the lock, but reports {:?} of remaining validity",
        guard.remaining()
    );
}

#[tokio::test]
async fn cached_records_are_read_again_after_a_restart_of_the_store() {
    let store = TestStore::new(true);
    let (first_client, second_client) = (store.redlock().build(), store.redlock().build());
    let (first_client, second_client) = (first_client.expect("good"), second_client.expect("good"));
    acquire_when_free(&first_client, "nightly")
        .await
        .release()
        .await;
    let disk = store.state().clone();
    acquire_when_free(&first_client, "nightly")
        .await
        .release()
        .await;
    // The crash loses the last two changes of the store, which were not on the disk yet.
    store.restart_with(disk);
    acquire_when_free(&first_client, "of this run")
        .await
        .release()
        .await;
    let guard = acquire_when_free(&second_client, "nightly").await;
    guard
        .extend(secs(4))
        .await
        .expect("the extension must succeed, because the lock is still held");
    // After the loss of data, the store uses the lost version numbers again. So the client's cached copy of a record
    // can have the same version number as the record, but different contents.
    let attempt = first_client.try_acquire("nightly").await.expect("no fault");
    assert!(
        attempt.acquired().is_none(),
        "the client must be refused, because another client holds the lock for {:?} more",
        guard.remaining()
    );
    assert!(
        guard.is_valid(),
        "the lock was lost: the machine was too slow for this test"
    );
}

#[tokio::test]
async fn recreated_record_is_not_mistaken_for_the_deleted_record() {
    let store = TestStore::new(false);
    let new_client = || store.redlock().build().expect("good");
    let writer = new_client();
    let crashed = new_client();
    let outcome = crashed.lock("doc").shared().renewal(false).acquire().await;
    let first = outcome.expect("free");
    let attempt = writer.try_acquire("doc").await.expect("no fault");
    assert!(
        attempt.acquired().is_none(),
        "a reader must exclude the writer"
    );
    eventually("the lease must have ended", || !first.is_valid()).await;
    std::mem::forget(first);
    store.state().records.clear();
    tokio::time::sleep(ms(500)).await;
    let second_client = new_client();
    let result = second_client
        .lock("doc")
        .shared()
        .renewal(false)
        .acquire()
        .await;
    let second = result.expect("free");
    let attempt = writer.try_acquire("doc").await.expect("no fault");
    assert!(
        attempt.acquired().is_none(),
        "a reader must exclude the writer again"
    );
    assert!(
        second.is_valid(),
        "the lock was lost: the machine was too slow for this test"
    );
}

#[tokio::test]
async fn error_names_a_record_that_another_program_wrote() {
    let store = TestStore::new(true);
    let redlock = store.redlock().build().expect("good");
    for name in [&b"text"[..], b"\xff\xfe", b"\x1b[2J"] {
        let (version, state) = (7, b"\x09junk".to_vec());
        let record = Record::new(version, state);
        store.state().records.insert(name.to_vec(), record);
        let error_text = redlock.try_acquire(name).await.unwrap_err().details();
        assert!(
            error_text.contains("was not written by quorate"),
            "{error_text}"
        );
        assert!(!error_text.contains('\x1b'), "{error_text:?}");
    }
}

#[tokio::test]
async fn lock_whose_record_was_overwritten_does_not_end_the_renewal_of_other_locks() {
    let store = TestStore::new(true);
    let redlock = store.redlock().ttl(secs(4)).build().expect("good");
    let bad_guard = redlock.acquire("bad").await.expect("free");
    let good_guard = redlock.acquire("good").await.expect("free");
    let malformed_state = b"\x09junk".to_vec();
    let (version, state) = (store.state().last_version + 1, malformed_state);
    let record = Record::new(version, state);
    store.state().records.insert(b"bad".to_vec(), record);
    // Without a renewal, only 1.2 s of the lease would be left after this sleep.
    tokio::time::sleep(ms(2_800)).await;
    assert!(
        good_guard.remaining() > ms(1_800),
        "{:?}",
        good_guard.report()
    );
    let details = format!("{:?}", bad_guard.report());
    assert!(details.contains("was not written by quorate"), "{details}");
}

#[tokio::test]
async fn lock_is_released_if_the_session_closes_before_the_grant_is_answered() {
    let store = TestStore::new(true);
    let redlock = store.redlock().build().expect("good");
    redlock.acquire("warm").await.expect("free").release().await;
    store.state().commits_until_close = Some(1);
    // Request both locks at the same time. Each needs a commit, and the store closes the session after one commit.
    let (first_client, second_client) = (redlock.lock("one"), redlock.lock("other"));
    let outcomes = tokio::join!(first_client.try_acquire(), second_client.try_acquire());
    assert!(outcomes.0.is_err() && outcomes.1.is_err(), "{outcomes:?}");
    store.state().commits_until_close = None;
    let started_at = std::time::Instant::now();
    drop(acquire_when_free(&redlock, "one").await);
    drop(acquire_when_free(&redlock, "other").await);
    // A lock that was not released would block this acquire until the end of its TTL.
    assert!(started_at.elapsed() < secs(3), "{:?}", started_at.elapsed());
}

#[tokio::test]
async fn restart_guard_set_to_after_first_contact_rejects_only_a_restarted_store() {
    let store = TestStore::new(true);
    store.state().is_young = true;
    let guard = RestartGuard::AfterFirstContact;
    let redlock = store.redlock().restart_guard(guard).build().expect("good");
    let quarantine_of_first = async || redlock.inspect().await[0].quarantined;
    assert_eq!(quarantine_of_first().await, None);
    let outcome = redlock.try_acquire("nightly").await;
    let first = outcome.expect("first contact").acquired().expect("free");
    first.release().await;
    let disk = store.state().clone();
    store.restart_with(disk);
    let started_at = std::time::Instant::now();
    loop {
        let error_text = redlock.try_acquire("nightly").await.unwrap_err();
        if error_text.details().contains("restart guard") {
            break;
        }
        // The first requests after the restart may fail because their connection is closed.
        assert!(started_at.elapsed() < secs(2), "{error_text}");
        tokio::time::sleep(ms(5)).await;
    }
    let remaining = quarantine_of_first()
        .await
        .expect("the restart guard must apply after a restart");
    assert!(remaining > secs(1) && remaining <= secs(4), "{remaining:?}");
}

#[tokio::test]
async fn inspection_of_a_store_reports_its_settings_and_faults() {
    let (store, mut second_store) = (TestStore::new(true), TestStore::new(true));
    second_store.name = NodeName::new("twin");
    let client_with_guard = |guard| {
        let builder = store.redlock().node(StoreNode::new(second_store.clone()));
        builder.restart_guard(guard).build().expect("good")
    };
    let inspections = client_with_guard(RestartGuard::On).inspect().await;
    for inspection in &inspections {
        assert!(
            inspection.records && inspection.timeout == Some(secs(1)),
            "{inspection:?}"
        );
        assert_eq!(
            inspection.quarantined, None,
            "a server that has been up for an hour must vote"
        );
    }
    let duplicate_faults = inspections
        .iter()
        .filter_map(|inspection| inspection.fault.clone());
    let duplicate_faults: Vec<_> = duplicate_faults.map(|fault| fault.kind()).collect();
    assert_eq!(duplicate_faults, ["same_server"], "{inspections:?}");
    store.state().is_young = true;
    let quarantine_left = async |guard| client_with_guard(guard).inspect().await[0].quarantined;
    let remaining = quarantine_left(RestartGuard::On)
        .await
        .expect("a server that has been up for only a second must not vote");
    assert!(remaining > secs(2) && remaining <= secs(4), "{remaining:?}");
    assert_eq!(quarantine_left(RestartGuard::Off).await, None);
}

#[tokio::test]
async fn store_that_is_configured_under_two_names_has_only_one_vote() {
    let [first, mut second] = [(); 2].map(|()| TestStore::new(true));
    second.name = NodeName::new("second name");
    for store in [&first, &second] {
        store.state().server = Some("one");
    }
    let redlock = first.redlock().node(StoreNode::new(second));
    let redlock = redlock.build().expect("good settings");
    let error = redlock.try_acquire("job").await.expect_err("no majority");
    assert!(error.details().contains("same server"), "{error:?}");
}

#[tokio::test]
async fn failed_listing_of_a_store_is_reported_with_its_cause() {
    let store = TestStore::new(true);
    let redlock = store.redlock().build().expect("good");
    redlock.acquire("warm").await.expect("free").release().await;
    store.state().cannot_list = true;
    let listing = redlock.list("").await;
    let error_text = format!("{listing:?}");
    assert!(error_text.contains("no names today"), "{error_text}");
}

#[tokio::test]
async fn quota_is_reported_as_lost_after_a_restart_of_its_store() {
    let store = TestStore::new(true);
    let redlock = store.redlock().build().expect("good");
    let quota = redlock.quota("prizes");
    quota.create(10).await.expect("new");
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 9 }));
    let disk = store.state().clone();
    store.restart_with(disk);
    let started_at = std::time::Instant::now();
    let error = loop {
        match quota.take(1).await.expect_err(
            "the take must fail, because the value was written in an earlier server run",
        ) {
            // The first requests after the restart may fail because their connection is closed.
            ValueError::NotAcquired(_) if started_at.elapsed() < secs(2) => {}
            error => break error,
        }
    };
    assert!(matches!(error, ValueError::Lost(_)), "{error}");
}

#[tokio::test]
async fn slow_connection_to_a_store_is_awaited_up_to_its_time_limit() {
    let store = TestStore::new(true);
    store.state().connect_delay_ms = 100;
    let builder = store.redlock().connect_timeout(secs(10));
    let redlock = builder.build().expect("good");
    drop(redlock.acquire("nightly").await.expect("free"));
    store.state().connect_delay_ms = 60_000;
    let redlock = store.redlock().connect_timeout(ms(100)).build();
    let outcome = redlock.expect("good").try_acquire("nightly").await;
    let error_text = outcome.unwrap_err().details();
    assert!(
        error_text.contains("no connection within 100ms") || error_text.contains("connecting"),
        "{error_text}"
    );
}
