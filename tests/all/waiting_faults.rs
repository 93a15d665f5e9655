//! Tests of ordered waiting for a lock while waiters, holders, masters or connections fail.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::{LockGuard, Redlock, RedlockBuilder, RestartGuard, Wait};
use quorate_testbed::{ClockShim, Fault, Masters, Proxy, ServerOptions, Skew};

/// The time without progress after which waiters count as stalled. It is much longer than the heartbeat time and the
/// TTL, because the machine may be busy.
const STALL_LIMIT: Duration = Duration::from_secs(20);

const TTL: Duration = Duration::from_secs(2);

fn settings() -> RedlockBuilder {
    Redlock::builder()
        .restart_guard(RestartGuard::Off)
        .ttl(TTL)
        .wait(Wait::For(STALL_LIMIT))
}

fn redlock(masters: &Masters) -> Redlock {
    settings()
        .masters(masters.urls())
        .build()
        .expect("good settings")
}

/// Waits until `count` waiters are queued on at least one master.
async fn wait_until_queued(redlock: &Redlock, resource: &str, count: usize) {
    let started_at = Instant::now();
    loop {
        let status = redlock
            .status(resource)
            .await
            .expect("the name must be valid");
        let states = status
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().ok());
        if states.map(|state| state.queue.len()).max() >= Some(count) {
            return;
        }
        assert!(
            started_at.elapsed() < STALL_LIMIT,
            "timed out: {count} waiters must be in the queue: {status:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A child process that waits for a lock, acquires it and keeps it. The child runs this test program.
struct Process(Child);

impl Process {
    fn start(masters: &Masters, resource: &str) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "waiting_faults::child_process_acquires_a_lock_and_keeps_it",
                "--nocapture",
            ])
            .env(
                "QUORATE_TEST_PROCESS",
                format!("{resource} {}", masters.urls().join(" ")),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("another process");
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test by itself: [`Process`] runs it in a child process. It acquires the lock, and keeps it until the process
/// is killed.
#[tokio::test]
async fn child_process_acquires_a_lock_and_keeps_it() {
    let Ok(task) = std::env::var("QUORATE_TEST_PROCESS") else {
        return;
    };
    let mut words = task.split(' ');
    let resource = words.next().expect("a resource");
    let redlock = settings().masters(words).build().expect("good settings");
    let guard = redlock
        .acquire(resource)
        .await
        .expect("the waiter must get the lock");
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop(guard);
}

/// Lets each `Redlock` acquire and release the lock once, concurrently. Returns the number of them that got the lock
/// within their wait limit.
async fn acquire_with_each(redlocks: Vec<Redlock>, resource: &'static str) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for redlock in redlocks {
        tasks.spawn(async move {
            let guard = redlock.acquire(resource).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            guard.release().await;
            redlock.flush().await;
            Ok::<(), quorate::AcquireError>(())
        });
    }
    let mut served_count = 0;
    while let Some(outcome) = tasks.join_next().await {
        match outcome.expect("no panic") {
            Ok(()) => served_count += 1,
            Err(error) => eprintln!("not served: {error}"),
        }
    }
    served_count
}

fn clients(masters: &Masters, count: usize) -> Vec<Redlock> {
    (0..count).map(|_| redlock(masters)).collect()
}

async fn acquire_lock(redlock: &Redlock, resource: &str) -> LockGuard {
    redlock.acquire(resource).await.expect("free")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_first_waiter_delays_later_waiters_by_at_most_one_heartbeat_time() {
    let masters = Masters::start(3).expect("three masters");
    let holder = redlock(&masters);
    let guard = acquire_lock(&holder, "x").await;
    let mut dying_process = Process::start(&masters, "x");
    wait_until_queued(&holder, "x", 1).await;
    let waiting_tasks = tokio::spawn(acquire_with_each(clients(&masters, 5), "x"));
    wait_until_queued(&holder, "x", 6).await;
    dying_process.kill();
    let started_at = Instant::now();
    guard.release().await;
    assert_eq!(waiting_tasks.await.expect("no panic"), 5);
    // The killed waiter may delay the other waiters by at most the heartbeat time, which is half a TTL.
    let elapsed = started_at.elapsed();
    assert!(elapsed < STALL_LIMIT / 3, "{elapsed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_delays_twenty_waiters_by_its_ttl_only() {
    let masters = Masters::start(5).expect("five masters");
    let observer_client = redlock(&masters);
    let mut dying_process = Process::start(&masters, "x");
    let started_at = Instant::now();
    while observer_client
        .status("x")
        .await
        .expect("the name must be valid")
        .nodes
        .iter()
        .all(|node| {
            node.state
                .as_ref()
                .is_ok_and(|state| state.holder.is_none())
        })
    {
        assert!(
            started_at.elapsed() < STALL_LIMIT,
            "timed out: the other process must acquire the lock"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let waiting_tasks = tokio::spawn(acquire_with_each(clients(&masters, 20), "x"));
    wait_until_queued(&observer_client, "x", 20).await;
    dying_process.kill();
    assert_eq!(waiting_tasks.await.expect("no panic"), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_that_restarts_empty_while_waiters_are_queued_blocks_no_waiter() {
    let masters = Masters::start(3).expect("three masters");
    let holder = redlock(&masters);
    let guard = acquire_lock(&holder, "x").await;
    let waiting_tasks = tokio::spawn(acquire_with_each(clients(&masters, 8), "x"));
    wait_until_queued(&holder, "x", 8).await;
    masters[1].kill().expect("killed");
    guard.release().await;
    masters[1].restart_empty().expect("restarted");
    assert_eq!(waiting_tasks.await.expect("no panic"), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_although_all_connections_were_cut() {
    let masters = Masters::start(3).expect("three masters");
    let holder = redlock(&masters);
    let guard = acquire_lock(&holder, "x").await;
    let waiting_tasks = tokio::spawn(acquire_with_each(clients(&masters, 5), "x"));
    wait_until_queued(&holder, "x", 5).await;
    // Close all connections on every master, including those that receive wake-ups.
    for master in &masters {
        master
            .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .expect("the server must answer the command");
        master
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .expect("the server must answer the command");
    }
    guard.release().await;
    assert_eq!(waiting_tasks.await.expect("no panic"), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_receive_no_wake_ups_retry_by_timer_and_get_the_lock() {
    // The user `options_without_publish` has no right to publish or to subscribe. So no waiter receives a wake-up.
    let options_without_publish = |_| {
        ServerOptions::new()
            .acl("deaf on >secret ~* +@all resetchannels")
            .login("deaf", "secret")
    };
    let masters = Masters::start_with(3, options_without_publish).expect("three masters");
    let holder = redlock(&masters);
    let guard = acquire_lock(&holder, "x").await;
    let waiting_tasks = tokio::spawn(acquire_with_each(clients(&masters, 5), "x"));
    wait_until_queued(&holder, "x", 5).await;
    guard.release().await;
    assert_eq!(waiting_tasks.await.expect("no panic"), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_with_clocks_seconds_apart_serve_all_waiters() {
    let shim = match ClockShim::build() {
        Ok(shim) => shim,
        Err(error) => {
            eprintln!(
                "SKIPPED: this machine cannot build the library that shifts a clock: {error}"
            );
            return;
        }
    };
    let offsets: Vec<_> = (0..3)
        .map(|_| shim.offset_file().expect("the offset file must be created"))
        .collect();
    offsets[0]
        .set(Duration::from_secs(1), Skew::Ahead)
        .expect("set");
    offsets[2]
        .set(Duration::from_secs(1), Skew::Behind)
        .expect("set");
    let masters = Masters::start_with(3, |n| ServerOptions::new().clock(&shim, &offsets[n]))
        .expect("three masters");
    let holder = redlock(&masters);
    let guard = acquire_lock(&holder, "x").await;
    let waiting_tasks = tokio::spawn(acquire_with_each(clients(&masters, 6), "x"));
    wait_until_queued(&holder, "x", 6).await;
    let token = guard.fencing_token();
    guard.release().await;
    assert_eq!(waiting_tasks.await.expect("no panic"), 6);
    assert!(acquire_lock(&holder, "x").await.fencing_token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_reach_only_one_master_do_not_starve_a_waiter_that_reaches_all() {
    let masters = Masters::start(3).expect("three masters");
    let mut proxies = Vec::new();
    let mut disconnected_clients = Vec::new();
    for reachable in 0..3 {
        let mut urls = Vec::new();
        for (n, master) in masters.into_iter().enumerate() {
            let proxy = Proxy::start(master.addr()).expect("a proxy");
            if n != reachable {
                proxy.inject(Fault::Refuse).keep();
            }
            urls.push(master.url_at(proxy.addr()));
            proxies.push(proxy);
        }
        disconnected_clients.push(settings().masters(urls).build().expect("good settings"));
    }
    let blocked_waiters: Vec<_> = disconnected_clients
        .into_iter()
        .map(|redlock| tokio::spawn(async move { redlock.acquire("x").await.map(drop) }))
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let connected_client = redlock(&masters);
    for _ in 0..10 {
        let wait = Wait::For(Duration::from_secs(10));
        let guard = connected_client.lock("x").wait(wait).acquire().await;
        guard
            .expect("the waiter that reaches all masters must get the lock within 10 s")
            .release()
            .await;
    }
    proxies.iter().for_each(Proxy::heal);
    for task in blocked_waiters {
        task.await
            .expect("no panic")
            .expect("the waiter must get the lock after its proxies let messages pass again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_keeps_its_queue_position_while_a_minority_of_masters_hangs() {
    let masters = Masters::start(3).expect("three masters");
    let holder = redlock(&masters);
    let guard = acquire_lock(&holder, "x").await;
    let first_client = redlock(&masters);
    let acquire_order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let start_waiter = |name: &'static str, redlock: Redlock| {
        let acquire_order = acquire_order.clone();
        tokio::spawn(async move {
            let guard = redlock
                .acquire("x")
                .await
                .expect("the waiter must get the lock");
            acquire_order.lock().expect("not poisoned").push(name);
            guard.release().await;
        })
    };
    let first_waiter = start_waiter("first", first_client);
    wait_until_queued(&holder, "x", 1).await;
    masters[2].stop().expect("stopped");
    // Wait for two TTLs, which are four heartbeat times.
    tokio::time::sleep(TTL * 2).await;
    let second_waiter = start_waiter("second", redlock(&masters));
    wait_until_queued(&holder, "x", 2).await;
    guard.release().await;
    first_waiter.await.expect("served");
    second_waiter.await.expect("served");
    assert_eq!(
        *acquire_order.lock().expect("not poisoned"),
        ["first", "second"]
    );
}

#[tokio::test]
async fn acquire_whose_wait_is_shorter_than_a_round_trip_makes_one_full_attempt() {
    let masters = Masters::start(3).expect("three masters");
    let start_waiter = Wait::For(Duration::from_nanos(1));
    let builder = settings()
        .node_timeout(TTL / 4)
        .connect_timeout(STALL_LIMIT)
        .masters(masters.urls());
    let client = builder.build().expect("good settings");
    let guard = client.lock("x").wait(start_waiter).acquire().await;
    guard.expect("the lock must be free").release().await;
}
