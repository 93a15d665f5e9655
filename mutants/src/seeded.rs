//! `scripts/seeded-bugs` builds one copy of the repository that contains all seeded bugs, switches on one bug after
//! another, and lets the simulation find each of them. Some of them must also, or only, be revealed by chaos runs.
//!
//! A seeded bug is an entry of `mutants/seeded.toml`: a change of the real code, and the rules that must catch it.
//!
//! 1. `list` reads the entries, and checks that the text to change stands exactly once in its function.
//! 2. `woven` writes the copy, in which each changed function has a body for each of its bugs.
//! 3. `judge` runs the simulation of the copy with each bug, and compares the violated rules with the entry. `chaos_run`
//!    does the same with real masters.

mod chaos_run;
mod judge;
mod list;
mod process;
mod verdict;
mod woven;

use anyhow::{Context, Result, bail, ensure};

use crate::targets;
use list::{Bound, SeededBug};

pub(crate) const HELP: &str = "\
usage: scripts/seeded-bugs [NAME ..]         judges these seeded bugs; without a name, all
       scripts/seeded-bugs --short [NAME ..] only within bounds of fewer than 1,000 seeds or 40 seconds
       scripts/seeded-bugs --searches ..     only with the simulation and the model
       scripts/seeded-bugs --chaos ..        only with chaos runs
       scripts/seeded-bugs --list            prints the names of the seeded bugs, and what they do
       scripts/seeded-bugs --show NAME       prints the smallest scenario that reveals the bug, and its trace
       scripts/seeded-bugs --harm [NAME ..]  prints the first seed in which each bug harms a client; with --show, the
                                             smallest scenario in which the bug harms a client
       --threads N                           judges N bugs at the same time (default: one for each core)
       --seeds N                             the number of seeds with --harm (default 20,000)";

pub(crate) struct Options {
    action: Action,
    names: Vec<String>,
    selection: Selection,
    /// Whether to search for a violation of any rule that protects users, instead of the rule in the list.
    is_harm: bool,
    threads: usize,
    seeds: u64,
}

/// Which rules of the list are judged.
#[derive(Clone, Copy)]
struct Selection {
    is_short: bool,
    searches: bool,
    chaos_runs: bool,
}

impl Selection {
    fn includes(self, bound: Bound) -> bool {
        let is_of_kind = match bound {
            Bound::Seeds(_) => self.searches,
            Bound::Seconds(_) => self.chaos_runs,
        };
        is_of_kind && (!self.is_short || bound.is_short())
    }
}

#[derive(PartialEq)]
enum Action {
    Judge,
    List,
    Show,
}

pub(crate) fn parse_options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        action: Action::Judge,
        names: Vec::new(),
        selection: Selection {
            is_short: false,
            searches: true,
            chaos_runs: true,
        },
        is_harm: false,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        seeds: 20_000,
    };
    while let Some(arg) = args.next() {
        let mut next_value = || args.next().context(format!("{arg} needs a value"));
        match arg.as_str() {
            "--list" => options.action = Action::List,
            "--show" => options.action = Action::Show,
            "--harm" => options.is_harm = true,
            "--short" => options.selection.is_short = true,
            "--searches" => options.selection.chaos_runs = false,
            "--chaos" => options.selection.searches = false,
            "--threads" => options.threads = next_value()?.parse()?,
            "--seeds" => options.seeds = next_value()?.parse()?,
            _ if arg.starts_with('-') => bail!("unknown argument {arg}"),
            _ => options.names.push(arg),
        }
    }
    Ok(options)
}

/// Does the work that the options request. Returns false if a seeded bug was not caught.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let root = targets::root();
    let bugs = list::read(&root)?;
    for name in &options.names {
        let is_known = bugs.iter().any(|bug| bug.name == *name);
        ensure!(is_known, "there is no seeded bug with the name {name}");
    }
    let is_selected =
        |bug: &&SeededBug| options.names.is_empty() || options.names.contains(&bug.name);
    let selected: Vec<&SeededBug> = bugs.iter().filter(is_selected).collect();
    if options.action == Action::List {
        for bug in selected {
            println!("{:<26}{}", bug.name, bug.does);
        }
        return Ok(true);
    }
    let programs = woven::build(&root, &bugs, &selected)?;
    if options.action == Action::Show {
        let seeds = options.is_harm.then_some(options.seeds);
        return judge::show(&programs, &selected, seeds);
    }
    if options.is_harm {
        return judge::find_harm(&programs, &selected, options.seeds, options.threads);
    }
    judge::judge_all(&programs, &selected, options.selection, options.threads)
}
