//! Tests of processes that are forked while they have a `Redlock`.
//!
//! Each test starts this test program again, with one of the tests below that play a part in a process of its own: a
//! fork copies only one thread, and must not copy a test program in which other tests run.

use std::io::{BufRead as _, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid};
use quorate::blocking::{BackgroundError, BackgroundRuntime};
use quorate::node::store::{StoreNode, Table};
use quorate::{AcquireError, LossCause, Redlock, RedlockBuilder, RestartGuard, Wait};
use quorate_testbed::Masters;

use crate::support::{count_masters_with, masters};

/// The variable that tells the program which part it plays; it contains the URLs of the masters.
const MASTERS_VARIABLE: &str = "QUORATE_TEST_FORK";
/// No part may take longer. A part takes about three seconds; a hang would last for ever.
const LIMIT: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_millis(1200);

fn builder(urls: &str) -> RedlockBuilder {
    Redlock::builder()
        .masters(urls.split(','))
        .restart_guard(RestartGuard::Off)
        .node_timeout(Duration::from_millis(250))
        .ttl(TTL)
        .wait(Wait::For(Duration::from_secs(20)))
}

/// Starts this test program with only the test `part`.
fn start_part(part: &str, masters: &Masters) -> Child {
    start_part_with(part, &masters.urls().join(","))
}

fn start_part_with(part: &str, urls: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args([
        "--exact",
        &format!("fork::{part}"),
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(MASTERS_VARIABLE, urls);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().expect("it starts")
}

/// Waits until the program has ended, and returns what it has printed.
fn output_of(mut program: Child) -> String {
    let deadline = Instant::now() + LIMIT;
    while program.try_wait().expect("a status").is_none() {
        if Instant::now() > deadline {
            let _ = program.kill();
            panic!("the program must end: a call in a forked process hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = program.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// Forks. The child runs `child` with its copy of `held`, and exits with 0 if it returns true. In the parent, returns
/// `held` and the exit status of the child.
fn run_in_child<T>(held: T, child: impl FnOnce(T) -> bool) -> (T, Option<i32>) {
    match fork().expect("a fork") {
        Fork::Child => {
            let watchdog = std::thread::spawn(|| {
                std::thread::sleep(LIMIT / 2);
                eprintln!("the child hangs");
                std::process::exit(9);
            });
            // The test harness of the parent is not here to report a panic.
            let is_ok = catch_unwind(AssertUnwindSafe(|| child(held))).unwrap_or(false);
            drop(watchdog);
            std::process::exit(i32::from(!is_ok));
        }
        Fork::Parent(pid) => (held, waitpid(pid).ok()),
    }
}

#[test]
fn blocking_redlock_of_the_parent_is_refused_in_a_forked_process() {
    let masters = masters(3);
    let output = output_of(start_part("part_with_blocking_calls", &masters));
    assert!(output.contains("child: 0"), "{output}");
    assert!(output.contains("parent still holds: true"), "{output}");
}

#[test]
fn part_with_blocking_calls() {
    let Ok(urls) = std::env::var(MASTERS_VARIABLE) else {
        return;
    };
    let redlock = builder(&urls).build_blocking().expect("built");
    let guard = redlock.acquire("held").expect("acquired");
    let permit = redlock.semaphore("seats", 2).acquire().expect("acquired");
    let leadership = redlock
        .election("leader")
        .campaign("parent")
        .expect("elected");
    let owner = redlock.owner("me").expect("an owner");
    let owner_guard = owner.acquire("owned").expect("acquired");
    let inherited_objects = (redlock, owner, guard, permit, leadership, owner_guard);
    let (inherited_objects, status) = run_in_child(
        inherited_objects,
        |(redlock, owner, guard, permit, leadership, owner_guard)| {
            let started_at = Instant::now();
            let error = redlock.try_acquire("other").expect_err("refused");
            assert_eq!(error, AcquireError::Forked);
            assert!(error.to_string().contains("forked"), "{error}");
            let refusal_errors = [
                redlock.acquire("other").err(),
                redlock.semaphore("seats", 2).acquire().err(),
                redlock.election("leader").campaign("child").err(),
                owner.acquire("owned").err(),
            ];
            assert_eq!(refusal_errors, [const { Some(AcquireError::Forked) }; 4]);
            let status_error = redlock.status("held").expect_err("refused").to_string();
            assert!(status_error.contains("forked"), "{status_error}");
            let quota_error = redlock
                .quota("units")
                .left()
                .err()
                .map(|error| error.to_string());
            assert!(quota_error.is_some_and(|why| why.contains("forked")));
            assert!(redlock.inspect().is_err() && redlock.list("").is_err());
            assert!(
                redlock
                    .flush(TTL)
                    .is_err_and(quorate::blocking::CannotBlock::is_forked)
            );
            assert_eq!(guard.loss(), Some(LossCause::Forked));
            assert!(!guard.is_valid() && !leadership.is_valid() && guard.remaining().is_zero());
            assert!(guard.extend(TTL).is_err() && guard.wait_lost(TTL).is_err());
            assert!(permit.release().is_err());
            drop((guard, leadership, owner_guard, owner, redlock));
            assert!(started_at.elapsed() < LIMIT / 4, "no call may wait");
            new_client_works(&urls)
        },
    );
    println!("child: {}", status.unwrap_or(-1));
    // A release by the child would have been noticed by a renewal.
    let (_redlock, _owned, guard, permit, leadership, owner_guard) = inherited_objects;
    let validities = [
        guard.is_valid(),
        permit.is_valid(),
        leadership.is_valid(),
        owner_guard.is_valid(),
    ];
    println!("parent still holds: {}", validities == [true; 4]);
    assert_eq!(status, Some(0));
}

/// A new client works in the child, and meets the locks of the parent.
fn new_client_works(urls: &str) -> bool {
    use quorate::blocking::TryAcquire;
    let new_client = builder(urls).build_blocking().expect("built");
    for _ in 0..5 {
        let new_client_guard = new_client.try_acquire("held").expect("the masters answer");
        assert!(
            matches!(new_client_guard, TryAcquire::Held(_)),
            "the parent holds the lock"
        );
        std::thread::sleep(TTL / 2);
    }
    let campaign = new_client
        .election("leader")
        .wait(Wait::None)
        .campaign("child");
    assert!(
        matches!(campaign, Err(AcquireError::HeldByOther(_))),
        "{campaign:?}"
    );
    new_client.acquire("other").is_ok()
}

#[test]
fn redlock_of_the_parent_is_refused_in_a_forked_process_without_a_runtime() {
    let masters = masters(3);
    let output = output_of(start_part("part_without_a_runtime", &masters));
    assert!(output.contains("child: 0"), "{output}");
    assert!(output.contains("parent still holds: true"), "{output}");
}

/// The library's background runtime runs the tasks of the parent. The child gets a background runtime of its own.
#[test]
fn part_without_a_runtime() {
    use crate::runtimes::block_on;
    let Ok(urls) = std::env::var(MASTERS_VARIABLE) else {
        return;
    };
    let redlock = builder(&urls).build().expect("built");
    let guard = block_on(redlock.acquire("held")).expect("acquired");
    let ((_redlock, guard), status) = run_in_child((redlock, guard), |(redlock, guard)| {
        let error = block_on(redlock.acquire("other")).expect_err("refused");
        assert_eq!(error, AcquireError::Forked);
        let status_of_held = block_on(redlock.status("held")).expect("a status");
        assert!(
            format!("{status_of_held:?}").contains("forked"),
            "{status_of_held:?}"
        );
        for inspection in block_on(redlock.inspect()) {
            let fault = inspection.fault.expect("a fault").to_string();
            assert!(fault.contains("forked"), "{fault}");
        }
        block_on(redlock.flush());
        assert_eq!(block_on(guard.lost()), LossCause::Forked);
        let released = block_on(guard.release());
        assert!(!released.was_valid && released.on == 0, "{released:?}");
        drop(redlock);
        let new_client = builder(&urls).build().expect("built");
        let acquire_outcome = block_on(new_client.lock("held").wait(Wait::None).acquire());
        assert!(
            matches!(acquire_outcome, Err(AcquireError::HeldByOther(_))),
            "{acquire_outcome:?}"
        );
        std::thread::sleep(2 * TTL);
        block_on(new_client.acquire("other")).is_ok()
    });
    println!("child: {}", status.unwrap_or(-1));
    println!("parent still holds: {}", guard.is_valid());
    assert_eq!(status, Some(0));
}

#[test]
fn background_runtime_of_the_parent_is_not_touched_in_a_forked_process() {
    let output = output_of(start_part_with("part_with_a_background_runtime", "none"));
    assert!(output.contains("child: 0"), "{output}");
    assert!(output.contains("parent goes on: true"), "{output}");
}

/// Counts its drops.
struct DropCounter(Arc<AtomicUsize>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn part_with_a_background_runtime() {
    if std::env::var(MASTERS_VARIABLE).is_err() {
        return;
    }
    let runtime = BackgroundRuntime::new();
    let unused = BackgroundRuntime::new();
    let (sender, receiver) = mpsc::channel();
    let task = runtime.spawn(async move {
        while sender.send(()).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let task = task.expect("spawned");
    receiver.recv_timeout(LIMIT).expect("the task runs");
    let inherited = (runtime, unused, task);
    let ((runtime, _unused, task), status) = run_in_child(inherited, |(runtime, unused, task)| {
        let drops = Arc::new(AtomicUsize::new(0));
        let (counter, second_counter) = (DropCounter(drops.clone()), DropCounter(drops.clone()));
        let refused = runtime.spawn(async move { drop(counter) }).err();
        assert_eq!(refused, Some(BackgroundError::Forked));
        let refused = runtime.enter(move || drop(second_counter));
        assert_eq!(refused, Err(BackgroundError::Forked));
        assert_eq!(runtime.end(LIMIT, async {}), Err(BackgroundError::Forked));
        task.abort();
        assert!(runtime.is_forked() && task.is_finished() && !unused.is_forked());
        drop((runtime, task));
        let is_leaked = drops.load(Ordering::SeqCst) == 0;
        let (sender, receiver) = mpsc::channel();
        let task = unused.spawn(async move {
            {
                let _ = sender.send(());
            }
        });
        task.is_ok() && receiver.recv_timeout(LIMIT / 4).is_ok() && is_leaked
    });
    println!("child: {}", status.unwrap_or(-1));
    while receiver.try_recv().is_ok() {}
    let goes_on = receiver.recv_timeout(LIMIT / 4).is_ok() && !task.is_finished();
    println!("parent goes on: {goes_on}");
    assert_eq!(runtime.end(LIMIT, async {}), Ok(()));
    assert_eq!(status, Some(0));
}

#[test]
fn redlock_of_the_parent_over_stores_is_refused_in_a_forked_process() {
    let output = output_of(start_part_with("part_with_stores", "none"));
    assert!(output.contains("child: 0"), "{output}");
    assert!(output.contains("parent still holds: true"), "{output}");
}

/// A client whose masters are three new stores in memory.
fn over_stores() -> Redlock {
    let tables = (1..=3).map(|n| Table::new(&format!("table-{n}"), true));
    let settings = Redlock::builder().ttl(TTL).wait(Wait::For(LIMIT / 3));
    let settings = tables.fold(settings, |settings, table| {
        settings.node(StoreNode::new(table))
    });
    settings.build().expect("built")
}

#[test]
fn part_with_stores() {
    use crate::runtimes::block_on;
    if std::env::var(MASTERS_VARIABLE).is_err() {
        return;
    }
    let redlock = over_stores();
    let guard = block_on(redlock.acquire("held")).expect("acquired");
    let ((_redlock, guard), status) = run_in_child((redlock, guard), |(redlock, guard)| {
        let error = block_on(redlock.acquire("other")).expect_err("refused");
        assert_eq!(error, AcquireError::Forked);
        let status_of_held = block_on(redlock.status("held")).expect("a status");
        assert!(
            format!("{status_of_held:?}").contains("forked"),
            "{status_of_held:?}"
        );
        for inspection in block_on(redlock.inspect()) {
            let fault = inspection.fault.expect("a fault").to_string();
            assert!(fault.contains("forked"), "{fault}");
        }
        block_on(redlock.flush());
        assert_eq!(block_on(guard.lost()), LossCause::Forked);
        let released = block_on(guard.release());
        assert!(!released.was_valid && released.on == 0, "{released:?}");
        drop(redlock);
        // The child has copies of the stores of its parent, so it can only use stores of its own.
        block_on(over_stores().acquire("other")).is_ok()
    });
    std::thread::sleep(2 * TTL);
    println!("child: {}", status.unwrap_or(-1));
    println!("parent still holds: {}", guard.is_valid());
    assert_eq!(status, Some(0));
}

/// The parent forks on the thread of its runtime, and ends. The child goes on with a copy of the runtime, in which the
/// copies of the library's tasks have the parent's sockets.
#[test]
fn forked_process_does_not_renew_the_locks_of_its_parent() {
    let masters = masters(3);
    let mut program = start_part("part_on_the_thread_of_the_runtime", &masters);
    let output = BufReader::new(program.stdout.take().expect("a pipe"));
    let lines = output.lines().map_while(Result::ok);
    let mut child_lines = lines.filter_map(|line| line.strip_prefix("child ").map(str::to_owned));
    let (child, refused) = (child_lines.next().expect("its id"), child_lines.next());
    assert!(program.wait().expect("its end").success());
    // The lock ends within a TTL of 1.2 s. The child runs its copy of the runtime for a minute.
    let deadline = Instant::now() + LIMIT / 3;
    while count_masters_with(&masters, "held") > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let holder_count = count_masters_with(&masters, "held");
    let kill_status = Command::new("kill").args(["-KILL", &child]).status();
    assert!(
        kill_status.expect("kill runs").success(),
        "the child must still run"
    );
    assert_eq!(holder_count, 0, "the child renews the lock of its parent");
    assert_eq!(refused.as_deref(), Some("is refused: true"));
}

#[test]
fn part_on_the_thread_of_the_runtime() {
    let Ok(urls) = std::env::var(MASTERS_VARIABLE) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let redlock = builder(&urls).build().expect("built");
        let guard = redlock.acquire("held").await.expect("acquired");
        let Fork::Child = fork().expect("a fork") else {
            // End without a release, after the next renewal.
            tokio::time::sleep(TTL).await;
            std::process::exit(0);
        };
        // The test harness has begun a line.
        println!("\nchild {}", std::process::id());
        let outcome = redlock.try_acquire("other").await;
        let is_refused = matches!(outcome, Err(AcquireError::Forked)) && !guard.is_valid();
        println!("child is refused: {is_refused}");
        drop((guard, redlock));
        tokio::time::sleep(LIMIT).await;
        std::process::exit(0);
    });
}
