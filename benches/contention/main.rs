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
struct Turn {
    task: usize,
    /// The time from the start of the successful attempt to the answer that completed a majority.
    granted_in: u64,
    obtained: u64,
    releasing: u64,
    order: u64,
}

/// The measured figures of one arrangement of processes and tasks. Times are in milliseconds.
struct Figures {
    name: &'static str,
    beyond_hold: f64,
    most: usize,
    fewest: usize,
    handover_mean: f64,
    handover_p50: f64,
    handover_p99: f64,
    /// The median time from a release until the next holder begins its successful attempt.
    woken_p50: f64,
    granted_p50: f64,
    sent: f64,
    all: f64,
    rate: f64,
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
const STOPPED: Arrangement = (
    "fair: 4 processes x 4 tasks, 2 of 5 masters stopped",
    4,
    4,
    "fair",
    0,
);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--worker") {
        return worker(&args[at + 1..]);
    }
    if args.iter().any(|arg| arg == "--test") {
        return; // `cargo test --benches` only builds it.
    }
    let masters = Masters::start(5).expect("five masters must start (is redis-server installed?)");
    let rounds = args.iter().find_map(|arg| arg.strip_prefix("--rounds="));
    let rounds: usize = rounds.map_or(3, |rounds| {
        rounds.parse().expect("--rounds must be a number")
    });
    let many_clients = args.iter().any(|arg| arg == "--clients");
    let arrangements = if many_clients {
        &CLIENTS[..]
    } else {
        &ARRANGEMENTS
    };
    let mut seen: Vec<Vec<Figures>> = arrangements.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (arrangement, seen) in arrangements.iter().zip(&mut seen) {
            seen.push(measure(&masters, arrangement));
        }
    }
    if many_clients {
        return print(&seen.into_iter().map(middle).collect::<Vec<_>>());
    }
    masters[3].stop().expect("the master must stop");
    masters[4].stop().expect("the master must stop");
    seen.push((0..rounds).map(|_| measure(&masters, &STOPPED)).collect());
    let table: Vec<Figures> = seen.into_iter().map(middle).collect();
    print(&table);
    goals(&table);
}

/// The round with the median cost per acquisition, because other processes can distort a single round.
fn middle(mut rounds: Vec<Figures>) -> Figures {
    rounds.sort_by(|a, b| a.beyond_hold.total_cmp(&b.beyond_hold));
    rounds.swap_remove(rounds.len() / 2)
}

/// Prints the goals of the benchmark and whether they are met.
fn goals(figures: &[Figures]) {
    println!();
    let goal = |what: &str, most: f64, value: f64| {
        let verdict = if value <= most { "met" } else { "MISSED" };
        println!(
            "goal: {what}: at most {most}; measured {}: {verdict}",
            number(value)
        );
    };
    let [one, four, paused, _, _, least, two, ..] = figures else {
        return;
    };
    for (what, most, value) in [
        ("mean", 1.05, two.handover_mean / least.handover_mean),
        ("p99", 0.8, two.handover_p99 / least.handover_p99),
    ] {
        goal(
            &format!(
                "{what} hand-over time between two processes, ratio to SET NX PX without quorate"
            ),
            most,
            value,
        );
    }
    goal("commands sent per acquisition, 1 process", 10.0, one.sent);
    goal(
        "commands sent per acquisition, 4 processes",
        22.0,
        four.sent,
    );
    for (mean, p99, figures) in [
        (
            "mean hand-over time between processes in ms, 10 ms pause between acquisitions",
            "its p99",
            paused,
        ),
        (
            "mean hand-over time between processes in ms, no pause between acquisitions",
            "its p99",
            four,
        ),
    ] {
        goal(mean, 0.9, figures.handover_mean);
        goal(p99, 1.4, figures.handover_p99);
    }
}

fn print(figures: &[Figures]) {
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
            number(row.beyond_hold),
            format!("{} / {}", row.most, row.fewest),
            number(row.handover_mean),
            number(row.handover_p50),
            number(row.handover_p99),
            number(row.woken_p50),
            number(row.granted_p50),
            number(row.sent),
            number(row.all),
            number(row.rate),
            number(row.master_percent),
        ]);
    }
    print!("{table}");
}

/// Runs the workers of an arrangement. Together they make 200 acquisitions, or one per task if there are more than 200
/// tasks.
fn measure(masters: &Masters, arrangement: &Arrangement) -> Figures {
    let &(name, processes, tasks, mode, pause) = arrangement;
    let turns = (processes * tasks).max(200);
    let urls = masters.urls().join(",");
    let program = std::env::current_exe().expect("the path of this program must be known");
    let mut children: Vec<_> = (0..processes)
        .map(|process| {
            let share = (turns / processes).to_string();
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
    let before = Counts::read(masters, mode == "least");
    let cpu = servers_cpu(masters);
    for child in &mut children {
        child
            .stdin
            .take()
            .expect("the stdin of the worker must be piped")
            .write_all(b"go\n")
            .expect("the worker must read the start command");
    }
    let mut seen: Vec<Turn> = Vec::new();
    for (process, reader) in readers.into_iter().enumerate() {
        for line in std::io::BufRead::lines(reader) {
            let line = line.expect("the worker must print text");
            let mut fields = line
                .split(' ')
                .map(|field| field.parse::<u64>().expect("the worker must print numbers"));
            let mut next = || {
                fields
                    .next()
                    .expect("each line from a worker must have five fields")
            };
            let task = process * tasks
                + usize::try_from(next()).expect("the task number must fit into usize");
            seen.push(Turn {
                task,
                granted_in: next(),
                obtained: next(),
                releasing: next(),
                order: next(),
            });
        }
    }
    for child in &mut children {
        assert!(child.wait().expect("the worker must end").success());
    }
    let cpu = servers_cpu(masters).saturating_sub(cpu) / masters.len() as u32;
    let counts = Counts::read(masters, mode == "least").since(before);
    figures(name, seen, (processes, tasks), counts, cpu)
}

fn figures(
    name: &'static str,
    mut seen: Vec<Turn>,
    (processes, tasks): (usize, usize),
    counts: Counts,
    cpu: Duration,
) -> Figures {
    seen.sort_by_key(|turn| turn.order);
    let count = seen.len();
    let first = seen.iter().map(|turn| turn.obtained).min().unwrap_or(0);
    let last = seen.iter().map(|turn| turn.releasing).max().unwrap_or(0);
    let held: u64 = seen.iter().map(|turn| turn.releasing - turn.obtained).sum();
    // Count hand-overs between processes, or between tasks if there is only one process.
    let party = |turn: &Turn| turn.task / if processes > 1 { tasks } else { 1 };
    let passed = || {
        seen.windows(2)
            .filter(|pair| party(&pair[0]) != party(&pair[1]))
    };
    let gap = |pair: &[Turn]| pair[1].obtained.saturating_sub(pair[0].releasing);
    let sorted = |mut all: Vec<u64>| {
        all.sort_unstable();
        all
    };
    let gaps = sorted(passed().map(gap).collect());
    let granted = sorted(passed().map(|pair| pair[1].granted_in).collect());
    let woken = sorted(
        passed()
            .map(|pair| gap(pair).saturating_sub(pair[1].granted_in))
            .collect(),
    );
    let mut per_task = vec![0usize; processes * tasks];
    for turn in &seen {
        per_task[turn.task] += 1;
    }
    Figures {
        name,
        beyond_hold: (last - first - held) as f64 / 1e6 / (count - 1) as f64,
        most: per_task.iter().copied().max().unwrap_or(0),
        fewest: per_task.iter().copied().min().unwrap_or(0),
        handover_mean: gaps.iter().sum::<u64>() as f64 / gaps.len() as f64 / 1e6,
        handover_p50: quantile(&gaps, 0.5) / 1e6,
        handover_p99: quantile(&gaps, 0.99) / 1e6,
        woken_p50: quantile(&woken, 0.5) / 1e6,
        granted_p50: quantile(&granted, 0.5) / 1e6,
        sent: counts.sent as f64 / count as f64,
        all: counts.ran as f64 / count as f64,
        rate: count as f64 / ((last - first) as f64 / 1e9),
        master_percent: 100.0 * cpu.as_secs_f64() / ((last - first) as f64 / 1e9),
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
        let this = process.parse().expect("PROCESS must be a number");
        let work = least::work(&addresses, this, turns);
        return print_turns(tokio::task::LocalSet::new().block_on(&runtime, work));
    }
    let taken = runtime.block_on(async {
        let builder = Redlock::builder()
            .masters(urls.split(','))
            .restart_guard(RestartGuard::Off)
            .wait(Wait::For(Duration::from_secs(600)));
        let builder = if mode == "unordered" {
            builder.order(quorate::Order::Unordered)
        } else {
            builder
        };
        let clients = if mode == "clients" { tasks } else { 1 };
        let mut redlocks = Vec::new();
        for n in 0..clients {
            let redlock = builder.clone().build().expect("the settings must be valid");
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
        let left = Arc::new(AtomicIsize::new(turns as isize));
        let mut running = tokio::task::JoinSet::new();
        for task in 0..tasks {
            let (redlock, left) = (redlocks[task % clients].clone(), left.clone());
            running.spawn(take_turns(redlock, task, left, pause));
        }
        let taken = running.join_all().await.concat();
        for redlock in redlocks {
            redlock.flush().await;
        }
        taken
    });
    print_turns(taken);
}

/// One task of a worker process. It makes acquisitions until `left` is 0. `left` is the number of acquisitions that
/// remain for all tasks of the process together.
async fn take_turns(
    redlock: Redlock,
    task: usize,
    left: Arc<AtomicIsize>,
    pause: Duration,
) -> Vec<Turn> {
    let mut taken = Vec::new();
    while left.fetch_sub(1, Ordering::Relaxed) > 0 {
        let guard = redlock
            .acquire(RESOURCE)
            .await
            .expect("the lock must be granted before the wait times out");
        let obtained = Instant::now().as_nanos();
        let granted_in = granted_in(&guard);
        tokio::time::sleep(HOLD).await;
        let order = guard.fencing_token().unwrap_or(0);
        let releasing = Instant::now().as_nanos();
        guard.release().await;
        taken.push(Turn {
            task,
            granted_in,
            obtained,
            releasing,
            order,
        });
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    taken
}

/// The time from the start of the successful attempt to the answer that completed a majority, in nanoseconds.
fn granted_in(guard: &LockGuard) -> u64 {
    let report = guard.report();
    let yes = report
        .iter()
        .filter(|said| said.outcome == NodeOutcome::Yes && said.phase == Phase::Acquire);
    let mut took: Vec<u64> = yes
        .filter_map(|said| Some(said.latency?.as_nanos() as u64))
        .collect();
    took.sort_unstable();
    took.get(report.len() / 2).copied().unwrap_or(0)
}

fn print_turns(taken: Vec<Turn>) {
    let mut out = std::io::stdout().lock();
    for turn in taken {
        writeln!(
            out,
            "{} {} {} {} {}",
            turn.task, turn.granted_in, turn.obtained, turn.releasing, turn.order
        )
        .expect("stdout must be writable");
    }
}
