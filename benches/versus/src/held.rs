//! Measures a process that holds and renews many locks: its memory and processor time, the commands that it sends, and
//! the remaining leases of its locks. Checks whether the cost per lock grows with the number of locks.
//!
//! For each number of locks, the program starts itself again as a new process. Otherwise one measurement could reuse
//! memory that the previous measurement has freed.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::{LockGuard, Redlock};
use quorate_testbed::Masters;
use quorate_testbed::measure::{Counts, Spread, Usage, number, servers_cpu};
use quorate_testbed::table::Table;
use serde::{Deserialize, Serialize};

use crate::contender::{Addresses, Contender, Name, TTL, settings};
use crate::floor::{Floor, Released};
use crate::goal::{Bound, climb, goal};
use crate::versus::{burst, runtime};

/// The pause after the last acquisition. It gives the masters time to store the holder's note of each lock (the text by
/// which `status` shows the holder).
const NOTED: Duration = Duration::from_secs(2);

/// Arguments of the subcommand `held`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The numbers of held locks, measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000, 10_000, 100_000])]
    counts: Vec<usize>,
    /// The implementations that are measured
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Name::Classic, Name::Default])]
    only: Vec<Name>,
    /// The number of rounds; in each round every implementation is measured once with each number of locks
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The time in seconds for which the process is measured after all locks are acquired; it should cover at least two
    /// renewals
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The node timeout in milliseconds [default: the default of the library]
    #[arg(long)]
    node_timeout_ms: Option<u64>,
}

impl Args {
    fn turn(&self, name: Name, count: usize) -> Hold {
        Hold {
            name,
            count,
            seconds: self.seconds,
            node_timeout_ms: self.node_timeout_ms,
            notes: true,
            brief: false,
            in_tasks: false,
        }
    }
}

/// Arguments of the hidden subcommand `holder`, which runs a process that holds locks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HolderArgs {
    #[arg(long)]
    urls: String,
    #[arg(long)]
    count: usize,
    #[arg(long, value_enum)]
    name: Name,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    node_timeout_ms: Option<u64>,
    /// Hold the locks without holder's notes, so that `status` does not show the holder
    #[arg(long)]
    without_notes: bool,
    /// Skip the measurements of the remaining leases and of the cost of one more acquire and release
    #[arg(long)]
    brief: bool,
    /// Acquire and hold each lock in a task of its own
    #[arg(long)]
    in_tasks: bool,
}

/// The measurements of one process that holds locks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    acquired: usize,
    /// The client's resident memory per lock, in bytes, right after the last acquisition. Does not include the memory
    /// that the client used before the first acquisition. Includes the guards and the names of the locks.
    taken_memory: f64,
    pub(crate) memory_per_lock: f64,
    /// The processor time of the client while it renews its locks, in percent of one core.
    pub(crate) cpu_percent: f64,
    /// The smallest remaining lease that was observed among all locks, in milliseconds.
    margin_ms: f64,
    lost: usize,
    /// The client's processor time to acquire and release one more lock while it holds all its locks, in microseconds.
    cycle_us: f64,
}

/// The measurements of one round, for one implementation and one number of locks. `seen` comes from the process that
/// holds the locks. The parent process measures the masters.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) seen: Seen,
    pub(crate) servers_percent: f64,
    sent_per_second: f64,
    /// The memory that one lock takes on each master, in bytes.
    pub(crate) master_memory_per_lock: f64,
}

pub(crate) fn run(args: &Args) {
    let mut rows: Vec<(Name, usize, Vec<Row>)> = Vec::new();
    for &count in &args.counts {
        for &name in &args.only {
            rows.push((name, count, Vec::new()));
        }
    }
    let masters = Masters::start(5).expect("the masters must start (is redis-server installed?)");
    for _ in 0..args.rounds {
        for (name, count, rounds) in &mut rows {
            rounds.push(args.turn(*name, *count).run(&masters));
        }
    }
    println!(
        "5 masters; TTL 10 s; {} interleaved rounds, each measured for {} s; medians of the rounds",
        args.rounds, args.seconds
    );
    print!("\nLocks held and renewed by one process\n{}", table(&rows));
    println!(
        "B/lock: the client's resident memory per lock, including the name and the guard, after at least two renewals. \
         The value is inexact below 1,000 locks, because memory grows by whole pages.\n\
         cycle CPU: processor time to acquire and release one more lock. The time of renewals is subtracted."
    );
    for &name in args.only.iter().filter(|name| **name != Name::Floor) {
        goals(name, &rows);
        let turn = Hold {
            in_tasks: true,
            ..args.turn(name, 10_000)
        };
        let memory = turn.run(&masters).seen.memory_per_lock;
        let what = format!(
            "{}, bytes per lock with its task, with 10000 locks held",
            name.label()
        );
        goal(&what, memory, Bound::Most(1500.0));
    }
    println!(
        "floor is the baseline: it renews 200 locks with one script call per master, and detects no lost locks."
    );
}

/// The table of the measurements, one row for each implementation and number of locks.
fn table(rows: &[(Name, usize, Vec<Row>)]) -> Table {
    let mut table = Table::new([
        "holder",
        "locks",
        "B/lock",
        "[rounds]",
        "B when taken",
        "client % of a core",
        "us/lock/s",
        "servers %",
        "commands/s",
        "least margin ms",
        "lost",
        "cycle CPU us",
    ]);
    for (name, count, rounds) in rows {
        let of = |value: fn(&Row) -> f64| Spread::of(rounds.iter().map(value));
        let memory = of(|row| row.seen.memory_per_lock);
        let cpu = of(|row| row.seen.cpu_percent).median;
        let lost: usize = rounds.iter().map(|row| row.seen.lost).sum();
        // The baseline (`Floor`) does not notice lost locks, so print a dash in its row.
        let unless = |text: String| match name {
            Name::Floor => "-".to_owned(),
            _ => text,
        };
        table.row([
            name.label().to_owned(),
            count.to_string(),
            number(memory.median),
            format!("[{}-{}]", number(memory.least), number(memory.most)),
            number(of(|row| row.seen.taken_memory).median),
            number(cpu),
            number(cpu * 1e4 / *count as f64),
            number(of(|row| row.servers_percent).median),
            number(of(|row| row.sent_per_second).median),
            unless(number(of(|row| row.seen.margin_ms).least)),
            unless(lost.to_string()),
            number(of(|row| row.seen.cycle_us).median),
        ]);
    }
    table
}

/// Prints the goals: no lock is lost, and the cost per lock does not grow with the number of locks.
fn goals(name: Name, rows: &[(Name, usize, Vec<Row>)]) {
    let own: Vec<_> = rows.iter().filter(|row| row.0 == name).collect();
    let lost: usize = own
        .iter()
        .flat_map(|row| &row.2)
        .map(|row| row.seen.lost)
        .sum();
    let label = name.label();
    goal(
        &format!("{label}, locks lost"),
        lost as f64,
        Bound::Most(0.0),
    );
    for row in own.iter().filter(|row| row.1 >= 10_000) {
        let of = |value: fn(&Row) -> f64| Spread::of(row.2.iter().map(value)).median;
        let memory = of(|row| row.seen.memory_per_lock);
        let what = format!("{label}, bytes per lock with {} locks held", row.1);
        goal(&what, memory, Bound::Most(480.0));
        if row.1 == 10_000 {
            let what = format!("{label}, client CPU with 10,000 locks held, in percent of a core");
            goal(&what, of(|row| row.seen.cpu_percent), Bound::Most(0.5));
        }
    }
    let growth = |what: &str, from: usize, value: fn(&Row, f64) -> f64| {
        let of = |row: &(Name, usize, Vec<Row>)| {
            Spread::of(row.2.iter().map(|seen| value(seen, row.1 as f64))).median
        };
        let costs = own.iter().filter(|row| row.1 >= from).map(|row| of(row));
        let worst = climb(costs);
        if worst.is_finite() {
            let what =
                format!("{label}, {what}: largest growth factor as the number of locks increases");
            goal(&what, worst, Bound::Most(1.2));
        }
    };
    growth("client CPU per lock", 0, |row, n| row.seen.cpu_percent / n);
    growth("client CPU of one cycle", 0, |row, _| row.seen.cycle_us);
    growth("memory per lock", 1_000, |row, _| row.seen.memory_per_lock);
}

/// The settings of a process that holds locks.
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) count: usize,
    pub(crate) seconds: u64,
    pub(crate) node_timeout_ms: Option<u64>,
    /// Whether to store holder's notes (the texts by which `status` shows the holders) on the masters.
    pub(crate) notes: bool,
    /// Whether to skip the measurements of the remaining leases and of the cost of one more acquire and release.
    pub(crate) brief: bool,
    /// Whether a task of its own acquires and holds each lock.
    pub(crate) in_tasks: bool,
}

impl Hold {
    fn command(&self, masters: &Masters) -> Command {
        let mut command =
            Command::new(std::env::current_exe().expect("the path of this program must be known"));
        command.args(["holder", "--urls", &masters.urls().join(",")]);
        if let Some(ms) = self.node_timeout_ms {
            command.args(["--node-timeout-ms", &ms.to_string()]);
        }
        command.args(["--count", &self.count.to_string()]);
        command.args(["--name", self.name.prefix()]);
        command.args(["--seconds", &self.seconds.to_string()]);
        command.args((!self.notes).then_some("--without-notes"));
        command.args(self.brief.then_some("--brief"));
        command.args(self.in_tasks.then_some("--in-tasks"));
        command
    }

    /// Starts a process that holds locks. Returns the measurements of that process and of the masters.
    pub(crate) fn run(&self, masters: &Masters) -> Row {
        for master in masters {
            let _ = master.command(&["FLUSHALL"]);
        }
        let empty = master_memory(masters);
        let mut command = self.command(masters);
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("the holder process must start");
        let stdout = child.stdout.take();
        let stdout = stdout.expect("the stdout of the holder process must be piped");
        let mut out = std::io::BufReader::new(stdout);
        let mut line = String::new();
        let mut next = || {
            line.clear();
            std::io::BufRead::read_line(&mut out, &mut line)
                .expect("the holder process must print a line");
            line.clone()
        };
        assert_eq!(next().trim(), "steady");
        let counts = || Counts::read(masters, self.name.sends_set());
        let (cpu, before) = (servers_cpu(masters), counts());
        let started = Instant::now();
        assert_eq!(next().trim(), "over");
        let took = started.elapsed().as_secs_f64();
        let servers = servers_cpu(masters).saturating_sub(cpu).as_secs_f64();
        let counts = counts().since(before);
        let full = master_memory(masters);
        let seen: Seen =
            serde_json::from_str(&next()).expect("the process must print its measurements as JSON");
        child.wait().expect("the holder process must end");
        assert_eq!(
            seen.acquired, self.count,
            "{:?} must acquire all locks",
            self.name
        );
        Row {
            seen,
            servers_percent: 100.0 * servers / took,
            sent_per_second: counts.sent as f64 / took,
            master_memory_per_lock: (full - empty) / self.count as f64,
        }
    }
}

/// The average memory in use per master, in bytes.
fn master_memory(masters: &Masters) -> f64 {
    let used = |text: &str| -> Option<f64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        line?.trim().parse().ok()
    };
    let infos = masters.iter().filter_map(|master| {
        let said = master.command(&["INFO", "memory"]).ok()?;
        used(&said.text()?)
    });
    infos.sum::<f64>() / masters.len() as f64
}

/// The main function of a process that holds `count` locks. It prints three lines for its parent process:
///
/// - `steady`: the parent starts to measure.
/// - `over`: the parent stops measuring.
/// - One line of JSON: the measurements of the holding process itself.
pub(crate) fn holder(args: &HolderArgs) {
    let urls: Vec<String> = args.urls.split(',').map(str::to_owned).collect();
    let seen = runtime(false).block_on(async {
        if args.name == Name::Floor {
            bare(&urls, args).await
        } else if args.in_tasks {
            in_tasks(&urls, args).await
        } else {
            renewing(&urls, args).await
        }
    });
    println!(
        "{}",
        serde_json::to_string(&seen).expect("the measurements must be written as JSON")
    );
}

/// Creates a client that has already acquired and released some locks, so that buffers and script caches are allocated
/// before memory is measured.
async fn warm_client(urls: &[String], args: &HolderArgs) -> Redlock {
    let mut builder = settings(args.name, urls);
    if let Some(ms) = args.node_timeout_ms {
        builder = builder.node_timeout(Duration::from_millis(ms));
    }
    if args.without_notes {
        builder = builder.note(None);
    }
    let redlock = builder.build().expect("the settings must be valid");
    drop(take(&redlock, "warm", 256).await);
    redlock.flush().await;
    redlock
}

/// Acquires and holds each lock in a task of its own, as a service does. The measured memory includes the tasks.
async fn in_tasks(urls: &[String], args: &HolderArgs) -> Seen {
    let redlock = warm_client(urls, args).await;
    let before = own_memory();
    let mut tasks = Vec::with_capacity(args.count);
    while tasks.len() < args.count {
        let mut taken = Vec::new();
        for n in tasks.len()..args.count.min(tasks.len() + 64) {
            let redlock = redlock.clone();
            let (took, when_taken) = tokio::sync::oneshot::channel();
            taken.push(when_taken);
            tasks.push(tokio::spawn(async move {
                let guard = redlock.acquire(format!("held:{n}")).await;
                let guard = guard.expect("the lock must be free");
                let _ = took.send(());
                guard.lost().await
            }));
        }
        futures::future::join_all(taken).await;
    }
    tokio::time::sleep(NOTED).await;
    println!("steady");
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    println!("over");
    let memory = own_memory().saturating_sub(before);
    Seen {
        acquired: tasks.len(),
        memory_per_lock: memory as f64 / args.count as f64,
        lost: tasks.iter().filter(|task| task.is_finished()).count(),
        ..Seen::default()
    }
}

async fn renewing(urls: &[String], args: &HolderArgs) -> Seen {
    let redlock = warm_client(urls, args).await;
    let before = own_memory();
    let taking = Instant::now();
    let guards = take(&redlock, "held", args.count).await;
    let taking = taking.elapsed();
    let gone = guards.iter().filter(|guard| !guard.is_valid()).count();
    let taken = own_memory().saturating_sub(before);
    // Give the masters time to store all holder's notes, so that no note is written during the measurement.
    tokio::time::sleep(NOTED).await;
    println!("steady");
    let rest = tokio::time::sleep(Duration::from_secs(args.seconds));
    let cpu = share(Usage::of(&[], rest).await.1);
    println!("over");
    // Read the memory after the measurement, so that it includes the memory that renewals need.
    let memory = own_memory().saturating_sub(before);
    // Reading the leases takes processor time, so do it after the measurement of `cpu`.
    let looking = if args.brief { 0 } else { args.seconds };
    let margin = least_margin(&guards, Duration::from_secs(looking)).await;
    let causes = losses(&guards);
    if !causes.is_empty() {
        eprintln!(
            "{:?}: {} of {} locks were lost ({causes:?}). Acquiring all locks took {:.1} s, and {gone} locks were \
             lost during this time",
            args.name,
            causes.values().sum::<usize>(),
            guards.len(),
            taking.as_secs_f64()
        );
    }
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    let cycle_us = if args.brief {
        0.0
    } else {
        let client = Contender::Quorate(redlock.clone());
        cycle(Arc::new(client), args.name, cpu).await
    };
    let acquired = guards.len();
    drop(guards);
    redlock.flush().await;
    Seen {
        acquired,
        taken_memory: taken as f64 / args.count as f64,
        memory_per_lock: memory as f64 / args.count as f64,
        cpu_percent: 100.0 * cpu,
        margin_ms: margin.as_secs_f64() * 1e3,
        lost,
        cycle_us,
    }
}

/// Reads the remaining leases of all guards every 200 ms for `time`. Returns the smallest remaining lease.
async fn least_margin(guards: &[LockGuard], time: Duration) -> Duration {
    let mut margin = Duration::MAX;
    let looking = Instant::now();
    while looking.elapsed() < time {
        let least = guards.iter().map(LockGuard::remaining).min();
        margin = margin.min(least.unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    margin
}

/// The number of lost locks for each cause.
fn losses(guards: &[LockGuard]) -> std::collections::BTreeMap<&'static str, usize> {
    use futures::FutureExt;
    let mut causes = std::collections::BTreeMap::new();
    for guard in guards {
        if let Some(cause) = guard.lost().now_or_never() {
            *causes.entry(cause.as_str()).or_default() += 1;
        }
    }
    causes
}

/// Acquires `count` locks, 64 of them at a time.
async fn take(redlock: &Redlock, what: &str, count: usize) -> Vec<LockGuard> {
    use futures::StreamExt;
    futures::stream::iter(0..count)
        .map(|n| {
            let redlock = redlock.clone();
            let resource = format!("{what}:{n}");
            async move {
                redlock
                    .acquire(resource)
                    .await
                    .expect("the lock must be free")
            }
        })
        .buffer_unordered(64)
        .collect()
        .await
}

/// The client's processor time for one cycle (an acquire and its release), in microseconds. Measured with 16 tasks.
///
/// The held locks are renewed at the same time. `renewals` is the processor time of these renewals, as a share of one
/// core. The function subtracts it.
async fn cycle(client: Arc<Contender>, name: Name, renewals: f64) -> f64 {
    // The parent process measures the masters, so give `burst` an empty list of masters.
    let none = Masters::start(0).expect("starting zero masters must succeed");
    let time = Duration::from_millis(300);
    burst(&client, name, &none, 16, time).await;
    let burst = burst(&client, name, &none, 16, time).await;
    burst.client_us - renewals * 1e6 / burst.per_second
}

/// Measures the minimal cost of holding locks. Each lock is only a key and its value. One call of a script on each
/// master renews up to 200 locks.
async fn bare(urls: &[String], args: &HolderArgs) -> Seen {
    let floor = Arc::new(Floor::connect(urls, Released::Majority).await);
    let before = own_memory();
    let mut held: Vec<(String, String)> = Vec::with_capacity(args.count);
    for n in 0..args.count {
        let resource = format!("held:{n}");
        let token = floor
            .acquire(&resource, TTL * 6)
            .await
            .expect("the lock must be free");
        held.push((resource, token));
    }
    let taken = own_memory().saturating_sub(before);
    floor.extend(&held, TTL).await;
    println!("steady");
    let renewing = async {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(args.seconds) {
            floor.extend(&held, TTL).await;
            let next = started.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
            let at = (TTL / 3).mul_f64(next.floor() + 1.0);
            tokio::time::sleep(at.saturating_sub(started.elapsed())).await;
        }
    };
    let cpu = share(Usage::of(&[], renewing).await.1);
    println!("over");
    let memory = own_memory().saturating_sub(before);
    let at = Addresses {
        urls: urls.to_vec(),
        sockets: Vec::new(),
    };
    let client = Contender::connect(Name::Floor, &at).await;
    Seen {
        acquired: held.len(),
        taken_memory: taken as f64 / args.count as f64,
        memory_per_lock: memory as f64 / args.count as f64,
        cpu_percent: 100.0 * cpu,
        margin_ms: 0.0,
        lost: 0,
        cycle_us: cycle(Arc::new(client), Name::Floor, 0.0).await,
    }
}

/// The resident memory of this process, in bytes.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

/// The processor time that this process used during the measurement, as a share of one core: 1.0 is one full core.
fn share(usage: Usage) -> f64 {
    usage.client.as_secs_f64() / usage.took.as_secs_f64()
}
