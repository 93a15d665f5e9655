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

mod contender;
mod floor;
mod measure;
mod table;
mod versus;
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
    /// Latency, throughput and cost per cycle, as ratios to the floor
    Versus(versus::Args),
}

fn main() {
    match Cli::parse().command {
        Command::Versus(args) => versus::run(&args),
    }
}
