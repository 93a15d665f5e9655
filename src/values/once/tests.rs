use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::node::memory::Masters;
use crate::protocol::instant::Instant;
use crate::runtime::{BoxFuture, Runtime, Tokio};

/// A runtime whose wall clock is ahead by this number of seconds.
struct ClockAhead(Tokio, Arc<AtomicU64>);

fn ahead_by(seconds: &Arc<AtomicU64>) -> Redlock {
    let builder = Redlock::builder().in_memory(3);
    let builder = builder.runtime(Arc::new(ClockAhead(Tokio::default(), seconds.clone())));
    builder.build().expect("good settings")
}

impl Runtime for ClockAhead {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wall_micros(&self) -> u64 {
        self.0.wall_micros() + 1_000_000 * self.1.load(Ordering::Relaxed)
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

#[tokio::test]
async fn once_job_is_not_run_if_the_client_clock_is_far_ahead() {
    let one_day = 24 * 3600;
    for (ahead, runs) in [(20, true), (one_day, false)] {
        let redlock = ahead_by(&Arc::new(AtomicU64::new(ahead)));
        // A client whose clock is 20 s ahead calls for a period that begins about 20 s in the future. This is accepted,
        // because the limit is one minute.
        let once = redlock.once("often", Duration::from_secs(1));
        once.create().await.expect("every master must answer");
        let outcome = once.at_most_once(async |_| ()).await;
        if runs {
            assert_eq!(outcome, Ok(OnceOutcome::Done(())));
            continue;
        }
        let error = outcome.expect_err("a period a day in the future must be refused");
        let is_client_ahead = matches!(
            error,
            ValueError::Ahead {
                recorded: false,
                ahead,
                ..
            } if ahead > Duration::from_secs(one_day - 30)
        );
        assert!(is_client_ahead, "{error}");
        assert!(error.to_string().contains("clock"), "{error}");
    }
}

#[tokio::test]
async fn once_job_uses_the_period_in_which_its_call_began() {
    let seconds = Arc::new(AtomicU64::new(0));
    let redlock = ahead_by(&seconds);
    let once = redlock.once("often", Duration::from_secs(20));
    once.create().await.expect("every master must answer");
    let guard = redlock.acquire("often").await.expect("free");
    let Ok(Due::Now(turn)) = once.due(&guard).await else {
        panic!("the first period must be due");
    };
    turn.record().await.expect("every master must answer");
    let mut waiting_run = Box::pin(once.at_most_once(async |_| ()));
    let early_result = tokio::time::timeout(Duration::from_millis(20), waiting_run.as_mut());
    early_result
        .await
        .expect_err("the call must wait, because the lock is held");
    seconds.store(20, Ordering::Relaxed);
    guard.release().await;
    assert!(matches!(
        waiting_run.await,
        Ok(OnceOutcome::AlreadyDone { .. })
    ));
    let next_outcome = once.at_most_once(async |_| ()).await;
    assert_eq!(
        next_outcome,
        Ok(OnceOutcome::Done(())),
        "the job must run again in the next period"
    );
}

#[tokio::test]
async fn once_record_contains_the_latest_note_and_the_last_completed_period() {
    let redlock = Redlock::in_memory(3);
    let one_day = SystemTime::UNIX_EPOCH..SystemTime::UNIX_EPOCH + Duration::from_secs(24 * 3600);
    let once = redlock.once_in("nightly", one_day.clone());
    once.create().await.expect("every master must answer");
    for (done, note) in [(false, "failed"), (true, "began")] {
        let guard = redlock.acquire("nightly").await.expect("free");
        let Ok(Due::Now(turn)) = once.due(&guard).await else {
            panic!("the period must be due");
        };
        let turn = turn.note(note);
        let record_result = if done {
            turn.record().await
        } else {
            turn.leave_due().await
        };
        record_result.expect("every master must answer");
        let record = once.record(&guard).await.expect("every master must answer");
        assert_eq!(
            (record.last(), record.note()),
            (done.then_some(one_day.start), note)
        );
        guard.release().await;
    }
    let guard = redlock.acquire("nightly").await.expect("free");
    let record = once.record(&guard).await.expect("every master must answer");
    record
        .set_note("ended")
        .await
        .expect("every master must answer");
    let record = once.record(&guard).await.expect("every master must answer");
    assert_eq!(
        (record.last(), record.note()),
        (Some(one_day.start), "ended")
    );
    guard.release().await;
    assert_eq!(once.drop_record().await, Ok(true));
    assert_eq!(
        once.drop_record().await,
        Ok(false),
        "a second removal must find no record"
    );
}

#[test]
fn only_text_in_the_format_of_a_once_job_record_is_accepted() {
    let once = Redlock::in_memory(1).once("nightly", Duration::from_secs(60));
    let read_record = |text: &[u8]| {
        once.parse_record(text)
            .map(|stored| (stored.last, stored.note.to_owned()))
    };
    assert_eq!(read_record(b"once never"), Ok((None, String::new())));
    for (last, note) in [(Some(7), ""), (Some(7), "on a, pid 1"), (None, "failed")] {
        let text = Stored::text(last, note).expect("short");
        assert_eq!(read_record(&text), Ok((last, note.to_owned())));
    }
    for other in ["once", "once x", "once -7", "quota 7", "never", "once 7 "] {
        let error = read_record(other.as_bytes()).expect_err(other).to_string();
        assert!(error.contains("is not a once"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn record_of_a_done_period_is_restored_on_each_master_that_has_lost_it() {
    let masters = Masters::new(3);
    let redlock = Redlock::builder().in_memory_on(&masters).build();
    let redlock = redlock.expect("good settings");
    let once = redlock.once("rarely", Duration::from_secs(3_000 * 24 * 3_600));
    once.create().await.expect("every master must answer");
    let outcome = once.at_most_once(async |_| ()).await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(())));
    for master in masters.iter() {
        master.forget();
        let outcome = once.at_most_once(async |_| ()).await;
        assert!(
            matches!(outcome, Ok(OnceOutcome::AlreadyDone { .. })),
            "{outcome:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn next_period_of_a_done_job_begins_within_one_period() {
    let redlock = Redlock::in_memory(3);
    let period = Duration::from_secs(3_600);
    let once = redlock.once("hourly", period);
    once.create().await.expect("every master must answer");
    let outcome = once.at_most_once(async |_| ()).await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(())));
    let OnceOutcome::AlreadyDone { next } = once
        .at_most_once(async |_| ())
        .await
        .expect("every master must answer")
    else {
        panic!("the period must be done");
    };
    assert!(!next.is_zero() && next <= period, "{next:?}");
}
