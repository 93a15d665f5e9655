//! Masters in memory follow tokio's clock: where a test stops it, hours pass in no time.

use std::time::{Duration, Instant};

use quorate::testing::Masters;
use quorate::{LossCause, OnceOutcome, Redlock};

mod support;
use support::{PATIENCE, secs};

const LONG: Duration = secs(20 * 60);

fn over(masters: &Masters) -> Redlock {
    let settings = Redlock::builder().in_memory_on(masters);
    let settings = settings.max_ttl(2 * LONG).ttl(LONG);
    settings.build().expect("good settings")
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_twenty_minutes_is_over_in_no_time_and_not_too_soon() {
    let (really, began) = (Instant::now(), tokio::time::Instant::now());
    let masters = Masters::new(3);
    let (here, there) = (over(&masters), over(&masters));
    let lock = here.lock("r").renewal(false);
    let guard = lock.acquire().await.expect("free");
    let lost = guard.lost();
    std::mem::forget(guard);
    assert_eq!(lost.await, LossCause::Expired);
    let told = began.elapsed();
    assert!(told > LONG / 2 && told <= LONG, "{told:?}");
    let waits = there.lock("r").wait(quorate::Wait::Forever);
    let next = waits.acquire().await.expect("its turn comes");
    assert!(began.elapsed() >= told, "not before it was over");
    tokio::time::sleep(10 * LONG).await;
    assert!(next.is_valid(), "it is renewed");
    assert!(really.elapsed() < PATIENCE, "{:?}", really.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_is_a_pause_of_the_process() {
    let masters = Masters::new(3);
    let redlock = over(&masters);
    let guard = redlock.acquire("r").await.expect("free");
    tokio::time::advance(LONG / 2).await;
    assert!(guard.is_valid());
    tokio::time::advance(2 * LONG).await;
    assert!(!guard.is_valid(), "the process was paused past its lease");
    assert!(redlock.acquire("r").await.is_ok(), "and the masters know");
}

#[tokio::test(start_paused = true)]
async fn a_day_passes_for_what_is_done_once_a_day() {
    let day = secs(24 * 3600);
    let nightly = Redlock::in_memory(3).once("nightly", day);
    nightly.create().await.expect("new");
    let mut done = 0;
    for _ in 0..3 {
        let outcome = nightly.at_most_once(async |_| ()).await.expect("a quorum");
        done += u32::from(outcome == OnceOutcome::Done(()));
        let again = nightly.at_most_once(async |_| ()).await;
        assert!(matches!(again, Ok(OnceOutcome::AlreadyDone { .. })));
        tokio::time::sleep(day).await;
    }
    assert_eq!(done, 3);
}
