//! Measures the cost of each kind of lock compared with the plain lock, and prints one table with the goals.
//!
//! Most figures compare two operations: every round measures both and computes their ratio. The figure is the median of
//! these ratios. Other load on the machine affects ratios less than absolute times.

mod burst;
mod cycles;
mod figure;
mod many;
mod observing;

use std::time::Instant;

use quorate_testbed::Masters;

use crate::contender::Addresses;
use crate::versus::runtime;

/// Arguments of the subcommand `kinds`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of rounds of the part `cycles`; `bursts` and `observing` run one fifth of this number
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// The parts of the table that are measured [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// The number of held locks in the part `held`
    #[arg(long, default_value_t = 10_000)]
    held: usize,
}

/// A part of the table. Each part can be measured without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Cycles of one client, one after the other
    Cycles,
    /// Operations of many concurrent tasks
    Bursts,
    /// The time from the election of a leader until a follower is notified
    Observing,
    /// Many held locks, with and without holder's notes
    Held,
}

pub(crate) fn run(args: &Args) {
    let is_wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let fewer_rounds = (args.rounds / 5).max(1);
    let started_at = Instant::now();
    let masters = Masters::start(5).expect("the masters must start (is redis-server installed?)");
    let addresses = Addresses::direct(&masters);
    let mut figures = Vec::new();
    let runtime = runtime(false);
    if is_wanted(Part::Cycles) {
        figures.extend(runtime.block_on(cycles::measure(&masters, &addresses, args.rounds)));
    }
    if is_wanted(Part::Bursts) {
        figures.extend(runtime.block_on(burst::measure(&addresses, fewer_rounds)));
    }
    if is_wanted(Part::Observing) {
        figures.extend(runtime.block_on(observing::measure(&addresses, fewer_rounds)));
    }
    drop(runtime);
    if is_wanted(Part::Held) {
        figures.extend(many::measure(&masters, args.held));
    }
    println!(
        "5 masters; interleaved rounds: {} with one client, {fewer_rounds} with concurrent tasks; median of the rounds \
         [smallest-largest]; {:.0} s in total",
        args.rounds,
        started_at.elapsed().as_secs_f64()
    );
    print!(
        "\nCost of each kind of lock\n{}",
        figure::figures_table(&figures)
    );
}
