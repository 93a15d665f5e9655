//! Tests of the blocking methods, on threads outside of an async runtime.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quorate::blocking::{
    BackgroundError, BackgroundRuntime, CannotBlock, Change, LockGuard, LookError, Redlock,
    TryAcquire,
};
use quorate::{
    AcquireError, BuildError, ExtendError, LossCause, OnceOutcome, RiskReason, ScopeError,
    StatusVerdict, Take, ValueError, Wait,
};
use quorate_testbed::Masters;

use crate::support::{
    PATIENCE, count_connections, count_masters_with, has_key, masters, ms, secs, settings,
};

fn client_over(masters: &Masters) -> Redlock {
    let settings = settings(masters.urls());
    settings.build_blocking().expect("good settings")
}

#[track_caller]
fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_met() {
        assert!(started_at.elapsed() < PATIENCE, "timed out: {what}");
        thread::sleep(ms(5));
    }
}

#[test]
fn blocking_lock_is_refused_to_others_until_its_release() {
    let masters = masters(3);
    let redlock = client_over(&masters);
    let guard = redlock.acquire("r").expect("free");
    assert!(guard.is_valid() && guard.fencing_token().is_some());
    wait_until("all masters must have the key", || {
        count_masters_with(&masters, "r") == 3
    });
    let other_client = client_over(&masters);
    match other_client.try_acquire("r").expect("a quorum") {
        TryAcquire::Held(refusal) => assert!(!refusal.held_here),
        TryAcquire::Acquired(_) => panic!("try_acquire must report the lock as held"),
    }
    let verdict = other_client
        .status("r")
        .expect("the name must be valid")
        .verdict();
    assert!(matches!(verdict, StatusVerdict::Held(_)), "{verdict:?}");
    let released = guard.release().expect("no runtime");
    assert!(released.was_valid && released.on >= 2, "{released:?}");
    let next_guard = other_client
        .acquire("r")
        .expect("the acquire after the release must succeed");
    assert!(next_guard.extend(secs(20)).is_ok());
    assert_eq!(next_guard.loss(), None);
}

#[test]
fn blocking_lock_is_renewed_while_the_thread_that_holds_it_sleeps() {
    let redlock = quorate::Redlock::builder()
        .in_memory(3)
        .ttl(secs(2))
        .build_blocking()
        .expect("good settings");
    let guard = redlock.acquire("r").expect("free");
    // Sleep for one and a half TTLs. This thread does nothing for the lock during that time, so only a background
    // thread can renew it.
    thread::sleep(secs(3));
    assert_eq!(guard.loss(), None);
    assert!(guard.is_valid());
    assert!(
        redlock
            .try_acquire("r")
            .expect("a quorum")
            .acquired()
            .is_none()
    );
}

#[test]
fn drop_of_the_last_blocking_handle_releases_locks_and_closes_connections() {
    let masters = masters(3);
    let redlock = client_over(&masters);
    let guard = redlock.acquire("r").expect("free");
    drop(redlock);
    assert_eq!(
        guard.loss(),
        None,
        "the guard must still hold the lock, because it keeps the background thread alive"
    );
    wait_until("all masters must have the key", || {
        count_masters_with(&masters, "r") == 3
    });
    drop(guard);
    assert_eq!(
        count_masters_with(&masters, "r"),
        0,
        "the lock must be released before the drop returns"
    );
    wait_until("all connections must be closed", || {
        masters.iter().all(|server| count_connections(server) == 0)
    });
}

#[test]
fn silent_master_delays_the_drop_of_the_last_blocking_handle_only_briefly() {
    let masters = masters(3);
    let redlock = client_over(&masters);
    let guard = redlock.acquire("r").expect("free");
    masters[0].stop().expect("stopped");
    let started_at = Instant::now();
    drop((guard, redlock));
    // The client waits for at most 800 ms (the node timeout plus 300 ms). The limit here also covers a busy machine.
    assert!(started_at.elapsed() < secs(8), "{:?}", started_at.elapsed());
    assert!(!has_key(&masters[1], "r") && !has_key(&masters[2], "r"));
    masters[0].cont().expect("continued");
}

#[test]
fn blocking_lock_is_held_by_only_one_of_many_threads_at_a_time() {
    let redlock = Redlock::in_memory(5);
    let (inside, acquisitions) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let guard = redlock
                        .acquire("r")
                        .expect("each thread must get the lock when it is free");
                    assert!(
                        !inside.swap(true, Ordering::SeqCst),
                        "two threads must not hold the lock at the same time"
                    );
                    thread::sleep(ms(1));
                    inside.store(false, Ordering::SeqCst);
                    acquisitions.fetch_add(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(acquisitions.into_inner(), 40);
}

#[tokio::test]
async fn blocking_calls_except_drop_are_refused_with_advice_inside_an_async_runtime() {
    let redlock = Redlock::in_memory(3);
    let thread_client = redlock.clone();
    let guard = thread::spawn(move || thread_client.acquire("r").expect("free"));
    let guard = guard.join().expect("no panic");
    let error = redlock
        .acquire("other")
        .expect_err("the acquire must be refused on a thread of a runtime");
    assert!(matches!(error, AcquireError::CannotBlock(_)), "{error:?}");
    let text = error.to_string();
    for word in [
        ".await",
        "thread outside the runtime",
        "in_spawn_blocking()",
    ] {
        assert!(text.contains(word), "{text}");
    }
    let tried = redlock.try_acquire("r").map(|_| ());
    assert!(matches!(tried, Err(AcquireError::CannotBlock(_))));
    let scoped = redlock.scope("other", |_| ());
    assert!(matches!(
        scoped,
        Err(ScopeError::NotAcquired(AcquireError::CannotBlock(_)))
    ));
    assert!(matches!(
        redlock.status("r"),
        Err(LookError::CannotBlock(_))
    ));
    assert!(matches!(
        guard.extend(secs(1)),
        Err(ExtendError::CannotBlock(_))
    ));
    assert!(redlock.inspect().is_err() && redlock.list("").is_err());
    assert!(redlock.flush(ms(1)).is_err());
    let quota = redlock.quota("q").create(1);
    assert!(matches!(
        quota,
        Err(ValueError::NotAcquired(AcquireError::CannotBlock(_)))
    ));
    let release_result: Result<_, CannotBlock> = guard.release();
    assert!(
        release_result.is_err(),
        "`release` must be refused inside a runtime, because it would block the runtime"
    );
    let thread_client = redlock.clone();
    let second_acquire = thread::spawn(move || thread_client.acquire("r").map(drop));
    assert!(second_acquire.join().expect("no panic").is_ok());
    // The last handle is dropped inside a runtime. This drop must not block.
    drop(redlock);
}

#[tokio::test]
async fn spawn_blocking_task_can_lock_only_with_a_handle_made_for_such_tasks() {
    let redlock = Redlock::in_memory(3);
    let plain_client = redlock.clone();
    let refused_task = tokio::task::spawn_blocking(move || plain_client.acquire("r").map(drop));
    assert!(refused_task.await.expect("no panic").is_err());
    let locks = redlock.in_spawn_blocking();
    let blocking_task = tokio::task::spawn_blocking(move || {
        let guard = locks.acquire("r")?;
        let is_still_held = guard.wait_lost(ms(1)) == Ok(None);
        drop(guard);
        Ok::<_, AcquireError>(is_still_held)
    });
    assert_eq!(blocking_task.await.expect("no panic"), Ok(true));
}

#[test]
fn blocking_scopes_can_be_nested_and_report_lost_locks() {
    let redlock = Redlock::in_memory(3);
    let inner_result = redlock.scope("outer", |_| {
        redlock.scope("inner", |guard| guard.is_valid())
    });
    assert_eq!(inner_result, Ok(Ok(true)));
    // This lock expires after 500 ms, but the closure runs for 700 ms.
    let reported_cause = Arc::new(Mutex::new(None));
    let cause_slot = reported_cause.clone();
    let brief_lock = redlock.lock("brief").ttl(ms(500)).renewal(false);
    let outcome = brief_lock.scope(|guard: &LockGuard| {
        guard.on_lost(move |cause| *cause_slot.lock().expect("no panic") = Some(cause));
        thread::sleep(ms(700));
        "done"
    });
    let (cause, value) = (LossCause::Expired, Some("done"));
    assert_eq!(outcome, Err(ScopeError::Lost { cause, value }));
    wait_until("the loss", || {
        *reported_cause.lock().expect("no panic") == Some(LossCause::Expired)
    });
}

#[test]
fn scope_whose_body_fails_returns_the_error_and_releases_the_lock() {
    let redlock = Redlock::in_memory(3);
    let failed: Result<(), Box<dyn std::error::Error>> =
        redlock.try_scope("r", |_| Err("no paper".into()));
    assert_eq!(
        failed
            .expect_err("the scope must return the error of its body")
            .to_string(),
        "no paper"
    );
    let guard = redlock
        .acquire("r")
        .expect("the acquire after the failed scope must succeed");
    let held_result: Result<(), Box<dyn std::error::Error>> =
        redlock.lock("r").wait(Wait::None).try_scope(|_| Ok(()));
    assert!(
        held_result
            .expect_err("a scope that does not wait must be refused while the lock is held")
            .is::<ScopeError>()
    );
    drop(guard);
}

#[test]
fn panic_of_a_progress_callback_reaches_the_thread_that_waits_for_the_lock() {
    let redlock = Redlock::in_memory(3);
    let guard = redlock.acquire("r").expect("free");
    let second_client = redlock.clone();
    let waiting_thread = thread::spawn(move || {
        let lock = second_client.lock("r").wait(Wait::For(secs(20)));
        lock.waiting(|_| panic!("observed")).acquire().map(drop)
    });
    let panicked = waiting_thread
        .join()
        .expect_err("the waiting thread must panic, because its progress callback panics");
    assert_eq!(panicked.downcast_ref(), Some(&"observed"));
    drop(guard);
    assert!(
        redlock.acquire("r").is_ok(),
        "other callers must get the lock after the progress callback of one caller has panicked"
    );
}

#[test]
fn blocking_quotas_owners_permits_and_once_jobs_work_like_async_ones() {
    let redlock = Redlock::in_memory(3);
    let quota = redlock.quota("prizes");
    quota.create(2).expect("new");
    assert_eq!(quota.take(2), Ok(Take::Taken { left: 0 }));
    assert_eq!(quota.take(1), Ok(Take::SoldOut { left: 0 }));

    let nightly = redlock.once("nightly", Duration::from_secs(24 * 3600));
    nightly.create().expect("new");
    // The body of `at_most_once` may itself acquire another lock.
    let scope_result = nightly.at_most_once(|_| redlock.scope("beside", |_| 42));
    assert_eq!(scope_result, Ok(OnceOutcome::Done(Ok(42))));
    let second_outcome = nightly.at_most_once(|_| ());
    assert!(matches!(
        second_outcome,
        Ok(OnceOutcome::AlreadyDone { .. })
    ));

    let order = redlock.owner("order-1").expect("the id must be valid");
    let (one, two) = (order.acquire("stock"), order.acquire("stock"));
    let (one, two) = (one.expect("free"), two.expect("joined"));
    assert_eq!(one.fencing_token(), two.fencing_token());
    assert_eq!(one.release().map(|last| last.is_none()), Ok(true));
    assert!(two.is_valid());

    let permit = redlock.semaphore("api", 1).acquire().expect("free");
    assert_eq!(permit.slot(), Some(0));
    let permits = redlock
        .semaphore_status("api")
        .expect("the name must be valid")
        .permits;
    assert_eq!(permits.len(), 1);
    let guard = redlock.lock_all(["a", "b"]).acquire().expect("free");
    assert_eq!(guard.resources().count(), 2);
    let reader = redlock.acquire("doc").expect("free").downgrade();
    let second_reader = redlock.lock("doc").shared().acquire();
    assert!(reader.is_ok() && second_reader.is_ok());
}

#[test]
fn blocking_observer_is_notified_of_the_start_and_the_end_of_a_leadership() {
    let redlock = Redlock::in_memory(3);
    let election = redlock.election("scheduler");
    let mut observation = election.observe().expect("the name must be valid");
    assert_eq!(observation.next_within(secs(20)), Ok(Change::Nobody));
    let leadership = election
        .campaign("here")
        .expect("the candidate must become the leader, because no other candidate leads");
    let term = leadership.term();
    match observation.next_within(secs(20)) {
        Ok(Change::Leads(leader)) => assert_eq!(leader.term, term),
        other => panic!("{other:?}"),
    }
    assert!(leadership.is_valid());
    leadership.resign().expect("no runtime");
    assert_eq!(observation.next_within(secs(20)), Ok(Change::Nobody));
    assert_eq!(observation.next_within(ms(50)), Ok(Change::Unchanged));
}

#[test]
fn blocking_lock_request_can_be_cloned_and_moved_into_other_threads() {
    let request = Redlock::in_memory(3).lock("job");
    let threads = [request.clone(), request].map(|request| {
        thread::spawn(move || {
            let guard = request
                .acquire()
                .expect("each thread must get the lock, one after the other");
            guard.release().expect("this thread may wait")
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn blocking_guard_can_be_released_by_one_thread_while_others_use_it() {
    let redlock = Redlock::in_memory(3);
    let guard = Arc::new(redlock.acquire("r").expect("free"));
    let waiting_guard = guard.clone();
    let waiter = thread::spawn(move || waiting_guard.wait_lost(PATIENCE));
    assert!(guard.release().expect("this thread may wait").was_valid);
    let loss = waiter.join().expect("no panic");
    assert_eq!(loss, Ok(Some(LossCause::Released)));
    assert!(!guard.release().expect("this thread may wait").was_valid);
    let owner = redlock.owner("worker").expect("the id must be valid");
    let hold = owner.acquire("r").expect("free");
    assert_eq!(hold.clone().release().map(|last| last.is_none()), Ok(true));
    assert_eq!(hold.release().map(|last| last.is_some()), Ok(true));
    assert_eq!(hold.release().map(|last| last.is_none()), Ok(true));
    assert_eq!(hold.loss(), Some(LossCause::Released));
    let leadership = redlock
        .election("leader")
        .campaign("here")
        .expect("elected");
    assert!(leadership.resign().expect("this thread may wait").was_valid);
    assert!(!leadership.is_valid());
}

#[test]
fn blocking_guard_gives_a_notice_before_its_fixed_lease_ends() {
    let redlock = Redlock::in_memory(3);
    let request = redlock.lock("r").ttl(secs(2)).renewal(false);
    let guard = request.acquire().expect("free");
    let reported_risk = Arc::new(Mutex::new(None));
    let slot = reported_risk.clone();
    guard.on_risk(secs(1), move |risk| {
        *slot.lock().expect("no panic") = Some(risk.reason);
    });
    let mut risks = guard.at_risk(secs(1));
    assert_eq!(risks.next_within(ms(1)), Ok(None));
    let risk = risks.next_within(PATIENCE).expect("this thread may wait");
    assert!(matches!(risk, Some(Ok(risk)) if risk.reason == RiskReason::NotRenewed));
    wait_until("the callback", || {
        *reported_risk.lock().expect("no panic") == Some(RiskReason::NotRenewed)
    });
    let end = risks.next_within(PATIENCE);
    assert_eq!(end, Ok(Some(Err(LossCause::Expired))));
    assert_eq!(guard.risk(secs(1)), Err(LossCause::Expired));
}

#[test]
fn background_runtime_without_free_file_descriptors_returns_an_error_and_starts_later() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    // The limit applies to a whole process, so this test starts itself again in a process of its own.
    const VARIABLE: &str = "QUORATE_TEST_NO_FILES";
    if std::env::var(VARIABLE).is_err() {
        let program = std::env::current_exe().expect("this program");
        let test = "blocking::background_runtime_without_free_file_descriptors_returns_an_error_and_starts_later";
        let mut command = std::process::Command::new(program);
        command.args(["--exact", test, "--nocapture"]);
        let output = command.env(VARIABLE, "1").output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let limits = getrlimit(Resource::Nofile);
    let mut no_files = limits;
    no_files.current = Some(0);
    setrlimit(Resource::Nofile, no_files).expect("a lower limit");
    let runtime = BackgroundRuntime::new();
    let refused = runtime.spawn(async {}).err();
    let built = quorate::Redlock::builder().in_memory(3).build_blocking();
    setrlimit(Resource::Nofile, limits).expect("the old limit");
    assert!(
        matches!(refused, Some(BackgroundError::NoThread(_))),
        "{refused:?}"
    );
    assert!(matches!(built, Err(BuildError::NoThread(_))), "{built:?}");
    let (sender, receiver) = std::sync::mpsc::channel();
    let task = runtime.spawn(async move {
        let _ = sender.send(());
    });
    assert!(task.is_ok() && receiver.recv_timeout(PATIENCE).is_ok());
}
