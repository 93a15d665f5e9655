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
enum Participant {
    InProcess(Name, Arc<Contender>),
    OtherProcess(Peer),
}

/// The process of a peer, an implementation in another language.
struct Peer {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A peer's measurements with one task at a time, in microseconds.
#[derive(Deserialize)]
struct PeerLatencies {
    acquire: Vec<u64>,
    release: Vec<u64>,
    failed: u64,
}

/// A peer's measurements with many concurrent tasks. `seconds` is the elapsed time, and `cpu` the processor time of the
/// peer in seconds.
#[derive(Deserialize)]
struct PeerBurst {
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

impl PeerLatencies {
    /// Converts the measurements from microseconds to nanoseconds.
    fn samples(&self) -> Samples {
        let to_nanos = |micros: &[u64]| micros.iter().map(|us| us * 1000).collect();
        let pairs = self.acquire.iter().zip(&self.release);
        let mut samples = Samples {
            acquire: to_nanos(&self.acquire),
            release: to_nanos(&self.release),
            cycle: pairs.map(|(a, r)| (a + r) * 1000).collect(),
            failed: self.failed,
        };
        samples.sort();
        samples
    }
}

impl Round {
    /// Stores the latencies of a client that makes one cycle at a time.
    fn set_latencies(&mut self, samples: &Samples) {
        let quantile_us = |sorted: &[u64], share: f64| quantile(sorted, share) / 1e3;
        self.acquire = quantile_us(&samples.acquire, 0.5);
        self.release = quantile_us(&samples.release, 0.5);
        self.cycle = quantile_us(&samples.cycle, 0.5);
        self.p99 = quantile_us(&samples.cycle, 0.99);
        self.failed = samples.failed;
    }
}

impl Peer {
    fn start(spec: &str, urls: &str) -> Option<Self> {
        let (name, command) = spec
            .split_once('=')
            .expect("--peer must have the form NAME=COMMAND");
        let mut command_parts = command.split_whitespace();
        let mut child = Command::new(
            command_parts
                .next()
                .expect("the command of --peer must not be empty"),
        )
        .args(command_parts)
        .arg(urls)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer must start");
        let input = child.stdin.take().expect("the peer's stdin must be piped");
        let stdout = child.stdout.take();
        let output = BufReader::new(stdout.expect("the peer's stdout must be piped"));
        let mut peer = Self {
            name: name.to_owned(),
            child,
            input,
            output,
        };
        // Make the peer connect to all masters before the measurement. Its answer also shows whether it can acquire
        // locks.
        let trial: Option<PeerLatencies> = peer.measure("alone 50");
        if trial.is_some_and(|latencies| latencies.failed == 0) {
            return Some(peer);
        }
        eprintln!("{name} is not measured, because its trial run failed");
        None
    }

    fn measure<T: for<'de> Deserialize<'de>>(&mut self, command: &str) -> Option<T> {
        writeln!(self.input, "{command}").ok()?;
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Participant {
    fn label(&self) -> &str {
        match self {
            Self::InProcess(name, _) => name.label(),
            Self::OtherProcess(peer) => &peer.name,
        }
    }

    fn measure_round(&mut self, runtime: &Runtime, masters: &Masters, args: &Args) -> Round {
        let mut round = Round::default();
        let time = Duration::from_millis(400);
        match self {
            Self::InProcess(name, client) => {
                round.set_latencies(&runtime.block_on(alone(client, *name, args.cycles)));
                for &tasks in &args.tasks {
                    let result = runtime.block_on(burst(client, *name, masters, tasks, time));
                    round.rates.push(result.per_second);
                    round.cpu.push(result.client_us);
                    round.failed += result.failed;
                }
            }
            Self::OtherProcess(peer) => {
                let result = peer.measure::<PeerLatencies>(&format!("alone {}", args.cycles));
                round.set_latencies(&result.expect("the peer must answer").samples());
                for &tasks in &args.tasks {
                    let command = format!("burst {tasks} {}", time.as_millis());
                    let result: PeerBurst = peer.measure(&command).expect("the peer must answer");
                    round.rates.push(result.cycles as f64 / result.seconds);
                    round.cpu.push(1e6 * result.cpu / result.cycles as f64);
                    round.failed += result.failed;
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
    let addresses = Addresses::direct(&masters);
    let mut participants: Vec<Participant> = Name::ALL
        .into_iter()
        .map(|name| {
            Participant::InProcess(
                name,
                Arc::new(runtime.block_on(Contender::connect(name, &addresses))),
            )
        })
        .collect();
    let urls = addresses.urls.join(",");
    let peers = args
        .peers
        .iter()
        .filter_map(|spec| Peer::start(spec, &urls));
    participants.extend(peers.map(Participant::OtherProcess));
    let mut results = vec![Vec::<Round>::new(); participants.len()];
    for round in 0..=args.rounds {
        for (participant, rounds) in participants.iter_mut().zip(&mut results) {
            let result = participant.measure_round(&runtime, &masters, args);
            // Round 0 is only a warm-up: its result is dropped.
            if round > 0 {
                rounds.push(result);
            }
        }
    }
    print_results(args, &participants, &results);
}

fn print_results(args: &Args, participants: &[Participant], results: &[Vec<Round>]) {
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
    for (participant, rounds) in participants.iter().zip(results) {
        let ratio_text = |value: &dyn Fn(&Round) -> f64| {
            let pairs = rounds.iter().zip(&results[0]);
            ratio(Spread::of(
                pairs.map(|(own, floor)| value(own) / value(floor)),
            ))
        };
        let median_text =
            |value: &dyn Fn(&Round) -> f64| number(Spread::of(rounds.iter().map(value)).median);
        let mut row = vec![
            participant.label().to_owned(),
            ratio_text(&|r| r.cycle),
            median_text(&|r| r.cycle),
            ratio_text(&|r| r.acquire),
            ratio_text(&|r| r.release),
            ratio_text(&|r| r.p99),
        ];
        for index in 0..args.tasks.len() {
            row.push(ratio_text(&|r| r.rates[index]));
            row.push(median_text(&|r| r.rates[index]));
            row.push(median_text(&|r| r.cpu[index]));
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
