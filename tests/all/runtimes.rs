//! Tests of one `Redlock` that several tokio runtimes use, while all of them run and after some have shut down. Other
//! tests use a `Redlock` from threads without tokio.

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use quorate::node::store::{Greeting, Store, StoreNode, Table, Traits};
use quorate::node::{Fault, NodeName};
use quorate::{Inspection, Redlock, StatusVerdict, Wait};

use crate::support::{PATIENCE, count_masters_with, masters, ms, secs, settings};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// A minimal executor without tokio: it polls a future on the current thread until the future is ready.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

/// Tests runtimes that are dropped while their own tasks and tasks of other runtimes acquire and release locks. If a
/// release were lost, the next acquire of the same lock would fail, because it waits for less than the TTL.
#[test]
fn redlock_serves_many_short_lived_runtimes_on_several_threads() {
    let masters = masters(3);
    let urls: Vec<_> = masters.iter().map(quorate_testbed::Server::url).collect();
    let settings = settings(urls).ttl(secs(20)).max_ttl(secs(30));
    let redlock = settings
        .wait(Wait::For(secs(8)))
        .build()
        .expect("good settings");
    let errors: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let redlock = &redlock;
                scope.spawn(move || {
                    let mut errors = Vec::new();
                    for round in 0..25 {
                        runtime().block_on(async {
                            for n in 0..4 {
                                match redlock.acquire(format!("{thread} {n}")).await {
                                    Ok(guard) => drop(guard),
                                    Err(error) => errors.push(format!("{round}: {error}")),
                                }
                            }
                        });
                    }
                    errors
                })
            })
            .collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        results.flatten().collect()
    });
    assert!(
        errors.is_empty(),
        "{} of 400 calls failed: {errors:#?}",
        errors.len()
    );
}

#[test]
fn lock_is_renewed_after_the_runtime_that_acquired_it_was_shut_down() {
    static REDLOCK: LazyLock<Redlock> = LazyLock::new(|| Redlock::in_memory(3));
    let first_runtime = runtime();
    let guard = first_runtime.block_on(async { REDLOCK.lock("job").ttl(secs(1)).await });
    let guard = guard.expect("free");
    drop(first_runtime);
    thread::sleep(ms(1_500));
    assert!(guard.is_valid());
}

#[test]
fn lock_is_acquired_and_renewed_without_a_tokio_runtime() {
    let masters = masters(3);
    let urls: Vec<_> = masters.iter().map(quorate_testbed::Server::url).collect();
    let redlock = settings(urls).build().expect("good settings");
    block_on(async {
        let guard = redlock.lock("job").ttl(secs(2)).await.expect("free");
        let second_attempt = redlock.lock("job").wait(Wait::For(ms(2_500))).await;
        assert!(second_attempt.is_err() && guard.is_valid());
        guard.release().await;
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while count_masters_with(&masters, "job") > 0 {
        assert!(
            std::time::Instant::now() < deadline,
            "timed out waiting for the release of the lock"
        );
        thread::sleep(ms(5));
    }
}

/// Tests a runtime that was shut down after its first use. The library must not use it for the timers of a later caller
/// without tokio.
#[test]
fn calls_work_without_a_tokio_runtime_after_a_tokio_runtime_was_used() {
    let masters = masters(3);
    let urls: Vec<_> = masters.iter().map(quorate_testbed::Server::url).collect();
    let redlock = settings(urls).build().expect("good settings");
    let guard = runtime().block_on(redlock.acquire("job")).expect("free");
    block_on(async {
        let second_attempt = redlock.lock("job").wait(Wait::For(ms(300))).await;
        assert!(second_attempt.is_err() && guard.is_valid());
        let status = redlock.status("job").await.expect("a good name");
        assert!(matches!(status.verdict(), StatusVerdict::Held(_)));
        for master in redlock.inspect().await {
            assert_eq!(master.fault, None);
        }
        guard.release().await;
        drop(redlock.acquire("job").await.expect("free"));
        redlock.flush().await;
    });
}

/// A store in memory that needs tokio's timers to connect, like a store with network connections.
struct TimedStore(Table);

impl Store for TimedStore {
    type Session = Table;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        self.0.name()
    }

    fn traits(&self) -> Traits {
        self.0.traits()
    }

    async fn connect(&self) -> Result<(Table, Greeting), Fault> {
        tokio::time::sleep(ms(1)).await;
        self.0.connect().await
    }

    async fn listen(&self, process: Arc<str>) -> Result<Self::Listener, Fault> {
        tokio::time::sleep(ms(1)).await;
        self.0.listen(process).await
    }

    async fn inspect(&self) -> Inspection {
        tokio::time::sleep(ms(1)).await;
        self.0.inspect().await
    }
}

#[test]
fn locks_kept_in_a_store_work_without_a_tokio_runtime() {
    let store = StoreNode::new(TimedStore(Table::new("table", true)));
    let redlock = Redlock::builder()
        .node(store)
        .build()
        .expect("good settings");
    block_on(async {
        drop(redlock.acquire("job").await.expect("free"));
        assert_eq!(redlock.inspect().await[0].fault, None);
    });
}

/// Tests a guard that is dropped just before its runtime is shut down, so that the runtime runs no more tasks. The
/// library's background thread must send the release.
#[test]
fn lock_kept_in_a_store_is_released_after_the_tokio_runtime_shut_down() {
    let table = Table::new("table", true);
    let redlock = || {
        let store = StoreNode::new(TimedStore(table.clone()));
        let settings = Redlock::builder()
            .node(store)
            .ttl(secs(60))
            .max_ttl(secs(60));
        settings
            .wait(Wait::For(PATIENCE))
            .build()
            .expect("good settings")
    };
    let (first_client, second_client) = (redlock(), redlock());
    let first_runtime = runtime();
    let guard = first_runtime
        .block_on(first_client.acquire("job"))
        .expect("free");
    drop(guard);
    drop(first_runtime);
    let second_guard = runtime().block_on(second_client.acquire("job"));
    assert!(second_guard.is_ok(), "{second_guard:?}");
}

/// A current-thread runtime executes tasks only during `block_on`. The library has started tasks for its connections
/// and renewals in this runtime, and no `block_on` is active.
#[test]
fn redlock_works_while_its_tokio_runtime_executes_no_tasks() {
    let masters = masters(3);
    let urls: Vec<_> = masters.iter().map(quorate_testbed::Server::url).collect();
    let store = StoreNode::new(TimedStore(Table::new("table", true)));
    let settings = [settings(urls), Redlock::builder().node(store)];
    thread::scope(|scope| {
        for settings in settings {
            scope.spawn(move || {
                let build_result = settings.wait(Wait::For(PATIENCE)).build();
                let redlock = build_result.expect("good settings");
                let idle_runtime = runtime();
                let lock = redlock.lock("job").ttl(secs(4)).acquire();
                let guard = idle_runtime.block_on(lock).expect("free");
                for name in ["a", "b"] {
                    let acquire_result = runtime().block_on(redlock.acquire(name));
                    drop(acquire_result.expect("free"));
                }
                drop(block_on(redlock.acquire("c")).expect("free"));
                thread::sleep(secs(5));
                assert!(guard.is_valid(), "the lock must be renewed");
                drop(guard);
                drop(block_on(redlock.acquire("job")).expect("free"));
                drop(idle_runtime);
            });
        }
    });
}
