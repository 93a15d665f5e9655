//! Records of a store in which nothing is of use any more are removed, and no others.
//!
//! Time is tokio's, which stands still while nothing is to be done: days pass in seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate::node::store::{Session, StoreNode, Table};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{Instant, Redlock, Take};

mod support;

use support::secs;

/// The outside world, in tokio's time.
struct World {
    began: tokio::time::Instant,
    drawn: AtomicU64,
}

impl Runtime for World {
    fn now(&self) -> Instant {
        Instant::from_nanos(1_000_000_000 + self.began.elapsed().as_nanos() as u64)
    }

    fn wall_micros(&self) -> u64 {
        1_700_000_000_000_000 + self.began.elapsed().as_micros() as u64
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
async fn what_is_of_no_use_any_more_is_removed_by_who_is_there_and_nothing_else_is() {
    let world = Arc::new(World {
        began: tokio::time::Instant::now(),
        drawn: AtomicU64::new(1),
    });
    // Without a clock at the store a record has to be seen for as long as it is kept.
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
        numbers.push(guard.fencing_token().expect("fenced"));
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
        "the counters are kept for a day"
    );
    assert!(held.is_valid());

    tokio::time::sleep(4 * HOUR).await;
    let left = records(&table).await;
    assert_eq!(left, ["held", "prizes"]);
    assert!(held.is_valid());
    assert_eq!(prizes.take(1).await.expect("kept"), Take::Taken { left: 9 });

    for (i, before) in numbers.into_iter().enumerate() {
        let guard = stays.acquire(format!("invoice-{i}")).await.expect("free");
        assert!(guard.fencing_token().expect("fenced") > before, "{i}");
        guard.release().await;
    }
    held.release().await;
}

/// The same outside world, with a wall clock that is behind.
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
async fn a_counter_without_use_is_not_followed_by_a_smaller_one_of_a_client_whose_clock_is_behind()
{
    let world = Arc::new(World {
        began: tokio::time::Instant::now(),
        drawn: AtomicU64::new(1),
    });
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
        let before = guard.fencing_token().expect("fenced");
        guard.release().await;
        let stays = first.acquire("held").await.expect("free");
        // The first one has seen it unchanged for longer than a day.
        tokio::time::sleep(27 * HOUR).await;
        let next = redlock(Arc::new(Behind(world.clone(), 30 * HOUR)));
        let guard = next.acquire("nightly").await.expect("free");
        let number = guard.fencing_token().expect("fenced");
        assert!(number > before, "{number} after {before}");
        guard.release().await;
        stays.release().await;
    }
}
