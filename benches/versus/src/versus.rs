//! Measures latency, throughput and cost of all implementations in one run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_testbed::measure::{Counts, Samples, Spread, Usage, number, quantile};
use quorate_testbed::table::{Table, ratio};
use quorate_testbed::{Masters, Reply, Server};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::contender::{Addresses, Contender, Name, TTL};
use crate::goal::{Bound, goal};

/// Arguments of the subcommand `versus`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of masters to start; if several numbers are given, they are measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [5])]
    pub(crate) masters: Vec<usize>,
    /// Make fewer rounds, and shorter measurements in each round
    #[arg(long)]
    pub(crate) quick: bool,
    /// The number of rounds; in each round every implementation has one turn
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// The implementations that are measured [default: all]; the baseline is always measured as well
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Name>,
    /// The numbers of concurrent tasks, measured one after the other; each task locks a resource of its own
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512])]
    pub(crate) tasks: Vec<usize>,
    /// Use one thread for the client instead of two
    #[arg(long)]
    pub(crate) current_thread: bool,
    /// Print all measurements as JSON after the tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// The async runtime that every implementation is measured on.
pub(crate) fn runtime(current_thread: bool) -> Runtime {
    let mut builder = if current_thread {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    };
    builder
        .enable_all()
        .build()
        .expect("the async runtime must start")
}

/// The measurements of many concurrent tasks in one round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Burst {
    pub(crate) cycles: u64,
    pub(crate) failed: u64,
    pub(crate) per_second: f64,
    pub(crate) client_us: f64,
    pub(crate) servers_us: f64,
    pub(crate) sent: f64,
    pub(crate) ran: f64,
    pub(crate) bytes: f64,
}

/// The measurements of one implementation in all rounds.
#[derive(Default)]
struct Rounds {
    alone: Vec<Samples>,
    /// The cycles (an acquire and its release) of one task while 64 other tasks of the same client are busy.
    among: Vec<Samples>,
    bursts: HashMap<usize, Vec<Burst>>,
}

/// The number of other tasks that are busy in the measurement `among`.
const AMONG: usize = 64;

/// Lets one client make `cycles` cycles (an acquire and its release), one after the other. The returned samples are
/// sorted.
pub(crate) async fn alone(client: &Arc<Contender>, name: Name, cycles: usize) -> Samples {
    let client = client.clone();
    let work = async move {
        let mut seen = Samples::default();
        for n in 0..cycles {
            let resource = format!("{}:alone:{}", name.prefix(), n % 64);
            let acquire = client.acquire(&resource);
            seen.cycle(acquire, |held| client.release(&resource, held))
                .await;
        }
        seen.sort();
        seen
    };
    // Run on a worker thread of the runtime, not on the thread that calls `block_on`.
    tokio::spawn(work).await.expect("the task must not panic")
}

/// Lets `tasks` tasks acquire and release locks for `time`. Each task uses a lock that no other task uses. Returns the
/// number of cycles and the number of failed acquisitions.
pub(crate) async fn rush(
    client: &Arc<Contender>,
    name: Name,
    tasks: usize,
    time: Duration,
) -> (u64, u64) {
    let (cycles, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let client = client.clone();
        let (cycles, failed) = (cycles.clone(), failed.clone());
        running.spawn(async move {
            let resource = format!("{}:burst:{task}", name.prefix());
            let mut done = 0;
            while started.elapsed() < time {
                match client.acquire(&resource).await {
                    Some(held) => {
                        client.release(&resource, held).await;
                        done += 1;
                    }
                    None => {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            cycles.fetch_add(done, Ordering::Relaxed);
        });
    }
    running.join_all().await;
    (
        cycles.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed),
    )
}

/// Runs [`rush`], and measures the cost of one cycle: processor time, commands and bytes.
pub(crate) async fn burst(
    client: &Arc<Contender>,
    name: Name,
    masters: &Masters,
    tasks: usize,
    time: Duration,
) -> Burst {
    let before = Counts::read(masters, name.sends_set());
    let work = rush(client, name, tasks, time);
    let ((cycles, failed), usage) = Usage::of(masters, work).await;
    let counts = Counts::read(masters, name.sends_set()).since(before);
    let each = |total: f64| total / cycles as f64;
    Burst {
        cycles,
        failed,
        per_second: cycles as f64 / usage.took.as_secs_f64(),
        client_us: each(usage.client.as_secs_f64() * 1e6),
        servers_us: each(usage.servers.as_secs_f64() * 1e6),
        sent: each(counts.sent as f64),
        ran: each(counts.ran as f64),
        bytes: each(counts.bytes as f64),
    }
}

/// Lets one task acquire and release one lock repeatedly for `time`. Meanwhile, 64 other tasks of the same client
/// acquire and release other locks. Returns the samples of the one task, sorted.
async fn among(client: &Arc<Contender>, name: Name, time: Duration) -> Samples {
    let over = Arc::new(AtomicBool::new(false));
    let mut running = tokio::task::JoinSet::new();
    for task in 0..AMONG {
        let (client, over) = (client.clone(), over.clone());
        running.spawn(async move {
            let resource = format!("{}:burst:{task}", name.prefix());
            while !over.load(Ordering::Relaxed) {
                if let Some(held) = client.acquire(&resource).await {
                    client.release(&resource, held).await;
                }
            }
        });
    }
    let client = client.clone();
    let work = async move {
        let started = Instant::now();
        let mut seen = Samples::default();
        while started.elapsed() < time {
            let resource = format!("{}:among", name.prefix());
            let acquire = client.acquire(&resource);
            seen.cycle(acquire, |held| client.release(&resource, held))
                .await;
        }
        seen.sort();
        seen
    };
    let seen = tokio::spawn(work).await.expect("the task must not panic");
    over.store(true, Ordering::Relaxed);
    running.join_all().await;
    seen
}

pub(crate) fn run(args: &Args) {
    for &masters in &args.masters {
        with(masters, args);
    }
}

/// Measures all implementations in rounds. In each round, every implementation has one turn.
async fn measure(masters: &Masters, names: &[Name], rounds: usize, args: &Args) -> Vec<Rounds> {
    let (cycles, time) = if args.quick {
        (600, Duration::from_millis(250))
    } else {
        (1500, Duration::from_millis(500))
    };
    let at = Addresses::of(masters);
    let mut clients = Vec::new();
    for &name in names {
        clients.push((name, Arc::new(Contender::connect(name, &at).await)));
    }
    let mut seen: Vec<Rounds> = names.iter().map(|_| Rounds::default()).collect();
    // The first round is only a warm-up, and its results are discarded.
    for round in 0..=rounds {
        let kept = round > 0;
        let (cycles, time) = if kept {
            (cycles, time)
        } else {
            (100, time / 5)
        };
        // Each round begins with the next implementation in the list, so that every implementation is measured equally
        // often at every position.
        let turns = |n: usize| (round + n) % clients.len();
        for n in 0..clients.len() {
            let (name, client) = &clients[turns(n)];
            let result = alone(client, *name, cycles).await;
            if kept {
                seen[turns(n)].alone.push(result);
            }
        }
        for n in 0..clients.len() {
            let (name, client) = &clients[turns(n)];
            let result = among(client, *name, time).await;
            if kept {
                seen[turns(n)].among.push(result);
            }
        }
        for &tasks in &args.tasks {
            for n in 0..clients.len() {
                let (name, client) = &clients[turns(n)];
                let result = burst(client, *name, masters, tasks, time).await;
                if kept {
                    let rounds = seen[turns(n)].bursts.entry(tasks).or_default();
                    rounds.push(result);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    seen
}

fn with(count: usize, args: &Args) {
    let masters =
        Masters::start(count).expect("the masters must start (is redis-server installed?)");
    let runtime = runtime(args.current_thread);
    let names: Vec<Name> = Name::ALL
        .into_iter()
        .filter(|name| args.only.is_empty() || args.only.contains(name) || *name == Name::Floor)
        .collect();
    let rounds = args.rounds.unwrap_or(if args.quick { 5 } else { 15 });
    let seen = runtime.block_on(measure(&masters, &names, rounds, args));
    let left = names.iter().map(|name| (name, keys_left(&masters, *name)));
    let left: Vec<_> = left.filter(|(_, left)| *left > 0).collect();
    let flavour = if args.current_thread {
        "current_thread"
    } else {
        "multi_thread, 2 workers"
    };
    println!(
        "\n{count} {}, {rounds} interleaved rounds, tokio {flavour}. x = ratio to the baseline (floor) in the same \
         round, median of the rounds [smallest-largest]",
        if count == 1 { "master" } else { "masters" }
    );
    for name in &names {
        println!("{:20} ttl {:?}; {}", name.label(), TTL, name.setup());
    }
    print_alone(&names, &seen);
    print_quantiles(&names, &seen);
    print_among(&names, &seen);
    for &tasks in &args.tasks {
        print_burst(tasks, &names, &seen);
    }
    println!(
        "\nNumber of keys that each implementation left behind on all masters (only if not 0): {left:?}"
    );
    if count == 5 && !args.current_thread {
        print_goals(args, &names, &seen);
    }
    if args.json {
        print_json(count, rounds, &names, &seen);
    }
}

/// For each round, divides the value of implementation `n` by the value of the baseline. Returns the median, minimum
/// and maximum of these ratios.
fn over_floor(seen: &[Rounds], n: usize, value: impl Fn(&Rounds, usize) -> f64) -> Spread {
    let rounds = seen[n].alone.len();
    Spread::of((0..rounds).map(|round| value(&seen[n], round) / value(&seen[0], round)))
}

fn plain(seen: &[Rounds], n: usize, value: impl Fn(&Rounds, usize) -> f64) -> f64 {
    Spread::of((0..seen[n].alone.len()).map(|round| value(&seen[n], round))).median
}

fn print_alone(names: &[Name], seen: &[Rounds]) {
    let mut table = Table::new([
        "one client",
        "cycle p50 x",
        "us",
        "p99 x",
        "us",
        "acquire p50 x",
        "us",
        "release p50 x",
        "us",
        "failed",
    ]);
    for (n, name) in names.iter().enumerate() {
        let p50 = |r: &Rounds, at: usize| quantile(&r.alone[at].cycle, 0.5) / 1e3;
        let p99 = |r: &Rounds, at: usize| quantile(&r.alone[at].cycle, 0.99) / 1e3;
        let acquire = |r: &Rounds, at: usize| quantile(&r.alone[at].acquire, 0.5) / 1e3;
        let release = |r: &Rounds, at: usize| quantile(&r.alone[at].release, 0.5) / 1e3;
        table.row([
            name.label().to_owned(),
            ratio(over_floor(seen, n, p50)),
            number(plain(seen, n, p50)),
            ratio(over_floor(seen, n, p99)),
            number(plain(seen, n, p99)),
            ratio(over_floor(seen, n, acquire)),
            number(plain(seen, n, acquire)),
            ratio(over_floor(seen, n, release)),
            number(plain(seen, n, release)),
            failures(seen[n].alone.iter().map(|round| round.failed)),
        ]);
    }
    print!("\nLatency of one client\n{table}");
}

/// Prints the tail latencies (high quantiles). They are computed over all rounds together, because a single round has
/// too few samples.
fn print_quantiles(names: &[Name], seen: &[Rounds]) {
    let heading = [
        "acquire p50",
        "p99",
        "p99.9",
        "release p50",
        "p99",
        "p99.9",
        "cycle p50",
        "p99",
        "p99.9",
    ];
    let mut table = Table::new(["us"].into_iter().chain(heading));
    let picks: [fn(&Samples) -> &Vec<u64>; 3] = [|r| &r.acquire, |r| &r.release, |r| &r.cycle];
    for (name, seen) in names.iter().zip(seen) {
        let mut row = vec![name.label().to_owned()];
        for pick in picks {
            row.extend(
                [0.5, 0.99, 0.999].map(|share| number(pooled(&seen.alone, pick, share) / 1e3)),
            );
        }
        table.row(row);
    }
    print!("\nOne client, all rounds together\n{table}");
}

/// Prints the cycle times of one task while 64 other tasks of the same client are busy.
fn print_among(names: &[Name], seen: &[Rounds]) {
    let mut table = Table::new(["", "cycle p50 us", "x", "p99 us", "x", "p99.9 us", "x"]);
    let at = |n: usize, share: f64| pooled(&seen[n].among, |r| &r.cycle, share) / 1e3;
    for (n, name) in names.iter().enumerate() {
        let mut row = vec![name.label().to_owned()];
        for share in [0.5, 0.99, 0.999] {
            row.push(number(at(n, share)));
            row.push(number(at(n, share) / at(0, share)));
        }
        table.row(row);
    }
    print!("\nOne client while {AMONG} other tasks run, all rounds together\n{table}");
}

/// Waits up to one second until no lock key of this implementation is left on any master. Returns the number of keys
/// that are left then, on all masters together.
fn keys_left(masters: &Masters, name: Name) -> usize {
    let pattern = format!("{}:*", name.prefix());
    let count = || -> usize {
        let of = |master: &Server| match master.command(&["KEYS", &pattern]) {
            Ok(Reply::Array(keys)) => keys.len(),
            other => panic!("a healthy master must answer KEYS with a list, not with {other:?}"),
        };
        masters.iter().map(of).sum()
    };
    for _ in 0..20 {
        if count() == 0 {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    count()
}

/// Prints the goals and whether they are met. The goals apply only to five masters.
fn print_goals(args: &Args, names: &[Name], seen: &[Rounds]) {
    println!();
    let cycle = |r: &Rounds, at: usize| quantile(&r.alone[at].cycle, 0.5);
    for (name, alone, bursts) in [
        (Name::Classic, 0.92, [(64, 1.3), (512, 1.6)]),
        (Name::Default, 1.08, [(64, 1.0), (512, 1.1)]),
    ] {
        let Some(n) = names.iter().position(|other| *other == name) else {
            continue;
        };
        let label = name.label();
        let what = format!("{label}, p50 time of a cycle of one client, ratio to the baseline");
        goal(&what, over_floor(seen, n, cycle).median, Bound::Most(alone));
        for (tasks, least) in bursts {
            if args.tasks.contains(&tasks) {
                let rate = move |r: &Rounds, at: usize| r.bursts[&tasks][at].per_second;
                let what = format!("{label}, throughput of {tasks} tasks, ratio to the baseline");
                goal(&what, over_floor(seen, n, rate).median, Bound::Least(least));
            }
        }
        let tail = |n: usize| pooled(&seen[n].among, |r| &r.cycle, 0.99);
        let what = format!(
            "{label}, p99 time of a cycle of one client while {AMONG} other tasks run, ratio to the baseline"
        );
        goal(&what, tail(n) / tail(0), Bound::Most(1.0));
        for tasks in [64, 512] {
            if args.tasks.contains(&tasks) {
                let servers = move |r: &Rounds, at: usize| r.bursts[&tasks][at].servers_us;
                let what = format!(
                    "{label}, server CPU per cycle with {tasks} tasks, ratio to the baseline"
                );
                goal(
                    &what,
                    over_floor(seen, n, servers).median,
                    Bound::Most(1.35),
                );
            }
        }
        if args.tasks.contains(&512) {
            let client = |r: &Rounds, at: usize| r.bursts[&512][at].client_us;
            let what = format!("{label}, client CPU per cycle with 512 tasks, in us");
            goal(&what, plain(seen, n, client), Bound::Most(8.0));
        }
    }
}

/// A quantile of the samples of all rounds together, because a single round has too few samples for high quantiles.
fn pooled(rounds: &[Samples], pick: fn(&Samples) -> &Vec<u64>, share: f64) -> f64 {
    let mut all: Vec<u64> = rounds
        .iter()
        .flat_map(|round| pick(round).iter().copied())
        .collect();
    all.sort_unstable();
    quantile(&all, share)
}

fn failures(failed: impl Iterator<Item = u64>) -> String {
    match failed.sum::<u64>() {
        0 => String::new(),
        failed => failed.to_string(),
    }
}

fn print_burst(tasks: usize, names: &[Name], seen: &[Rounds]) {
    let mut table = Table::new([
        format!("{tasks} tasks").as_str(),
        "throughput x",
        "cycles/s",
        "client CPU x",
        "us/cycle",
        "server CPU x",
        "us/cycle",
        "commands",
        "incl. scripts",
        "bytes",
        "failed",
    ]);
    for (n, name) in names.iter().enumerate() {
        let of = |value: fn(&Burst) -> f64| {
            move |rounds: &Rounds, at: usize| value(&rounds.bursts[&tasks][at])
        };
        let (rate, client) = (of(|c| c.per_second), of(|c| c.client_us));
        let servers = of(|c| c.servers_us);
        table.row([
            name.label().to_owned(),
            ratio(over_floor(seen, n, rate)),
            number(plain(seen, n, rate)),
            ratio(over_floor(seen, n, client)),
            number(plain(seen, n, client)),
            ratio(over_floor(seen, n, servers)),
            number(plain(seen, n, servers)),
            number(plain(seen, n, of(|c| c.sent))),
            number(plain(seen, n, of(|c| c.ran))),
            number(plain(seen, n, of(|c| c.bytes))),
            failures(seen[n].bursts[&tasks].iter().map(|round| round.failed)),
        ]);
    }
    print!("\n{tasks} tasks on distinct resources\n{table}");
}

fn print_json(masters: usize, rounds: usize, names: &[Name], seen: &[Rounds]) {
    let contenders: Vec<_> = names
        .iter()
        .zip(seen)
        .map(|(name, seen)| {
            let quantiles = |pick: fn(&Samples) -> &Vec<u64>, share: f64| -> Vec<f64> {
                let rounds = seen.alone.iter();
                rounds.map(|r| quantile(pick(r), share) / 1e3).collect()
            };
            serde_json::json!({
                "name": name,
                "cycle_p50_us": quantiles(|r| &r.cycle, 0.5),
                "cycle_p99_us": quantiles(|r| &r.cycle, 0.99),
                "cycle_p999_us": pooled(&seen.alone, |r| &r.cycle, 0.999) / 1e3,
                "acquire_p50_us": quantiles(|r| &r.acquire, 0.5),
                "release_p50_us": quantiles(|r| &r.release, 0.5),
                "bursts": seen.bursts,
            })
        })
        .collect();
    let all = serde_json::json!({
        "masters": masters, "rounds": rounds, "contenders": contenders,
    });
    println!("\n{all:#}");
}
