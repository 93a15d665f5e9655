//! Tests of background tasks in clients whose masters are stores. These tasks:
//!
//! - remove unused records;
//! - keep observers of elections registered;
//! - release locks whose handles were dropped.
//!
//! The tests use tokio's clock, which advances only when no task can run. So simulated days take seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::node::store::{
    Clocked, Commit, Committed, Date, Greeting, NamedRecord, Record, Session, Store, StoreNode,
    Table, Traits,
};
use quorate::node::{Fault, NodeName};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{Inspection, Instant, Redlock, Take};

use crate::support::{larger_token, secs};

/// A runtime of the library for these tests: a clock and timers in tokio's time, and random numbers.
struct SimulatedRuntime {
    started_at: tokio::time::Instant,
    /// The time of the wall clock at the start of the test, in microseconds since 1970. The clocks of the stores show
    /// the same time.
    start_micros: u64,
    random_state: AtomicU64,
}

impl SimulatedRuntime {
    fn new() -> Self {
        Self {
            started_at: tokio::time::Instant::now(),
            start_micros: wall_micros(),
            random_state: AtomicU64::new(1),
        }
    }
}

fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

impl Runtime for SimulatedRuntime {
    fn now(&self) -> Instant {
        Instant::from_nanos(1_000_000_000 + self.started_at.elapsed().as_nanos() as u64)
    }

    fn wall_micros(&self) -> u64 {
        self.start_micros + self.started_at.elapsed().as_micros() as u64
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let at = tokio::time::Instant::now() + at.saturating_since(self.now()).min(secs(3600));
        Box::pin(tokio::time::sleep_until(at))
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        tokio::spawn(task);
        true
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random_state = self
                .random_state
                .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            chunk.copy_from_slice(&random_state.to_le_bytes()[..chunk.len()]);
        }
    }
}

const HOUR: Duration = secs(3600);

async fn records(table: &Table) -> Vec<String> {
    let record_page = table.clone().page(0, 10_000).await.expect("in memory").what;
    let escaped = |name: &[u8]| name.escape_ascii().to_string();
    record_page.iter().map(|(name, _)| escaped(name)).collect()
}

#[tokio::test(start_paused = true)]
async fn clients_remove_store_records_that_were_unused_for_a_day() {
    let runtime = Arc::new(SimulatedRuntime::new());
    // This store has no clock. So a client removes a record only if the client itself has seen the record unchanged for
    // a day.
    let table = Table::new("table", false);
    let redlock = || {
        let builder = Redlock::builder().ttl(secs(30)).runtime(runtime.clone());
        builder
            .node(StoreNode::new(table.clone()))
            .build()
            .expect("good")
    };
    let (first_client, second_client) = (redlock(), redlock());
    let mut tokens = Vec::new();
    for i in 0..150 {
        let guard = first_client
            .acquire(format!("invoice-{i}"))
            .await
            .expect("free");
        tokens.push(
            guard
                .fencing_token()
                .expect("the lock must have a fencing token"),
        );
        guard.release().await;
    }
    drop(first_client);
    let held_guard = second_client.acquire("held").await.expect("free");
    let prizes = second_client.quota("prizes");
    prizes.create(10).await.expect("new");
    assert_eq!(records(&table).await.len(), 152);

    tokio::time::sleep(23 * HOUR).await;
    assert_eq!(
        records(&table).await.len(),
        152,
        "the fencing counters must be kept for a day"
    );
    assert!(held_guard.is_valid());

    tokio::time::sleep(4 * HOUR).await;
    let remaining_records = records(&table).await;
    assert_eq!(remaining_records, ["held", "prizes"]);
    assert!(held_guard.is_valid());
    assert_eq!(prizes.take(1).await.expect("kept"), Take::Taken { left: 9 });

    for (i, token_before) in tokens.into_iter().enumerate() {
        let guard = second_client
            .acquire(format!("invoice-{i}"))
            .await
            .expect("free");
        assert!(
            guard
                .fencing_token()
                .expect("the lock must have a fencing token")
                > token_before,
            "{i}"
        );
        guard.release().await;
    }
    held_guard.release().await;
}

#[tokio::test(start_paused = true)]
async fn store_announces_a_new_leader_to_an_observer_that_waited_for_minutes() {
    let runtime = Arc::new(SimulatedRuntime::new());
    // Use a store without a clock. Then the clients measure all times with their own clock, which is paused in this
    // test.
    let table = Table::new("table", false);
    let redlock = || {
        let builder = Redlock::builder().ttl(secs(1200)).max_ttl(secs(1200));
        let builder = builder.runtime(runtime.clone());
        let store_node = StoreNode::new(table.clone());
        builder.node(store_node).build().expect("good")
    };
    let (observer, candidate) = (redlock(), redlock());
    let mut election_observer = observer
        .election("boss")
        .observe()
        .expect("the name must be valid");
    assert_eq!(election_observer.next().await, None);
    let observer_task =
        tokio::spawn(async move { election_observer.next().await.map(|leader| leader.term) });
    // The store forgets an observer after a minute. The observer must register again in time, although it polls only
    // every 400 s.
    tokio::time::sleep(secs(150)).await;
    let started_at = tokio::time::Instant::now();
    let leadership = candidate.election("boss").campaign("here").await;
    let leadership =
        leadership.expect("the candidate must become the leader, because no other candidate leads");
    assert_eq!(
        observer_task.await.expect("no panic"),
        Some(leadership.term())
    );
    assert!(started_at.elapsed() < secs(5), "{:?}", started_at.elapsed());
}

/// A store that the test can make unreachable with `is_unreachable`.
#[derive(Clone)]
struct UnreliableStore {
    table: Table,
    is_unreachable: Arc<AtomicBool>,
    /// By how many microseconds the dates that the store reports are ahead of the real time. Negative if they are
    /// behind.
    date_offset_us: Arc<AtomicI64>,
    /// The number of pages that clients have read.
    pages: Arc<AtomicU64>,
}

/// A session with the store. The second field is the most recent date that the store reported in this session, if any.
struct UnreliableSession(UnreliableStore, Option<Date>);

impl UnreliableStore {
    fn fail_if_unreachable(&self) -> Result<(), Fault> {
        if self.is_unreachable.load(Ordering::Relaxed) {
            return Err(Fault::Down("away".into()));
        }
        Ok(())
    }

    fn date(&self) -> Option<Date> {
        let Date { micros, era, .. } = self.table.date_now()?;
        let micros = micros.saturating_add_signed(self.date_offset_us.load(Ordering::Relaxed));
        Some(Date::new(micros, era))
    }
}

impl Store for UnreliableStore {
    type Session = UnreliableSession;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        self.table.name()
    }

    fn traits(&self) -> Traits {
        // All locks of a client share one session with this store.
        let traits = Traits::new(Duration::from_millis(250)).lanes(1);
        traits.without_wakes()
    }

    async fn connect(&self) -> Result<(UnreliableSession, Greeting), Fault> {
        self.fail_if_unreachable()?;
        let (_, greeting) = self.table.connect().await?;
        Ok((UnreliableSession(self.clone(), self.date()), greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<Self::Listener, Fault> {
        self.table.listen(process).await
    }

    async fn inspect(&self) -> Inspection {
        self.table.inspect().await
    }
}

impl Session for UnreliableSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        self.0.fail_if_unreachable()?;
        self.0.table.load(names).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        self.0.fail_if_unreachable()?;
        let outcome = self.0.table.commit(commits).await?;
        let has_committed = outcome
            .what
            .iter()
            .any(|one| matches!(one, Committed::Done(_)));
        if has_committed {
            self.1 = self.0.date();
        }
        Ok(outcome)
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        self.0.fail_if_unreachable()?;
        self.0.pages.fetch_add(1, Ordering::Relaxed);
        self.0.table.page(from, count).await
    }

    fn date(&self) -> Option<Date> {
        self.1
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        self.0.fail_if_unreachable()?;
        self.0.table.remove(records).await
    }
}

/// With a page, PostgreSQL also removes rows that contain no record.
#[tokio::test(start_paused = true)]
async fn client_reads_pages_of_the_store_even_if_its_cache_has_no_room() {
    let runtime = Arc::new(SimulatedRuntime::new());
    let store = UnreliableStore {
        table: Table::new("table", false),
        is_unreachable: Arc::default(),
        date_offset_us: Arc::default(),
        pages: Arc::default(),
    };
    let builder = Redlock::builder().ttl(secs(30)).runtime(runtime);
    let node = StoreNode::new(store.clone());
    let client = builder.node(node).build().expect("good");
    for number in 0..8_192 {
        let guard = client.acquire(format!("invoice-{number}")).await;
        guard.expect("free").release().await;
    }
    let pages = store.pages.load(Ordering::Relaxed);
    tokio::time::sleep(secs(120)).await;
    assert!(store.pages.load(Ordering::Relaxed) >= pages + 2);
}

#[tokio::test(start_paused = true)]
async fn pending_release_of_a_dropped_client_is_retried_for_one_second_only() {
    for (outage, is_granted) in [(Duration::from_millis(500), true), (secs(3), false)] {
        let runtime = Arc::new(SimulatedRuntime::new());
        let store = UnreliableStore {
            table: Table::new("table", false),
            is_unreachable: Arc::default(),
            date_offset_us: Arc::default(),
            pages: Arc::default(),
        };
        let redlock = || {
            let builder = Redlock::builder().ttl(secs(600)).max_ttl(secs(600));
            let builder = builder.runtime(runtime.clone());
            let store_node = StoreNode::new(store.clone());
            builder.node(store_node).build().expect("good")
        };
        let (first_client, other) = (redlock(), redlock());
        let guard = first_client.acquire("nightly").await.expect("free");
        store.is_unreachable.store(true, Ordering::Relaxed);
        drop(guard);
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(first_client);
        tokio::time::sleep(outage).await;
        store.is_unreachable.store(false, Ordering::Relaxed);
        tokio::time::sleep(secs(10)).await;
        let attempt = other
            .try_acquire("nightly")
            .await
            .expect("the master must answer");
        assert_eq!(attempt.acquired().is_some(), is_granted, "{outage:?}");
    }
}

/// The runtime of the `SimulatedRuntime`, but with a wall clock that is behind by the given duration.
struct ClockBehind(Arc<SimulatedRuntime>, Duration);

impl Runtime for ClockBehind {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wall_micros(&self) -> u64 {
        self.0.wall_micros() - self.1.as_micros() as u64
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        self.0.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        self.0.spawn(task)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.0.random(bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn fencing_counter_never_restarts_with_a_smaller_number_after_long_disuse() {
    let runtime = Arc::new(SimulatedRuntime::new());
    for table in [
        Table::new("dated", false),
        Table::new("undated", false).undated(),
    ] {
        let redlock = |runtime: Arc<dyn Runtime>| {
            let builder = Redlock::builder().ttl(secs(30)).runtime(runtime);
            let builder = builder.node(StoreNode::new(table.clone()));
            builder.build().expect("good")
        };
        let first_client = redlock(runtime.clone());
        let guard = first_client.acquire("nightly").await.expect("free");
        let token_before = guard
            .fencing_token()
            .expect("the lock must have a fencing token");
        guard.release().await;
        let second_client = first_client.acquire("held").await.expect("free");
        // The first client has seen the unused record unchanged for longer than a day, so it removes the record.
        tokio::time::sleep(27 * HOUR).await;
        let next_client = redlock(Arc::new(ClockBehind(runtime.clone(), 30 * HOUR)));
        let guard = next_client.acquire("nightly").await.expect("free");
        larger_token(guard.fencing_token(), token_before);
        guard.release().await;
        second_client.release().await;
    }
}

fn client(runtime: &Arc<SimulatedRuntime>, store: &UnreliableStore) -> Redlock {
    let builder = Redlock::builder().ttl(secs(30)).runtime(runtime.clone());
    let builder = builder.node(StoreNode::new(store.clone()));
    builder.build().expect("good")
}

/// Acquires and releases the lock on this resource. Returns its fencing token.
async fn acquire_token(redlock: &Redlock, resource: &str) -> u64 {
    let guard = redlock.acquire(resource).await.expect("free");
    let token = guard
        .fencing_token()
        .expect("the lock must have a fencing token");
    guard.release().await;
    token
}

/// The session `idle_client` last saw a store date that was 30 hours too early. Its next token must be based on the store's
/// current date.
#[tokio::test(start_paused = true)]
async fn idle_session_uses_the_current_date_of_the_store_for_its_next_token() {
    let runtime = Arc::new(SimulatedRuntime::new());
    let store = UnreliableStore {
        table: Table::new("table", false),
        is_unreachable: Arc::default(),
        date_offset_us: Arc::new(AtomicI64::new(-((30 * HOUR).as_micros() as i64))),
        pages: Arc::default(),
    };
    let (idle_client, busy_client) = (client(&runtime, &store), client(&runtime, &store));
    acquire_token(&idle_client, "other").await;
    store.date_offset_us.store(0, Ordering::Relaxed);
    let held_guard = busy_client.acquire("held").await.expect("free");
    let last_token = acquire_token(&busy_client, "nightly").await;
    tokio::time::sleep(27 * HOUR).await;
    assert_eq!(records(&store.table).await, ["held"]);
    larger_token(
        Some(acquire_token(&idle_client, "nightly").await),
        last_token,
    );
    held_guard.release().await;
}

/// Simulates a ZooKeeper ensemble. The clock of its leading server is two days ahead. Then a server with a correct
/// clock becomes the leading server.
#[tokio::test(start_paused = true)]
async fn store_record_with_a_token_from_a_future_date_outlives_that_date() {
    let runtime = Arc::new(SimulatedRuntime::new());
    let store = UnreliableStore {
        table: Table::new("table", false),
        is_unreachable: Arc::default(),
        date_offset_us: Arc::new(AtomicI64::new((48 * HOUR).as_micros() as i64)),
        pages: Arc::default(),
    };
    let redlock = || client(&runtime, &store);
    let first_client = redlock();
    let mut last_token = acquire_token(&first_client, "nightly").await;
    acquire_token(&first_client, "idle").await;
    store.date_offset_us.store(0, Ordering::Relaxed);
    // A client learns the corrected date from the reply to a change that it makes.
    acquire_token(&first_client, "other").await;
    tokio::time::sleep(27 * HOUR).await;
    for client in [first_client.clone(), redlock()] {
        last_token = larger_token(Some(acquire_token(&client, "nightly").await), last_token);
    }
    tokio::time::sleep(40 * HOUR).await;
    assert_eq!(records(&store.table).await, ["idle", "nightly", "other"]);
    tokio::time::sleep(8 * HOUR).await;
    assert_eq!(records(&store.table).await, [""; 0]);
}
