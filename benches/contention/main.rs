//! Measures fair waiting under contention:
//!
//! - the cost of an acquisition, without the time for which the lock is held
//! - fairness
//! - the hand-over time
//! - the load of the masters
//!
//! One run measures all arrangements (numbers of processes and tasks), one after the other.
//!
//! `cargo bench -p quorate --bench contention` starts five masters. It prints a table of the measured figures, and
//! then whether they meet the goals of the benchmark.
//!
//! Arguments follow `--`, for example `--rounds=10`. With `--clients`, the program measures only waiting clients that
//! have connections of their own: 10, 1,000 and 3,000 clients.
//!
//! For each worker process, the program starts itself again with `--worker`.

mod least;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use quorate::{Instant, LockGuard, NodeOutcome, Phase, Redlock, RestartGuard, Wait};
use quorate_testbed::Masters;
use quorate_testbed::measure::{Counts, number, quantile, servers_cpu};
use quorate_testbed::table::Table;

const RESOURCE: &str = "contended";
const HOLD: Duration = Duration::from_millis(5);

/// One acquisition, recorded by the task that made it. Times are in nanoseconds of a clock that all processes share.
#[derive(Clone, Copy)]
struct Acquisition {
    task: usize,
    /// The time from the start of the successful attempt to the answer that completed a majority.
    granted_in: u64,
    acquired_at: u64,
    released_at: u64,
    order: u64,
}

/// The measured figures of one arrangement of processes and tasks. Times are in milliseconds.
struct Figures {
    name: &'static str,
    overhead_ms: f64,
    most_per_task: usize,
    fewest_per_task: usize,
    handover_mean: f64,
    handover_p50: f64,
    handover_p99: f64,
    /// The median time from a release until the next holder begins its successful attempt.
    wake_p50: f64,
    granted_p50: f64,
    commands_sent: f64,
    commands_run: f64,
    per_second: f64,
    /// The processor time of an average master, in percent of a core.
    master_percent: f64,
}

/// An arrangement to be measured, as a tuple:
///
/// - its name
/// - the number of processes
/// - the number of tasks per process
/// - the mode of waiting: `fair`, `unordered`, `clients` (as `fair`, but each task has a client of its own), or `least`
///   (SET NX PX without the library)
/// - the pause of a task between two acquisitions, in milliseconds
type Arrangement = (&'static str, usize, usize, &'static str, u64);

/// The arrangements that are measured while all masters run.
const ARRANGEMENTS: [Arrangement; 8] = [
    ("fair: 1 process x 16 tasks", 1, 16, "fair", 0),
    ("fair: 4 processes x 4 tasks", 4, 4, "fair", 0),
    (
        "fair: 4 processes x 4 tasks, 10 ms pause between acquisitions",
        4,
        4,
        "fair",
        10,
    ),
    ("unordered: 1 process x 16 tasks", 1, 16, "unordered", 0),
    ("unordered: 4 processes x 4 tasks", 4, 4, "unordered", 0),
    (
        "SET NX PX without quorate: 2 processes x 1 task",
        2,
        1,
        "least",
        0,
    ),
    ("fair: 2 processes x 1 task", 2, 1, "fair", 0),
    ("fair: 1 process x 1000 tasks", 1, 1000, "fair", 0),
];

/// The arrangements that are measured with `--clients`.
const CLIENTS: [Arrangement; 3] = [
    ("fair: 2 processes x 5 clients", 2, 5, "clients", 0),
    ("fair: 4 processes x 250 clients", 4, 250, "clients", 0),
    ("fair: 4 processes x 750 clients", 4, 750, "clients", 0),
];

/// The arrangement that is measured while two of the five masters do not answer.
const TWO_MASTERS_STOPPED: Arrangement = (
    "fair: 4 processes x 4 tasks, 2 of 5 masters stopped",
    4,
    4,
    "fair",
    0,
);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(position) = args.iter().position(|arg| arg == "--worker") {
        return worker(&args[position + 1..]);
    }
    if args.iter().any(|arg| arg == "--test") {
        return; // `cargo test --benches` only builds it.
    }
    let masters = Masters::start(5).expect("five masters must start (is redis-server installed?)");
    let rounds_text = args.iter().find_map(|arg| arg.strip_prefix("--rounds="));
    let rounds: usize =
        rounds_text.map_or(3, |text| text.parse().expect("--rounds must be a number"));
    let many_clients = args.iter().any(|arg| arg == "--clients");
    let arrangements = if many_clients {
        &CLIENTS[..]
    } else {
        &ARRANGEMENTS
    };
    let mut results: Vec<Vec<Figures>> = arrangements.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (arrangement, rounds) in arrangements.iter().zip(&mut results) {
            rounds.push(measure(&masters, arrangement));
        }
    }
    if many_clients {
        return print_table(&results.into_iter().map(median_round).collect::<Vec<_>>());
    }
    masters[3].stop().expect("the master must stop");
    masters[4].stop().expect("the master must stop");
    results.push(
        (0..rounds)
            .map(|_| measure(&masters, &TWO_MASTERS_STOPPED))
            .collect(),
    );
    let table: Vec<Figures> = results.into_iter().map(median_round).collect();
    print_table(&table);
    print_goals(&table);
}

/// The round with the median cost per acquisition, because other processes can distort a single round.
fn median_round(mut rounds: Vec<Figures>) -> Figures {
    rounds.sort_by(|a, b| a.overhead_ms.total_cmp(&b.overhead_ms));
    rounds.swap_remove(rounds.len() / 2)
}

/// Prints the goals of the benchmark and whether they are met.
fn print_goals(figures: &[Figures]) {
    println!();
    let print_goal = |description: &str, bound: f64, value: f64| {
        let verdict = if value <= bound { "met" } else { "MISSED" };
        println!(
            "goal: {description}: at most {bound}; measured {}: {verdict}",
            number(value)
        );
    };
    let [
        one_process,
        four_processes,
        four_with_pause,
        _,
        _,
        without_quorate,
        two_processes,
        ..,
    ] = figures
    else {
        return;
    };
    for (description, bound, value) in [
        (
            "mean",
            1.05,
            two_processes.handover_mean / without_quorate.handover_mean,
        ),
        (
            "p99",
            0.8,
            two_processes.handover_p99 / without_quorate.handover_p99,
        ),
    ] {
        print_goal(
            &format!(
                "{description} hand-over time between two processes, ratio to SET NX PX without quorate"
            ),
            bound,
            value,
        );
    }
    print_goal(
        "commands sent per acquisition, 1 process",
        10.0,
        one_process.commands_sent,
    );
    print_goal(
        "commands sent per acquisition, 4 processes",
        22.0,
        four_processes.commands_sent,
    );
    for (mean_description, p99_description, figures) in [
        (
            "mean hand-over time between processes in ms, 10 ms pause between acquisitions",
            "its p99",
            four_with_pause,
        ),
        (
            "mean hand-over time between processes in ms, no pause between acquisitions",
            "its p99",
            four_processes,
        ),
    ] {
        print_goal(mean_description, 0.9, figures.handover_mean);
        print_goal(p99_description, 1.4, figures.handover_p99);
    }
}

fn print_table(figures: &[Figures]) {
    let mut table = Table::new([
        "",
        "beyond hold ms",
        "acquisitions per task, most / fewest",
        "mean hand-over ms",
        "p50 ms",
        "p99 ms",
        "p50 ms, release to start of successful attempt",
        "p50 ms, duration of successful attempt",
        "commands sent",
        "incl. in scripts",
        "turns/s",
        "CPU of a master, % of a core",
    ]);
    for row in figures {
        table.row([
            row.name.to_owned(),
            number(row.overhead_ms),
            format!("{} / {}", row.most_per_task, row.fewest_per_task),
            number(row.handover_mean),
            number(row.handover_p50),
            number(row.handover_p99),
            number(row.wake_p50),
            number(row.granted_p50),
            number(row.commands_sent),
            number(row.commands_run),
            number(row.per_second),
            number(row.master_percent),
        ]);
    }
    print!("{table}");
}

/// Runs the workers of an arrangement. Together they make 200 acquisitions, or one per task if there are more than 200
/// tasks.
fn measure(masters: &Masters, arrangement: &Arrangement) -> Figures {
    let &(name, processes, tasks, mode, pause) = arrangement;
    let total = (processes * tasks).max(200);
    let urls = masters.urls().join(",");
    let program = std::env::current_exe().expect("the path of this program must be known");
    let mut children: Vec<_> = (0..processes)
        .map(|process| {
            let share = (total / processes).to_string();
            Command::new(&program)
                .args(["--worker", &urls, &tasks.to_string(), &share, mode])
                .args([process.to_string(), pause.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the worker must start")
        })
        .collect();
    // Wait until every worker has connected. The workers acquire no lock before this process sends the start command
    // below.
    let mut readers = Vec::new();
    for child in &mut children {
        let stdout = child.stdout.take();
        let mut reader =
            std::io::BufReader::new(stdout.expect("the stdout of the worker must be piped"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut reader, &mut line)
            .expect("the worker must print that it is ready");
        readers.push(reader);
    }
    // In the mode `least`, clients send SET themselves. In the other modes only scripts call it: do not count it there.
    let counts_before = Counts::read(masters, mode == "least");
    let cpu_before = servers_cpu(masters);
    for child in &mut children {
        child
            .stdin
            .take()
            .expect("the stdin of the worker must be piped")
            .write_all(b"go\n")
            .expect("the worker must read the start command");
    }
    let mut acquisitions: Vec<Acquisition> = Vec::new();
    for (process, reader) in readers.into_iter().enumerate() {
        for line in std::io::BufRead::lines(reader) {
            let line = line.expect("the worker must print text");
            let mut fields = line
                .split(' ')
                .map(|field| field.parse::<u64>().expect("the worker must print numbers"));
            let mut next_field = || {
                fields
                    .next()
                    .expect("each line from a worker must have five fields")
            };
            let task = process * tasks
                + usize::try_from(next_field()).expect("the task number must fit into usize");
            acquisitions.push(Acquisition {
                task,
                granted_in: next_field(),
                acquired_at: next_field(),
                released_at: next_field(),
                order: next_field(),
            });
        }
    }
    for child in &mut children {
        assert!(child.wait().expect("the worker must end").success());
    }
    let cpu = servers_cpu(masters).saturating_sub(cpu_before) / masters.len() as u32;
    let counts = Counts::read(masters, mode == "least").since(counts_before);
    figures(name, acquisitions, (processes, tasks), counts, cpu)
}

fn figures(
    name: &'static str,
    mut acquisitions: Vec<Acquisition>,
    (processes, tasks): (usize, usize),
    counts: Counts,
    cpu: Duration,
) -> Figures {
    acquisitions.sort_by_key(|acquisition| acquisition.order);
    let count = acquisitions.len();
    let first_acquired_at = acquisitions
        .iter()
        .map(|acquisition| acquisition.acquired_at)
        .min()
        .unwrap_or(0);
    let last_released_at = acquisitions
        .iter()
        .map(|acquisition| acquisition.released_at)
        .max()
        .unwrap_or(0);
    let total_hold: u64 = acquisitions
        .iter()
        .map(|acquisition| acquisition.released_at - acquisition.acquired_at)
        .sum();
    // Count hand-overs between processes, or between tasks if there is only one process.
    let holder_of =
        |acquisition: &Acquisition| acquisition.task / if processes > 1 { tasks } else { 1 };
    let hand_overs = || {
        acquisitions
            .windows(2)
            .filter(|pair| holder_of(&pair[0]) != holder_of(&pair[1]))
    };
    let gap_of = |pair: &[Acquisition]| pair[1].acquired_at.saturating_sub(pair[0].released_at);
    let sorted = |mut values: Vec<u64>| {
        values.sort_unstable();
        values
    };
    let gaps = sorted(hand_overs().map(gap_of).collect());
    let attempt_times = sorted(hand_overs().map(|pair| pair[1].granted_in).collect());
    let wake_times = sorted(
        hand_overs()
            .map(|pair| gap_of(pair).saturating_sub(pair[1].granted_in))
            .collect(),
    );
    let mut per_task = vec![0usize; processes * tasks];
    for acquisition in &acquisitions {
        per_task[acquisition.task] += 1;
    }
    Figures {
        name,
        overhead_ms: (last_released_at - first_acquired_at - total_hold) as f64
            / 1e6
            / (count - 1) as f64,
        most_per_task: per_task.iter().copied().max().unwrap_or(0),
        fewest_per_task: per_task.iter().copied().min().unwrap_or(0),
        handover_mean: gaps.iter().sum::<u64>() as f64 / gaps.len() as f64 / 1e6,
        handover_p50: quantile(&gaps, 0.5) / 1e6,
        handover_p99: quantile(&gaps, 0.99) / 1e6,
        wake_p50: quantile(&wake_times, 0.5) / 1e6,
        granted_p50: quantile(&attempt_times, 0.5) / 1e6,
        commands_sent: counts.sent as f64 / count as f64,
        commands_run: counts.ran as f64 / count as f64,
        per_second: count as f64 / ((last_released_at - first_acquired_at) as f64 / 1e9),
        master_percent: 100.0 * cpu.as_secs_f64()
            / ((last_released_at - first_acquired_at) as f64 / 1e9),
    }
}

/// The main function of a worker process: makes `turns` acquisitions in total with `tasks` tasks, and prints one line
/// per acquisition.
fn worker(args: &[String]) {
    let [urls, tasks, turns, mode, process, pause] = args else {
        panic!("the arguments must be --worker URLS TASKS TURNS MODE PROCESS PAUSE")
    };
    let pause = Duration::from_millis(pause.parse().expect("PAUSE must be a number"));
    let tasks: usize = tasks.parse().expect("TASKS must be a number");
    let turns: usize = turns.parse().expect("TURNS must be a number");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the async runtime must start");
    if mode == "least" {
        let addresses: Vec<&str> = urls
            .split(',')
            .map(|url| url.trim_start_matches("redis://"))
            .collect();
        let process_index = process.parse().expect("PROCESS must be a number");
        let acquisitions = least::run_process(&addresses, process_index, turns);
        return print_acquisitions(tokio::task::LocalSet::new().block_on(&runtime, acquisitions));
    }
    let acquisitions = runtime.block_on(async {
        let builder = Redlock::builder()
            .masters(urls.split(','))
            .restart_guard(RestartGuard::Off)
            .wait(Wait::For(Duration::from_secs(600)));
        let ordered_builder = if mode == "unordered" {
            builder.order(quorate::Order::Unordered)
        } else {
            builder
        };
        let clients = if mode == "clients" { tasks } else { 1 };
        let mut redlocks = Vec::new();
        for n in 0..clients {
            let redlock = ordered_builder
                .clone()
                .build()
                .expect("the settings must be valid");
            let guard = redlock.acquire(format!("warm-up {process} {n}")).await;
            let guard = guard.expect("a majority must grant the lock");
            guard.release().await;
            redlocks.push(redlock);
        }
        println!("ready");
        let mut line = String::new();
        std::io::stdin()
            .read_line(&mut line)
            .expect("the worker must read the start command from stdin");
        let remaining = Arc::new(AtomicIsize::new(turns as isize));
        let mut task_set = tokio::task::JoinSet::new();
        for task in 0..tasks {
            let (redlock, remaining) = (redlocks[task % clients].clone(), remaining.clone());
            task_set.spawn(acquire_repeatedly(redlock, task, remaining, pause));
        }
        let acquisitions = task_set.join_all().await.concat();
        for redlock in redlocks {
            redlock.flush().await;
        }
        acquisitions
    });
    print_acquisitions(acquisitions);
}

/// One task of a worker process. It makes acquisitions until `remaining` is 0. `remaining` is the number of
/// acquisitions that remain for all tasks of the process together.
async fn acquire_repeatedly(
    redlock: Redlock,
    task: usize,
    remaining: Arc<AtomicIsize>,
    pause: Duration,
) -> Vec<Acquisition> {
    let mut acquisitions = Vec::new();
    while remaining.fetch_sub(1, Ordering::Relaxed) > 0 {
        let guard = redlock
            .acquire(RESOURCE)
            .await
            .expect("the lock must be granted before the wait times out");
        let acquired_at = Instant::now().as_nanos();
        let granted_in = granted_in(&guard);
        tokio::time::sleep(HOLD).await;
        let order = guard.fencing_token().unwrap_or(0);
        let released_at = Instant::now().as_nanos();
        guard.release().await;
        acquisitions.push(Acquisition {
            task,
            granted_in,
            acquired_at,
            released_at,
            order,
        });
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    acquisitions
}

/// The time from the start of the successful attempt to the answer that completed a majority, in nanoseconds.
fn granted_in(guard: &LockGuard) -> u64 {
    let report = guard.report();
    let grants = report.iter().filter(|node_report| {
        node_report.outcome == NodeOutcome::Yes && node_report.phase == Phase::Acquire
    });
    let mut latencies: Vec<u64> = grants
        .filter_map(|node_report| Some(node_report.latency?.as_nanos() as u64))
        .collect();
    latencies.sort_unstable();
    latencies.get(report.len() / 2).copied().unwrap_or(0)
}

fn print_acquisitions(acquisitions: Vec<Acquisition>) {
    let mut out = std::io::stdout().lock();
    for acquisition in acquisitions {
        writeln!(
            out,
            "{} {} {} {} {}",
            acquisition.task,
            acquisition.granted_in,
            acquisition.acquired_at,
            acquisition.released_at,
            acquisition.order
        )
        .expect("stdout must be writable");
    }
}
