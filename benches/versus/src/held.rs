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

use crate::contender::{Addresses, Contender, Name, TTL, builder_for};
use crate::floor::{Floor, ReleaseCondition};
use crate::goal::{Bound, largest_growth, print_goal};
use crate::versus::{burst, runtime};

/// The pause after the last acquisition. It gives the masters time to store the holder's note of each lock (the text by
/// which `status` shows the holder).
const NOTE_DELAY: Duration = Duration::from_secs(2);

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
    fn hold(&self, name: Name, count: usize) -> HolderSettings {
        HolderSettings {
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
pub(crate) struct HolderResult {
    acquired: usize,
    /// The client's resident memory per lock, in bytes, right after the last acquisition. Does not include the memory
    /// that the client used before the first acquisition. Includes the guards and the names of the locks.
    memory_after_acquiring: f64,
    pub(crate) memory_per_lock: f64,
    /// The processor time of the client while it renews its locks, in percent of one core.
    pub(crate) cpu_percent: f64,
    /// The smallest remaining lease that was observed among all locks, in milliseconds.
    margin_ms: f64,
    lost: usize,
    /// The client's processor time to acquire and release one more lock while it holds all its locks, in microseconds.
    cycle_us: f64,
}

/// The measurements of one round, for one implementation and one number of locks. `holder` comes from the process that
/// holds the locks. The parent process measures the masters.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) holder: HolderResult,
    pub(crate) masters_percent: f64,
    sent_per_second: f64,
    /// The memory that one lock takes on each master, in bytes.
    pub(crate) master_memory_per_lock: f64,
}

/// All rounds of one implementation with one number of locks.
struct Series {
    name: Name,
    count: usize,
    rounds: Vec<Row>,
}

pub(crate) fn run(args: &Args) {
    let mut series = Vec::new();
    for &count in &args.counts {
        for &name in &args.only {
            series.push(Series {
                name,
                count,
                rounds: Vec::new(),
            });
        }
    }
    let masters = Masters::start(5).expect("the masters must start (is redis-server installed?)");
    for _ in 0..args.rounds {
        for entry in &mut series {
            entry
                .rounds
                .push(args.hold(entry.name, entry.count).run(&masters));
        }
    }
    println!(
        "5 masters; TTL 10 s; {} interleaved rounds, each measured for {} s; medians of the rounds",
        args.rounds, args.seconds
    );
    print!(
        "\nLocks held and renewed by one process\n{}",
        series_table(&series)
    );
    println!(
        "B/lock: the client's resident memory per lock, including the name and the guard, after at least two renewals. \
         The value is inexact below 1,000 locks, because memory grows by whole pages.\n\
         cycle CPU: processor time to acquire and release one more lock. The time of renewals is subtracted."
    );
    for &name in args.only.iter().filter(|name| **name != Name::Floor) {
        print_goals(name, &series);
        let in_tasks_hold = HolderSettings {
            in_tasks: true,
            ..args.hold(name, 10_000)
        };
        let memory = in_tasks_hold.run(&masters).holder.memory_per_lock;
        let description = format!(
            "{}, bytes per lock with its task, with 10000 locks held",
            name.label()
        );
        print_goal(&description, memory, Bound::AtMost(1500.0));
    }
    println!(
        "floor is the baseline: it renews 200 locks with one script call per master, and detects no lost locks."
    );
}

/// The table of the measurements, one row for each implementation and number of locks.
fn series_table(series: &[Series]) -> Table {
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
    for Series {
        name,
        count,
        rounds,
    } in series
    {
        let spread_of = |value: fn(&Row) -> f64| Spread::of(rounds.iter().map(value));
        let memory = spread_of(|row| row.holder.memory_per_lock);
        let cpu = spread_of(|row| row.holder.cpu_percent).median;
        let lost: usize = rounds.iter().map(|row| row.holder.lost).sum();
        // The baseline (`Floor`) does not notice lost locks, so print a dash in its row.
        let unless_floor = |text: String| match name {
            Name::Floor => "-".to_owned(),
            _ => text,
        };
        table.row([
            name.label().to_owned(),
            count.to_string(),
            number(memory.median),
            format!("[{}-{}]", number(memory.least), number(memory.most)),
            number(spread_of(|row| row.holder.memory_after_acquiring).median),
            number(cpu),
            number(cpu * 1e4 / *count as f64),
            number(spread_of(|row| row.masters_percent).median),
            number(spread_of(|row| row.sent_per_second).median),
            unless_floor(number(spread_of(|row| row.holder.margin_ms).least)),
            unless_floor(lost.to_string()),
            number(spread_of(|row| row.holder.cycle_us).median),
        ]);
    }
    table
}

/// Prints the goals: no lock is lost, and the cost per lock does not grow with the number of locks.
fn print_goals(name: Name, series: &[Series]) {
    let own_series: Vec<_> = series.iter().filter(|entry| entry.name == name).collect();
    let lost: usize = own_series
        .iter()
        .flat_map(|entry| &entry.rounds)
        .map(|row| row.holder.lost)
        .sum();
    let label = name.label();
    print_goal(
        &format!("{label}, locks lost"),
        lost as f64,
        Bound::AtMost(0.0),
    );
    for entry in own_series.iter().filter(|entry| entry.count >= 10_000) {
        let median_of =
            |cost_of: fn(&Row) -> f64| Spread::of(entry.rounds.iter().map(cost_of)).median;
        let memory = median_of(|row| row.holder.memory_per_lock);
        let description = format!("{label}, bytes per lock with {} locks held", entry.count);
        print_goal(&description, memory, Bound::AtMost(480.0));
        if entry.count == 10_000 {
            let description =
                format!("{label}, client CPU with 10,000 locks held, in percent of a core");
            print_goal(
                &description,
                median_of(|row| row.holder.cpu_percent),
                Bound::AtMost(0.5),
            );
        }
    }
    let print_growth = |description: &str, least_locks: usize, cost_of: fn(&Row, f64) -> f64| {
        let median_cost = |entry: &Series| {
            let costs = entry
                .rounds
                .iter()
                .map(|row| cost_of(row, entry.count as f64));
            Spread::of(costs).median
        };
        let costs = own_series
            .iter()
            .filter(|entry| entry.count >= least_locks)
            .map(|entry| median_cost(entry));
        let growth = largest_growth(costs);
        if growth.is_finite() {
            let description = format!(
                "{label}, {description}: largest growth factor as the number of locks increases"
            );
            print_goal(&description, growth, Bound::AtMost(1.2));
        }
    };
    print_growth("client CPU per lock", 0, |row, n| {
        row.holder.cpu_percent / n
    });
    print_growth("client CPU of one cycle", 0, |row, _| row.holder.cycle_us);
    print_growth("memory per lock", 1_000, |row, _| {
        row.holder.memory_per_lock
    });
}

/// The settings of a process that holds locks.
pub(crate) struct HolderSettings {
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

impl HolderSettings {
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
        let empty_memory = master_memory(masters);
        let mut command = self.command(masters);
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("the holder process must start");
        let pipe = child.stdout.take();
        let stdout = pipe.expect("the stdout of the holder process must be piped");
        let mut reader = std::io::BufReader::new(stdout);
        let mut line = String::new();
        let mut next_line = || {
            line.clear();
            std::io::BufRead::read_line(&mut reader, &mut line)
                .expect("the holder process must print a line");
            line.clone()
        };
        assert_eq!(next_line().trim(), "steady");
        let read_counts = || Counts::read(masters, self.name.sends_set());
        let (cpu_before, counts_before) = (servers_cpu(masters), read_counts());
        let started_at = Instant::now();
        assert_eq!(next_line().trim(), "over");
        let elapsed_s = started_at.elapsed().as_secs_f64();
        let masters_cpu_s = servers_cpu(masters)
            .saturating_sub(cpu_before)
            .as_secs_f64();
        let counts = read_counts().since(counts_before);
        let full_memory = master_memory(masters);
        let holder: HolderResult = serde_json::from_str(&next_line())
            .expect("the process must print its measurements as JSON");
        child.wait().expect("the holder process must end");
        assert_eq!(
            holder.acquired, self.count,
            "{:?} must acquire all locks",
            self.name
        );
        Row {
            holder,
            masters_percent: 100.0 * masters_cpu_s / elapsed_s,
            sent_per_second: counts.sent as f64 / elapsed_s,
            master_memory_per_lock: (full_memory - empty_memory) / self.count as f64,
        }
    }
}

/// The average memory in use per master, in bytes.
fn master_memory(masters: &Masters) -> f64 {
    let used_memory = |text: &str| -> Option<f64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        line?.trim().parse().ok()
    };
    let infos = masters.iter().filter_map(|master| {
        let reply = master.command(&["INFO", "memory"]).ok()?;
        used_memory(&reply.text()?)
    });
    infos.sum::<f64>() / masters.len() as f64
}

/// The main function of a process that holds `count` locks. It prints three lines for its parent process:
///
/// - `steady`: the parent starts to measure.
/// - `over`: the parent stops measuring.
/// - One line of JSON: the measurements of the holding process itself.
pub(crate) fn run_holder(args: &HolderArgs) {
    let urls: Vec<String> = args.urls.split(',').map(str::to_owned).collect();
    let result = runtime(false).block_on(async {
        if args.name == Name::Floor {
            hold_with_floor(&urls, args).await
        } else if args.in_tasks {
            in_tasks(&urls, args).await
        } else {
            hold_and_renew(&urls, args).await
        }
    });
    println!(
        "{}",
        serde_json::to_string(&result).expect("the measurements must be written as JSON")
    );
}

/// Creates a client that has already acquired and released some locks, so that buffers and script caches are allocated
/// before memory is measured.
async fn warm_client(urls: &[String], args: &HolderArgs) -> Redlock {
    let mut builder = builder_for(args.name, urls);
    if let Some(ms) = args.node_timeout_ms {
        builder = builder.node_timeout(Duration::from_millis(ms));
    }
    if args.without_notes {
        builder = builder.note(None);
    }
    let redlock = builder.build().expect("the settings must be valid");
    drop(acquire_many(&redlock, "warm", 256).await);
    redlock.flush().await;
    redlock
}

/// Acquires and holds each lock in a task of its own, as a service does. The measured memory includes the tasks.
async fn in_tasks(urls: &[String], args: &HolderArgs) -> HolderResult {
    let redlock = warm_client(urls, args).await;
    let memory_before = own_memory();
    let mut tasks = Vec::with_capacity(args.count);
    while tasks.len() < args.count {
        let mut acquired_signals = Vec::new();
        for n in tasks.len()..args.count.min(tasks.len() + 64) {
            let redlock = redlock.clone();
            let (acquired_sender, acquired_signal) = tokio::sync::oneshot::channel();
            acquired_signals.push(acquired_signal);
            tasks.push(tokio::spawn(async move {
                let guard = redlock.acquire(format!("held:{n}")).await;
                let guard = guard.expect("the lock must be free");
                let _ = acquired_sender.send(());
                guard.lost().await
            }));
        }
        futures::future::join_all(acquired_signals).await;
    }
    tokio::time::sleep(NOTE_DELAY).await;
    println!("steady");
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    println!("over");
    let memory = own_memory().saturating_sub(memory_before);
    HolderResult {
        acquired: tasks.len(),
        memory_per_lock: memory as f64 / args.count as f64,
        lost: tasks.iter().filter(|task| task.is_finished()).count(),
        ..HolderResult::default()
    }
}

async fn hold_and_renew(urls: &[String], args: &HolderArgs) -> HolderResult {
    let redlock = warm_client(urls, args).await;
    let memory_before = own_memory();
    let acquiring_started_at = Instant::now();
    let guards = acquire_many(&redlock, "held", args.count).await;
    let acquiring_time = acquiring_started_at.elapsed();
    let lost_while_acquiring = guards.iter().filter(|guard| !guard.is_valid()).count();
    let memory_after_acquiring = own_memory().saturating_sub(memory_before);
    // Give the masters time to store all holder's notes, so that no note is written during the measurement.
    tokio::time::sleep(NOTE_DELAY).await;
    println!("steady");
    let measured_time = tokio::time::sleep(Duration::from_secs(args.seconds));
    let cpu = core_share(Usage::of(&[], measured_time).await.1);
    println!("over");
    // Read the memory after the measurement, so that it includes the memory that renewals need.
    let memory = own_memory().saturating_sub(memory_before);
    // Reading the leases takes processor time, so do it after the measurement of `cpu`.
    let margin_seconds = if args.brief { 0 } else { args.seconds };
    let margin = least_margin(&guards, Duration::from_secs(margin_seconds)).await;
    let causes = losses_by_cause(&guards);
    if !causes.is_empty() {
        eprintln!(
            "{:?}: {} of {} locks were lost ({causes:?}). Acquiring all locks took {:.1} s, and {lost_while_acquiring} \
             locks were lost during this time",
            args.name,
            causes.values().sum::<usize>(),
            guards.len(),
            acquiring_time.as_secs_f64()
        );
    }
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    let cycle_us = if args.brief {
        0.0
    } else {
        let client = Contender::Quorate(redlock.clone());
        cycle_cpu_us(Arc::new(client), args.name, cpu).await
    };
    let acquired = guards.len();
    drop(guards);
    redlock.flush().await;
    HolderResult {
        acquired,
        memory_after_acquiring: memory_after_acquiring as f64 / args.count as f64,
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
    let started_at = Instant::now();
    while started_at.elapsed() < time {
        let smallest_lease = guards.iter().map(LockGuard::remaining).min();
        margin = margin.min(smallest_lease.unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    margin
}

/// The number of lost locks for each cause.
fn losses_by_cause(guards: &[LockGuard]) -> std::collections::BTreeMap<&'static str, usize> {
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
async fn acquire_many(redlock: &Redlock, prefix: &str, count: usize) -> Vec<LockGuard> {
    use futures::StreamExt;
    futures::stream::iter(0..count)
        .map(|n| {
            let redlock = redlock.clone();
            let resource = format!("{prefix}:{n}");
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
/// The held locks are renewed at the same time. `renewal_share` is the processor time of these renewals, as a share of
/// one core. The function subtracts it.
async fn cycle_cpu_us(client: Arc<Contender>, name: Name, renewal_share: f64) -> f64 {
    // The parent process measures the masters, so give `burst` an empty list of masters.
    let no_masters = Masters::start(0).expect("starting zero masters must succeed");
    let time = Duration::from_millis(300);
    burst(&client, name, &no_masters, 16, time).await;
    let measured = burst(&client, name, &no_masters, 16, time).await;
    measured.client_us - renewal_share * 1e6 / measured.per_second
}

/// Measures the minimal cost of holding locks. Each lock is only a key and its value. One call of a script on each
/// master renews up to 200 locks.
async fn hold_with_floor(urls: &[String], args: &HolderArgs) -> HolderResult {
    let floor = Arc::new(Floor::connect(urls, ReleaseCondition::Majority).await);
    let memory_before = own_memory();
    let mut locks: Vec<(String, String)> = Vec::with_capacity(args.count);
    for n in 0..args.count {
        let resource = format!("held:{n}");
        let token = floor
            .acquire(&resource, TTL * 6)
            .await
            .expect("the lock must be free");
        locks.push((resource, token));
    }
    let memory_after_acquiring = own_memory().saturating_sub(memory_before);
    floor.extend(&locks, TTL).await;
    println!("steady");
    let renewals = async {
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_secs(args.seconds) {
            floor.extend(&locks, TTL).await;
            let periods = started_at.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
            let next_at = (TTL / 3).mul_f64(periods.floor() + 1.0);
            tokio::time::sleep(next_at.saturating_sub(started_at.elapsed())).await;
        }
    };
    let cpu = core_share(Usage::of(&[], renewals).await.1);
    println!("over");
    let memory = own_memory().saturating_sub(memory_before);
    let addresses = Addresses {
        urls: urls.to_vec(),
        sockets: Vec::new(),
    };
    let client = Contender::connect(Name::Floor, &addresses).await;
    HolderResult {
        acquired: locks.len(),
        memory_after_acquiring: memory_after_acquiring as f64 / args.count as f64,
        memory_per_lock: memory as f64 / args.count as f64,
        cpu_percent: 100.0 * cpu,
        margin_ms: 0.0,
        lost: 0,
        cycle_us: cycle_cpu_us(Arc::new(client), Name::Floor, 0.0).await,
    }
}

/// The resident memory of this process, in bytes.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

/// The processor time that this process used during the measurement, as a share of one core: 1.0 is one full core.
fn core_share(usage: Usage) -> f64 {
    usage.client.as_secs_f64() / usage.took.as_secs_f64()
}
