//! Runs cycles (an acquire and its release) while masters fail. Some acquires are cancelled, and some guards are
//! dropped without a release. Then searches every master for leaked keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate::{Redlock, Wait};
use quorate_testbed::table::Table;
use quorate_testbed::{Fault, Masters, Proxy, Reply, Way};

use crate::contender::{Name, builder_for};
use crate::goal::{Bound, print_goal};
use crate::versus::runtime;

/// Arguments of the subcommand `leftovers`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of cycles with each of the three settings of the library (classic, fenced, default)
    #[arg(long, default_value_t = 100_000)]
    cycles: u64,
    /// The number of tasks; a task locks a shared resource in every fourth cycle, and its own resource in all others
    #[arg(long, default_value_t = 64)]
    tasks: u64,
}

/// The TTL of the locks. The TTL is longer than the run, so that a leaked key is found before it expires.
const TTL: Duration = Duration::from_secs(600);

#[derive(Default)]
struct Counters {
    cycles: AtomicU64,
    acquired: AtomicU64,
    dropped_acquires: AtomicU64,
    dropped_guards: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
}

pub(crate) fn run(args: &Args) {
    let mut table = Table::new([
        "setting",
        "cycles",
        "acquired",
        "acquires dropped",
        "guards dropped",
        "failed",
        "faults",
        "keys after the last cycle",
        "keys after all background releases",
        "took s",
    ]);
    let mut keys_left_in_all = 0;
    for name in [Name::Classic, Name::Fenced, Name::Default] {
        let masters =
            Masters::start(5).expect("the masters must start (is redis-server installed?)");
        let proxies: Vec<Proxy> = masters
            .iter()
            .map(|master| Proxy::start(master.addr()).expect("the proxy must start"))
            .collect();
        let counters = Arc::new(Counters::default());
        let runtime = runtime(false);
        let redlock = client(name, &masters, &proxies);
        let started_at = Instant::now();
        let faults = std::thread::scope(|scope| {
            let fault_injector = scope.spawn(|| inject_faults(&masters, &proxies, &counters));
            runtime.block_on(async {
                let mut running = tokio::task::JoinSet::new();
                for task in 0..args.tasks {
                    let cycles =
                        args.cycles / args.tasks + u64::from(task < args.cycles % args.tasks);
                    running.spawn(run_cycles(redlock.clone(), task, cycles, counters.clone()));
                }
                running.join_all().await;
            });
            counters.is_over.store(true, Ordering::Relaxed);
            fault_injector.join().expect("the task must not panic")
        });
        let elapsed = started_at.elapsed();
        let keys_at_once = count_keys(&masters);
        let keys_after = runtime.block_on(keys_after_flush(&redlock, &masters));
        keys_left_in_all += keys_after;
        let count_text = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        table.row([
            name.label().to_owned(),
            count_text(&counters.cycles),
            count_text(&counters.acquired),
            count_text(&counters.dropped_acquires),
            count_text(&counters.dropped_guards),
            count_text(&counters.failed),
            faults.to_string(),
            keys_at_once.to_string(),
            keys_after.to_string(),
            elapsed.as_secs().to_string(),
        ]);
    }
    print!("\nKeys left behind (fencing counters, which live for a day, are not counted)\n{table}");
    println!();
    print_goal(
        "keys left after all background releases",
        keys_left_in_all as f64,
        Bound::AtMost(0.0),
    );
    assert_eq!(
        keys_left_in_all, 0,
        "no keys may be left on the masters after the background releases"
    );
}

fn client(name: Name, masters: &Masters, proxies: &[Proxy]) -> Redlock {
    let pairs = masters.iter().zip(proxies);
    let urls: Vec<String> = pairs.map(|(m, p)| m.url_at(p.addr())).collect();
    builder_for(name, &urls)
        .ttl(TTL)
        .max_ttl(TTL)
        .node_timeout(Duration::from_millis(50))
        .heartbeat(Duration::from_millis(500))
        .wait(Wait::For(Duration::from_secs(2)))
        .build()
        .expect("the settings must be valid")
}

/// Waits for all background releases, and returns the total number of keys on all masters.
async fn keys_after_flush(redlock: &Redlock, masters: &Masters) -> usize {
    let _ = tokio::time::timeout(Duration::from_secs(20), redlock.flush()).await;
    let mut key_count = count_keys(masters);
    // The keys of a lock's queue expire soon after the last waiter has left the queue: one heartbeat time, a setting of
    // the lock. Wait for this.
    for _ in 0..50 {
        if key_count == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        key_count = count_keys(masters);
    }
    key_count
}

/// The number of keys on all masters together. Fencing counters do not count: masters keep them for a day by design.
fn count_keys(masters: &Masters) -> usize {
    let count_on = |master: &quorate_testbed::Server| match master.command(&["KEYS", "*"]) {
        Ok(Reply::Array(keys)) => keys
            .iter()
            .filter_map(Reply::text)
            .filter(|key| !key.starts_with("quorate:fence:"))
            .count(),
        other => panic!("a healthy master must answer KEYS with a list, not with {other:?}"),
    };
    masters.iter().map(count_on).sum()
}

/// A small random number generator. Its numbers must vary, but they need not be unpredictable.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

async fn run_cycles(redlock: Redlock, task: u64, cycles: u64, counters: Arc<Counters>) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (task + 1));
    let increment = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    for cycle in 0..cycles {
        increment(&counters.cycles);
        let resource = match cycle % 4 {
            0 => format!("shared:{}", dice.below(8)),
            _ => format!("own:{task}"),
        };
        let acquire = redlock.acquire(resource);
        let outcome = if dice.below(4) == 0 {
            // Drop the future after a random number of polls, so that it can stop at every await point. A timer is too
            // coarse for this: its shortest time is a millisecond.
            let poll_limit = dice.below(12);
            let mut acquire = std::pin::pin!(acquire);
            let mut poll_count = 0;
            std::future::poll_fn(|cx| {
                poll_count += 1;
                if poll_count > poll_limit {
                    return std::task::Poll::Ready(None);
                }
                acquire.as_mut().poll(cx).map(Some)
            })
            .await
        } else {
            Some(acquire.await)
        };
        match outcome {
            None => {
                increment(&counters.dropped_acquires);
            }
            Some(Err(_)) => {
                increment(&counters.failed);
            }
            Some(Ok(guard)) => {
                increment(&counters.acquired);
                if dice.below(3) == 0 {
                    increment(&counters.dropped_guards);
                    drop(guard);
                } else {
                    guard.release().await;
                }
            }
        }
    }
}

/// Injects one fault after the other, each into one random master, until the tasks have made all cycles. Each fault is
/// healed before the next one is injected. Returns the number of faults.
fn inject_faults(masters: &Masters, proxies: &[Proxy], counters: &Counters) -> usize {
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let mut faults = 0;
    while !counters.is_over.load(Ordering::Relaxed) {
        let victim = dice.below(5) as usize;
        let duration = Duration::from_millis(20 + dice.below(150));
        match dice.below(5) {
            0 => {
                masters[victim].stop().expect("the master must stop");
                std::thread::sleep(duration);
                masters[victim].cont().expect("the master must resume");
            }
            1 => proxies[victim].reset_all(),
            2 => {
                let _slow = proxies[victim].inject(Fault::latency(Way::Both, duration / 4));
                std::thread::sleep(duration);
            }
            3 => {
                let _held = proxies[victim].inject(Fault::Hold(Way::Both));
                std::thread::sleep(4 * duration);
            }
            _ => {
                let refused = proxies[victim].inject(Fault::Refuse);
                proxies[victim].reset_all();
                std::thread::sleep(duration);
                drop(refused);
            }
        }
        faults += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    faults
}
