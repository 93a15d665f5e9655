//! Tests of locks whose masters are stores (databases or ZooKeeper), alone or together with masters of other kinds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::node::memory::MemoryNode;
use quorate::node::store::{
    Clocked, Commit, Committed, Date, Greeting, NamedRecord, Record, Session, Store, StoreNode,
    Table, Traits, WaitLock, Wake,
};
use quorate::node::{Fault, NodeName};
use quorate::{
    Inspection, LockGuard, MAX_RESOURCES, Redlock, RedlockBuilder, Take, ValueError, Wait,
};
use quorate_contract::wall_clock::{WallClock, wall_micros};

use crate::support::{larger_token, secs};

/// Three masters that are stores in memory. If `has_clock` is true, each store has a clock. Otherwise clients measure
/// time with their own clocks.
fn tables(has_clock: bool) -> Vec<Table> {
    (1..=3)
        .map(|n| Table::new(&format!("table-{n}"), has_clock))
        .collect()
}

fn builder_over(tables: &[Table]) -> RedlockBuilder {
    let builder = Redlock::builder().ttl(secs(5)).wait(Wait::For(secs(10)));
    let add_store =
        |builder: RedlockBuilder, table: &Table| builder.node(StoreNode::new(table.clone()));
    tables.iter().fold(builder, add_store)
}

#[tokio::test]
async fn lock_kept_in_stores_is_exclusive_until_its_release() {
    for has_clock in [true, false] {
        let tables = tables(has_clock);
        let (first_client, second_client) =
            (builder_over(&tables).build(), builder_over(&tables).build());
        let (first_client, second_client) = (
            first_client.expect("good settings"),
            second_client.expect("good settings"),
        );
        let mut last_token = 0;
        for _ in 0..10 {
            for redlock in [&first_client, &second_client] {
                let guard = redlock.acquire("nightly").await.expect("free");
                last_token = larger_token(guard.fencing_token(), last_token);
                let refused_acquire = first_client.try_acquire("nightly").await;
                assert!(refused_acquire.expect("no fault").acquired().is_none());
                guard.release().await;
            }
        }
    }
}

/// A second reader joins the lock, which extends the expiry in the lock's record. A writer that read the record before
/// this extension must not use the old expiry.
#[tokio::test]
async fn writer_does_not_acquire_a_lock_that_a_second_reader_has_extended() {
    for has_clock in [true, false] {
        let tables = tables(has_clock);
        let redlock = || {
            builder_over(&tables)
                .ttl(secs(1))
                .build()
                .expect("good settings")
        };
        let (dying_client, reader, writer) = (redlock(), redlock(), redlock());
        // The process of the first reader crashes, so it does not release its lock.
        let dying_read = dying_client.lock("page").shared().renewal(false).acquire();
        std::mem::forget(dying_read.await.expect("free"));
        let writer_attempt = writer.try_acquire("page").await.expect("no fault");
        assert!(writer_attempt.acquired().is_none());
        tokio::time::sleep(Duration::from_millis(850)).await;
        let second_read = reader.lock("page").shared().renewal(false).acquire();
        let read_guard = second_read.await.expect("readers must not exclude readers");
        tokio::time::sleep(Duration::from_millis(350)).await;
        let writer_attempt = writer.try_acquire("page").await.expect("no fault");
        let is_granted = writer_attempt.acquired().is_some();
        assert!(
            !(is_granted && read_guard.is_valid()),
            "a reader and a writer must not hold the lock at the same time (store with a clock: {has_clock})"
        );
    }
}

#[tokio::test]
async fn waiter_for_a_lock_kept_in_stores_is_woken_by_the_release() {
    for has_clock in [true, false] {
        let tables = tables(has_clock);
        let redlock = || {
            builder_over(&tables)
                .ttl(secs(20))
                .wait(Wait::For(secs(19)))
                .build()
        };
        let (first_client, second_client) = (redlock().expect("good"), redlock().expect("good"));
        let guard = first_client.acquire("nightly").await.expect("free");
        let waiter = tokio::spawn(async move { second_client.acquire("nightly").await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started_at = std::time::Instant::now();
        guard.release().await;
        let guard = waiter
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
struct CountingStore {
    table: Table,
    counts: Arc<Counts>,
    /// The largest number of records in one commit, as the store declares it.
    max_records: usize,
}

#[derive(Default)]
struct Counts {
    stale_commits: AtomicUsize,
    /// The number of records in the largest commit.
    largest_commit: AtomicUsize,
    sent_wakes: Mutex<Vec<Vec<Wake>>>,
    wait_locks: Mutex<Vec<WaitLock>>,
    /// If true, the next commit fails, and the session with the store ends.
    ends_session: AtomicBool,
    /// If true, the address of the store leads to another server from the next session on.
    has_moved: AtomicBool,
}

struct CountingSession(<Table as Store>::Session, Arc<Counts>);

impl Store for CountingStore {
    type Session = CountingSession;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        self.table.name()
    }

    fn traits(&self) -> Traits {
        self.table.traits().looks().records(self.max_records)
    }

    async fn connect(&self) -> Result<(CountingSession, Greeting), Fault> {
        let (session, greeting) = self.table.connect().await?;
        let has_moved = self.counts.has_moved.load(Ordering::Relaxed);
        let greeting = greeting.server(if has_moved { "another" } else { "one" });
        Ok((CountingSession(session, self.counts.clone()), greeting))
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
        if self.1.ends_session.swap(false, Ordering::Relaxed) {
            return Err(Fault::Disconnected("it has ended".into()));
        }
        let record_counts = commits.iter().map(|commit| commit.changes.len());
        let largest_commit = record_counts.max().unwrap_or_default();
        (self.1.largest_commit).fetch_max(largest_commit, Ordering::Relaxed);
        let outcome = self.0.commit(commits).await?;
        let stale_commits = outcome
            .what
            .iter()
            .filter(|committed| **committed == Committed::Stale);
        self.1
            .stale_commits
            .fetch_add(stale_commits.count(), Ordering::Relaxed);
        let committed = commits.iter().zip(&outcome.what);
        let committed = committed.filter(|(_, committed)| **committed != Committed::Stale);
        let new_wait_locks = committed.clone().flat_map(|(commit, _)| &commit.wait_locks);
        let mut wait_locks = self.1.wait_locks.lock().expect("no panic");
        wait_locks.extend(new_wait_locks.cloned());
        drop(wait_locks);
        let committed = committed.filter(|(commit, _)| !commit.wakes.is_empty());
        let sent_wakes = committed.map(|(commit, _)| commit.wakes.clone());
        self.1
            .sent_wakes
            .lock()
            .expect("no panic")
            .extend(sent_wakes);
        Ok(outcome)
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
    let counts = Arc::new(Counts::default());
    let store = CountingStore {
        table: Table::new("table", true).lanes(1),
        counts: counts.clone(),
        max_records: usize::MAX,
    };
    let builder = Redlock::builder().node(StoreNode::new(store));
    let builder = builder.ttl(secs(3)).max_ttl(secs(3)).wait(Wait::None);
    let redlock = builder.build().expect("good settings");
    let guard = redlock.acquire("nightly").await.expect("free");
    guard.release().await;
    counts.has_moved.store(true, Ordering::Relaxed);
    counts.ends_session.store(true, Ordering::Relaxed);
    let started_at = std::time::Instant::now();
    loop {
        let outcome = redlock.acquire("nightly").await;
        let error = outcome.expect_err("the vote of another server must not count");
        if error.details().contains("restart guard") {
            break;
        }
        assert!(started_at.elapsed() < secs(20), "{}", error.details());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lock = redlock.lock("nightly").wait(Wait::For(secs(20)));
    let guard = lock.acquire().await.expect("the votes must count again");
    assert!(
        started_at.elapsed() >= secs(3),
        "{:?}",
        started_at.elapsed()
    );
    guard.release().await;
}

#[tokio::test]
async fn commit_has_at_most_as_many_records_as_the_store_declares() {
    for has_clock in [true, false] {
        let counts = Arc::new(Counts::default());
        let store = CountingStore {
            table: Table::new("table", has_clock).lanes(1),
            counts: counts.clone(),
            max_records: MAX_RESOURCES,
        };
        let builder = Redlock::builder().node(StoreNode::new(store));
        let builder = builder.ttl(secs(2)).wait(Wait::For(secs(20)));
        let redlock = builder.build().expect("good settings");
        // The renewals of these locks are due at the same time.
        let names: Vec<String> = (0..100).map(|number| format!("own-{number}")).collect();
        let acquires = names.iter().map(|name| redlock.acquire(name));
        let guards = futures::future::join_all(acquires).await;
        let guards: Vec<_> = guards
            .into_iter()
            .map(|guard| guard.expect("free"))
            .collect();
        // Each of these locks shares a resource with the next one.
        let chain = (0..12).map(|first| {
            let names = (first * 15..=first * 15 + 15).map(|number| format!("chain-{number}"));
            let (redlock, names) = (redlock.clone(), names.collect::<Vec<_>>());
            async move {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let guard = redlock.lock_all(&names).acquire().await;
                guard.expect("the lock must be granted").release().await;
            }
        });
        futures::future::join_all(chain).await;
        tokio::time::sleep(secs(3)).await;
        assert!(guards.iter().all(LockGuard::is_valid));
        let largest_commit = counts.largest_commit.load(Ordering::Relaxed);
        assert_eq!(largest_commit, MAX_RESOURCES);
        for guard in guards {
            guard.release().await;
        }
    }
}

#[tokio::test]
async fn woken_waiter_reads_the_lock_record_before_writing_the_record() {
    for has_clock in [true, false] {
        let (redlock, counts) = counting_clients(has_clock);
        let (first_client, second_client) = (redlock(), redlock());
        for _ in 0..5 {
            let guard = first_client.acquire("nightly").await.expect("free");
            let second_client = second_client.clone();
            let waiter = tokio::spawn(async move { second_client.acquire("nightly").await });
            tokio::time::sleep(Duration::from_millis(100)).await;
            let before = counts.stale_commits.load(Ordering::Relaxed);
            guard.release().await;
            let guard = waiter
                .await
                .expect("no panic")
                .expect("the waiter must get the lock");
            // The waiter may change the record while the holder releases the lock. So one commit of the release may
            // fail.
            let stale_count = counts.stale_commits.load(Ordering::Relaxed) - before;
            assert!(
                stale_count <= 1,
                "at most one commit may fail because the record has changed, but {stale_count} did (store with a clock: \
                 {has_clock})"
            );
            guard.release().await;
        }
    }
}

/// Creates one counting store. Returns a function that builds a new client of this store, and the counters of the
/// store.
fn counting_clients(has_clock: bool) -> (impl Fn() -> Redlock, Arc<Counts>) {
    let (table, counts) = (Table::new("table", has_clock), Arc::<Counts>::default());
    let returned_counts = counts.clone();
    let open_client = move || {
        let (table, counts) = (table.clone(), counts.clone());
        let builder = Redlock::builder().ttl(secs(20)).wait(Wait::For(secs(19)));
        let node = StoreNode::new(CountingStore {
            table,
            counts,
            max_records: usize::MAX,
        });
        builder.node(node).build().expect("good")
    };
    (open_client, returned_counts)
}

#[tokio::test]
async fn each_waiter_at_a_store_holds_a_named_wait_lock_until_it_releases_the_lock() {
    let (redlock, counts) = counting_clients(true);
    let guard = redlock().acquire("nightly").await.expect("free");
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let second_client = redlock();
        waiters.push(tokio::spawn(async move {
            second_client.acquire("nightly").await?.release().await;
            Ok::<(), quorate::AcquireError>(())
        }));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let waiting_processes = |is_waiting: bool| -> BTreeSet<Arc<str>> {
        let changes = counts.wait_locks.lock().expect("no panic");
        let names = changes.iter().filter_map(|change| match change {
            WaitLock::Keep(name) if is_waiting => Some(name.clone()),
            WaitLock::Release(name) if !is_waiting && name.contains(':') => Some(name.clone()),
            _ => None,
        });
        names.collect()
    };
    assert_eq!(
        waiting_processes(true).len(),
        3,
        "each of the three waiters must hold a wait lock"
    );
    assert_eq!(waiting_processes(false).len(), 0);
    guard.release().await;
    for waiter in waiters {
        waiter
            .await
            .expect("no panic")
            .expect("the waiter must get the lock");
    }
    assert_eq!(waiting_processes(false), waiting_processes(true));
    let sent_wakes = counts.sent_wakes.lock().expect("no panic");
    assert!(
        sent_wakes.iter().all(|wakes| wakes.len() == 1),
        "{sent_wakes:?}"
    );
}

/// A client waits for a lock that another client holds. Returns how long the waiter takes to get the lock after its
/// release, first from a holder that has not waited, and then from a holder that has waited.
async fn waits_after_release(tables: &[Table]) -> [Duration; 2] {
    let redlock = || {
        let builder = builder_over(tables).ttl(secs(30)).wait(Wait::For(secs(29)));
        builder.build().expect("good settings")
    };
    let mut guard = redlock().acquire("nightly").await.expect("free");
    let mut waits = [Duration::ZERO; 2];
    for wait in &mut waits {
        let second_client = redlock();
        let waiter = tokio::spawn(async move { second_client.acquire("nightly").await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started_at = std::time::Instant::now();
        guard.release().await;
        guard = waiter
            .await
            .expect("no panic")
            .expect("the waiter must get the lock");
        *wait = started_at.elapsed();
    }
    guard.release().await;
    waits
}

#[tokio::test]
async fn waiters_poll_if_fewer_than_a_majority_of_masters_can_wake_them() {
    for waking_count in [1, 0] {
        let numbered_tables = tables(true).into_iter().enumerate();
        let keep_some_wakes = |(n, table): (usize, Table)| {
            if n < waking_count {
                table
            } else {
                table.without_wakes()
            }
        };
        let tables: Vec<Table> = numbered_tables.map(keep_some_wakes).collect();
        // Without polling, the waiter would ask for the lock again at its next heartbeat: after five seconds.
        for wait in waits_after_release(&tables).await {
            assert!(wait < secs(3), "{waking_count}: {wait:?}");
        }
    }
}

#[tokio::test]
async fn masters_of_different_kinds_can_serve_one_lock_together() {
    let memory = MemoryNode::new("memory");
    let tables = tables(true);
    let client_with = |process: RedlockBuilder| process.node(memory.clone()).build();
    let (first_client, second_client) = (
        client_with(builder_over(&tables[..2])),
        client_with(builder_over(&tables[..2])),
    );
    let (first_client, second_client) = (first_client.expect("good"), second_client.expect("good"));
    let readers = [
        first_client
            .lock("doc")
            .shared()
            .acquire()
            .await
            .expect("free"),
        second_client
            .lock("doc")
            .shared()
            .acquire()
            .await
            .expect("shared"),
    ];
    let writer = second_client
        .lock("doc")
        .wait(Wait::For(Duration::from_millis(200)));
    assert!(
        writer.acquire().await.is_err(),
        "readers must exclude the writer"
    );
    for reader in readers {
        reader.release().await;
    }
    let both_accounts = first_client
        .lock_all(["a", "b"])
        .acquire()
        .await
        .expect("free");
    assert!(
        second_client
            .lock("b")
            .try_acquire()
            .await
            .expect("no fault")
            .acquired()
            .is_none()
    );
    both_accounts.release().await;
    memory.set_condition(quorate::node::memory::Condition::Down);
    let guard = second_client
        .acquire("doc")
        .await
        .expect("the acquire must succeed, because two of the three masters can be reached");
    guard.release().await;
}

#[tokio::test]
async fn settings_with_a_duplicate_store_or_too_short_ttl_are_refused() {
    let table = Table::new("table", true);
    let build_result = builder_over(&[table.clone(), table.clone()]).build();
    assert!(build_result.unwrap_err().to_string().contains("table"));
    let build_result = builder_over(&[table])
        .ttl(Duration::from_millis(500))
        .build();
    let error = build_result.unwrap_err().to_string();
    assert!(
        error.contains("of table is more than a quarter of the ttl"),
        "{error}"
    );
}

#[tokio::test]
async fn quota_over_stores_hands_out_no_more_units_than_it_has() {
    for has_clock in [true, false] {
        let tables = tables(has_clock);
        let redlock = builder_over(&tables).build().expect("good settings");
        let quota = redlock.quota("prizes");
        quota.create(10).await.expect("new");
        let mut takers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let redlock = builder_over(&tables).build().expect("good settings");
            takers.spawn(async move {
                let mut last_token = 0;
                while let Ok(take) = redlock.quota("prizes").take(1).await {
                    match take {
                        Take::Taken { .. } => last_token += 1,
                        Take::SoldOut { .. } => break,
                    }
                }
                last_token
            });
        }
        assert_eq!(takers.join_all().await.into_iter().sum::<u32>(), 10);
    }
}

const MONTH: Duration = secs(30 * 86_400);

#[tokio::test]
async fn tokens_of_a_store_that_reports_dates_do_not_depend_on_client_clocks() {
    let counts = Arc::new(Counts::default());
    let store = CountingStore {
        // With one lane, all locks of the client share one session with this store.
        table: Table::new("table", false).lanes(1),
        counts: counts.clone(),
        max_records: usize::MAX,
    };
    let builder = Redlock::builder().node(StoreNode::new(store));
    let month_ahead = WallClock(|micros| micros + MONTH.as_micros() as u64);
    let builder = builder.runtime(Arc::new(month_ahead));
    let redlock = builder
        .wait(Wait::For(secs(10)))
        .build()
        .expect("good settings");
    let acquire_token = async |resource: &str| {
        let guard = redlock.acquire(resource).await.expect("free");
        let number = guard
            .fencing_token()
            .expect("the lock must have a fencing token");
        guard.release().await;
        number
    };
    let is_near_clock = |number: u64| number < wall_micros() + secs(3_600).as_micros() as u64;
    assert!(
        is_near_clock(acquire_token("nightly").await),
        "the first session must draw a fencing token that is at most an hour ahead of the wall clock"
    );
    counts.ends_session.store(true, Ordering::Relaxed);
    let _ = redlock.try_acquire("other").await;
    assert!(
        is_near_clock(acquire_token("nightly").await),
        "the next session must draw a fencing token that is at most an hour ahead of the wall clock"
    );
    assert!(is_near_clock(acquire_token("other").await));
    let nightly = redlock.once("report", secs(3_600));
    nightly
        .create()
        .await
        .expect("the creation of the once record must succeed, because all masters can be reached");
    let outcome = nightly.at_most_once(async |_| ()).await;
    let is_refused = matches!(
        outcome,
        Err(ValueError::Ahead {
            recorded: false,
            ..
        })
    );
    assert!(is_refused, "{outcome:?}");
}
