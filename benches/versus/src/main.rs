//! Side-by-side measurements: `quorate` in three settings, the peer `rslock`, and the floor under
//! both, interleaved in one run on the same spawned masters.
//!
//! Everything is meant to be read as a ratio to the floor of the same round: neighbours on the
//! machine come and go, and absolute times with them.
//!
//! `cargo run --release -p quorate-bench -- versus --quick`

#![allow(
    clippy::print_stdout,
    reason = "tables on stdout are what this program is for"
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

/// Measures locks side by side on masters that it starts itself.
#[derive(Debug, Parser)]
#[command(name = "quorate-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
enum Command {
    /// Everything below, one after the other, into one Markdown file
    All(all::Args),
    /// Latency, throughput and cost per cycle, as ratios to the floor
    Versus(versus::Args),
    /// A stopped, dead or slow minority, and the time without service when masters die and return
    Faults(faults::Args),
    /// Many locks held and renewed by one process: memory, cost and margins, and their growth
    Held(held::Args),
    /// What each kind of lock costs beside the plain one: the table of goals, in about three minutes
    Kinds(kinds::Args),
    /// One process of `held`
    #[command(hide = true)]
    Holder(held::HolderArgs),
    /// Cost of a cycle from one task to thousands
    Tasks(tasks::Args),
    /// Cycles with drops and faults, then a search for keys that are left
    Leftovers(leftovers::Args),
    /// Peers in other languages, each in a process of its own; see scripts/bench-peers
    Peers(peers::Args),
    /// Masters far apart: acquire against the q-th fastest
    Wide(wide::Args),
}

fn main() {
    match Cli::parse().command {
        Command::All(args) => all::run(&args),
        Command::Versus(args) => versus::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::Held(args) => held::run(&args),
        Command::Kinds(args) => kinds::run(&args),
        Command::Holder(args) => held::holder(&args),
        Command::Tasks(args) => tasks::run(&args),
        Command::Leftovers(args) => leftovers::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Wide(args) => wide::run(&args),
    }
}
