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
struct Books {
    name: NodeName,
    clocked: bool,
    /// The delay between the store's clock reading and its answer, in milliseconds.
    late: Arc<AtomicU64>,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
struct State {
    records: BTreeMap<Vec<u8>, Record>,
    last: u64,
    run: u64,
    /// The number of further commits that the server executes before it closes the connection. `None` if it does not
    /// close the connection.
    closes_after: Option<usize>,
    /// True if the server reports an uptime of only one second.
    young: bool,
    /// True if the store cannot list its records.
    pageless: bool,
    /// The time that the store takes to accept a connection, in milliseconds.
    connects_in: u64,
    /// The name that the server reports for itself. `None` if it has none.
    server: Option<&'static str>,
    /// The number of further connection attempts that panic, as a bug in a driver may.
    panics: usize,
}

/// A session with the store, and the number of the server run in which the session began. The session ends when the
/// server restarts.
struct BooksSession(Books, u64);

impl Books {
    fn new(clocked: bool) -> Self {
        Self {
            name: NodeName::new("books"),
            clocked,
            late: Arc::default(),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Simulates a crash and a restart of the server, which then has the data `disk`.
    fn restart_with(&self, disk: State) {
        let run = self.state().run + 1;
        *self.state() = State { run, ..disk };
    }

    /// The uptime that the server reports: one second if `young` is true, and otherwise an hour, which is longer than
    /// any lease in these tests.
    fn uptime(&self) -> Duration {
        secs(if self.state().young { 1 } else { 3600 })
    }

    /// Panics if `State::panics` says so.
    fn may_panic(&self) {
        let mut state = self.state();
        let panics = state.panics > 0;
        state.panics = state.panics.saturating_sub(1);
        drop(state);
        assert!(!panics, "odd weather");
    }

    fn redlock(&self) -> RedlockBuilder {
        Redlock::builder()
            .ttl(secs(4))
            .max_ttl(secs(4))
            .node(StoreNode::new(self.clone()))
    }
}

impl Store for Books {
    type Session = BooksSession;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        Traits::new(secs(1)).without_wakes()
    }

    async fn connect(&self) -> Result<(BooksSession, Greeting), Fault> {
        let connects_in = self.state().connects_in;
        tokio::time::sleep(ms(connects_in)).await;
        self.may_panic();
        let run = self.state().run;
        let mut greeting = Greeting::new(ServerRun::new(run.to_string()));
        if let Some(server) = self.state().server {
            greeting = greeting.server(server);
        }
        let session = BooksSession(self.clone(), run);
        Ok((session, greeting.uptime(self.uptime())))
    }

    async fn listen(&self, _: Arc<str>) -> Result<Self::Listener, Fault> {
        Err(Fault::Unsupported("nobody is woken".into()))
    }

    async fn inspect(&self) -> Inspection {
        let mut found = Inspection::new(self.name.clone());
        found.run_id = Some(self.state().run.to_string());
        found.identity = Some("the server of the books".into());
        found.uptime = Some(self.uptime());
        found
    }
}

impl BooksSession {
    async fn ask<T>(&self, ask: impl FnOnce(&mut State) -> T) -> Result<Clocked<T>, Fault> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let clock = since.expect("a clock").as_micros() as u64;
        let what = {
            let mut state = self.0.state();
            if state.run != self.1 {
                return Err(Fault::Disconnected("it has restarted".into()));
            }
            ask(&mut state)
        };
        let late = self.0.late.load(Ordering::Relaxed);
        if late > 0 {
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
        let clock = self.0.clocked.then_some(clock);
        Ok(Clocked { what, clock })
    }
}

impl State {
    fn record(&self, name: &[u8]) -> Record {
        self.records.get(name).cloned().unwrap_or_default()
    }

    fn commit(&mut self, commit: &Commit) -> Committed {
        let fits = |change: &Change| self.record(&change.name).version == change.version;
        if !commit.changes.iter().all(fits) {
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
                    self.last += 1_000;
                    version = self.last;
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

impl Session for BooksSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let all = |state: &mut State| names.iter().map(|name| state.record(name)).collect();
        self.ask(all).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let done = self.ask(|state| {
            if let Some(left) = &mut state.closes_after {
                *left = left.checked_sub(commits.len()).ok_or(())?;
            }
            Ok(commits.iter().map(|commit| state.commit(commit)).collect())
        });
        let Clocked { what, clock } = done.await?;
        let what = what.map_err(|()| Fault::Down("closing".into()))?;
        Ok(Clocked { what, clock })
    }

    async fn page(&mut self, _: u64, _: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        if self.0.state().pageless {
            return Err(Fault::Server("no names today".into()));
        }
        self.ask(|_| Vec::new()).await
    }

    async fn remove(&mut self, _: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        Ok(())
    }
}

/// Acquires the lock without joining the queue, by repeated attempts until the lock is free.
async fn seize(redlock: &Redlock, resource: &str) -> quorate::LockGuard {
    let started_at = std::time::Instant::now();
    loop {
        let tried = redlock.lock(resource).renewal(false).try_acquire().await;
        if let Ok(Some(guard)) = tried.map(quorate::TryAcquire::acquired) {
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
    let books = Books::new(true);
    let builder = books.redlock().wait(quorate::Wait::Forever);
    let redlock = builder.build().expect("good settings");
    // After two panics, the third connection succeeds.
    books.state().panics = 2;
    let guard = tokio::time::timeout(secs(20), redlock.acquire("x")).await;
    guard
        .expect("in time")
        .expect("the lock must be free")
        .release()
        .await;
    // The session ends, and each attempt to open another one panics.
    books.state().panics = usize::MAX;
    books.state().run += 1;
    let ended = tokio::time::timeout(secs(20), redlock.acquire("x")).await;
    let error = ended.expect("in time").map(drop).expect_err("no session");
    let said = error.details();
    assert!(
        said.contains("internal failure of the client: odd weather"),
        "{said}"
    );
    assert!(said.contains("waiting does not help"), "{said}");
    books.state().panics = 0;
    // Until the next connection attempt, the permanent fault ends each acquire.
    let again = tokio::time::timeout(secs(20), async {
        while redlock.acquire("x").await.is_err() {
            tokio::time::sleep(ms(50)).await;
        }
    });
    again.await.expect("the master must be used again");
}

#[tokio::test]
async fn lock_extended_at_a_slow_store_is_invalid_when_another_client_gets_it() {
    let slow = Books::new(true);
    let quick = Books {
        late: Arc::default(),
        ..slow.clone()
    };
    slow.late.store(300, Ordering::Relaxed);
    let (one, other) = (slow.redlock().build(), quick.redlock().build());
    let (one, other) = (one.expect("good"), other.expect("good"));
    let outcome = one.lock("nightly").renewal(false).acquire().await;
    let guard = outcome.expect("free");
    guard
        .extend(secs(4))
        .await
        .expect("the extension must succeed, because the lock is still held");
    let _next = seize(&other, "nightly").await;
    assert!(
        !guard.is_valid(),
        "the guard must be invalid when the next client gets the lock, but reports {:?} of remaining validity",
        guard.remaining()
    );
}

#[tokio::test]
async fn cached_records_are_read_again_after_a_restart_of_the_store() {
    let books = Books::new(true);
    let (one, other) = (books.redlock().build(), books.redlock().build());
    let (one, other) = (one.expect("good"), other.expect("good"));
    seize(&one, "nightly").await.release().await;
    let disk = books.state().clone();
    seize(&one, "nightly").await.release().await;
    // The crash loses the last two changes of the store, which were not on the disk yet.
    books.restart_with(disk);
    seize(&one, "of this run").await.release().await;
    let guard = seize(&other, "nightly").await;
    guard
        .extend(secs(4))
        .await
        .expect("the extension must succeed, because the lock is still held");
    // After the loss of data, the store uses the lost version numbers again. So the client's cached copy of a record
    // can have the same version number as the record, but different contents.
    let tried = one.try_acquire("nightly").await.expect("no fault");
    assert!(
        tried.acquired().is_none(),
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
    let books = Books::new(false);
    let reader = || books.redlock().build().expect("good");
    let writer = reader();
    let crashed = reader();
    let outcome = crashed.lock("doc").shared().renewal(false).acquire().await;
    let first = outcome.expect("free");
    let tried = writer.try_acquire("doc").await.expect("no fault");
    assert!(
        tried.acquired().is_none(),
        "a reader must exclude the writer"
    );
    eventually("the lease must have ended", || !first.is_valid()).await;
    std::mem::forget(first);
    books.state().records.clear();
    tokio::time::sleep(ms(500)).await;
    let other = reader();
    let result = other.lock("doc").shared().renewal(false).acquire().await;
    let second = result.expect("free");
    let tried = writer.try_acquire("doc").await.expect("no fault");
    assert!(
        tried.acquired().is_none(),
        "a reader must exclude the writer again"
    );
    assert!(
        second.is_valid(),
        "the lock was lost: the machine was too slow for this test"
    );
}

#[tokio::test]
async fn error_names_a_record_that_another_program_wrote() {
    let books = Books::new(true);
    let redlock = books.redlock().build().expect("good");
    for name in [&b"text"[..], b"\xff\xfe", b"\x1b[2J"] {
        let (version, state) = (7, b"\x09junk".to_vec());
        let record = Record::new(version, state);
        books.state().records.insert(name.to_vec(), record);
        let why = redlock.try_acquire(name).await.unwrap_err().details();
        assert!(why.contains("was not written by quorate"), "{why}");
        assert!(!why.contains('\x1b'), "{why:?}");
    }
}

#[tokio::test]
async fn lock_whose_record_was_overwritten_does_not_end_the_renewal_of_other_locks() {
    let books = Books::new(true);
    let redlock = books.redlock().ttl(secs(4)).build().expect("good");
    let bad = redlock.acquire("bad").await.expect("free");
    let good = redlock.acquire("good").await.expect("free");
    let junk = b"\x09junk".to_vec();
    let (version, state) = (books.state().last + 1, junk);
    let record = Record::new(version, state);
    books.state().records.insert(b"bad".to_vec(), record);
    // Without a renewal, only 1.2 s of the lease would be left after this sleep.
    tokio::time::sleep(ms(2_800)).await;
    assert!(good.remaining() > ms(1_800), "{:?}", good.report());
    let said = format!("{:?}", bad.report());
    assert!(said.contains("was not written by quorate"), "{said}");
}

#[tokio::test]
async fn lock_is_released_if_the_session_closes_before_the_grant_is_answered() {
    let books = Books::new(true);
    let redlock = books.redlock().build().expect("good");
    redlock.acquire("warm").await.expect("free").release().await;
    books.state().closes_after = Some(1);
    // Request both locks at the same time. Each needs a commit, and the store closes the session after one commit.
    let (one, other) = (redlock.lock("one"), redlock.lock("other"));
    let both = tokio::join!(one.try_acquire(), other.try_acquire());
    assert!(both.0.is_err() && both.1.is_err(), "{both:?}");
    books.state().closes_after = None;
    let started_at = std::time::Instant::now();
    drop(seize(&redlock, "one").await);
    drop(seize(&redlock, "other").await);
    // A lock that was not released would block this acquire until the end of its TTL.
    assert!(started_at.elapsed() < secs(3), "{:?}", started_at.elapsed());
}

#[tokio::test]
async fn restart_guard_set_to_after_first_contact_rejects_only_a_restarted_store() {
    let books = Books::new(true);
    books.state().young = true;
    let guard = RestartGuard::AfterFirstContact;
    let redlock = books.redlock().restart_guard(guard).build().expect("good");
    let quarantined = async || redlock.inspect().await[0].quarantined;
    assert_eq!(quarantined().await, None);
    let outcome = redlock.try_acquire("nightly").await;
    let first = outcome.expect("first contact").acquired().expect("free");
    first.release().await;
    let disk = books.state().clone();
    books.restart_with(disk);
    let started_at = std::time::Instant::now();
    loop {
        let why = redlock.try_acquire("nightly").await.unwrap_err();
        if why.details().contains("restart guard") {
            break;
        }
        // The first requests after the restart may fail because their connection is closed.
        assert!(started_at.elapsed() < secs(2), "{why}");
        tokio::time::sleep(ms(5)).await;
    }
    let left = quarantined()
        .await
        .expect("the restart guard must apply after a restart");
    assert!(left > secs(1) && left <= secs(4), "{left:?}");
}

#[tokio::test]
async fn inspection_of_a_store_reports_its_settings_and_faults() {
    let (books, mut twin) = (Books::new(true), Books::new(true));
    twin.name = NodeName::new("twin");
    let guarded = |guard| {
        let builder = books.redlock().node(StoreNode::new(twin.clone()));
        builder.restart_guard(guard).build().expect("good")
    };
    let found = guarded(RestartGuard::On).inspect().await;
    for one in &found {
        assert!(one.records && one.timeout == Some(secs(1)), "{one:?}");
        assert_eq!(
            one.quarantined, None,
            "a server that has been up for an hour must vote"
        );
    }
    let twins = found.iter().filter_map(|one| one.fault.clone());
    let twins: Vec<_> = twins.map(|fault| fault.kind()).collect();
    assert_eq!(twins, ["same_server"], "{found:?}");
    books.state().young = true;
    let quarantined = async |guard| guarded(guard).inspect().await[0].quarantined;
    let left = quarantined(RestartGuard::On)
        .await
        .expect("a server that has been up for only a second must not vote");
    assert!(left > secs(2) && left <= secs(4), "{left:?}");
    assert_eq!(quarantined(RestartGuard::Off).await, None);
}

#[tokio::test]
async fn store_that_is_configured_under_two_names_has_only_one_vote() {
    let [first, mut second] = [(); 2].map(|()| Books::new(true));
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
    let books = Books::new(true);
    let redlock = books.redlock().build().expect("good");
    redlock.acquire("warm").await.expect("free").release().await;
    books.state().pageless = true;
    let listing = redlock.list("").await;
    let why = format!("{listing:?}");
    assert!(why.contains("no names today"), "{why}");
}

#[tokio::test]
async fn quota_is_reported_as_lost_after_a_restart_of_its_store() {
    let books = Books::new(true);
    let redlock = books.redlock().build().expect("good");
    let quota = redlock.quota("prizes");
    quota.create(10).await.expect("new");
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 9 }));
    let disk = books.state().clone();
    books.restart_with(disk);
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
    let books = Books::new(true);
    books.state().connects_in = 100;
    let builder = books.redlock().connect_timeout(secs(10));
    let redlock = builder.build().expect("good");
    drop(redlock.acquire("nightly").await.expect("free"));
    books.state().connects_in = 60_000;
    let redlock = books.redlock().connect_timeout(ms(100)).build();
    let outcome = redlock.expect("good").try_acquire("nightly").await;
    let why = outcome.unwrap_err().details();
    assert!(
        why.contains("no connection within 100ms") || why.contains("connecting"),
        "{why}"
    );
}
