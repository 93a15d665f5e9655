//! Tests of the progress that is reported to a waiter, and of the error with which an unsuccessful wait ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::stubborn::Treatment::{Answered, Fails};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{self, PATIENCE, masters, ms, secs};
use quorate::node::{Fault, Node, Request};
use quorate::{AcquireError, Redlock, RedlockBuilder, TryAcquire, Wait, Waiting};
use quorate_testbed::ServerOptions;

fn builder_for(nodes: &[Arc<Stubborn>]) -> RedlockBuilder {
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(dyn_nodes.collect())
        .ttl(secs(30))
        .wait(Wait::For(ms(300)))
}

fn fail_with(fault: Fault) -> impl FnMut(&Request) -> Treatment + Send {
    move |request| match request {
        Request::Acquire { .. } => Fails(fault.clone(), Duration::ZERO),
        _ => Answered,
    }
}

/// Waits for a lock that stays held, until the wait ends. Returns the progress reports and the error.
async fn wait_in_vain(redlock: &Redlock) -> (Vec<Waiting>, AcquireError) {
    let notifications = Arc::new(Mutex::new(Vec::new()));
    let notification_log = notifications.clone();
    let log_notification = move |waiting: &Waiting| {
        notification_log
            .lock()
            .expect("no panic")
            .push(waiting.clone());
    };
    let outcome = redlock.lock("x").waiting(log_notification).acquire().await;
    let error = outcome
        .map(drop)
        .expect_err("the lock must not be acquired");
    let notifications = std::mem::take(&mut *notifications.lock().expect("no panic"));
    (notifications, error)
}

#[tokio::test]
async fn progress_of_a_wait_counts_all_masters_that_answer() {
    let masters = masters(5);
    let holder = support::redlock(&masters);
    let guard = support::take(&holder, "x").await;
    let waiting_builder = support::settings(masters.urls()).wait(Wait::For(ms(300)));
    let (notifications, error) =
        wait_in_vain(&waiting_builder.build().expect("good settings")).await;
    assert!(!notifications.is_empty());
    for waiting in notifications {
        assert_eq!((waiting.answering, waiting.masters), (5, 5), "{waiting:?}");
        assert!(waiting.trouble.is_empty(), "{waiting:?}");
    }
    assert!(!error.details().contains("no answer yet"), "{error}");
    let TryAcquire::Held(_) = holder.try_acquire("x").await.expect("a quorum") else {
        panic!("the lock must be reported as held");
    };
    guard.release().await;
}

#[tokio::test]
async fn faults_of_masters_are_listed_with_the_most_relevant_fault_first() {
    let quarantined = Fault::Quarantined(secs(27));
    let nodes = [
        Stubborn::new("a", fail_with(Fault::Stalled)),
        Stubborn::new("b", fail_with(quarantined.clone())),
        Stubborn::honest("c"),
    ];
    let (notifications, error) =
        wait_in_vain(&builder_for(&nodes).build().expect("good settings")).await;
    let last_notification = notifications
        .last()
        .expect("at least one progress report must have been made");
    assert_eq!(
        (last_notification.answering, last_notification.masters),
        (1, 3)
    );
    let details: Vec<_> = last_notification
        .trouble
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        details,
        [
            "b: restart guard: can vote after clients have been connected for another 28s",
            "a: not answering"
        ]
    );
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.details().contains("for another 28s"), "{error}");
    let advice = "]; `quorate masters mark --watch` stays connected until these masters vote";
    assert!(error.details().ends_with(advice), "{}", error.details());
}

#[tokio::test]
async fn permanent_refusal_by_a_majority_ends_a_wait_after_one_attempt() {
    for fault in [
        Fault::Denied("NOPERM no permissions to run the 'time' command".into()),
        Fault::Unsupported("no RESP3".into()),
    ] {
        let nodes = ["a", "b"].map(|name| Stubborn::new(name, fail_with(fault.clone())));
        let nodes = [nodes[0].clone(), nodes[1].clone(), Stubborn::honest("c")];
        for settings in [
            builder_for(&nodes),
            builder_for(&nodes).order(quorate::Order::Unordered),
        ] {
            let redlock = settings.wait(Wait::Forever).build().expect("good settings");
            let outcome = tokio::time::timeout(PATIENCE, redlock.acquire("x")).await;
            let error = outcome.expect("ends").map(drop).expect_err("refused");
            let details = error.details();
            assert!(details.contains("waiting does not help"), "{details}");
            assert!(details.contains(&format!("a, b: {fault}")), "{details}");
            let AcquireError::NoQuorum(refusal) = error else {
                panic!("{error}");
            };
            assert_eq!(refusal.attempts, 1);
            assert!(!refusal.passes_by_itself());
            // Once the fault is corrected on one master, the next attempt succeeds.
            nodes[0].set_rule(|_| Answered);
            let guard = redlock
                .acquire("x")
                .await
                .expect("the acquire must succeed, because the fault is corrected on one master");
            guard.release().await;
            nodes[0].set_rule(fail_with(fault.clone()));
        }
    }
}

#[tokio::test]
async fn permanent_refusal_by_a_minority_does_not_end_a_wait() {
    let denying = || fail_with(Fault::Denied("NOPERM".into()));
    let nodes = [
        Stubborn::new("a", denying()),
        Stubborn::new("b", fail_with(Fault::Stalled)),
        Stubborn::honest("c"),
    ];
    let redlock = builder_for(&nodes)
        .wait(Wait::For(PATIENCE))
        .build()
        .expect("good settings");
    let waiting_task = tokio::spawn(async move { redlock.acquire("x").await.map(drop) });
    tokio::time::sleep(ms(200)).await;
    nodes[1].set_rule(|_| Answered);
    waiting_task
        .await
        .expect("no panic")
        .expect("the wait must succeed, because two of three masters can be reached");
}

#[tokio::test]
async fn wrong_password_on_real_masters_ends_an_unlimited_wait() {
    let masters = quorate_testbed::Masters::start_with(3, |_| {
        ServerOptions::new().acl("lock on >right ~* &* +@all")
    })
    .expect("three masters");
    let wrong_urls = masters.urls().into_iter().map(|url| {
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let host = rest.rsplit('@').next().expect("a host");
        format!("{scheme}://lock:wrong@{host}")
    });
    let redlock = support::settings(wrong_urls)
        .wait(Wait::Forever)
        .build()
        .expect("good settings");
    let outcome = tokio::time::timeout(PATIENCE, redlock.acquire("x")).await;
    let error = outcome.expect("ends").map(drop).expect_err("refused");
    assert!(matches!(&error, AcquireError::NoQuorum(refusal) if !refusal.passes_by_itself()));
    assert!(error.details().contains("access denied"), "{error}");
    assert!(!error.details().contains("wrong"), "{error}");
}

#[tokio::test]
async fn database_number_that_no_master_has_ends_an_unlimited_wait() {
    let masters = masters(3);
    let urls = masters.iter().map(|master| format!("{}/99", master.url()));
    let redlock = support::settings(urls).wait(Wait::Forever).build();
    let acquire = tokio::time::timeout(PATIENCE, async {
        redlock.expect("good").acquire("x").await
    });
    let error = acquire
        .await
        .expect("ended")
        .expect_err("the acquire must fail, because the masters do not have this database");
    assert!(
        error.details().contains("out of range"),
        "{}",
        error.details()
    );
    assert!(matches!(&error, AcquireError::NoQuorum(refusal) if !refusal.passes_by_itself()));
}

#[tokio::test]
async fn names_of_masters_appear_in_error_details_but_not_in_the_error_text() {
    let nodes = ["master-0", "master-1", "master-2"].map(Stubborn::honest);
    let redlock = || {
        builder_for(&nodes)
            .wait(Wait::None)
            .build()
            .expect("good settings")
    };
    let _guard = support::take(&redlock(), "x").await;
    let guard = redlock().acquire("x").await;
    for node in &nodes[..2] {
        node.set_rule(fail_with(Fault::Down("switched off".into())));
    }
    let outage = redlock().acquire("x").await;
    for (error, details) in [(guard, "held by another"), (outage, "master-0")] {
        let error = error.expect_err("the acquire must fail");
        let text = error.to_string();
        assert!(error.details().contains(details), "{}", error.details());
        assert!(!text.contains("master-"), "{text}");
        assert!(std::error::Error::source(&error).is_none());
    }
}

#[tokio::test]
async fn acquire_error_states_that_the_lock_is_held_by_this_process() {
    for is_unordered in [false, true] {
        let settings = Redlock::builder().in_memory(3).wait(Wait::For(ms(200)));
        let settings = if is_unordered {
            settings.order(quorate::Order::Unordered)
        } else {
            settings
        };
        let redlock = settings.build().expect("good settings");
        let guard = redlock.acquire("x").await.expect("free");
        let (notifications, error) = wait_in_vain(&redlock).await;
        assert!(
            notifications.iter().all(|waiting| waiting.held_here),
            "{notifications:?}"
        );
        assert!(!notifications.is_empty());
        let details = error.details();
        assert!(
            details.contains("already held in this process"),
            "{details}"
        );
        let AcquireError::HeldByOther(refusal) = error else {
            panic!("{details}");
        };
        assert!(refusal.held_here);
        let TryAcquire::Held(refusal) = redlock.try_acquire("x").await.expect("a quorum") else {
            panic!("the lock must be reported as held");
        };
        assert!(refusal.held_here);
        redlock.acquire("y").await.expect("free").release().await;
        guard.release().await;
        redlock
            .acquire("x")
            .await
            .expect("the lock must be free again")
            .release()
            .await;
    }
}

#[tokio::test]
async fn lock_of_another_process_is_not_reported_as_held_by_this_process() {
    for is_unordered in [false, true] {
        let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("x"));
        let settings = if is_unordered {
            builder_for(&nodes).order(quorate::Order::Unordered)
        } else {
            builder_for(&nodes)
        };
        let redlock = settings.build().expect("good settings");
        let (first, second) = tokio::join!(wait_in_vain(&redlock), wait_in_vain(&redlock));
        for (notifications, error) in [first, second] {
            assert!(
                notifications.iter().all(|waiting| !waiting.held_here),
                "{notifications:?}"
            );
            let guard = matches!(&error, AcquireError::HeldByOther(refusal) if !refusal.held_here);
            assert!(guard, "{error}");
            // In unordered mode, the masters do not report the value of the lock key, which no client of quorate wrote.
            let details = if is_unordered {
                "is held by another ("
            } else {
                "is held by another program: the value of the lock key is not from quorate ("
            };
            assert!(error.details().contains(details), "{error}");
        }
    }
}

/// Collects trace output in the usual format: one line per event. Each line begins with the fields of the event's span.
#[derive(Clone, Default)]
struct SharedOutput(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// If a field is recorded twice, the span keeps both values. So the span of a waiter would grow with every attempt.
#[tokio::test]
async fn tracing_span_of_a_waiter_records_each_field_once() {
    let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("x"));
    for is_unordered in [false, true] {
        let builder = builder_for(&nodes)
            .retry(quorate::Retry::new(ms(5), ms(5)))
            .heartbeat(ms(30));
        let settings = if is_unordered {
            builder.order(quorate::Order::Unordered)
        } else {
            builder
        };
        let redlock = settings.build().expect("good settings");
        let output = SharedOutput::default();
        let writer = output.clone();
        let writer = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || writer.clone());
        {
            let _listening = support::listener::listen(writer.finish());
            redlock.acquire("x").await.map(drop).expect_err("held");
        }
        let output = String::from_utf8(output.0.lock().expect("no panic").clone()).expect("text");
        let mut refusal = output
            .lines()
            .filter(|line| line.contains("attempt failed"));
        assert!(refusal.clone().count() > 3, "{output}");
        let last_notification = refusal
            .next_back()
            .expect("a failed attempt must have been reported");
        // Each field is in the span and in the event, so twice in a log line. Unordered waiters have no field `ahead`.
        let expected_queued = if is_unordered { 0 } else { 2 };
        assert_eq!(
            last_notification.matches("answering=").count(),
            2,
            "{last_notification}"
        );
        assert_eq!(
            last_notification.matches("ahead=").count(),
            expected_queued,
            "{last_notification}"
        );
    }
}

#[tokio::test]
async fn progress_reports_a_majority_only_if_old_and_next_masters_both_have_one() {
    let servers = masters(6);
    let (old, next) = (&servers.urls()[..3], &servers.urls()[3..]);
    let builder = support::settings(old).next_masters(next.to_vec());
    let build_result = builder.wait(Wait::For(ms(300))).build();
    let waiting_client = build_result.expect("good settings");
    for server in servers.iter().take(2) {
        server.kill().expect("killed");
    }
    let (notifications, error) = wait_in_vain(&waiting_client).await;
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let last_notification = notifications.last().expect("an attempt");
    assert_eq!(
        (last_notification.answering, last_notification.masters),
        (4, 6),
        "{last_notification:?}"
    );
    assert!(!last_notification.majority_answers, "{last_notification:?}");
    let redlock = support::settings(next).wait(Wait::For(ms(300))).build();
    let redlock = redlock.expect("good settings");
    let guard = support::take(&redlock, "x").await;
    servers[5].kill().expect("killed");
    let waiter = support::settings(next).wait(Wait::For(ms(300))).build();
    let (notifications, _) = wait_in_vain(&waiter.expect("good settings")).await;
    let last_notification = notifications.last().expect("an attempt");
    assert!(last_notification.majority_answers, "{last_notification:?}");
    guard.release().await;
}

#[tokio::test]
async fn wait_for_the_lock_of_a_quota_or_once_job_reports_its_progress() {
    let redlock = Redlock::in_memory(3);
    let guard = support::take(&redlock, "x").await;
    let notifications = Arc::new(Mutex::new(0));
    let count_calls = || {
        let notifications = notifications.clone();
        move |_: &Waiting| *notifications.lock().expect("no panic") += 1
    };
    let short_wait = Wait::For(ms(100));
    let quota = redlock.quota("x").wait(short_wait).waiting(count_calls());
    quota.take(1).await.map(drop).expect_err("the lock is held");
    let calls_of_quota = *notifications.lock().expect("no panic");
    assert!(calls_of_quota > 0);
    let once = redlock
        .once("x", secs(60))
        .wait(short_wait)
        .waiting(count_calls());
    once.create().await.expect_err("the lock is held");
    assert!(*notifications.lock().expect("no panic") > calls_of_quota);
    guard.release().await;
}

#[tokio::test]
async fn error_contains_no_note_of_a_resource_that_the_caller_did_not_request() {
    let masters = masters(3);
    let (holder, redlock) = (support::redlock(&masters), support::redlock(&masters));
    let outcome = holder.lock("b").note("of b alone").acquire().await;
    let guard = outcome.expect("free");
    let read_notes = async || {
        holder
            .status("b")
            .await
            .expect("the name must be valid")
            .note()
            .is_some()
    };
    while !read_notes().await {
        tokio::time::sleep(ms(10)).await;
    }
    let (notifications, notification_receiver) = tokio::sync::mpsc::unbounded_channel();
    let waiter_task = tokio::spawn({
        let redlock = redlock.clone();
        async move {
            let silent_request = redlock.lock_all(["a", "b"]).wait(Wait::Forever);
            let request =
                silent_request.waiting(move |waiting| drop(notifications.send(waiting.clone())));
            request.acquire().await.map(drop)
        }
    });
    let mut notification_receiver = notification_receiver;
    let result = tokio::time::timeout(PATIENCE, notification_receiver.recv()).await;
    let last_wait = result
        .expect("an attempt")
        .expect("the task must be waiting for the lock");
    assert!(last_wait.note.is_some(), "{last_wait:?}");
    // In the queue for `a`, the task `waiter_task` is ahead. The error about `a` must not contain the note of the lock on `b`.
    let error = redlock.lock("a").wait(Wait::For(ms(300))).acquire().await;
    let error = error
        .map(drop)
        .expect_err("the acquire must fail, because another waiter is ahead");
    let AcquireError::HeldByOther(refusal) = &error else {
        panic!("{error}");
    };
    assert_eq!(refusal.note, None, "{error}");
    guard.release().await;
    waiter_task
        .await
        .expect("no panic")
        .expect("the waiter must get the lock");
}
