//! Benchmarks that compare `quorate` in three settings with `rslock` and with the baseline. All implementations take
//! turns in one run on the same masters.
//!
//! Read every figure as a ratio to the baseline of the same round. Ratios are less affected by other load on the
//! machine than absolute times.
//!
//! `cargo run --release -p quorate-bench -- versus --quick`

#![allow(
    clippy::print_stdout,
    reason = "the program prints its tables on stdout"
)]

mod all;
mod contender;
mod faults;
mod floor;
mod goal;
mod held;
mod hung;
mod kinds;
mod leftovers;
mod peers;
mod tasks;
mod versus;
mod wide;
mod wire;

use clap::{Parser, Subcommand};

/// Compares lock implementations on masters that this program starts.
#[derive(Debug, Parser)]
#[command(name = "quorate-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The measurement to run.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run all of the following measurements one after the other, and write one Markdown file
    All(all::Args),
    /// Measure latency, throughput and cost per cycle of all implementations, as ratios to the baseline
    Versus(versus::Args),
    /// Measure the effect of a stopped, dead or slow minority of the masters, and the longest time without an
    /// acquisition while masters die and return
    Faults(faults::Args),
    /// Measure many locks that one process holds and renews: memory, cost and remaining leases, and whether the cost
    /// per lock grows with the number of locks
    Held(held::Args),
    /// Measure the cost of each kind of lock compared with the plain lock, and print the table of goals (about three
    /// minutes)
    Kinds(kinds::Args),
    /// Run as a process that holds locks (started by `held`, not by hand)
    #[command(hide = true)]
    Holder(held::HolderArgs),
    /// Measure whether a cycle costs more with more concurrent tasks, from one to thousands
    Tasks(tasks::Args),
    /// Run cycles with dropped futures and faults, and then search for leaked keys
    Leftovers(leftovers::Args),
    /// Measure implementations in other languages, each in a process of its own; see scripts/bench-peers
    Peers(peers::Args),
    /// Measure masters that are far apart: the time to acquire, compared with the round-trip time to the nearest
    /// majority
    Wide(wide::Args),
}

fn main() {
    match Cli::parse().command {
        Command::All(args) => all::run(&args),
        Command::Versus(args) => versus::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::Held(args) => held::run(&args),
        Command::Kinds(args) => kinds::run(&args),
        Command::Holder(args) => held::run_holder(&args),
        Command::Tasks(args) => tasks::run(&args),
        Command::Leftovers(args) => leftovers::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Wide(args) => wide::run(&args),
    }
}
