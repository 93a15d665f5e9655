//! `quorate demo --page`: shows locks of several kinds in a browser while masters are killed and restarted, until a
//! signal arrives.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quorate::{AcquireError, LockGuard, LockRequest, Redlock};
use quorate_page::PageOptions;
use tokio::task::JoinSet;

use super::masters::{DemoMasters, Event};
use crate::exit::{CommandResult, Failure};
use crate::output;

/// The ttl of the locks, long enough that the bars of the page can be seen to move.
const TTL: Duration = Duration::from_secs(6);
const MAX_TTL: Duration = Duration::from_secs(8);

/// How often the page asks the masters of the demo. They do nothing else.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long all masters are up before one of them is killed.
const UP_TIME: Duration = Duration::from_secs(25);

/// How long a killed master is down.
const DOWN_TIME: Duration = Duration::from_secs(8);

/// One group of clients of the demo that take turns with a lock.
struct ClientGroup {
    request: fn(&Redlock) -> LockRequest,
    clients: usize,
    note: &'static str,
    /// The shortest and the longest time for which a client holds the lock, in milliseconds.
    held_ms: (u64, u64),
    /// The pause of a client after a hold, in milliseconds.
    pause_ms: u64,
}

const CLIENT_GROUPS: [ClientGroup; 6] = [
    ClientGroup {
        request: |redlock| redlock.lock("demo:prizes"),
        clients: 5,
        note: "sells a prize",
        held_ms: (1_000, 3_000),
        pause_ms: 2_000,
    },
    ClientGroup {
        request: |redlock| redlock.lock("deploy:web"),
        clients: 2,
        note: "rolls out version 42",
        held_ms: (4_000, 9_000),
        pause_ms: 12_000,
    },
    ClientGroup {
        request: |redlock| redlock.lock("nightly-report"),
        clients: 1,
        note: "month end",
        held_ms: (40_000, 50_000),
        pause_ms: 15_000,
    },
    ClientGroup {
        request: |redlock| redlock.semaphore("api", 3),
        clients: 5,
        note: "calls the rate-limited service",
        held_ms: (2_000, 6_000),
        pause_ms: 1_500,
    },
    ClientGroup {
        request: |redlock| redlock.lock("catalogue").shared(),
        clients: 3,
        note: "reads the catalogue",
        held_ms: (3_000, 8_000),
        pause_ms: 4_000,
    },
    ClientGroup {
        request: |redlock| redlock.lock("catalogue"),
        clients: 1,
        note: "writes the catalogue",
        held_ms: (1_500, 2_500),
        pause_ms: 20_000,
    },
];

/// Serves the page, and keeps the clients and the faults going. Returns only if something fails.
pub(super) async fn run(masters: &Arc<DemoMasters>) -> CommandResult {
    masters.prepare().await?;
    let redlock = || masters.redlock_with(TTL, MAX_TTL);
    let mut options = PageOptions {
        interval: INTERVAL,
        slow_wait: Duration::from_secs(20),
        ..PageOptions::default()
    };
    let page = if let Ok(page) = crate::page::open(redlock()?, options.clone()).await {
        page
    } else {
        // Another page uses the usual port.
        options.listen.set_port(0);
        crate::page::open(redlock()?, options).await?
    };
    output::print_message(format!(
        "the page is at http://{}/ (end the demo with Ctrl-C)",
        page.address()
    ));
    let mut tasks = JoinSet::new();
    let mut seed = 1;
    for group in &CLIENT_GROUPS {
        for _ in 0..group.clients {
            seed += 1;
            tasks.spawn(acquire_repeatedly(redlock()?, group, seed));
        }
    }
    for _ in 0..2 {
        tasks.spawn(lead_repeatedly(redlock()?));
    }
    tasks.spawn(cause_faults(masters.clone()));
    tokio::select! {
        () = page.serve() => Err(Failure::internal("the page has ended")),
        Some(ended) = tasks.join_next() => match ended {
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(())) => Err(Failure::internal("a client of the demo has ended")),
            Err(error) => Err(Failure::internal(error)),
        },
    }
}

/// Takes the lock of a group again and again.
async fn acquire_repeatedly(
    redlock: Redlock,
    group: &'static ClientGroup,
    seed: u64,
) -> Result<(), Failure> {
    let mut random_number = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    loop {
        // A generator of pseudorandom numbers (xorshift), so that the holds differ.
        random_number ^= random_number << 13;
        random_number ^= random_number >> 7;
        random_number ^= random_number << 17;
        let (shortest, longest) = group.held_ms;
        let held = Duration::from_millis(shortest + random_number % (longest - shortest));
        let request = (group.request)(&redlock).note(group.note);
        hold_for(request.acquire(), held).await?;
        tokio::time::sleep(Duration::from_millis(
            group.pause_ms + random_number % 1_000,
        ))
        .await;
    }
}

async fn hold_for(
    acquire: impl Future<Output = Result<LockGuard, AcquireError>>,
    held: Duration,
) -> Result<(), Failure> {
    match acquire.await {
        Ok(guard) => {
            tokio::time::sleep(held).await;
            guard.release().await;
            Ok(())
        }
        Err(error) => ignore_passing_error(&error),
    }
}

/// Returns a failure, unless another client held the lock all the time, or too few masters answered in time.
fn ignore_passing_error(error: &AcquireError) -> Result<(), Failure> {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NoQuorum(_) | AcquireError::TooLate(_) => {
            Ok(())
        }
        error => Err(Failure::internal(error.details())),
    }
}

/// Leads for a while, and resigns, again and again.
async fn lead_repeatedly(redlock: Redlock) -> Result<(), Failure> {
    loop {
        match redlock
            .election("scheduler")
            .campaign("10.0.0.7:9000")
            .await
        {
            Ok(leadership) => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                leadership.resign().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => ignore_passing_error(&error)?,
        }
    }
}

/// Kills one master after the other, and restarts it.
async fn cause_faults(masters: Arc<DemoMasters>) -> Result<(), Failure> {
    if masters.count() < 3 {
        return std::future::pending().await;
    }
    for master in (0..masters.count()).cycle().skip(1) {
        for (pause, is_restart) in [(UP_TIME, false), (DOWN_TIME, true)] {
            tokio::time::sleep(pause).await;
            let masters = masters.clone();
            let event = Event::new(0, master, is_restart);
            output::print_message(masters.event_text(event));
            let caused = tokio::task::spawn_blocking(move || masters.cause(event));
            caused.await.map_err(Failure::internal)??;
        }
    }
    Ok(())
}
