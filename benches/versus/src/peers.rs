//! Measures implementations in other languages, and compares them with the baseline and `quorate`. Each such
//! implementation is a program in its own process, called a peer.
//!
//! The last argument of a peer is the masters' URLs, separated by commas. The peer reads lines from its standard input:
//! `alone CYCLES` starts this number of cycles, and `burst TASKS MILLISECONDS` starts concurrent tasks for this time.
//! It answers each line with its measurements as one line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use quorate_testbed::Masters;
use quorate_testbed::measure::{Samples, Spread, number, quantile};
use quorate_testbed::table::{Table, ratio};
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::contender::{Addresses, Contender, Name};
use crate::versus::{alone, burst, runtime};

/// Arguments of the subcommand `peers`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// An implementation in another language: its name, and the command that starts it
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    peers: Vec<String>,
    /// The number of masters to start
    #[arg(long, default_value_t = 5)]
    masters: usize,
    /// The number of rounds; in each round every implementation has one turn
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The number of cycles of one client per round
    #[arg(long, default_value_t = 400)]
    cycles: usize,
    /// The numbers of concurrent tasks, measured one after the other; each task locks a resource of its own
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512])]
    tasks: Vec<usize>,
}

/// One of the compared implementations. It runs in this process, or it is a peer in another process.
enum Party {
    Here(Name, Arc<Contender>),
    Elsewhere(Peer),
}

/// The process of a peer, an implementation in another language.
struct Peer {
    name: String,
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

/// A peer's measurements with one task at a time, in microseconds.
#[derive(Deserialize)]
struct SeenAlone {
    acquire: Vec<u64>,
    release: Vec<u64>,
    failed: u64,
}

/// A peer's measurements with many concurrent tasks. `seconds` is the elapsed time, and `cpu` the processor time of the
/// peer in seconds.
#[derive(Deserialize)]
struct SeenCrowd {
    cycles: u64,
    failed: u64,
    seconds: f64,
    cpu: f64,
}

/// The measurements of one implementation in one round.
#[derive(Clone, Default)]
struct Round {
    acquire: f64,
    release: f64,
    cycle: f64,
    p99: f64,
    rates: Vec<f64>,
    cpu: Vec<f64>,
    failed: u64,
}

impl SeenAlone {
    /// Converts the measurements from microseconds to nanoseconds.
    fn samples(&self) -> Samples {
        let nanos = |micros: &[u64]| micros.iter().map(|us| us * 1000).collect();
        let both = self.acquire.iter().zip(&self.release);
        let mut samples = Samples {
            acquire: nanos(&self.acquire),
            release: nanos(&self.release),
            cycle: both.map(|(a, r)| (a + r) * 1000).collect(),
            failed: self.failed,
        };
        samples.sort();
        samples
    }
}

impl Round {
    /// Stores the latencies of a client that makes one cycle at a time.
    fn alone(&mut self, seen: &Samples) {
        let us = |sorted: &[u64], share: f64| quantile(sorted, share) / 1e3;
        self.acquire = us(&seen.acquire, 0.5);
        self.release = us(&seen.release, 0.5);
        self.cycle = us(&seen.cycle, 0.5);
        self.p99 = us(&seen.cycle, 0.99);
        self.failed = seen.failed;
    }
}

impl Peer {
    fn start(spec: &str, urls: &str) -> Option<Self> {
        let (name, command) = spec
            .split_once('=')
            .expect("--peer must have the form NAME=COMMAND");
        let mut words = command.split_whitespace();
        let mut child = Command::new(
            words
                .next()
                .expect("the command of --peer must not be empty"),
        )
        .args(words)
        .arg(urls)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer must start");
        let say = child.stdin.take().expect("the peer's stdin must be piped");
        let stdout = child.stdout.take();
        let hear = BufReader::new(stdout.expect("the peer's stdout must be piped"));
        let mut peer = Self {
            name: name.to_owned(),
            child,
            say,
            hear,
        };
        // Make the peer connect to all masters before the measurement. Its answer also shows whether it can acquire
        // locks.
        let first: Option<SeenAlone> = peer.ask("alone 50");
        if first.is_some_and(|seen| seen.failed == 0) {
            return Some(peer);
        }
        eprintln!("{name} is not measured, because its trial run failed");
        None
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, what: &str) -> Option<T> {
        writeln!(self.say, "{what}").ok()?;
        let mut line = String::new();
        self.hear.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Party {
    fn label(&self) -> &str {
        match self {
            Self::Here(name, _) => name.label(),
            Self::Elsewhere(peer) => &peer.name,
        }
    }

    fn turn(&mut self, runtime: &Runtime, masters: &Masters, args: &Args) -> Round {
        let mut round = Round::default();
        let time = Duration::from_millis(400);
        match self {
            Self::Here(name, client) => {
                round.alone(&runtime.block_on(alone(client, *name, args.cycles)));
                for &tasks in &args.tasks {
                    let seen = runtime.block_on(burst(client, *name, masters, tasks, time));
                    round.rates.push(seen.per_second);
                    round.cpu.push(seen.client_us);
                    round.failed += seen.failed;
                }
            }
            Self::Elsewhere(peer) => {
                let seen = peer.ask::<SeenAlone>(&format!("alone {}", args.cycles));
                round.alone(&seen.expect("the peer must answer").samples());
                for &tasks in &args.tasks {
                    let ask = format!("burst {tasks} {}", time.as_millis());
                    let seen: SeenCrowd = peer.ask(&ask).expect("the peer must answer");
                    round.rates.push(seen.cycles as f64 / seen.seconds);
                    round.cpu.push(1e6 * seen.cpu / seen.cycles as f64);
                    round.failed += seen.failed;
                }
            }
        }
        round
    }
}

pub(crate) fn run(args: &Args) {
    let masters =
        Masters::start(args.masters).expect("the masters must start (is redis-server installed?)");
    let runtime = runtime(false);
    let at = Addresses::of(&masters);
    let mut parties: Vec<Party> = Name::ALL
        .into_iter()
        .map(|name| {
            Party::Here(
                name,
                Arc::new(runtime.block_on(Contender::connect(name, &at))),
            )
        })
        .collect();
    let urls = at.urls.join(",");
    let peers = args
        .peers
        .iter()
        .filter_map(|spec| Peer::start(spec, &urls));
    parties.extend(peers.map(Party::Elsewhere));
    let mut seen = vec![Vec::<Round>::new(); parties.len()];
    for round in 0..=args.rounds {
        for (party, seen) in parties.iter_mut().zip(&mut seen) {
            let result = party.turn(&runtime, &masters, args);
            // Round 0 is only a warm-up: its result is dropped.
            if round > 0 {
                seen.push(result);
            }
        }
    }
    print(args, &parties, &seen);
}

fn print(args: &Args, parties: &[Party], seen: &[Vec<Round>]) {
    println!(
        "{} masters, {} interleaved rounds. Each round: {} cycles of one client, then of concurrent tasks (400 ms for \
         each number of tasks). x = ratio to the baseline (floor) in the same round, median [smallest-largest]",
        args.masters, args.rounds, args.cycles
    );
    let mut heading = vec![String::new(), "cycle p50 x".to_owned(), "us".to_owned()];
    heading.extend(["acquire p50 x", "release p50 x", "cycle p99 x"].map(str::to_owned));
    for tasks in &args.tasks {
        heading.push(format!("{tasks} tasks: throughput x"));
        heading.push("cycles/s".to_owned());
        heading.push("client us/cycle".to_owned());
    }
    heading.push("failed".to_owned());
    let mut table = Table::new(heading);
    for (party, rounds) in parties.iter().zip(seen) {
        let over = |value: &dyn Fn(&Round) -> f64| {
            let pairs = rounds.iter().zip(&seen[0]);
            ratio(Spread::of(
                pairs.map(|(own, floor)| value(own) / value(floor)),
            ))
        };
        let plain =
            |value: &dyn Fn(&Round) -> f64| number(Spread::of(rounds.iter().map(value)).median);
        let mut row = vec![
            party.label().to_owned(),
            over(&|r| r.cycle),
            plain(&|r| r.cycle),
            over(&|r| r.acquire),
            over(&|r| r.release),
            over(&|r| r.p99),
        ];
        for n in 0..args.tasks.len() {
            row.push(over(&|r| r.rates[n]));
            row.push(plain(&|r| r.rates[n]));
            row.push(plain(&|r| r.cpu[n]));
        }
        row.push(
            rounds
                .iter()
                .map(|round| round.failed)
                .sum::<u64>()
                .to_string(),
        );
        table.row(row);
    }
    print!("\nLatency and throughput\n{table}");
}
