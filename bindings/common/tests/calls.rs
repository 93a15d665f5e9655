//! Calls on masters in memory: replies, cancellation, losses, and the end of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quorate::testing::Masters;
use quorate::{LossCause, Redlock, Wait};
use quorate_bindings::blocking_call::BlockingCall;
use quorate_bindings::call::{Answer, Call, Reply};
use quorate_bindings::client::Client;
use quorate_bindings::error::ErrorKind;
use quorate_bindings::exit;
use quorate_bindings::guard::Guard;
use quorate_bindings::lock_options::{LockKind, LockOptions};
use quorate_bindings::mailbox::{Bell, Mailbox};
use quorate_bindings::once::{OnceOptions, Period};
use quorate_bindings::quota::QuotaOptions;
use quorate_bindings::{queries, quorate};

/// No step of these tests takes this long, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

fn client(masters: &Masters) -> Arc<Client> {
    let builder = Redlock::builder().in_memory_on(masters);
    Client::start(builder.ttl(Duration::from_secs(2))).expect("the settings must be valid")
}

fn lock(name: &str, wait: Wait) -> LockOptions {
    LockOptions {
        names: vec![name.into()],
        kind: LockKind::Exclusive,
        ttl: None,
        wait: Some(wait),
        max_hold: None,
        renewal: true,
        note: None,
        is_anonymous: false,
    }
}

fn wait_for(call: Call) -> Reply {
    BlockingCall::start(call).wait(LIMIT).expect("a reply")
}

fn acquire(client: &Arc<Client>, name: &str) -> Guard {
    match wait_for(lock(name, Wait::For(LIMIT)).acquire(client)) {
        Ok(Answer::Guard(guard)) => guard,
        Ok(_) => panic!("another answer than a guard"),
        Err(error) => panic!("{}", error.details),
    }
}

fn is_free(client: &Arc<Client>, name: &str) -> bool {
    let reply = wait_for(lock(name, Wait::None).try_acquire(client));
    matches!(reply, Ok(Answer::Guard(_)))
}

/// Waits until the lock is free: releases in the background take a moment.
fn is_free_soon(client: &Arc<Client>, name: &str) -> bool {
    let started_at = Instant::now();
    while started_at.elapsed() < LIMIT {
        if is_free(client, name) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[derive(Clone, Default)]
struct CountingBell(Arc<AtomicUsize>);

impl Bell for CountingBell {
    fn ring(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

fn take_one(mailbox: &Mailbox<CountingBell>) -> (u64, Reply) {
    let started_at = Instant::now();
    loop {
        if let Some(reply) = mailbox.take().pop() {
            return reply;
        }
        assert!(started_at.elapsed() < LIMIT, "no reply");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn cancelled_call_leaves_no_lock() {
    let masters = Masters::new(3);
    let (here, there) = (client(&masters), client(&masters));
    let guard = acquire(&there, "job");
    let waiting = BlockingCall::start(lock("job", Wait::Forever).acquire(&here));
    assert!(waiting.wait(Duration::from_millis(50)).is_none());
    waiting.cancel(LIMIT);
    let release = guard.release().expect("the same process");
    assert!(matches!(wait_for(release), Ok(Answer::Flag(true))));
    assert!(is_free_soon(&there, "job"));
}

#[test]
fn lock_for_a_closed_mailbox_is_released() {
    let masters = Masters::new(3);
    let (here, there) = (client(&masters), client(&masters));
    let bell = CountingBell::default();
    let mailbox = Mailbox::new(bell.clone());
    let id = mailbox.start(lock("job", Wait::Forever).acquire(&here), false);
    let started_at = Instant::now();
    while bell.0.load(Ordering::Relaxed) == 0 {
        assert!(started_at.elapsed() < LIMIT, "no reply to call {id}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!is_free(&there, "job"));
    mailbox.close();
    assert!(is_free_soon(&there, "job"));
    mailbox.start(lock("job", Wait::Forever).acquire(&here), false);
    assert!(is_free_soon(&there, "job"));
}

#[test]
fn loss_of_a_watched_lock_is_the_second_reply() {
    let masters = Masters::new(3);
    let here = client(&masters);
    let mailbox = Mailbox::new(CountingBell::default());
    let id = mailbox.start(lock("job", Wait::Forever).acquire(&here), true);
    let (first_id, first) = take_one(&mailbox);
    assert_eq!(first_id, id);
    let Ok(Answer::Guard(guard)) = first else {
        panic!("no guard")
    };
    let broken = wait_for(queries::break_lock(&here, b"job".to_vec()));
    assert!(matches!(broken, Ok(Answer::Status(_))));
    let (second_id, second) = take_one(&mailbox);
    assert_eq!(second_id, id);
    assert!(matches!(
        second,
        Ok(Answer::Loss(Some(
            LossCause::TakenAway | LossCause::Expired
        )))
    ));
    assert!(guard.loss().is_some() && !guard.is_valid());
}

#[test]
fn call_is_answered_after_its_client_was_dropped() {
    let masters = Masters::new(3);
    let (here, there) = (client(&masters), client(&masters));
    let guard = acquire(&there, "units");
    let quota = QuotaOptions {
        name: b"units".to_vec(),
        wait: Some(Wait::Forever),
    };
    let mailbox = Mailbox::new(CountingBell::default());
    let id = mailbox.start(quota.left(&here), false);
    drop(here);
    std::thread::sleep(Duration::from_millis(300));
    assert!(mailbox.take().is_empty(), "the lock is held");
    let release = guard.release().expect("the same process");
    assert!(matches!(wait_for(release), Ok(Answer::Flag(true))));
    let (answered_id, reply) = take_one(&mailbox);
    assert_eq!(answered_id, id);
    let error = reply.err().expect("there is no quota");
    assert_eq!(error.kind, ErrorKind::Value("missing"));
}

#[test]
fn closed_client_answers_its_calls_and_releases_its_locks() {
    let masters = Masters::new(3);
    let (here, there) = (client(&masters), client(&masters));
    let (held, other) = (acquire(&here, "held"), acquire(&there, "other"));
    let waiting = BlockingCall::start(lock("other", Wait::Forever).acquire(&here));
    let mailbox = Mailbox::new(CountingBell::default());
    mailbox.start(lock("other", Wait::Forever).acquire(&here), false);
    assert_eq!(here.close(), 1);
    let replies = [
        waiting.wait(LIMIT).expect("a reply"),
        take_one(&mailbox).1,
        wait_for(lock("new", Wait::None).acquire(&here)),
    ];
    for reply in replies {
        let error = reply.err().expect("an error");
        assert_eq!(error.kind, ErrorKind::Closed, "{}", error.details);
    }
    assert_eq!(held.loss(), Some(LossCause::Released));
    let release = held.release().expect("the same process");
    assert!(matches!(wait_for(release), Ok(Answer::Flag(false))));
    assert!(is_free_soon(&there, "held"));
    assert!(other.is_valid());
}

/// The close releases the lock for which other threads of the same client wait.
#[test]
fn closed_client_keeps_no_lock_that_a_waiter_gets_during_the_close() {
    let masters = Masters::new(3);
    let there = client(&masters);
    for _ in 0..50 {
        let here = client(&masters);
        let held = acquire(&here, "job");
        let waiting = BlockingCall::start(lock("job", Wait::Forever).acquire(&here));
        assert!(waiting.wait(Duration::from_millis(5)).is_none());
        assert_eq!(here.close(), 1);
        let reply = waiting.wait(LIMIT).expect("a reply");
        if let Ok(Answer::Guard(guard)) = &reply {
            assert!(!guard.is_valid());
            assert_eq!(guard.loss(), Some(LossCause::Released));
        }
        // The reply and the first guard still exist.
        assert!(is_free_soon(&there, "job"));
        drop((reply, held));
    }
}

#[test]
fn period_is_recorded_only_when_the_language_asks() {
    let masters = Masters::new(3);
    let here = client(&masters);
    let once = OnceOptions {
        name: b"nightly".to_vec(),
        period: Period::Every(Duration::from_secs(365 * 24 * 3600)),
        wait: None,
        note: "by a test".to_owned(),
    };
    assert!(matches!(wait_for(once.create(&here)), Ok(Answer::Done)));
    for is_recorded in [false, true] {
        let Ok(Answer::Guard(guard)) = wait_for(once.at_least_once(&here)) else {
            panic!("the period must be due")
        };
        if is_recorded {
            let record = guard.record().expect("the same process");
            assert!(matches!(wait_for(record), Ok(Answer::Done)));
        }
        let release = guard.release().expect("the same process");
        assert!(matches!(wait_for(release), Ok(Answer::Flag(true))));
        assert!(guard.record().is_err());
    }
    let again = wait_for(once.at_least_once(&here));
    assert!(matches!(again, Ok(Answer::AlreadyDone(_))));
    let record = wait_for(once.read(&here));
    assert!(matches!(record, Ok(Answer::Record(Some(_), note)) if note == "by a test"));
}

#[test]
fn end_of_the_process_releases_the_locks_of_all_clients() {
    let masters = Masters::new(3);
    // The clients of other tests in this process are closed as well, so this test runs in a process of its own.
    if std::env::var_os("QUORATE_TEST_ENDS").is_none() {
        let this_test = "end_of_the_process_releases_the_locks_of_all_clients";
        let program = std::env::current_exe().expect("the path of this test");
        let status = std::process::Command::new(program)
            .args(["--exact", this_test])
            .env("QUORATE_TEST_ENDS", "1")
            .status();
        assert!(status.expect("the test must start").success());
        return;
    }
    let clients = [client(&masters), client(&masters), client(&masters)];
    let _guards = [acquire(&clients[0], "a"), acquire(&clients[1], "b")];
    let dropped = client(&masters);
    let guard = acquire(&dropped, "c");
    // Nothing is sent while the thread of the dropped client sleeps.
    let has_slept = Arc::new(AtomicBool::new(false));
    let slept = has_slept.clone();
    let sleep = dropped.spawn(async move {
        std::thread::sleep(Duration::from_millis(50));
        slept.store(true, Ordering::SeqCst);
    });
    assert!(sleep.is_ok());
    drop((guard, dropped));
    let started_at = Instant::now();
    assert_eq!(exit::close_all_clients(), 2);
    let reached_limit = started_at.elapsed() >= Duration::from_millis(350);
    assert!(has_slept.load(Ordering::SeqCst) || reached_limit);
    let later = client(&masters);
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|name| is_free_soon(&later, name))
    );
}
