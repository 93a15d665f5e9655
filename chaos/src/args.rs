//! The command line of the chaos runs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Parser, Subcommand};
use quorate_chaos::changes::{MasterChanges, Operator};
use quorate_chaos::faults::Kind;
use quorate_chaos::hazards;
use quorate_chaos::matrix::ResultMarkers;
use quorate_chaos::node::NodeKind;
use quorate_chaos::scenario::Scenario;
use quorate_chaos::workload::{Order, Workload};
use quorate_chaos::world::Needs;

/// The maximum length of the fault-free period at the end of a run in which the clients have a seeded bug. The period is
/// short, because clients with such a bug can fail to get any lock.
const PATIENCE_WITH_SEEDED_BUG: Duration = Duration::from_secs(5);

/// Start real masters and client processes, inject real faults, and check whether the lock kept its promises.
#[derive(Debug, Parser)]
#[command(
    name = "quorate-chaos",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start masters and clients, inject faults, and check the recorded history
    Run(RunArgs),
    /// Check a stored history again
    Recheck {
        /// The report directory of the run that is checked again
        dir: PathBuf,
    },
    /// Print the operations of a stored history as JSON, for a checker of linearizability (docs/histories.md)
    Export {
        /// The report directory of the run
        dir: PathBuf,
    },
    /// Run for a long time with 1,000 held locks (200 if a master writes to disk), and check that no process uses more
    /// and more memory or connections
    Soak(RunArgs),
    /// Run every workload under every fault with 1, 3 and 5 masters, in both orders of waiters, a few seconds each
    Matrix(MatrixArgs),
    /// List the kinds of faults
    Faults,
    /// Run as a client process (started by a chaos run, not by hand)
    #[command(hide = true)]
    Client,
    /// Resolve a host name and print the result
    #[command(hide = true)]
    Lookup {
        /// The host name to resolve
        name: String,
    },
    /// Work under a lock as the child process of `quorate run` (started by a client, not by hand)
    #[command(hide = true)]
    Child {
        /// The time at which the run started, on the machine's clock in nanoseconds
        #[arg(long)]
        origin: u64,
        /// How long the child process works before it ends
        #[arg(long, value_parser = humantime::parse_duration)]
        works: Duration,
        /// The file that the child process reads and changes
        #[arg(long)]
        state: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The seed of all random draws [default: taken from the clock]
    #[arg(long)]
    seed: Option<u64>,

    /// The time during which faults are injected; a fault-free period follows it
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    duration: Duration,

    /// The number of masters, all of them Redis
    #[arg(long, default_value_t = 5)]
    masters: usize,

    #[arg(
        long,
        help = nodes_help(),
        value_name = "KIND",
        value_delimiter = ',',
        conflicts_with = "masters"
    )]
    nodes: Vec<NodeKind>,

    /// Replace N masters under load, one at a time, as docs/operations.md describes [without a number: replace all].
    /// Faults are injected during each replacement. The run ends after the last replacement
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "all", conflicts_with = "nodes", value_parser = parse_replaced)]
    replace_masters: Option<ReplacedMasters>,

    /// Replace all masters in one change
    #[arg(long, conflicts_with_all = ["nodes", "replace_masters"])]
    replace_at_once: bool,

    /// Change the number of masters to N in one change
    #[arg(long, value_name = "N", conflicts_with_all = ["nodes", "replace_masters", "replace_at_once"])]
    grow: Option<usize>,

    /// The operator that replaces masters: careful, or no-joint-step or opens-by-hand (skip steps; need
    /// --replace-at-once)
    #[arg(long, default_value = "careful")]
    operator: Operator,

    /// The TTL of a lock; a request times out after a tenth of it (masters other than Redis: a quarter)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    ttl: Duration,

    /// The number of client processes
    #[arg(long, default_value_t = 8)]
    clients: usize,

    /// The faults to inject: names from the list of `quorate-chaos faults`, or `mixed`, or `none`
    #[arg(long, value_delimiter = ',', default_value = "mixed")]
    faults: Vec<String>,

    /// The workloads of the clients. Plain locks: file, register, stock, handover, many, run. Other kinds of locks:
    /// transfer, readers, permits, owners, prizes, leader. Groups: lock (all plain locks), kinds (all others), all
    /// [default: lock, and also prizes if a careful operator replaces masters]
    #[arg(long, alias = "workloads", value_name = "NAME", value_delimiter = ',', value_parser = parse_workloads)]
    workload: Vec<WorkloadGroup>,

    /// The number of the seeded bug that is switched on in the clients. Only `scripts/seeded-bugs` builds programs that
    /// contain seeded bugs
    #[arg(long, value_name = "N", hide = true)]
    seeded_bug: Option<usize>,

    /// The order in which waiters get the lock: fair or unordered
    #[arg(long, default_value = "fair")]
    order: Order,

    /// Whether clients ignore restarted masters for a time (the restart guard): on or off [default: on; off for the
    /// fault amnesia]
    #[arg(long, value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new())]
    restart_guard: Option<bool>,

    /// The number of locks that each client of the workload `many` holds at the same time
    #[arg(long, default_value_t = 40)]
    many: usize,

    /// A client's longest pause between two lock attempts
    #[arg(long, value_name = "TIME", default_value = "120ms", value_parser = humantime::parse_duration)]
    pause: Duration,

    /// The server program [default: the variable QUORATE_SERVER, otherwise redis-server or valkey-server]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,

    /// The directory that the report is written to [default: a new directory in target/chaos]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MatrixArgs {
    /// The time during which faults are injected in each run
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub(crate) cell: Duration,

    /// The workloads; each name is a run of its own. The workloads of a group (see `run`) run at the same time
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "lock,kinds", value_parser = parse_workloads)]
    pub(crate) workload: Vec<WorkloadGroup>,

    /// The numbers of Redis masters; each number is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "1,3,5")]
    pub(crate) masters: Vec<usize>,

    /// Sets of masters, instead of --masters. A plus sign separates the masters of a set, and a comma separates the
    /// sets. Example: redis+redis+mysql,ensemble
    #[arg(long, value_name = "KIND+KIND", value_delimiter = ',', conflicts_with = "masters", value_parser = parse_mix)]
    pub(crate) mixes: Vec<Mix>,

    /// The orders of waiters; each order is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "fair,unordered")]
    pub(crate) orders: Vec<Order>,

    /// The faults; each fault is a run of its own [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) faults: Vec<Kind>,

    /// The TTL of a lock [default: 1s; with --mixes: 2s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,

    /// The seed of the first run; each later run uses the next number
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// The number of client processes in each run
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,

    /// The server program [default: the variable QUORATE_SERVER, otherwise redis-server or valkey-server]
    #[arg(long, value_name = "PATH")]
    pub(crate) server: Option<PathBuf>,

    /// The file that the result table is written into; the text around the table stays
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// The directory for the reports; a run with the verdict "valid" leaves none
    #[arg(long, value_name = "DIR", default_value = "target/chaos/matrix")]
    pub(crate) out: PathBuf,
}

/// The kinds of the masters of one run of the matrix, parsed from a name such as `redis+redis+mysql`.
#[derive(Clone, Debug)]
pub(crate) struct Mix(Vec<NodeKind>);

/// The help text of the option `--nodes`.
fn nodes_help() -> String {
    let kinds = NodeKind::descriptions();
    format!(
        "The kind of each master, instead of --masters. Example: redis,redis,mysql. Kinds: {kinds}"
    )
}

fn parse_mix(names: &str) -> Result<Mix, String> {
    let nodes: Result<_, _> = names.split('+').map(str::parse).collect();
    nodes.map(Mix)
}

impl MatrixArgs {
    /// The sets of masters of the matrix. Each set is a list of the kinds of its masters.
    pub(crate) fn fleets(&self) -> Vec<Vec<NodeKind>> {
        match &self.mixes[..] {
            [] => {
                let counts = self.masters.iter();
                counts.map(|n| vec![NodeKind::REDIS; *n]).collect()
            }
            mixes => mixes.iter().map(|mix| mix.0.clone()).collect(),
        }
    }

    /// The TTL of a lock in the runs of the matrix.
    pub(crate) fn ttl(&self) -> Duration {
        let default_ttl = if self.mixes.is_empty() {
            Scenario::default().ttl
        } else {
            Duration::from_secs(2)
        };
        self.ttl.unwrap_or(default_ttl)
    }

    /// The two markers in the result file between which the result table is written.
    pub(crate) fn result_markers(&self) -> ResultMarkers {
        if self.mixes.is_empty() {
            ResultMarkers::REDIS
        } else {
            ResultMarkers::MIXES
        }
    }
}

/// The number of masters that are replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplacedMasters {
    All,
    Some(usize),
}

fn parse_replaced(text: &str) -> Result<ReplacedMasters, String> {
    match text {
        "all" => Ok(ReplacedMasters::All),
        text => text
            .parse()
            .map(ReplacedMasters::Some)
            .map_err(|_| "give a number or the word 'all'".into()),
    }
}

/// The workloads that one name on the command line stands for.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadGroup(pub(crate) Vec<Workload>);

fn parse_workloads(name: &str) -> Result<WorkloadGroup, String> {
    let found = Workload::by_name(name).map(WorkloadGroup);
    found.ok_or_else(|| format!("there is no workload {name:?}: see --help"))
}

impl Command {
    /// Whether at least one of the requested faults disturbs network links, which needs network namespaces.
    pub(crate) fn needs_links(&self) -> bool {
        let needs_links = |kind: &Kind| kind.needs == Needs::Links;
        match self {
            Self::Run(args) | Self::Soak(args) => {
                let named_kinds = args.faults.iter().filter_map(|name| name.parse().ok());
                named_kinds.into_iter().any(|kind| needs_links(&kind))
            }
            Self::Matrix(args) => args.faults.is_empty() || args.faults.iter().any(needs_links),
            _ => false,
        }
    }
}

impl RunArgs {
    /// The changes of masters that the command line requests. `None` if the masters stay the same during the run.
    fn changes(&self) -> Option<MasterChanges> {
        let masters = self.masters;
        let changes = match (self.replace_masters, self.grow) {
            (Some(ReplacedMasters::All), _) => MasterChanges::one_by_one(masters, masters),
            (Some(ReplacedMasters::Some(count)), _) => MasterChanges::one_by_one(masters, count),
            (None, Some(new_count)) => MasterChanges::resized(masters, new_count),
            (None, None) if self.replace_at_once => MasterChanges::at_once(masters),
            (None, None) => return None,
        };
        let operator = self.operator;
        Some(MasterChanges {
            operator,
            ..changes
        })
    }

    /// The requested workloads without repetitions. If the command line names no workload: the workloads of plain
    /// locks, and also `prizes` if a careful operator replaces masters.
    fn workloads(&self, changes: Option<&MasterChanges>) -> Vec<Workload> {
        let mut workloads: Vec<Workload> = Vec::new();
        for workload in self.workload.iter().flat_map(|group| &group.0) {
            if !workloads.contains(workload) {
                workloads.push(*workload);
            }
        }
        if workloads.is_empty() {
            workloads.extend(Workload::LOCK);
            let is_careful = changes.is_some_and(|changes| changes.operator == Operator::Careful);
            workloads.extend(is_careful.then_some(Workload::Prizes));
        }
        workloads
    }

    /// The scenario that the command line describes.
    pub(crate) fn scenario(&self) -> anyhow::Result<Scenario> {
        let changes = self.changes();
        let nodes = match &self.nodes[..] {
            [] => vec![
                NodeKind::REDIS;
                changes
                    .as_ref()
                    .map_or(self.masters, MasterChanges::servers)
            ],
            named => named.to_vec(),
        };
        let mut faults: Vec<Kind> = Vec::new();
        for name in &self.faults {
            match name.as_str() {
                "mixed" if changes.is_some() => faults.extend(hazards::usual_faults()),
                "mixed" => faults.extend(Kind::mixed(&nodes)),
                "none" => {}
                name => faults.push(name.parse().map_err(anyhow::Error::msg)?),
            }
        }
        let workloads = self.workloads(changes.as_ref());
        if changes.is_some() {
            hazards::check_faults(&faults)?;
        }
        let scenario = Scenario {
            seed: self.seed.unwrap_or_else(seed_from_clock),
            duration: self.duration,
            ttl: self.ttl,
            max_ttl: Scenario::default().max_ttl.max(self.ttl * 5 / 4),
            clients: self.clients,
            changes,
            guarded: self
                .restart_guard
                .unwrap_or(!faults.iter().any(|kind| kind.is_unguarded())),
            faults,
            workloads,
            seeded_bug: self.seeded_bug,
            order: self.order,
            many: self.many,
            pause: self.pause,
            server: self.server.clone(),
            patience: match self.seeded_bug {
                None => Scenario::default().patience,
                Some(_) => PATIENCE_WITH_SEEDED_BUG,
            },
            ..Scenario::default().with_nodes(&nodes)
        };
        scenario.check()?;
        // In a program without seeded bugs, the option would change nothing, and correct code would pass for a bug.
        anyhow::ensure!(
            self.seeded_bug.is_none() || env!("CARGO_PKG_VERSION").ends_with("+seeded-bugs"),
            "this program contains no seeded bugs: scripts/seeded-bugs builds one"
        );
        Ok(scenario)
    }

    /// The directory that the report of this scenario is written to.
    pub(crate) fn out(&self, scenario: &Scenario) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
            let name = format!("{}-seed-{}", now.replace(':', ""), scenario.seed);
            PathBuf::from("target/chaos").join(name)
        })
    }
}

/// The command line that runs this scenario again.
pub(crate) fn command_to_repeat(scenario: &Scenario) -> String {
    let fault_names: Vec<&str> = scenario.faults.iter().map(|kind| kind.name()).collect();
    let mixed = match scenario.changes {
        None => Kind::mixed(&scenario.nodes()),
        Some(_) => hazards::usual_faults(),
    };
    let faults = match scenario.faults == mixed {
        true => "mixed".to_owned(),
        false if fault_names.is_empty() => "none".to_owned(),
        false => fault_names.join(","),
    };
    let masters = match &scenario.nodes[..] {
        _ if scenario.changes.is_some() => change_options(scenario),
        [] => format!("--masters {}", scenario.masters),
        nodes => {
            let nodes: Vec<_> = nodes.iter().map(|node| node.name).collect();
            format!("--nodes {}", nodes.join(","))
        }
    };
    let program = match scenario.seeded_bug.and(std::env::current_exe().ok()) {
        None => "cargo run --release -p quorate-chaos --".to_owned(),
        // Only the programs that `scripts/seeded-bugs` builds contain the bug.
        Some(program) => program.display().to_string(),
    };
    let mut command = format!(
        "{program} run --seed {} --duration {} {masters} --clients {} --faults {faults} --workload {} --order {} --restart-guard {} --many {} --pause {}",
        scenario.seed,
        humantime::format_duration(scenario.duration)
            .to_string()
            .replace(' ', ""),
        scenario.clients,
        Workload::group_name(&scenario.workloads),
        scenario.order.name(),
        if scenario.guarded { "on" } else { "off" },
        scenario.many,
        humantime::format_duration(scenario.pause)
            .to_string()
            .replace(' ', ""),
    );
    if scenario.ttl != Scenario::default().ttl {
        let _ = write!(command, " --ttl {}ms", scenario.ttl.as_millis());
    }
    if let Some(number) = scenario.seeded_bug {
        let _ = write!(command, " --seeded-bug {number}");
    }
    if let Some(server) = &scenario.server {
        let _ = write!(command, " --server {}", server.display());
    }
    command
}

/// The command-line options that request the changes of masters in this scenario.
fn change_options(scenario: &Scenario) -> String {
    let Some(changes) = &scenario.changes else {
        return String::new();
    };
    let masters = changes.sets[0].len();
    let candidates = [
        (
            MasterChanges::one_by_one(masters, changes.count()),
            format!("--replace-masters {}", changes.count()),
        ),
        (
            MasterChanges::at_once(masters),
            "--replace-at-once".to_owned(),
        ),
    ];
    let option = candidates
        .into_iter()
        .find(|(candidates, _)| candidates.sets == changes.sets);
    let final_count = changes.sets.last().map_or(0, Vec::len);
    let option = option.map_or_else(|| format!("--grow {final_count}"), |(_, option)| option);
    format!(
        "--masters {masters} {option} --operator {}",
        changes.operator.name()
    )
}

fn seed_from_clock() -> u64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    elapsed.map_or(1, |elapsed| elapsed.as_millis() as u64 % 1_000_000)
}
