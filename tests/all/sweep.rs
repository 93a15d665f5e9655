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
struct World {
    started_at: tokio::time::Instant,
    /// The time of the wall clock at the start of the test, in microseconds since 1970. The clocks of the stores show
    /// the same time.
    wall: u64,
    drawn: AtomicU64,
}

impl World {
    fn new() -> Self {
        Self {
            started_at: tokio::time::Instant::now(),
            wall: wall_micros(),
            drawn: AtomicU64::new(1),
        }
    }
}

fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

impl Runtime for World {
    fn now(&self) -> Instant {
        Instant::from_nanos(1_000_000_000 + self.started_at.elapsed().as_nanos() as u64)
    }

    fn wall_micros(&self) -> u64 {
        self.wall + self.started_at.elapsed().as_micros() as u64
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
            let drawn = self
                .drawn
                .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            chunk.copy_from_slice(&drawn.to_le_bytes()[..chunk.len()]);
        }
    }
}

const HOUR: Duration = secs(3600);

async fn records(table: &Table) -> Vec<String> {
    let all = table.clone().page(0, 10_000).await.expect("in memory").what;
    let shown = |name: &[u8]| name.escape_ascii().to_string();
    all.iter().map(|(name, _)| shown(name)).collect()
}

#[tokio::test(start_paused = true)]
async fn clients_remove_store_records_that_were_unused_for_a_day() {
    let world = Arc::new(World::new());
    // This store has no clock. So a client removes a record only if the client itself has seen the record unchanged for
    // a day.
    let table = Table::new("table", false);
    let redlock = || {
        let builder = Redlock::builder().ttl(secs(30)).runtime(world.clone());
        builder
            .node(StoreNode::new(table.clone()))
            .build()
            .expect("good")
    };
    let (gone, stays) = (redlock(), redlock());
    let mut numbers = Vec::new();
    for i in 0..150 {
        let guard = gone.acquire(format!("invoice-{i}")).await.expect("free");
        numbers.push(
            guard
                .fencing_token()
                .expect("the lock must have a fencing token"),
        );
        guard.release().await;
    }
    drop(gone);
    let held = stays.acquire("held").await.expect("free");
    let prizes = stays.quota("prizes");
    prizes.create(10).await.expect("new");
    assert_eq!(records(&table).await.len(), 152);

    tokio::time::sleep(23 * HOUR).await;
    assert_eq!(
        records(&table).await.len(),
        152,
        "the fencing counters must be kept for a day"
    );
    assert!(held.is_valid());

    tokio::time::sleep(4 * HOUR).await;
    let left = records(&table).await;
    assert_eq!(left, ["held", "prizes"]);
    assert!(held.is_valid());
    assert_eq!(prizes.take(1).await.expect("kept"), Take::Taken { left: 9 });

    for (i, before) in numbers.into_iter().enumerate() {
        let guard = stays.acquire(format!("invoice-{i}")).await.expect("free");
        assert!(
            guard
                .fencing_token()
                .expect("the lock must have a fencing token")
                > before,
            "{i}"
        );
        guard.release().await;
    }
    held.release().await;
}

#[tokio::test(start_paused = true)]
async fn store_announces_a_new_leader_to_an_observer_that_waited_for_minutes() {
    let world = Arc::new(World::new());
    // Use a store without a clock. Then the clients measure all times with their own clock, which is paused in this
    // test.
    let table = Table::new("table", false);
    let redlock = || {
        let builder = Redlock::builder().ttl(secs(1200)).max_ttl(secs(1200));
        let builder = builder.runtime(world.clone());
        let node = StoreNode::new(table.clone());
        builder.node(node).build().expect("good")
    };
    let (observer, candidate) = (redlock(), redlock());
    let mut seen = observer
        .election("boss")
        .observe()
        .expect("the name must be valid");
    assert_eq!(seen.next().await, None);
    let seen = tokio::spawn(async move { seen.next().await.map(|leader| leader.term) });
    // The store forgets an observer after a minute. The observer must register again in time, although it polls only
    // every 400 s.
    tokio::time::sleep(secs(150)).await;
    let started_at = tokio::time::Instant::now();
    let leads = candidate.election("boss").campaign("here").await;
    let leads =
        leads.expect("the candidate must become the leader, because no other candidate leads");
    assert_eq!(seen.await.expect("no panic"), Some(leads.term()));
    assert!(started_at.elapsed() < secs(5), "{:?}", started_at.elapsed());
}

/// A store that the test can make unreachable with `away`.
#[derive(Clone)]
struct Reachable {
    table: Table,
    away: Arc<AtomicBool>,
    /// By how many microseconds the dates that the store reports are ahead of the real time. Negative if they are
    /// behind.
    ahead: Arc<AtomicI64>,
}

/// A session with the store. The second field is the most recent date that the store reported in this session, if any.
struct ReachableSession(Reachable, Option<Date>);

impl Reachable {
    fn ask(&self) -> Result<(), Fault> {
        if self.away.load(Ordering::Relaxed) {
            return Err(Fault::Down("away".into()));
        }
        Ok(())
    }

    fn date(&self) -> Option<Date> {
        let Date { micros, era, .. } = self.table.date_now()?;
        let micros = micros.saturating_add_signed(self.ahead.load(Ordering::Relaxed));
        Some(Date::new(micros, era))
    }
}

impl Store for Reachable {
    type Session = ReachableSession;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        self.table.name()
    }

    fn traits(&self) -> Traits {
        // All locks of a client share one session with this store.
        let traits = Traits::new(Duration::from_millis(250)).lanes(1);
        traits.without_wakes()
    }

    async fn connect(&self) -> Result<(ReachableSession, Greeting), Fault> {
        self.ask()?;
        let (_, greeting) = self.table.connect().await?;
        Ok((ReachableSession(self.clone(), self.date()), greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<Self::Listener, Fault> {
        self.table.listen(process).await
    }

    async fn inspect(&self) -> Inspection {
        self.table.inspect().await
    }
}

impl Session for ReachableSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        self.0.ask()?;
        self.0.table.load(names).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        self.0.ask()?;
        let said = self.0.table.commit(commits).await?;
        let done = said
            .what
            .iter()
            .any(|one| matches!(one, Committed::Done(_)));
        if done {
            self.1 = self.0.date();
        }
        Ok(said)
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        self.0.ask()?;
        self.0.table.page(from, count).await
    }

    fn date(&self) -> Option<Date> {
        self.1
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        self.0.ask()?;
        self.0.table.remove(records).await
    }
}

#[tokio::test(start_paused = true)]
async fn pending_release_of_a_dropped_client_is_retried_for_one_second_only() {
    for (back_after, delivered) in [(Duration::from_millis(500), true), (secs(3), false)] {
        let world = Arc::new(World::new());
        let store = Reachable {
            table: Table::new("table", false),
            away: Arc::default(),
            ahead: Arc::default(),
        };
        let redlock = || {
            let builder = Redlock::builder().ttl(secs(600)).max_ttl(secs(600));
            let builder = builder.runtime(world.clone());
            let node = StoreNode::new(store.clone());
            builder.node(node).build().expect("good")
        };
        let (gone, other) = (redlock(), redlock());
        let guard = gone.acquire("nightly").await.expect("free");
        store.away.store(true, Ordering::Relaxed);
        drop(guard);
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(gone);
        tokio::time::sleep(back_after).await;
        store.away.store(false, Ordering::Relaxed);
        tokio::time::sleep(secs(10)).await;
        let tried = other
            .try_acquire("nightly")
            .await
            .expect("the master must answer");
        assert_eq!(tried.acquired().is_some(), delivered, "{back_after:?}");
    }
}

/// The runtime of the `World`, but with a wall clock that is behind by the given duration.
struct Behind(Arc<World>, Duration);

impl Runtime for Behind {
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
    let world = Arc::new(World::new());
    for table in [
        Table::new("dated", false),
        Table::new("undated", false).undated(),
    ] {
        let redlock = |runtime: Arc<dyn Runtime>| {
            let builder = Redlock::builder().ttl(secs(30)).runtime(runtime);
            let builder = builder.node(StoreNode::new(table.clone()));
            builder.build().expect("good")
        };
        let first = redlock(world.clone());
        let guard = first.acquire("nightly").await.expect("free");
        let before = guard
            .fencing_token()
            .expect("the lock must have a fencing token");
        guard.release().await;
        let stays = first.acquire("held").await.expect("free");
        // The first client has seen the unused record unchanged for longer than a day, so it removes the record.
        tokio::time::sleep(27 * HOUR).await;
        let next = redlock(Arc::new(Behind(world.clone(), 30 * HOUR)));
        let guard = next.acquire("nightly").await.expect("free");
        larger_token(guard.fencing_token(), before);
        guard.release().await;
        stays.release().await;
    }
}

fn client(world: &Arc<World>, store: &Reachable) -> Redlock {
    let builder = Redlock::builder().ttl(secs(30)).runtime(world.clone());
    let builder = builder.node(StoreNode::new(store.clone()));
    builder.build().expect("good")
}

/// Acquires and releases the lock on this resource. Returns its fencing token.
async fn taken(redlock: &Redlock, resource: &str) -> u64 {
    let guard = redlock.acquire(resource).await.expect("free");
    let number = guard
        .fencing_token()
        .expect("the lock must have a fencing token");
    guard.release().await;
    number
}

/// The session `idle` last saw a store date that was 30 hours too early. Its next token must be based on the store's
/// current date.
#[tokio::test(start_paused = true)]
async fn idle_session_uses_the_current_date_of_the_store_for_its_next_token() {
    let world = Arc::new(World::new());
    let store = Reachable {
        table: Table::new("table", false),
        away: Arc::default(),
        ahead: Arc::new(AtomicI64::new(-((30 * HOUR).as_micros() as i64))),
    };
    let (idle, busy) = (client(&world, &store), client(&world, &store));
    taken(&idle, "other").await;
    store.ahead.store(0, Ordering::Relaxed);
    let held = busy.acquire("held").await.expect("free");
    let last = taken(&busy, "nightly").await;
    tokio::time::sleep(27 * HOUR).await;
    assert_eq!(records(&store.table).await, ["held"]);
    larger_token(Some(taken(&idle, "nightly").await), last);
    held.release().await;
}

/// Simulates a ZooKeeper ensemble. The clock of its leading server is two days ahead. Then a server with a correct
/// clock becomes the leading server.
#[tokio::test(start_paused = true)]
async fn store_record_with_a_token_from_a_future_date_outlives_that_date() {
    let world = Arc::new(World::new());
    let store = Reachable {
        table: Table::new("table", false),
        away: Arc::default(),
        ahead: Arc::new(AtomicI64::new((48 * HOUR).as_micros() as i64)),
    };
    let redlock = || client(&world, &store);
    let first = redlock();
    let mut last = taken(&first, "nightly").await;
    taken(&first, "idle").await;
    store.ahead.store(0, Ordering::Relaxed);
    // A client learns the corrected date from the reply to a change that it makes.
    taken(&first, "other").await;
    tokio::time::sleep(27 * HOUR).await;
    for client in [first.clone(), redlock()] {
        last = larger_token(Some(taken(&client, "nightly").await), last);
    }
    tokio::time::sleep(40 * HOUR).await;
    assert_eq!(records(&store.table).await, ["idle", "nightly", "other"]);
    tokio::time::sleep(8 * HOUR).await;
    assert_eq!(records(&store.table).await, [""; 0]);
}
