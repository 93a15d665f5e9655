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
use crate::goal::{Bound, print_goal};

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
const OTHER_TASKS: usize = 64;

/// Lets one client make `cycles` cycles (an acquire and its release), one after the other. The returned samples are
/// sorted.
pub(crate) async fn alone(client: &Arc<Contender>, name: Name, cycles: usize) -> Samples {
    let client = client.clone();
    let cycles_task = async move {
        let mut samples = Samples::default();
        for cycle in 0..cycles {
            let resource = format!("{}:alone:{}", name.prefix(), cycle % 64);
            let acquire = client.acquire(&resource);
            samples
                .cycle(acquire, |lock| client.release(&resource, lock))
                .await;
        }
        samples.sort();
        samples
    };
    // Run on a worker thread of the runtime, not on the thread that calls `block_on`.
    tokio::spawn(cycles_task)
        .await
        .expect("the task must not panic")
}

/// Lets `tasks` tasks acquire and release locks for `time`. Each task uses a lock that no other task uses. Returns the
/// number of cycles and the number of failed acquisitions.
pub(crate) async fn run_concurrent_cycles(
    client: &Arc<Contender>,
    name: Name,
    tasks: usize,
    time: Duration,
) -> (u64, u64) {
    let (cycles, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let started_at = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let client = client.clone();
        let (cycles, failed) = (cycles.clone(), failed.clone());
        running.spawn(async move {
            let resource = format!("{}:burst:{task}", name.prefix());
            let mut task_cycles = 0;
            while started_at.elapsed() < time {
                match client.acquire(&resource).await {
                    Some(lock) => {
                        client.release(&resource, lock).await;
                        task_cycles += 1;
                    }
                    None => {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            cycles.fetch_add(task_cycles, Ordering::Relaxed);
        });
    }
    running.join_all().await;
    (
        cycles.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed),
    )
}

/// Runs [`run_concurrent_cycles`], and measures the cost of one cycle: processor time, commands and bytes.
pub(crate) async fn burst(
    client: &Arc<Contender>,
    name: Name,
    masters: &Masters,
    tasks: usize,
    time: Duration,
) -> Burst {
    let counts_before = Counts::read(masters, name.sends_set());
    let cycles_of_tasks = run_concurrent_cycles(client, name, tasks, time);
    let ((cycles, failed), usage) = Usage::of(masters, cycles_of_tasks).await;
    let counts = Counts::read(masters, name.sends_set()).since(counts_before);
    let per_cycle = |total: f64| total / cycles as f64;
    Burst {
        cycles,
        failed,
        per_second: cycles as f64 / usage.took.as_secs_f64(),
        client_us: per_cycle(usage.client.as_secs_f64() * 1e6),
        servers_us: per_cycle(usage.servers.as_secs_f64() * 1e6),
        sent: per_cycle(counts.sent as f64),
        ran: per_cycle(counts.ran as f64),
        bytes: per_cycle(counts.bytes as f64),
    }
}

/// Lets one task acquire and release one lock repeatedly for `time`. Meanwhile, 64 other tasks of the same client
/// acquire and release other locks. Returns the samples of the one task, sorted.
async fn among(client: &Arc<Contender>, name: Name, time: Duration) -> Samples {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut running = tokio::task::JoinSet::new();
    for task in 0..OTHER_TASKS {
        let (client, is_over) = (client.clone(), is_over.clone());
        running.spawn(async move {
            let resource = format!("{}:burst:{task}", name.prefix());
            while !is_over.load(Ordering::Relaxed) {
                if let Some(lock) = client.acquire(&resource).await {
                    client.release(&resource, lock).await;
                }
            }
        });
    }
    let client = client.clone();
    let cycles_task = async move {
        let started_at = Instant::now();
        let mut samples = Samples::default();
        while started_at.elapsed() < time {
            let resource = format!("{}:among", name.prefix());
            let acquire = client.acquire(&resource);
            samples
                .cycle(acquire, |lock| client.release(&resource, lock))
                .await;
        }
        samples.sort();
        samples
    };
    let sorted_samples = tokio::spawn(cycles_task)
        .await
        .expect("the task must not panic");
    is_over.store(true, Ordering::Relaxed);
    running.join_all().await;
    sorted_samples
}

pub(crate) fn run(args: &Args) {
    for &masters in &args.masters {
        measure_and_print(masters, args);
    }
}

/// Measures all implementations in rounds. In each round, every implementation has one turn.
async fn measure(masters: &Masters, names: &[Name], rounds: usize, args: &Args) -> Vec<Rounds> {
    let (cycles, time) = if args.quick {
        (600, Duration::from_millis(250))
    } else {
        (1500, Duration::from_millis(500))
    };
    let addresses = Addresses::direct(masters);
    let mut clients = Vec::new();
    for &name in names {
        clients.push((name, Arc::new(Contender::connect(name, &addresses).await)));
    }
    let mut results: Vec<Rounds> = names.iter().map(|_| Rounds::default()).collect();
    // The first round is only a warm-up, and its results are discarded.
    for round in 0..=rounds {
        let is_measured = round > 0;
        let (cycles, time) = if is_measured {
            (cycles, time)
        } else {
            (100, time / 5)
        };
        // Each round begins with the next implementation in the list, so that every implementation is measured equally
        // often at every position.
        let position = |index: usize| (round + index) % clients.len();
        for index in 0..clients.len() {
            let (name, client) = &clients[position(index)];
            let result = alone(client, *name, cycles).await;
            if is_measured {
                results[position(index)].alone.push(result);
            }
        }
        for index in 0..clients.len() {
            let (name, client) = &clients[position(index)];
            let result = among(client, *name, time).await;
            if is_measured {
                results[position(index)].among.push(result);
            }
        }
        for &tasks in &args.tasks {
            for index in 0..clients.len() {
                let (name, client) = &clients[position(index)];
                let result = burst(client, *name, masters, tasks, time).await;
                if is_measured {
                    let rounds = results[position(index)].bursts.entry(tasks).or_default();
                    rounds.push(result);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    results
}

fn measure_and_print(count: usize, args: &Args) {
    let masters =
        Masters::start(count).expect("the masters must start (is redis-server installed?)");
    let runtime = runtime(args.current_thread);
    let names: Vec<Name> = Name::ALL
        .into_iter()
        .filter(|name| args.only.is_empty() || args.only.contains(name) || *name == Name::Floor)
        .collect();
    let rounds = args.rounds.unwrap_or(if args.quick { 5 } else { 15 });
    let results = runtime.block_on(measure(&masters, &names, rounds, args));
    let key_counts = names.iter().map(|name| (name, keys_left(&masters, *name)));
    let remaining_keys: Vec<_> = key_counts.filter(|(_, count)| *count > 0).collect();
    let runtime_kind = if args.current_thread {
        "current_thread"
    } else {
        "multi_thread, 2 workers"
    };
    println!(
        "\n{count} {}, {rounds} interleaved rounds, tokio {runtime_kind}. x = ratio to the baseline (floor) in the \
         same round, median of the rounds [smallest-largest]",
        if count == 1 { "master" } else { "masters" }
    );
    for name in &names {
        println!("{:20} ttl {:?}; {}", name.label(), TTL, name.setup());
    }
    print_alone(&names, &results);
    print_quantiles(&names, &results);
    print_among(&names, &results);
    for &tasks in &args.tasks {
        print_burst(tasks, &names, &results);
    }
    println!(
        "\nNumber of keys that each implementation left behind on all masters (only if not 0): {remaining_keys:?}"
    );
    if count == 5 && !args.current_thread {
        print_goals(args, &names, &results);
    }
    if args.json {
        print_json(count, rounds, &names, &results);
    }
}

/// For each round, divides the value of implementation `index` by the value of the baseline. Returns the median,
/// minimum and maximum of these ratios.
fn ratio_to_floor(
    results: &[Rounds],
    index: usize,
    value: impl Fn(&Rounds, usize) -> f64,
) -> Spread {
    let rounds = results[index].alone.len();
    Spread::of((0..rounds).map(|round| value(&results[index], round) / value(&results[0], round)))
}

fn median_of_rounds(
    results: &[Rounds],
    index: usize,
    value: impl Fn(&Rounds, usize) -> f64,
) -> f64 {
    Spread::of((0..results[index].alone.len()).map(|round| value(&results[index], round))).median
}

fn print_alone(names: &[Name], results: &[Rounds]) {
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
    for (index, name) in names.iter().enumerate() {
        let cycle_p50 =
            |rounds: &Rounds, round: usize| quantile(&rounds.alone[round].cycle, 0.5) / 1e3;
        let cycle_p99 =
            |rounds: &Rounds, round: usize| quantile(&rounds.alone[round].cycle, 0.99) / 1e3;
        let acquire_p50 =
            |rounds: &Rounds, round: usize| quantile(&rounds.alone[round].acquire, 0.5) / 1e3;
        let release_p50 =
            |rounds: &Rounds, round: usize| quantile(&rounds.alone[round].release, 0.5) / 1e3;
        table.row([
            name.label().to_owned(),
            ratio(ratio_to_floor(results, index, cycle_p50)),
            number(median_of_rounds(results, index, cycle_p50)),
            ratio(ratio_to_floor(results, index, cycle_p99)),
            number(median_of_rounds(results, index, cycle_p99)),
            ratio(ratio_to_floor(results, index, acquire_p50)),
            number(median_of_rounds(results, index, acquire_p50)),
            ratio(ratio_to_floor(results, index, release_p50)),
            number(median_of_rounds(results, index, release_p50)),
            failures(results[index].alone.iter().map(|round| round.failed)),
        ]);
    }
    print!("\nLatency of one client\n{table}");
}

/// Prints the tail latencies (high quantiles). They are computed over all rounds together, because a single round has
/// too few samples.
fn print_quantiles(names: &[Name], results: &[Rounds]) {
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
    for (name, rounds) in names.iter().zip(results) {
        let mut row = vec![name.label().to_owned()];
        for pick in picks {
            row.extend(
                [0.5, 0.99, 0.999]
                    .map(|share| number(quantile_of_all_rounds(&rounds.alone, pick, share) / 1e3)),
            );
        }
        table.row(row);
    }
    print!("\nOne client, all rounds together\n{table}");
}

/// Prints the cycle times of one task while 64 other tasks of the same client are busy.
fn print_among(names: &[Name], results: &[Rounds]) {
    let mut table = Table::new(["", "cycle p50 us", "x", "p99 us", "x", "p99.9 us", "x"]);
    let cycle_us = |index: usize, share: f64| {
        quantile_of_all_rounds(&results[index].among, |r| &r.cycle, share) / 1e3
    };
    for (index, name) in names.iter().enumerate() {
        let mut row = vec![name.label().to_owned()];
        for share in [0.5, 0.99, 0.999] {
            row.push(number(cycle_us(index, share)));
            row.push(number(cycle_us(index, share) / cycle_us(0, share)));
        }
        table.row(row);
    }
    print!("\nOne client while {OTHER_TASKS} other tasks run, all rounds together\n{table}");
}

/// Waits up to one second until no lock key of this implementation is left on any master. Returns the number of keys
/// that are left then, on all masters together.
fn keys_left(masters: &Masters, name: Name) -> usize {
    let pattern = format!("{}:*", name.prefix());
    let count_keys = || -> usize {
        let count_on = |master: &Server| match master.command(&["KEYS", &pattern]) {
            Ok(Reply::Array(keys)) => keys.len(),
            other => panic!("a healthy master must answer KEYS with a list, not with {other:?}"),
        };
        masters.iter().map(count_on).sum()
    };
    for _ in 0..20 {
        if count_keys() == 0 {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    count_keys()
}

/// Prints the goals and whether they are met. The goals apply only to five masters.
fn print_goals(args: &Args, names: &[Name], results: &[Rounds]) {
    println!();
    let cycle_p50 = |rounds: &Rounds, round: usize| quantile(&rounds.alone[round].cycle, 0.5);
    for (name, bound_alone, bursts) in [
        (Name::Classic, 0.92, [(64, 1.3), (512, 1.6)]),
        (Name::Default, 1.08, [(64, 1.0), (512, 1.1)]),
    ] {
        let Some(index) = names.iter().position(|other| *other == name) else {
            continue;
        };
        let label = name.label();
        let description =
            format!("{label}, p50 time of a cycle of one client, ratio to the baseline");
        print_goal(
            &description,
            ratio_to_floor(results, index, cycle_p50).median,
            Bound::AtMost(bound_alone),
        );
        for (tasks, bound) in bursts {
            if args.tasks.contains(&tasks) {
                let burst_rate =
                    move |rounds: &Rounds, round: usize| rounds.bursts[&tasks][round].per_second;
                let description =
                    format!("{label}, throughput of {tasks} tasks, ratio to the baseline");
                print_goal(
                    &description,
                    ratio_to_floor(results, index, burst_rate).median,
                    Bound::AtLeast(bound),
                );
            }
        }
        let p99_among = |index: usize| {
            quantile_of_all_rounds(&results[index].among, |rounds| &rounds.cycle, 0.99)
        };
        let description = format!(
            "{label}, p99 time of a cycle of one client while {OTHER_TASKS} other tasks run, ratio to the baseline"
        );
        print_goal(
            &description,
            p99_among(index) / p99_among(0),
            Bound::AtMost(1.0),
        );
        for tasks in [64, 512] {
            if args.tasks.contains(&tasks) {
                let servers_us =
                    move |rounds: &Rounds, round: usize| rounds.bursts[&tasks][round].servers_us;
                let description = format!(
                    "{label}, server CPU per cycle with {tasks} tasks, ratio to the baseline"
                );
                print_goal(
                    &description,
                    ratio_to_floor(results, index, servers_us).median,
                    Bound::AtMost(1.35),
                );
            }
        }
        if args.tasks.contains(&512) {
            let client_us = |rounds: &Rounds, round: usize| rounds.bursts[&512][round].client_us;
            let description = format!("{label}, client CPU per cycle with 512 tasks, in us");
            print_goal(
                &description,
                median_of_rounds(results, index, client_us),
                Bound::AtMost(8.0),
            );
        }
    }
}

/// A quantile of the samples of all rounds together, because a single round has too few samples for high quantiles.
fn quantile_of_all_rounds(rounds: &[Samples], pick: fn(&Samples) -> &Vec<u64>, share: f64) -> f64 {
    let mut values: Vec<u64> = rounds
        .iter()
        .flat_map(|round| pick(round).iter().copied())
        .collect();
    values.sort_unstable();
    quantile(&values, share)
}

fn failures(failed: impl Iterator<Item = u64>) -> String {
    match failed.sum::<u64>() {
        0 => String::new(),
        failed => failed.to_string(),
    }
}

fn print_burst(tasks: usize, names: &[Name], results: &[Rounds]) {
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
    for (index, name) in names.iter().enumerate() {
        let value_of = |value: fn(&Burst) -> f64| {
            move |rounds: &Rounds, round: usize| value(&rounds.bursts[&tasks][round])
        };
        let (burst_rate, client_us) = (value_of(|c| c.per_second), value_of(|c| c.client_us));
        let servers_us = value_of(|c| c.servers_us);
        table.row([
            name.label().to_owned(),
            ratio(ratio_to_floor(results, index, burst_rate)),
            number(median_of_rounds(results, index, burst_rate)),
            ratio(ratio_to_floor(results, index, client_us)),
            number(median_of_rounds(results, index, client_us)),
            ratio(ratio_to_floor(results, index, servers_us)),
            number(median_of_rounds(results, index, servers_us)),
            number(median_of_rounds(results, index, value_of(|c| c.sent))),
            number(median_of_rounds(results, index, value_of(|c| c.ran))),
            number(median_of_rounds(results, index, value_of(|c| c.bytes))),
            failures(
                results[index].bursts[&tasks]
                    .iter()
                    .map(|round| round.failed),
            ),
        ]);
    }
    print!("\n{tasks} tasks on distinct resources\n{table}");
}

fn print_json(masters: usize, rounds: usize, names: &[Name], results: &[Rounds]) {
    let contenders: Vec<_> = names
        .iter()
        .zip(results)
        .map(|(name, measured)| {
            let quantiles = |pick: fn(&Samples) -> &Vec<u64>, share: f64| -> Vec<f64> {
                let rounds = measured.alone.iter();
                rounds.map(|r| quantile(pick(r), share) / 1e3).collect()
            };
            serde_json::json!({
                "name": name,
                "cycle_p50_us": quantiles(|r| &r.cycle, 0.5),
                "cycle_p99_us": quantiles(|r| &r.cycle, 0.99),
                "cycle_p999_us": quantile_of_all_rounds(&measured.alone, |r| &r.cycle, 0.999) / 1e3,
                "acquire_p50_us": quantiles(|r| &r.acquire, 0.5),
                "release_p50_us": quantiles(|r| &r.release, 0.5),
                "bursts": measured.bursts,
            })
        })
        .collect();
    let report = serde_json::json!({
        "masters": masters, "rounds": rounds, "contenders": contenders,
    });
    println!("\n{report:#}");
}
