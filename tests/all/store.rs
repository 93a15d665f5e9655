//! Tests of locks whose masters are stores (databases or ZooKeeper), alone or together with masters of other kinds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::node::memory::MemoryNode;
use quorate::node::store::{
    Clocked, Commit, Committed, Date, Greeting, NamedRecord, Record, Session, Store, StoreNode,
    Table, Traits, WaitLock, Wake,
};
use quorate::node::{Fault, NodeName};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{Inspection, Instant, Redlock, RedlockBuilder, Take, ValueError, Wait};

use crate::support::{larger_token, secs};

/// Three masters that are stores in memory. If `clocked` is true, each store has a clock. Otherwise clients measure
/// time with their own clocks.
fn tables(clocked: bool) -> Vec<Table> {
    (1..=3)
        .map(|n| Table::new(&format!("table-{n}"), clocked))
        .collect()
}

fn over(tables: &[Table]) -> RedlockBuilder {
    let patient = Redlock::builder().ttl(secs(5)).wait(Wait::For(secs(10)));
    let add = |builder: RedlockBuilder, table: &Table| builder.node(StoreNode::new(table.clone()));
    tables.iter().fold(patient, add)
}

#[tokio::test]
async fn lock_kept_in_stores_is_exclusive_until_its_release() {
    for clocked in [true, false] {
        let tables = tables(clocked);
        let (one, other) = (over(&tables).build(), over(&tables).build());
        let (one, other) = (one.expect("good settings"), other.expect("good settings"));
        let mut last = 0;
        for _ in 0..10 {
            for redlock in [&one, &other] {
                let guard = redlock.acquire("nightly").await.expect("free");
                last = larger_token(guard.fencing_token(), last);
                let refused = one.try_acquire("nightly").await;
                assert!(refused.expect("no fault").acquired().is_none());
                guard.release().await;
            }
        }
    }
}

/// A second reader joins the lock, which extends the expiry in the lock's record. A writer that read the record before
/// this extension must not use the old expiry.
#[tokio::test]
async fn writer_does_not_acquire_a_lock_that_a_second_reader_has_extended() {
    for clocked in [true, false] {
        let tables = tables(clocked);
        let redlock = || over(&tables).ttl(secs(1)).build().expect("good settings");
        let (dies, reader, writer) = (redlock(), redlock(), redlock());
        // The process of the first reader crashes, so it does not release its lock.
        let read = dies.lock("page").shared().renewal(false).acquire();
        std::mem::forget(read.await.expect("free"));
        let write = writer.try_acquire("page").await.expect("no fault");
        assert!(write.acquired().is_none());
        tokio::time::sleep(Duration::from_millis(850)).await;
        let read = reader.lock("page").shared().renewal(false).acquire();
        let reads = read.await.expect("readers must not exclude readers");
        tokio::time::sleep(Duration::from_millis(350)).await;
        let write = writer.try_acquire("page").await.expect("no fault");
        let writes = write.acquired().is_some();
        assert!(
            !(writes && reads.is_valid()),
            "a reader and a writer must not hold the lock at the same time (store with a clock: {clocked})"
        );
    }
}

#[tokio::test]
async fn waiter_for_a_lock_kept_in_stores_is_woken_by_the_release() {
    for clocked in [true, false] {
        let tables = tables(clocked);
        let redlock = || {
            over(&tables)
                .ttl(secs(20))
                .wait(Wait::For(secs(19)))
                .build()
        };
        let (one, other) = (redlock().expect("good"), redlock().expect("good"));
        let guard = one.acquire("nightly").await.expect("free");
        let waits = tokio::spawn(async move { other.acquire("nightly").await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started_at = std::time::Instant::now();
        guard.release().await;
        let guard = waits
            .await
            .expect("no panic")
            .expect("the waiter must get the lock");
        // Without a wake-up, the waiter would ask for the lock again at its next heartbeat: after more than three
        // seconds.
        assert!(started_at.elapsed() < secs(2), "{:?}", started_at.elapsed());
        guard.release().await;
    }
}

/// A store whose clients poll for wake-ups. It remembers each wake-up, and counts the commits that failed because
/// another client had changed the record.
#[derive(Clone)]
struct Counting {
    table: Table,
    counted: Arc<Counted>,
}

#[derive(Default)]
struct Counted {
    stale: AtomicUsize,
    told: Mutex<Vec<Vec<Wake>>>,
    wait_locks: Mutex<Vec<WaitLock>>,
    /// If true, the next commit fails, and the session with the store ends.
    ends: AtomicBool,
    /// If true, the address of the store leads to another server from the next session on.
    moved: AtomicBool,
}

struct CountingSession(<Table as Store>::Session, Arc<Counted>);

impl Store for Counting {
    type Session = CountingSession;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        self.table.name()
    }

    fn traits(&self) -> Traits {
        self.table.traits().looks()
    }

    async fn connect(&self) -> Result<(CountingSession, Greeting), Fault> {
        let (session, greeting) = self.table.connect().await?;
        let moved = self.counted.moved.load(Ordering::Relaxed);
        let greeting = greeting.server(if moved { "another" } else { "one" });
        Ok((CountingSession(session, self.counted.clone()), greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<Self::Listener, Fault> {
        self.table.listen(process).await
    }

    async fn inspect(&self) -> Inspection {
        self.table.inspect().await
    }
}

impl Session for CountingSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        self.0.load(names).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        if self.1.ends.swap(false, Ordering::Relaxed) {
            return Err(Fault::Disconnected("it has ended".into()));
        }
        let said = self.0.commit(commits).await?;
        let stale = said.what.iter().filter(|it| **it == Committed::Stale);
        self.1.stale.fetch_add(stale.count(), Ordering::Relaxed);
        let done = commits.iter().zip(&said.what);
        let done = done.filter(|(_, it)| **it != Committed::Stale);
        let wait_locks = done.clone().flat_map(|(commit, _)| &commit.wait_locks);
        let mut known = self.1.wait_locks.lock().expect("no panic");
        known.extend(wait_locks.cloned());
        drop(known);
        let done = done.filter(|(commit, _)| !commit.wakes.is_empty());
        let told = done.map(|(commit, _)| commit.wakes.clone());
        self.1.told.lock().expect("no panic").extend(told);
        Ok(said)
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        self.0.page(from, count).await
    }

    fn date(&self) -> Option<Date> {
        self.0.date()
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        self.0.remove(records).await
    }
}

#[tokio::test]
async fn store_whose_address_leads_to_another_server_has_no_vote_until_max_ttl_has_passed() {
    let counted = Arc::new(Counted::default());
    let store = Counting {
        table: Table::new("table", true).lanes(1),
        counted: counted.clone(),
    };
    let builder = Redlock::builder().node(StoreNode::new(store));
    let builder = builder.ttl(secs(3)).max_ttl(secs(3)).wait(Wait::None);
    let redlock = builder.build().expect("good settings");
    let guard = redlock.acquire("nightly").await.expect("free");
    guard.release().await;
    counted.moved.store(true, Ordering::Relaxed);
    counted.ends.store(true, Ordering::Relaxed);
    let moved = std::time::Instant::now();
    loop {
        let outcome = redlock.acquire("nightly").await;
        let error = outcome.expect_err("the vote of another server must not count");
        if error.details().contains("restart guard") {
            break;
        }
        assert!(moved.elapsed() < secs(20), "{}", error.details());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lock = redlock.lock("nightly").wait(Wait::For(secs(20)));
    let guard = lock.acquire().await.expect("the votes must count again");
    assert!(moved.elapsed() >= secs(3), "{:?}", moved.elapsed());
    guard.release().await;
}

#[tokio::test]
async fn woken_waiter_reads_the_lock_record_before_writing_the_record() {
    for clocked in [true, false] {
        let (redlock, counted) = counting(clocked);
        let (one, other) = (redlock(), redlock());
        for _ in 0..5 {
            let guard = one.acquire("nightly").await.expect("free");
            let other = other.clone();
            let waits = tokio::spawn(async move { other.acquire("nightly").await });
            tokio::time::sleep(Duration::from_millis(100)).await;
            let before = counted.stale.load(Ordering::Relaxed);
            guard.release().await;
            let guard = waits
                .await
                .expect("no panic")
                .expect("the waiter must get the lock");
            // The waiter may change the record while the holder releases the lock. So one commit of the release may
            // fail.
            let late = counted.stale.load(Ordering::Relaxed) - before;
            assert!(
                late <= 1,
                "at most one commit may fail because the record has changed, but {late} did (store with a clock: \
                 {clocked})"
            );
            guard.release().await;
        }
    }
}

/// Creates one counting store. Returns a function that builds a new client of this store, and the counters of the
/// store.
fn counting(clocked: bool) -> (impl Fn() -> Redlock, Arc<Counted>) {
    let (table, counted) = (Table::new("table", clocked), Arc::<Counted>::default());
    let shown = counted.clone();
    let open = move || {
        let (table, counted) = (table.clone(), counted.clone());
        let patient = Redlock::builder().ttl(secs(20)).wait(Wait::For(secs(19)));
        let node = StoreNode::new(Counting { table, counted });
        patient.node(node).build().expect("good")
    };
    (open, shown)
}

#[tokio::test]
async fn each_waiter_at_a_store_holds_a_named_wait_lock_until_it_releases_the_lock() {
    let (redlock, counted) = counting(true);
    let guard = redlock().acquire("nightly").await.expect("free");
    let mut waits = Vec::new();
    for _ in 0..3 {
        let other = redlock();
        waits.push(tokio::spawn(async move {
            other.acquire("nightly").await?.release().await;
            Ok::<(), quorate::AcquireError>(())
        }));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let kept = |wanted: bool| -> BTreeSet<Arc<str>> {
        let changes = counted.wait_locks.lock().expect("no panic");
        let names = changes.iter().filter_map(|change| match change {
            WaitLock::Keep(name) if wanted => Some(name.clone()),
            WaitLock::Release(name) if !wanted && name.contains(':') => Some(name.clone()),
            _ => None,
        });
        names.collect()
    };
    assert_eq!(
        kept(true).len(),
        3,
        "each of the three waiters must hold a wait lock"
    );
    assert_eq!(kept(false).len(), 0);
    guard.release().await;
    for wait in waits {
        wait.await
            .expect("no panic")
            .expect("the waiter must get the lock");
    }
    assert_eq!(kept(false), kept(true));
    let told = counted.told.lock().expect("no panic");
    assert!(told.iter().all(|told| told.len() == 1), "{told:?}");
}

#[tokio::test]
async fn waiters_poll_if_fewer_than_a_majority_of_masters_can_wake_them() {
    let all = tables(true).into_iter().enumerate();
    let wake = |(n, table): (usize, Table)| if n == 0 { table } else { table.without_wakes() };
    let tables: Vec<Table> = all.map(wake).collect();
    let redlock = || {
        over(&tables)
            .ttl(secs(30))
            .wait(Wait::For(secs(29)))
            .build()
    };
    let mut guard = redlock()
        .expect("good")
        .acquire("nightly")
        .await
        .expect("free");
    // In the first pass, the holder has acquired the lock without waiting. In the second pass, the holder has waited
    // for the lock.
    for _ in 0..2 {
        let other = redlock().expect("good");
        let waits = tokio::spawn(async move { other.acquire("nightly").await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started_at = std::time::Instant::now();
        guard.release().await;
        guard = waits
            .await
            .expect("no panic")
            .expect("the waiter must get the lock");
        // Without polling, the waiter would ask for the lock again at its next heartbeat: after five seconds.
        assert!(started_at.elapsed() < secs(3), "{:?}", started_at.elapsed());
    }
    guard.release().await;
}

#[tokio::test]
async fn masters_of_different_kinds_can_serve_one_lock_together() {
    let memory = MemoryNode::new("memory");
    let tables = tables(true);
    let both = |process: RedlockBuilder| process.node(memory.clone()).build();
    let (one, other) = (both(over(&tables[..2])), both(over(&tables[..2])));
    let (one, other) = (one.expect("good"), other.expect("good"));
    let readers = [
        one.lock("doc").shared().acquire().await.expect("free"),
        other.lock("doc").shared().acquire().await.expect("shared"),
    ];
    let writer = other
        .lock("doc")
        .wait(Wait::For(Duration::from_millis(200)));
    assert!(
        writer.acquire().await.is_err(),
        "readers must exclude the writer"
    );
    for reader in readers {
        reader.release().await;
    }
    let account = one.lock_all(["a", "b"]).acquire().await.expect("free");
    assert!(
        other
            .lock("b")
            .try_acquire()
            .await
            .expect("no fault")
            .acquired()
            .is_none()
    );
    account.release().await;
    memory.set_condition(quorate::node::memory::Condition::Down);
    let guard = other
        .acquire("doc")
        .await
        .expect("the acquire must succeed, because two of the three masters can be reached");
    guard.release().await;
}

#[tokio::test]
async fn settings_with_a_duplicate_store_or_too_short_ttl_are_refused() {
    let table = Table::new("table", true);
    let twice = over(&[table.clone(), table.clone()]).build();
    assert!(twice.unwrap_err().to_string().contains("table"));
    let short = over(&[table]).ttl(Duration::from_millis(500)).build();
    let why = short.unwrap_err().to_string();
    assert!(
        why.contains("of table is more than a quarter of the ttl"),
        "{why}"
    );
}

#[tokio::test]
async fn quota_over_stores_hands_out_no_more_units_than_it_has() {
    for clocked in [true, false] {
        let tables = tables(clocked);
        let redlock = over(&tables).build().expect("good settings");
        let quota = redlock.quota("prizes");
        quota.create(10).await.expect("new");
        let mut takers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let redlock = over(&tables).build().expect("good settings");
            takers.spawn(async move {
                let mut taken = 0;
                while let Ok(take) = redlock.quota("prizes").take(1).await {
                    match take {
                        Take::Taken { .. } => taken += 1,
                        Take::SoldOut { .. } => break,
                    }
                }
                taken
            });
        }
        assert_eq!(takers.join_all().await.into_iter().sum::<u32>(), 10);
    }
}

/// A runtime whose wall clock is ahead by 30 days.
struct Ahead(AtomicU64);

const MONTH: Duration = secs(30 * 86_400);

fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

impl Runtime for Ahead {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_micros(&self) -> u64 {
        wall_micros() + MONTH.as_micros() as u64
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(at.saturating_since(self.now())))
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        tokio::spawn(task);
        true
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            chunk.copy_from_slice(&drawn.to_le_bytes()[..chunk.len()]);
        }
    }
}

#[tokio::test]
async fn tokens_of_a_store_that_reports_dates_do_not_depend_on_client_clocks() {
    let counted = Arc::new(Counted::default());
    let store = Counting {
        // With one lane, all locks of the client share one session with this store.
        table: Table::new("table", false).lanes(1),
        counted: counted.clone(),
    };
    let builder = Redlock::builder().node(StoreNode::new(store));
    let builder = builder.runtime(Arc::new(Ahead(AtomicU64::new(1))));
    let redlock = builder
        .wait(Wait::For(secs(10)))
        .build()
        .expect("good settings");
    let taken = async |resource: &str| {
        let guard = redlock.acquire(resource).await.expect("free");
        let number = guard
            .fencing_token()
            .expect("the lock must have a fencing token");
        guard.release().await;
        number
    };
    let near = |number: u64| number < wall_micros() + secs(3_600).as_micros() as u64;
    assert!(
        near(taken("nightly").await),
        "the first session must draw a fencing token that is at most an hour ahead of the wall clock"
    );
    counted.ends.store(true, Ordering::Relaxed);
    let _ = redlock.try_acquire("other").await;
    assert!(
        near(taken("nightly").await),
        "the next session must draw a fencing token that is at most an hour ahead of the wall clock"
    );
    assert!(near(taken("other").await));
    let nightly = redlock.once("report", secs(3_600));
    nightly
        .create()
        .await
        .expect("the creation of the once record must succeed, because all masters can be reached");
    let outcome = nightly.at_most_once(async |_| ()).await;
    let refused = matches!(
        outcome,
        Err(ValueError::Ahead {
            recorded: false,
            ..
        })
    );
    assert!(refused, "{outcome:?}");
}
