//! Tests of lock requests, the values that `lock` returns. The tests await, clone and drop lock requests, and check the
//! size of their futures.

use quorate::{AcquireError, Redlock};

use crate::support::listener::Listener;

fn count_unused_warnings(make_request: impl FnOnce(&Redlock)) -> usize {
    let listener = Listener::default();
    let listening = listener.listen();
    make_request(&Redlock::in_memory(3));
    drop(listening);
    listener.output().matches("nothing was locked").count()
}

#[test]
fn lock_request_that_is_dropped_unused_causes_a_warning() {
    let drop_unused = |redlock: &Redlock| {
        let _guard = redlock.lock("job");
    };
    assert_eq!(count_unused_warnings(drop_unused), 1);
    let drop_unused_with_options = |redlock: &Redlock| {
        let _guard = redlock.lock("job").note("mine").shared();
    };
    assert_eq!(count_unused_warnings(drop_unused_with_options), 1);
}

#[test]
fn lock_request_that_was_used_or_cloned_causes_no_warning_when_dropped() {
    // Dropping a future that was never polled must not cause a warning. `select!` can drop such futures.
    assert_eq!(
        count_unused_warnings(|redlock| drop(redlock.lock("job").acquire())),
        0
    );
    assert_eq!(
        count_unused_warnings(|redlock| drop(redlock.lock("job").into_future())),
        0
    );
    let drop_clone = |redlock: &Redlock| {
        let template = redlock.lock("job");
        drop(template.clone().try_acquire());
    };
    assert_eq!(count_unused_warnings(drop_clone), 0);
}

/// Tests a request of the blocking API. The warning must not ask the caller to await the request.
#[cfg(feature = "blocking")]
#[test]
fn warning_about_an_unused_blocking_lock_request_does_not_mention_await() {
    let listener = Listener::default();
    let listening = listener.listen();
    drop(quorate::blocking::Redlock::in_memory(3).lock("job"));
    drop(listening);
    let output = listener.output();
    assert!(output.contains("Call acquire() on it"), "{output}");
    assert!(!output.contains("Await"), "{output}");
}

/// If this environment variable is set, the test only creates lock requests and drops them without awaiting them. The
/// test sets the variable for its child process.
const DROP_VARIABLE: &str = "DROPS_LOCK_REQUESTS_UNUSED";

#[test]
fn unused_lock_request_is_reported_on_standard_error_without_a_tracing_subscriber() {
    if std::env::var_os(DROP_VARIABLE).is_some() {
        let redlock = Redlock::in_memory(3);
        for name in ["first job", "second job"] {
            let _guard = redlock.lock(name);
        }
        return;
    }
    let test_name =
        "requests::unused_lock_request_is_reported_on_standard_error_without_a_tracing_subscriber";
    let program = std::env::current_exe().expect("this program");
    let mut process = std::process::Command::new(program);
    process
        .args([test_name, "--exact", "--nocapture"])
        .env(DROP_VARIABLE, "1");
    let process_output = process.output().expect("the process starts");
    let output = String::from_utf8_lossy(&process_output.stderr);
    assert!(process_output.status.success(), "{output}");
    assert_eq!(output.matches("nothing was locked").count(), 1, "{output}");
    assert!(output.contains("first job"), "{output}");
}

#[tokio::test]
async fn lock_request_that_is_awaited_acquires_the_lock() -> Result<(), AcquireError> {
    let redlock = Redlock::in_memory(3);
    let guard = redlock.lock("job").await?;
    assert!(guard.is_valid());
    Ok(())
}

#[tokio::test]
async fn cloned_lock_request_works_in_a_spawned_task_after_its_redlock_is_dropped() {
    let request = Redlock::in_memory(3).lock("job");
    let tasks = [request.clone(), request].map(|request| {
        tokio::spawn(async move {
            let guard = request
                .await
                .expect("each client must get the lock in its turn");
            guard.release().await
        })
    });
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[test]
fn futures_of_acquires_have_at_most_384_bytes() {
    let redlock = Redlock::in_memory(3);
    let owner = redlock.owner("order-1").expect("a good id");
    let (election, quota) = (redlock.election("job"), redlock.quota("job"));
    let once = redlock.once("job", crate::support::secs(60));
    let sizes = [
        ("acquire", size_of_val(&redlock.acquire("job"))),
        (
            "lock().acquire",
            size_of_val(&redlock.lock("job").acquire()),
        ),
        ("try_acquire", size_of_val(&redlock.try_acquire("job"))),
        ("scope", size_of_val(&redlock.scope("job", async |_| ()))),
        ("Owner::acquire", size_of_val(&owner.acquire("job"))),
        ("campaign", size_of_val(&election.campaign("me"))),
        ("Quota::create", size_of_val(&quota.create(1))),
        ("Quota::take", size_of_val(&quota.take(1))),
        ("Quota::left", size_of_val(&quota.left())),
        ("Once::create", size_of_val(&once.create())),
        (
            "at_most_once",
            size_of_val(&once.at_most_once(async |_| ())),
        ),
        (
            "at_least_once",
            size_of_val(&once.at_least_once(async |_| Ok::<_, ()>(()))),
        ),
    ];
    for (call, bytes) in sizes {
        println!("{call}: {bytes} bytes");
    }
    assert!(sizes.iter().all(|(_, bytes)| *bytes <= 384), "{sizes:?}");
}
