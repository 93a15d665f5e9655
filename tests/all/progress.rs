//! Tests of the progress that is reported to a waiter, and of the error with which an unsuccessful wait ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::stubborn::Treatment::{Answered, Fails};
use crate::support::stubborn::{Stubborn, Treatment};
use crate::support::{self, PATIENCE, masters, ms, secs};
use quorate::node::{Fault, Node, Request};
use quorate::{AcquireError, Redlock, RedlockBuilder, TryAcquire, Wait, Waiting};
use quorate_testbed::ServerOptions;

fn over(nodes: &[Arc<Stubborn>]) -> RedlockBuilder {
    let nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    Redlock::builder()
        .nodes(nodes.collect())
        .ttl(secs(30))
        .wait(Wait::For(ms(300)))
}

fn fails(fault: Fault) -> impl FnMut(&Request) -> Treatment + Send {
    move |request| match request {
        Request::Acquire { .. } => Fails(fault.clone(), Duration::ZERO),
        _ => Answered,
    }
}

/// Waits for a lock that stays held, until the wait ends. Returns the progress reports and the error.
async fn in_vain(redlock: &Redlock) -> (Vec<Waiting>, AcquireError) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let see = move |waiting: &Waiting| notes.lock().expect("no panic").push(waiting.clone());
    let outcome = redlock.lock("x").waiting(see).acquire().await;
    let error = outcome
        .map(drop)
        .expect_err("the lock must not be acquired");
    let seen = std::mem::take(&mut *seen.lock().expect("no panic"));
    (seen, error)
}

#[tokio::test]
async fn progress_of_a_wait_counts_all_masters_that_answer() {
    let masters = masters(5);
    let holder = support::redlock(&masters);
    let guard = support::take(&holder, "x").await;
    let waiter = support::settings(masters.urls()).wait(Wait::For(ms(300)));
    let (seen, error) = in_vain(&waiter.build().expect("good settings")).await;
    assert!(!seen.is_empty());
    for waiting in seen {
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
        Stubborn::new("a", fails(Fault::Stalled)),
        Stubborn::new("b", fails(quarantined.clone())),
        Stubborn::honest("c"),
    ];
    let (seen, error) = in_vain(&over(&nodes).build().expect("good settings")).await;
    let last = seen
        .last()
        .expect("at least one progress report must have been made");
    assert_eq!((last.answering, last.masters), (1, 3));
    let said: Vec<_> = last.trouble.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
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
        let nodes = ["a", "b"].map(|name| Stubborn::new(name, fails(fault.clone())));
        let nodes = [nodes[0].clone(), nodes[1].clone(), Stubborn::honest("c")];
        for settings in [over(&nodes), over(&nodes).order(quorate::Order::Unordered)] {
            let redlock = settings.wait(Wait::Forever).build().expect("good settings");
            let outcome = tokio::time::timeout(PATIENCE, redlock.acquire("x")).await;
            let error = outcome.expect("ends").map(drop).expect_err("refused");
            let said = error.details();
            assert!(said.contains("waiting does not help"), "{said}");
            assert!(said.contains(&format!("a, b: {fault}")), "{said}");
            let AcquireError::NoQuorum(missed) = error else {
                panic!("{error}");
            };
            assert_eq!(missed.attempts, 1);
            assert!(!missed.passes_by_itself());
            // Once the fault is corrected on one master, the next attempt succeeds.
            nodes[0].set_rule(|_| Answered);
            let guard = redlock
                .acquire("x")
                .await
                .expect("the acquire must succeed, because the fault is corrected on one master");
            guard.release().await;
            nodes[0].set_rule(fails(fault.clone()));
        }
    }
}

#[tokio::test]
async fn permanent_refusal_by_a_minority_does_not_end_a_wait() {
    let denied = || fails(Fault::Denied("NOPERM".into()));
    let nodes = [
        Stubborn::new("a", denied()),
        Stubborn::new("b", fails(Fault::Stalled)),
        Stubborn::honest("c"),
    ];
    let redlock = over(&nodes)
        .wait(Wait::For(PATIENCE))
        .build()
        .expect("good settings");
    let waiting = tokio::spawn(async move { redlock.acquire("x").await.map(drop) });
    tokio::time::sleep(ms(200)).await;
    nodes[1].set_rule(|_| Answered);
    waiting
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
    let wrong = masters.urls().into_iter().map(|url| {
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let host = rest.rsplit('@').next().expect("a host");
        format!("{scheme}://lock:wrong@{host}")
    });
    let redlock = support::settings(wrong)
        .wait(Wait::Forever)
        .build()
        .expect("good settings");
    let outcome = tokio::time::timeout(PATIENCE, redlock.acquire("x")).await;
    let error = outcome.expect("ends").map(drop).expect_err("refused");
    assert!(matches!(&error, AcquireError::NoQuorum(missed) if !missed.passes_by_itself()));
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
    assert!(matches!(&error, AcquireError::NoQuorum(missed) if !missed.passes_by_itself()));
}

#[tokio::test]
async fn names_of_masters_appear_in_error_details_but_not_in_the_error_text() {
    let nodes = ["master-0", "master-1", "master-2"].map(Stubborn::honest);
    let redlock = || {
        over(&nodes)
            .wait(Wait::None)
            .build()
            .expect("good settings")
    };
    let _guard = support::take(&redlock(), "x").await;
    let held = redlock().acquire("x").await;
    for node in &nodes[..2] {
        node.set_rule(fails(Fault::Down("switched off".into())));
    }
    let down = redlock().acquire("x").await;
    for (error, details) in [(held, "held by another"), (down, "master-0")] {
        let error = error.expect_err("the acquire must fail");
        let text = error.to_string();
        assert!(error.details().contains(details), "{}", error.details());
        assert!(!text.contains("master-"), "{text}");
        assert!(std::error::Error::source(&error).is_none());
    }
}

#[tokio::test]
async fn acquire_error_states_that_the_lock_is_held_by_this_process() {
    for unordered in [false, true] {
        let settings = Redlock::builder().in_memory(3).wait(Wait::For(ms(200)));
        let settings = if unordered {
            settings.order(quorate::Order::Unordered)
        } else {
            settings
        };
        let redlock = settings.build().expect("good settings");
        let guard = redlock.acquire("x").await.expect("free");
        let (seen, error) = in_vain(&redlock).await;
        assert!(seen.iter().all(|waiting| waiting.held_here), "{seen:?}");
        assert!(!seen.is_empty());
        let said = error.details();
        assert!(said.contains("already held in this process"), "{said}");
        let AcquireError::HeldByOther(missed) = error else {
            panic!("{said}");
        };
        assert!(missed.held_here);
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
    for unordered in [false, true] {
        let nodes = ["a", "b", "c"].map(|name| Stubborn::honest(name).held_by_another("x"));
        let settings = if unordered {
            over(&nodes).order(quorate::Order::Unordered)
        } else {
            over(&nodes)
        };
        let redlock = settings.build().expect("good settings");
        let (first, second) = tokio::join!(in_vain(&redlock), in_vain(&redlock));
        for (seen, error) in [first, second] {
            assert!(seen.iter().all(|waiting| !waiting.held_here), "{seen:?}");
            let held = matches!(&error, AcquireError::HeldByOther(missed) if !missed.held_here);
            assert!(held, "{error}");
            // In unordered mode, the masters do not report the value of the lock key, which no client of quorate wrote.
            let said = if unordered {
                "is held by another ("
            } else {
                "is held by another program: the value of the lock key is not from quorate ("
            };
            assert!(error.details().contains(said), "{error}");
        }
    }
}

/// Collects trace output in the usual format: one line per event. Each line begins with the fields of the event's span.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
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
    for unordered in [false, true] {
        let builder = over(&nodes)
            .retry(quorate::Retry::new(ms(5), ms(5)))
            .heartbeat(ms(30));
        let settings = if unordered {
            builder.order(quorate::Order::Unordered)
        } else {
            builder
        };
        let redlock = settings.build().expect("good settings");
        let lines = Lines::default();
        let pen = lines.clone();
        let writer = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || pen.clone());
        {
            let _listening = support::listener::listen(writer.finish());
            redlock.acquire("x").await.map(drop).expect_err("held");
        }
        let lines = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("text");
        let mut missed = lines.lines().filter(|line| line.contains("attempt failed"));
        assert!(missed.clone().count() > 3, "{lines}");
        let last = missed
            .next_back()
            .expect("a failed attempt must have been reported");
        // Each field is in the span and in the event, so twice in a log line. Unordered waiters have no field `ahead`.
        let queued = if unordered { 0 } else { 2 };
        assert_eq!(last.matches("answering=").count(), 2, "{last}");
        assert_eq!(last.matches("ahead=").count(), queued, "{last}");
    }
}

#[tokio::test]
async fn progress_reports_a_majority_only_if_old_and_next_masters_both_have_one() {
    let servers = masters(6);
    let (old, next) = (&servers.urls()[..3], &servers.urls()[3..]);
    let builder = support::settings(old).next_masters(next.to_vec());
    let build_result = builder.wait(Wait::For(ms(300))).build();
    let waiter = build_result.expect("good settings");
    for server in servers.iter().take(2) {
        server.kill().expect("killed");
    }
    let (seen, error) = in_vain(&waiter).await;
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let last = seen.last().expect("an attempt");
    assert_eq!((last.answering, last.masters), (4, 6), "{last:?}");
    assert!(!last.majority_answers, "{last:?}");
    let redlock = support::settings(next).wait(Wait::For(ms(300))).build();
    let redlock = redlock.expect("good settings");
    let held = support::take(&redlock, "x").await;
    servers[5].kill().expect("killed");
    let waiter = support::settings(next).wait(Wait::For(ms(300))).build();
    let (seen, _) = in_vain(&waiter.expect("good settings")).await;
    let last = seen.last().expect("an attempt");
    assert!(last.majority_answers, "{last:?}");
    held.release().await;
}

#[tokio::test]
async fn wait_for_the_lock_of_a_quota_or_once_job_reports_its_progress() {
    let redlock = Redlock::in_memory(3);
    let held = support::take(&redlock, "x").await;
    let seen = Arc::new(Mutex::new(0));
    let counts = || {
        let seen = seen.clone();
        move |_: &Waiting| *seen.lock().expect("no panic") += 1
    };
    let short = Wait::For(ms(100));
    let quota = redlock.quota("x").wait(short).waiting(counts());
    quota.take(1).await.map(drop).expect_err("the lock is held");
    let of_quota = *seen.lock().expect("no panic");
    assert!(of_quota > 0);
    let once = redlock.once("x", secs(60)).wait(short).waiting(counts());
    once.create().await.expect_err("the lock is held");
    assert!(*seen.lock().expect("no panic") > of_quota);
    held.release().await;
}

#[tokio::test]
async fn error_contains_no_note_of_a_resource_that_the_caller_did_not_request() {
    let masters = masters(3);
    let (holder, redlock) = (support::redlock(&masters), support::redlock(&masters));
    let outcome = holder.lock("b").note("of b alone").acquire().await;
    let held = outcome.expect("free");
    let noted = async || {
        holder
            .status("b")
            .await
            .expect("the name must be valid")
            .note()
            .is_some()
    };
    while !noted().await {
        tokio::time::sleep(ms(10)).await;
    }
    let (seen, sees) = tokio::sync::mpsc::unbounded_channel();
    let both = tokio::spawn({
        let redlock = redlock.clone();
        async move {
            let both = redlock.lock_all(["a", "b"]).wait(Wait::Forever);
            let waits = both.waiting(move |waiting| drop(seen.send(waiting.clone())));
            waits.acquire().await.map(drop)
        }
    });
    let mut sees = sees;
    let result = tokio::time::timeout(PATIENCE, sees.recv()).await;
    let waiting = result
        .expect("an attempt")
        .expect("the task must be waiting for the lock");
    assert!(waiting.note.is_some(), "{waiting:?}");
    // In the queue for `a`, the task `both` is ahead. The error about `a` must not contain the note of the lock on `b`.
    let error = redlock.lock("a").wait(Wait::For(ms(300))).acquire().await;
    let error = error
        .map(drop)
        .expect_err("the acquire must fail, because another waiter is ahead");
    let AcquireError::HeldByOther(missed) = &error else {
        panic!("{error}");
    };
    assert_eq!(missed.note, None, "{error}");
    held.release().await;
    both.await
        .expect("no panic")
        .expect("the waiter must get the lock");
}
