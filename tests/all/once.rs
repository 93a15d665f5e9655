//! Tests of once jobs. All machines together run such a job at most once per period (`at_most_once`) or at least once
//! per period (`at_least_once`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::stubborn::{self, Treatment};
use crate::support::{ask_server, eventually, masters, memory, ms, secs, settings};
use quorate::node::memory::{Condition, Master};
use quorate::{AcquireError, Due, Once, OnceOutcome, Redlock, ValueError, Wait};
use quorate_testbed::{ClockShim, Fault, Masters, Proxy, ServerOptions, Skew, Way};

/// A period of ten years, which does not end during a test.
const PERIOD: Duration = secs(10 * 365 * 24 * 3600);

async fn create_nightly(redlock: &Redlock) -> Once {
    let nightly = redlock.once("nightly", PERIOD);
    nightly
        .create()
        .await
        .expect("the creation of the once record must succeed, because all masters can be reached");
    nightly
}

fn is_done<T>(outcome: &Result<OnceOutcome<T>, ValueError>) -> bool {
    matches!(outcome, Ok(OnceOutcome::AlreadyDone { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_job_runs_on_one_machine_per_period() {
    let masters = masters(3);
    let settings = settings(masters.urls()).wait(Wait::For(secs(60)));
    let clients: Vec<Redlock> = (0..4)
        .map(|_| settings.clone().build().expect("good settings"))
        .collect();
    create_nightly(&clients[0]).await;
    let run_count = Arc::new(AtomicUsize::new(0));
    let attempts = (0..24).map(|n| {
        let (once, run_count) = (clients[n % 4].once("nightly", PERIOD), run_count.clone());
        tokio::spawn(async move {
            once.at_most_once(async |guard| {
                assert!(guard.is_valid());
                run_count.fetch_add(1, Ordering::Relaxed);
            })
            .await
        })
    });
    let mut skipped_count = 0;
    for outcome in futures::future::join_all(attempts).await {
        match outcome
            .expect("no panic")
            .expect("the once job of each machine must succeed, because all masters can be reached")
        {
            OnceOutcome::Done(()) => {}
            OnceOutcome::AlreadyDone { next } => {
                assert!(next <= PERIOD, "{next:?}");
                skipped_count += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((run_count.load(Ordering::Relaxed), skipped_count), (1, 23));
}

#[tokio::test]
async fn once_job_is_due_again_when_its_period_has_ended() {
    let (_, redlock) = memory(3);
    let long_once = create_nightly(&redlock).await;
    assert_eq!(
        long_once.at_most_once(async |_| 1).await,
        Ok(OnceOutcome::Done(1))
    );
    assert!(is_done(&long_once.at_most_once(async |_| 2).await));
    // With an hourly period, the job is due again: the period of the recorded run began before the current hour.
    let short_once = redlock.once("nightly", secs(3600));
    assert_eq!(
        short_once.at_most_once(async |_| 3).await,
        Ok(OnceOutcome::Done(3))
    );
    assert!(is_done(
        &long_once.at_least_once(async |_| Ok::<_, ()>(4)).await
    ));
}

#[tokio::test]
async fn at_most_once_mode_does_not_repeat_a_job_whose_body_was_dropped() {
    let (_, redlock) = memory(3);
    let nightly = create_nightly(&redlock).await;
    let pending_run = nightly.at_most_once(async |_| std::future::pending::<()>().await);
    tokio::time::timeout(ms(50), pending_run)
        .await
        .expect_err("the call must time out, because its body never ends");
    assert!(is_done(&nightly.at_most_once(async |_| ()).await));
}

#[tokio::test]
async fn at_least_once_mode_repeats_a_job_whose_success_was_not_recorded() {
    let (nodes, redlock) = stubborn::three();
    let create_nightly = create_nightly(&redlock).await;
    let failed = create_nightly
        .at_least_once(async |_| Err::<(), _>("no disk"))
        .await;
    assert_eq!(failed, Ok(OnceOutcome::Done(Err("no disk"))));
    let pending_run =
        create_nightly.at_least_once(async |_| std::future::pending::<Result<(), ()>>().await);
    tokio::time::timeout(ms(50), pending_run)
        .await
        .expect_err("the call must time out, because its body never ends");
    for node in &nodes[1..] {
        node.set_rule(|request| match request {
            quorate::node::Request::Write { .. } => {
                Treatment::Fails(quorate::Fault::Disconnected("cut".into()), ms(0))
            }
            _ => Treatment::Answered,
        });
    }
    match create_nightly.at_least_once(async |_| Ok::<_, ()>(7)).await {
        Ok(OnceOutcome::NotRecorded(Ok(7), ValueError::Unknown(_))) => {}
        other => panic!("{other:?}"),
    }
    // Only one master has stored the record of the job. Switch this master off, and let the others answer again.
    for node in &nodes {
        node.set_rule(|_| Treatment::Answered);
    }
    nodes[0].master.set_condition(Condition::Down);
    let outcome = create_nightly.at_least_once(async |_| Ok::<_, ()>(8)).await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(Ok(8))));
    assert!(is_done(
        &create_nightly.at_least_once(async |_| Ok::<_, ()>(9)).await
    ));
}

#[tokio::test]
async fn once_job_that_lost_its_lock_reports_whether_its_period_was_recorded() {
    let (nodes, redlock) = stubborn::three();
    let create_nightly = create_nightly(&redlock).await;
    for is_recorded in [false, true] {
        let make_masters_unreachable = async || {
            for node in &nodes[1..] {
                node.master.set_condition(Condition::Down);
            }
            std::future::pending::<()>().await;
        };
        let error = if is_recorded {
            let outcome = create_nightly
                .at_most_once(async |_| make_masters_unreachable().await)
                .await;
            outcome.expect_err("lost")
        } else {
            let second_outcome = create_nightly.at_least_once(async |_| {
                make_masters_unreachable().await;
                Ok::<_, ()>(())
            });
            second_outcome.await.expect_err("lost")
        };
        let error_text = error.details();
        match error {
            ValueError::Stopped {
                recorded: was_recorded,
                ..
            } => {
                assert_eq!(was_recorded, is_recorded, "{error_text}");
            }
            other => panic!("{other}"),
        }
        for node in &nodes {
            node.master.set_condition(Condition::Up);
        }
    }
    assert!(is_done(&create_nightly.at_most_once(async |_| ()).await));
}

#[tokio::test]
async fn once_job_does_not_run_if_its_record_was_never_created_or_was_lost() {
    let (nodes, redlock) = memory(3);
    let create_nightly = redlock.once("nightly", PERIOD);
    let must_not_run = async |_: &_| -> Result<(), ()> { panic!("the body must not run") };
    let error = create_nightly
        .at_most_once(must_not_run)
        .await
        .expect_err("none");
    assert!(matches!(error, ValueError::Missing(_)), "{error}");
    let error = create_nightly
        .at_least_once(must_not_run)
        .await
        .expect_err("none");
    assert!(matches!(error, ValueError::Missing(_)), "{error}");
    create_nightly
        .create()
        .await
        .expect("the creation of the once record must succeed, because all masters can be reached");
    let error = create_nightly
        .create()
        .await
        .expect_err("the creation must fail, because the value exists already");
    assert!(matches!(error, ValueError::Exists(_)), "{error}");
    nodes[0].forget();
    nodes[1].forget();
    let error = create_nightly
        .at_least_once(must_not_run)
        .await
        .expect_err("lost");
    assert!(matches!(error, ValueError::Lost(_)), "{error}");
    create_nightly
        .drop_record()
        .await
        .expect("the removal of the once record must succeed, because all masters can be reached");
    create_nightly
        .create()
        .await
        .expect("the creation must succeed, because no master has a record any more");
}

#[tokio::test]
async fn once_job_with_a_period_of_zero_is_refused_and_sends_nothing() {
    let (nodes, redlock) = memory(3);
    for period in [Duration::ZERO, Duration::from_micros(900), Duration::MAX] {
        let once_in_period = redlock.once("nightly", period);
        for error in [
            once_in_period
                .create()
                .await
                .expect_err("a period outside the allowed range must be refused"),
            once_in_period
                .at_most_once(async |_| ())
                .await
                .expect_err("a period outside the allowed range must be refused"),
        ] {
            assert!(matches!(error, ValueError::Invalid(_)), "{error}");
        }
    }
    for node in &nodes {
        assert!(node.with_master(Master::is_empty));
    }
}

#[tokio::test]
async fn holder_of_the_lock_can_check_and_record_the_period_of_a_once_job() {
    let (_, redlock) = memory(3);
    let create_nightly = create_nightly(&redlock).await;
    let other = redlock.acquire("other").await.expect("free");
    let error = create_nightly
        .due(&other)
        .await
        .expect_err("the guard of another lock must be refused");
    assert!(matches!(error, ValueError::Invalid(_)), "{error}");
    let shared = redlock
        .lock("nightly")
        .shared()
        .acquire()
        .await
        .expect("free");
    let error = create_nightly.due(&shared).await.expect_err("a reader");
    assert!(matches!(error, ValueError::Invalid(_)), "{error}");
    shared.release().await;

    let guard = redlock
        .lock("nightly")
        .max_hold(secs(60))
        .acquire()
        .await
        .expect("free");
    match create_nightly
        .due(&guard)
        .await
        .expect("the check whether the job is due must succeed, because all masters can be reached")
    {
        Due::Now(due_run) => due_run.record().await.expect(
            "the write of the once record must succeed, because all masters can be reached",
        ),
        Due::AlreadyDone { .. } => panic!("the period must be due"),
    }
    let again = create_nightly.due(&guard).await.expect(
        "the second check whether the job is due must succeed, because all masters can be reached",
    );
    assert!(matches!(again, Due::AlreadyDone { .. }), "{again:?}");
    // This guard has already written the record. A second write with the same fencing token must fail.
    let hourly = redlock.once("nightly", secs(3600));
    let Ok(Due::Now(due_run)) = hourly.due(&guard).await else {
        panic!("the job must be due, because the period of one hour is over");
    };
    let error = due_run
        .record()
        .await
        .expect_err("a second write under the same lock must be refused");
    assert!(matches!(error, ValueError::Invalid(_)), "{error}");
}

#[tokio::test]
async fn once_record_that_one_master_lost_is_restored_by_a_refill_or_the_next_record() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let long_once = create_nightly(&redlock).await;
    let outcome = long_once.at_most_once(async |_| ()).await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(())));
    let ask_last_master =
        |command| ask_server(&masters[2], &[command, "quorate:value:nightly"]).int();
    eventually("all masters must have the value", || {
        ask_last_master("EXISTS") == Some(1)
    })
    .await;
    assert_eq!(ask_last_master("DEL"), Some(1));
    // With an hourly period, the job is due again: the period of the recorded run began before the current hour.
    let short_once = redlock.once("nightly", secs(3600));
    for is_refilled in [false, true] {
        let guard = redlock.acquire("nightly").await.expect("free");
        let due = long_once
            .due(&guard)
            .await
            .expect("the read must succeed, because two masters still store the value");
        assert!(matches!(due, Due::AlreadyDone { .. }), "{due:?}");
        if is_refilled {
            long_once
                .refill(&guard)
                .await
                .expect("the refill must succeed, because two masters still store the value");
            eventually(
                "the refill must restore the value on the third master",
                || ask_last_master("EXISTS") == Some(1),
            )
            .await;
        } else {
            let Ok(Due::Now(due_run)) = short_once.due(&guard).await else {
                panic!("the job must be due, because the period of one hour is over");
            };
            due_run
                .record()
                .await
                .expect("the first write with the fencing token of this lock must succeed");
            eventually(
                "the write must restore the value on the third master",
                || ask_last_master("EXISTS") == Some(1),
            )
            .await;
            assert_eq!(ask_last_master("DEL"), Some(1));
        }
        guard.release().await;
    }
}

#[tokio::test]
async fn once_job_waits_while_another_machine_runs_it() {
    let (_, redlock) = memory(3);
    let create_nightly = create_nightly(&redlock).await;
    let (start_count, run_count) = (Arc::new(AtomicUsize::new(0)), create_nightly.clone());
    let first = tokio::spawn({
        let start_count = start_count.clone();
        async move {
            run_count
                .at_most_once(async |_| {
                    start_count.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(ms(300)).await;
                })
                .await
        }
    });
    eventually("the first job must be running", || {
        start_count.load(Ordering::Relaxed) == 1
    })
    .await;
    let impatient_once = create_nightly.clone().wait(Wait::None);
    let error = impatient_once
        .at_most_once(async |_| ())
        .await
        .expect_err("busy");
    assert!(
        matches!(error, ValueError::NotAcquired(AcquireError::HeldByOther(_))),
        "{error}"
    );
    assert!(is_done(&create_nightly.at_most_once(async |_| ()).await));
    assert_eq!(first.await.expect("no panic"), Ok(OnceOutcome::Done(())));
}

#[tokio::test]
async fn once_job_refuses_the_guard_of_another_lock() {
    let ((_, first_client), (_, second_client)) = (memory(3), memory(3));
    let first_nightly = create_nightly(&first_client).await;
    create_nightly(&second_client).await;
    let permit = first_client
        .semaphore("nightly", 3)
        .acquire()
        .await
        .expect("free");
    let elsewhere = second_client.acquire("nightly").await.expect("free");
    for other in [&permit, &elsewhere] {
        let error = first_nightly
            .due(other)
            .await
            .expect_err("the guard of another lock must be refused");
        assert!(matches!(error, ValueError::Invalid(_)), "{error}");
    }
    let cloned_client = first_client.clone();
    let guard = cloned_client.acquire("nightly").await.expect("free");
    assert!(matches!(first_nightly.due(&guard).await, Ok(Due::Now(_))));
}

#[tokio::test]
async fn once_record_of_a_future_period_is_reported_as_an_error() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let once = redlock.once("nightly", secs(3600));
    once.create()
        .await
        .expect("the creation of the once record must succeed, because all masters can be reached");
    for master in &masters {
        let reply = ask_server(master, &["GET", "quorate:value:nightly"]);
        let text = reply.text().expect("a value");
        let text = text.replace("never", &u64::MAX.to_string());
        ask_server(master, &["SET", "quorate:value:nightly", &text]);
    }
    let outcome = once.at_most_once(async |_| ()).await;
    assert!(
        matches!(outcome, Err(ValueError::Ahead { recorded: true, .. })),
        "{outcome:?}"
    );
    once.drop_record()
        .await
        .expect("the removal of the once record must succeed, because all masters can be reached");
    once.create().await.expect(
        "the second creation of the once record must succeed, because all masters can be reached",
    );
    let outcome = once.at_most_once(async |_| ()).await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(())));
}

#[tokio::test]
async fn once_job_survives_the_loss_of_one_master_of_three() {
    for restarted_master in 0..3 {
        let masters = masters(3);
        let slow = Proxy::start(masters[(restarted_master + 1) % 3].addr()).expect("a proxy");
        slow.inject(Fault::latency(Way::Both, ms(10))).keep();
        let urls = masters.iter().enumerate().map(|(at, master)| {
            let is_slow = at == (restarted_master + 1) % 3;
            if is_slow {
                master.url_at(slow.addr())
            } else {
                master.url()
            }
        });
        let redlock = settings(urls).build().expect("good settings");
        let once = create_nightly(&redlock).await;
        let outcome = once.at_least_once(async |_| {
            // Wait until all masters have answered the read of the record.
            tokio::time::sleep(ms(300)).await;
            masters[restarted_master].kill().expect("killed");
            Ok::<_, ()>(())
        });
        let outcome = outcome.await;
        assert_eq!(
            outcome,
            Ok(OnceOutcome::Done(Ok(()))),
            "the job must run to its end, although {restarted_master} was killed"
        );
    }
}

/// The period of `days` days from now, which lasts for a day.
fn range_of_day(days: i32) -> Range<SystemTime> {
    let now = SystemTime::now();
    let distance = secs(86_400) * days.unsigned_abs();
    let start = if days < 0 {
        now - distance
    } else {
        now + distance
    };
    start..start + secs(86_400)
}

/// For one lock, the fencing token is a month ahead, because a master's clock was. The check of the period must use the
/// clocks themselves.
#[tokio::test]
async fn once_job_of_a_machine_with_a_fast_clock_is_refused_although_the_fencing_token_is_ahead() {
    let shim = match ClockShim::build() {
        Ok(shim) => shim,
        Err(error) => {
            eprintln!(
                "SKIPPED: this machine cannot build the library that shifts a clock: {error}"
            );
            return;
        }
    };
    let offset = shim.offset_file().expect("an offset file");
    let options = |n| match n {
        2 => ServerOptions::new().clock(&shim, &offset),
        _ => ServerOptions::new(),
    };
    let masters = Masters::start_with(3, options).expect("three masters");
    let redlock = settings(masters.urls()).build().expect("good settings");
    let daily = |days| redlock.once_in("nightly", range_of_day(days));
    daily(0).create().await.expect("all masters can be reached");
    // The clock of one master is ahead, another master is away. One lock gets a token that is a month ahead.
    offset.set(secs(30 * 86_400), Skew::Ahead).expect("set");
    masters[1].stop().expect("stopped");
    let acquire = redlock.lock("nightly").wait(Wait::For(secs(30))).acquire();
    let guard = acquire.await.expect("two masters can be reached");
    let ahead = guard.fencing_token().expect("fenced") / 1_000_000;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since_epoch.expect("after 1970").as_secs();
    assert!(ahead > now + 29 * 86_400, "{ahead} {now}");
    // While one clock is ahead and a master is away, no majority of the clocks says that the period has begun.
    let outcome = redlock
        .once_in("nightly", range_of_day(10))
        .due(&guard)
        .await;
    let Err(
        error @ ValueError::ClocksDisagree {
            recorded: false, ..
        },
    ) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert!(
        error.details().contains("ahead of this machine"),
        "{}",
        error.details()
    );
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
    guard.release().await;
    // Then the clock is corrected.
    offset.set(Duration::ZERO, Skew::Ahead).expect("set");
    masters[1].restart().expect("restarted");
    let outcome = daily(10).at_most_once(async |_| ()).await;
    assert!(
        matches!(
            outcome,
            Err(ValueError::Ahead {
                recorded: false,
                ..
            })
        ),
        "a machine whose clock is 10 days ahead must not record its period: {outcome:?}"
    );
    assert_eq!(
        daily(0).at_most_once(async |_| ()).await,
        Ok(OnceOutcome::Done(()))
    );
    assert!(is_done(&daily(-10).at_most_once(async |_| ()).await));
}

/// A record that a machine with a fast clock has written, and fencing counters far ahead of the clocks.
#[tokio::test]
async fn future_once_record_is_reported_even_if_the_fencing_counters_are_ahead_of_the_clocks() {
    let (nodes, redlock) = memory(3);
    let once = |days| redlock.once_in("nightly", range_of_day(days));
    once(0).create().await.expect("all masters can be reached");
    for node in &nodes {
        node.with_master(|master, now| {
            master.carry(now, b"nightly", now + 30 * 86_400_000_000);
            let number = now + 30 * 86_400_000_000;
            let period = now / 1_000 + 10 * 86_400_000;
            let text = format!("{number} 1 once {period}");
            master.put_text(now, b"quorate:value:nightly", text.as_bytes(), None);
        });
    }
    for days in [0, 9, 10] {
        let outcome = once(days).at_most_once(async |_| ()).await;
        assert!(
            matches!(outcome, Err(ValueError::Ahead { recorded: true, .. })),
            "{days}: {outcome:?}"
        );
    }
    once(0)
        .drop_record()
        .await
        .expect("all masters can be reached");
    once(0).create().await.expect("all masters can be reached");
    let outcome = once(1).at_most_once(async |_| ()).await;
    assert!(
        matches!(
            outcome,
            Err(ValueError::Ahead {
                recorded: false,
                ..
            })
        ),
        "{outcome:?}"
    );
    assert_eq!(
        once(0).at_most_once(async |_| ()).await,
        Ok(OnceOutcome::Done(()))
    );
}
