//! Dead holders and dead waiters in stores without a clock: a process that starts later and tries only once must get
//! the lock, and must never take the lock of a living holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorate::node::store::{StoreNode, Table};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{Instant, LockRequest, Redlock, StatusVerdict, Take, Wait};

use crate::support::{ms, secs};

const HOUR_US: i64 = 3_600_000_000;

/// The TTL of all locks.
const TTL: Duration = secs(1);

/// A time after which a lock of a holder that has died can be acquired.
const UNTIL_EXPIRED: Duration = secs(3);

/// A process on one machine. Its wall clock is ahead by `ahead` microseconds.
#[derive(Clone, Copy, Default)]
struct Process {
    machine: Option<u64>,
    ahead: i64,
    /// If set, all clocks of this process advance by an hour when the value becomes true.
    hour_has_passed: Option<&'static AtomicBool>,
}

impl Runtime for Process {
    fn now(&self) -> Instant {
        let hour = Duration::from_micros(HOUR_US as u64);
        Instant::now()
            + if self.is_an_hour_later() {
                hour
            } else {
                Duration::ZERO
            }
    }

    fn wall_micros(&self) -> u64 {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since_epoch.expect("after 1970").as_micros() as u64;
        let elapsed_us = if self.is_an_hour_later() { HOUR_US } else { 0 };
        micros.saturating_add_signed(self.ahead + elapsed_us)
    }

    fn machine(&self) -> Option<u64> {
        self.machine
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(at.saturating_since(self.now())))
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        tokio::spawn(task);
        true
    }

    fn random(&self, bytes: &mut [u8]) {
        // Only the runtime of the library draws from the operating system. So use its random addresses of a hash map.
        use std::hash::{BuildHasher, RandomState};
        for chunk in bytes.chunks_mut(8) {
            let random_bytes = RandomState::new().hash_one(0).to_le_bytes();
            chunk.copy_from_slice(&random_bytes[..chunk.len()]);
        }
    }
}

impl Process {
    fn ahead(ahead: i64) -> Self {
        Self {
            ahead,
            ..Self::default()
        }
    }

    fn on_machine(machine: u64) -> Self {
        Self {
            machine: Some(machine),
            ..Self::default()
        }
    }

    fn is_an_hour_later(&self) -> bool {
        self.hour_has_passed
            .is_some_and(|hour_has_passed| hour_has_passed.load(Ordering::Relaxed))
    }

    /// Starts a new process. The store has no clock.
    fn start(self, table: &Table) -> Redlock {
        let builder = Redlock::builder().node(StoreNode::new(table.clone()));
        let builder = builder.ttl(TTL).wait(Wait::For(secs(20)));
        let redlock = builder.runtime(Arc::new(self)).build();
        redlock.expect("good settings")
    }

    /// Runs a new process that tries once to take the lock `nightly`, and then dies. Returns whether it got the lock.
    async fn try_nightly(self, table: &Table) -> bool {
        self.try_kind(table, EXCLUSIVE).await
    }

    /// Runs a new process that tries once to take a lock of this kind, and then dies. Returns whether it got the lock.
    async fn try_kind(self, table: &Table, kind: Kind) -> bool {
        self.run_and_die(table, async move |process| {
            let attempt = kind(&process).renewal(false).try_acquire().await;
            let guard = attempt.expect("no fault").acquired();
            let is_acquired = guard.is_some();
            std::mem::forget(guard);
            is_acquired
        })
        .await
    }

    /// Runs a new process. When `run_and_die` ends, the process dies: none of its tasks goes on, so it releases
    /// nothing.
    async fn run_and_die<F, T>(self, table: &Table, run_and_die: F) -> T
    where
        F: AsyncFnOnce(Redlock) -> T + Send + 'static,
        T: Send + 'static,
    {
        let shared_table = table.clone();
        let make_process = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async { run_and_die(self.start(&shared_table)).await })
        };
        tokio::task::spawn_blocking(make_process)
            .await
            .expect("no panic")
    }
}

fn table() -> Table {
    Table::new("table", false)
}

/// A lock of one kind, of a process that was just started.
type Kind = fn(&Redlock) -> LockRequest;

const EXCLUSIVE: Kind = |process| process.lock("nightly");
const READER: Kind = |process| process.lock("nightly").shared();
const PERMIT: Kind = |process| process.semaphore("nightly", 1);
const SEVERAL: Kind = |process| process.lock_all(["nightly", "weekly"]);
const OWNER: Kind = |process| process.owner("boss").expect("a good id").lock("nightly");
const OTHER_OWNER: Kind = |process| process.owner("clerk").expect("a good id").lock("nightly");

#[tokio::test]
async fn process_that_tries_once_gets_the_lock_of_a_dead_holder() {
    let kinds = [
        (EXCLUSIVE, EXCLUSIVE),
        (READER, EXCLUSIVE),
        (EXCLUSIVE, READER),
        (PERMIT, PERMIT),
        (SEVERAL, SEVERAL),
        (SEVERAL, EXCLUSIVE),
        (OWNER, OTHER_OWNER),
    ];
    let attempt_results = kinds.map(async |(dead_kind, next_kind): (Kind, Kind)| {
        let table = table();
        let process = Process::default();
        assert!(process.try_kind(&table, dead_kind).await);
        assert!(!process.try_kind(&table, next_kind).await);
        tokio::time::sleep(UNTIL_EXPIRED).await;
        process.try_kind(&table, next_kind).await
    });
    assert_eq!(futures::future::join_all(attempt_results).await, [true; 7]);
}

#[tokio::test]
async fn unit_of_a_quota_can_be_taken_by_a_later_process_after_its_taker_died() {
    let table = table();
    let process = Process::default().start(&table);
    process.quota("prizes").create(2).await.expect("new");
    // A process dies while it takes a unit: it holds the lock of the quota.
    let take_prizes: Kind = |process| process.lock("prizes");
    assert!(Process::default().try_kind(&table, take_prizes).await);
    tokio::time::sleep(UNTIL_EXPIRED).await;
    let hour_has_passed = Process::default().start(&table);
    let outcome = hour_has_passed
        .quota("prizes")
        .wait(Wait::For(ms(500)))
        .take(1)
        .await;
    let take = outcome.expect("the dead process must not block the quota");
    assert!(matches!(take, Take::Taken { .. }), "{take:?}");
}

#[tokio::test]
async fn wait_that_is_shorter_than_the_ttl_outlasts_a_dead_holder() {
    let table = table();
    let long: Kind = |process| process.lock("nightly").ttl(secs(6));
    assert!(Process::default().try_kind(&table, long).await);
    tokio::time::sleep(secs(4)).await;
    // 2.6 s of the lease of the dead holder are left.
    let hour_has_passed = Process::default().start(&table);
    let waiting_acquire = hour_has_passed
        .lock("nightly")
        .wait(Wait::For(secs(5)))
        .acquire();
    waiting_acquire
        .await
        .expect("the wait ends after the lease")
        .release()
        .await;
}

#[tokio::test]
async fn waiter_that_died_blocks_no_process_that_tries_once() {
    let table = table();
    let holder = Process::default().start(&table);
    let guard = holder.acquire("nightly").await.expect("free");
    let try_on = async |process: Redlock| {
        let mut waiting_acquire = Box::pin(process.acquire("nightly"));
        let waited = tokio::time::timeout(ms(300), &mut waiting_acquire).await;
        std::mem::forget(waiting_acquire);
        waited.is_err()
    };
    assert!(Process::default().run_and_die(&table, try_on).await);
    guard.release().await;
    assert!(
        !Process::default().try_nightly(&table).await,
        "a waiter is in line"
    );
    tokio::time::sleep(UNTIL_EXPIRED).await;
    let result = Process::default().start(&table).status("nightly").await;
    let status = result.expect("a good name");
    let state = status.nodes[0].state.as_ref().expect("no fault");
    assert_eq!(status.verdict(), StatusVerdict::Free);
    assert!(state.queue.is_empty(), "{state:?}");
    assert!(Process::default().try_nightly(&table).await);
}

#[tokio::test]
async fn status_of_a_later_process_shows_a_dead_holder_as_long_as_a_try_is_refused() {
    let table = table();
    let verdict_of_nightly = async || {
        let status = Process::default().start(&table).status("nightly").await;
        let listing = Process::default().start(&table).list("").await;
        let status = status.expect("a good name").verdict();
        (status == StatusVerdict::Free, listing.locks.is_empty())
    };
    assert!(Process::default().try_nightly(&table).await);
    assert!(!Process::default().try_nightly(&table).await);
    assert_eq!(verdict_of_nightly().await, (false, false));
    tokio::time::sleep(UNTIL_EXPIRED).await;
    assert_eq!(verdict_of_nightly().await, (true, true));
    assert!(Process::default().try_nightly(&table).await);
}

#[tokio::test]
async fn one_wrong_clock_never_ends_the_lease_of_another_client() {
    type Fault = fn(&Table, i64) -> Process;
    let faults: [(&str, Fault); 3] = [
        ("the client's clock", |_, ahead| Process::ahead(ahead)),
        ("the leader's clock", |table, ahead| {
            table.set_date_ahead(ahead);
            Process::default()
        }),
        (
            "the clocks of a new leader and of a client",
            |table, ahead| {
                table.elect(ahead);
                Process::ahead(ahead)
            },
        ),
    ];
    for (label, fault) in faults {
        for ahead in [HOUR_US, -HOUR_US] {
            let table = table();
            let holder = Process::default().start(&table);
            let guard = holder.acquire("nightly").await.expect("free");
            let ahead_process = fault(&table, ahead);
            for _ in 0..3 {
                assert!(!ahead_process.try_nightly(&table).await, "{label}: {ahead}");
            }
            assert!(guard.is_valid());
            guard.release().await;
        }
    }
}

#[tokio::test]
async fn both_wrong_clocks_do_not_end_the_lease_of_a_client_on_the_same_machine() {
    let table = table();
    let holder = Process::on_machine(1).start(&table);
    let guard = holder.acquire("nightly").await.expect("free");
    table.set_date_ahead(HOUR_US);
    let ahead_process = Process {
        ahead: HOUR_US,
        ..Process::on_machine(1)
    };
    assert!(!ahead_process.try_nightly(&table).await);
    guard.release().await;
}

#[tokio::test]
async fn process_with_unusable_dates_leaves_a_note_from_which_the_next_process_counts() {
    let cases = [
        ("a client whose clock is wrong", Process::ahead(HOUR_US), 0),
        ("another leader", Process::default(), HOUR_US),
    ];
    for (label, process, leader) in cases {
        let table = table();
        assert!(Process::default().try_nightly(&table).await);
        if leader != 0 {
            table.elect(leader);
        }
        tokio::time::sleep(UNTIL_EXPIRED).await;
        assert!(!process.try_nightly(&table).await, "{label}");
        tokio::time::sleep(UNTIL_EXPIRED).await;
        assert!(process.try_nightly(&table).await, "{label}");
    }
}

#[tokio::test]
async fn processes_on_one_machine_need_no_dates_of_the_store() {
    let table = Table::new("table", false).undated();
    assert!(Process::on_machine(1).try_nightly(&table).await);
    assert!(!Process::on_machine(1).try_nightly(&table).await);
    tokio::time::sleep(UNTIL_EXPIRED).await;
    assert!(
        !Process::on_machine(2).try_nightly(&table).await,
        "another machine"
    );
    assert!(Process::on_machine(1).try_nightly(&table).await);
    tokio::time::sleep(UNTIL_EXPIRED).await;
    assert!(!Process::on_machine(2).try_nightly(&table).await);
    tokio::time::sleep(UNTIL_EXPIRED).await;
    assert!(Process::on_machine(2).try_nightly(&table).await);
}

/// The last date that the service got from the store is an hour old when it tries.
#[tokio::test]
async fn service_that_was_idle_for_an_hour_gets_the_lock_of_a_dead_holder() {
    static HOUR_HAS_PASSED: AtomicBool = AtomicBool::new(false);
    let table = table();
    let process = Process {
        hour_has_passed: Some(&HOUR_HAS_PASSED),
        ..Process::default()
    };
    let service = process.start(&table);
    service
        .acquire("nightly")
        .await
        .expect("free")
        .release()
        .await;
    HOUR_HAS_PASSED.store(true, Ordering::Relaxed);
    table.set_date_ahead(HOUR_US);
    assert!(process.try_nightly(&table).await);
    tokio::time::sleep(UNTIL_EXPIRED).await;
    let tried = service.try_acquire("nightly").await.expect("no fault");
    assert!(tried.acquired().is_some(), "the holder is dead");
}
