//! `scripts/mutants` inserts small faults (mutants) into the lock code of quorate. It reports which mutants the tests
//! and the simulation detect.
//!
//! All mutants are in **one** build of a copy of the repository. An environment variable activates one mutant, so no
//! mutant needs its own build.
//!
//! 1. `find` finds the mutants of the files that `targets.rs` lists.
//! 2. `tree` copies the repository, inserts the mutants that compile, and builds the tests and the simulation of the
//!    copy.
//! 3. `judge` runs the tests and the simulation against each mutant, until one of them fails.
//! 4. `survivors.txt` lists the mutants that no judge detects, each with the reason why it does not change the
//!    behaviour of quorate. A test checks that each listed mutant exists, and limits the number of listed mutants.
//!
//! `seeded` does the same for the seeded bugs: faults that are written down by hand, each with the rule of the
//! simulation that must catch it (`scripts/seeded-bugs`).

mod choice;
mod copy;
mod find;
mod judge;
mod lua;
mod mutant;
mod rust;
mod seeded;
mod survivors;
mod table;
mod targets;
mod tree;
mod weave;

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use choice::Choice;
use judge::Judge;
use judge::fate::{Experience, Fate};
use mutant::Mutant;
use table::Table;
use tree::Tree;

const HELP: &str = "\
usage: scripts/mutants [--only FILE] [--mutant N] [--rare K] [--sample K [--seed S]] [--alive]
                       [--quick] [--judges NAME,..] [--keep] [--threads N]
       scripts/mutants --list [--only FILE]     lists the mutants
       scripts/mutants --build [--only FILE]    shows which mutants compile
       scripts/mutants --summary                shows the results of earlier runs

--only FILE     uses only the files whose path contains FILE; -FILE excludes them. FILE can be a list: a.rs,b.rs
--sample K      tests K random mutants, prints the random seed, and reports only on these mutants
--seed S        draws the same sample as the earlier run that printed the seed S
--mutant N      tests mutant N again
--rare K        uses only mutants whose code at least one test and at most K tests execute; J-K: at least J tests
--alive         tests again the mutants that survived
--quick         uses only the fast judges
--judges NAME   uses only these judges: test programs (lib: the unit tests), files of tests/all, or simulation
--threads N     tests N mutants at the same time (default 2)
--keep          uses the build and the time limits of the last run; the code must not have changed since then

Results are kept in target/mutants/table.txt, and a mutant is tested only once. Delete the file to start again.";

struct Options {
    action: Action,
    only: Option<String>,
    mutant: Option<usize>,
    rare: Option<RangeInclusive<usize>>,
    sample: Option<usize>,
    seed: Option<u64>,
    alive: bool,
    keep: bool,
    choice: Choice,
    threads: usize,
}

#[derive(PartialEq)]
enum Action {
    Judge,
    List,
    Build,
    Summary,
}

fn parse_options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        action: Action::Judge,
        only: None,
        mutant: None,
        rare: None,
        sample: None,
        seed: None,
        alive: false,
        keep: false,
        choice: Choice::default(),
        threads: 2,
    };
    while let Some(arg) = args.next() {
        let mut next_value = || args.next().context(format!("{arg} needs a value"));
        match arg.as_str() {
            "--only" => options.only = Some(next_value()?),
            "--mutant" => options.mutant = Some(next_value()?.parse()?),
            "--rare" => options.rare = Some(test_counts(&next_value()?)?),
            "--sample" => options.sample = Some(next_value()?.parse()?),
            "--seed" => options.seed = Some(next_value()?.parse()?),
            "--threads" => options.threads = next_value()?.parse()?,
            "--alive" => options.alive = true,
            "--keep" => options.keep = true,
            "--quick" => options.choice.quick = true,
            "--judges" => {
                options.choice.judge_names = next_value()?.split(',').map(str::to_owned).collect();
            }
            "--list" => options.action = Action::List,
            "--build" => options.action = Action::Build,
            "--summary" => options.action = Action::Summary,
            _ => bail!("unknown argument {arg}"),
        }
    }
    Ok(options)
}

/// The numbers of tests that the value of `--rare` stands for: `12` is 1 to 12, and `13-50` is 13 to 50.
fn test_counts(value: &str) -> Result<RangeInclusive<usize>> {
    let (least, most) = value.split_once('-').unwrap_or(("1", value));
    let range = least.parse()?..=most.parse()?;
    ensure!(
        !range.is_empty(),
        "{value} selects no mutants: use at least 1, and no first number that is larger than the second"
    );
    Ok(range)
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if_eq("seeded-bugs").is_some() {
        return execute(seeded::parse_options(args), seeded::HELP, seeded::run);
    }
    execute(parse_options(args), HELP, run)
}

/// Runs a command with its options. `run` returns false if the command has found something to correct.
fn execute<O>(options: Result<O>, help: &str, run: fn(&O) -> Result<bool>) -> ExitCode {
    let options = match options {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error:#}\n{help}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does the work that the options request. Returns false if a mutant survived its judges, and `survivors.txt` does not
/// explain it.
fn run(options: &Options) -> Result<bool> {
    let root = targets::root();
    let code = find::find(&root)?;
    let is_selected = |mutant: &&Mutant| {
        let only = options.only.as_deref().unwrap_or("");
        let (excluded, only): (Vec<&str>, Vec<&str>) =
            only.split(',').partition(|part| part.starts_with('-'));
        let is_in_file = |part: &str| mutant.file.contains(part);
        (only.is_empty() || only.into_iter().any(is_in_file))
            && !excluded.into_iter().any(|part| is_in_file(&part[1..]))
            && options.mutant.is_none_or(|id| mutant.id == id)
    };
    if options.action == Action::List {
        code.mutants
            .iter()
            .filter(is_selected)
            .for_each(|mutant| println!("{mutant}"));
        return Ok(true);
    }
    let survivors = survivors::read()?;
    let is_explained = |mutant: &Mutant| survivors::explains(&survivors, mutant);
    let path = root.join("target/mutants/table.txt");
    if options.action == Action::Summary {
        let mut table = Table::read(path);
        table.retain(&code.mutants);
        print!("{}", table.summary(&survivors, None));
        return Ok(true);
    }
    let mut table = Table::read(path);
    table.retain(&code.mutants);
    let started_at = Instant::now();
    let (tree, built) = if options.keep {
        Tree::open_built(&root, code)?
    } else {
        let mut tree = Tree::copy(&root, code)?;
        let built = tree.build(&options.choice)?;
        (tree, built)
    };
    let mutants: Vec<&Mutant> = tree.mutants().collect();
    println!(
        "{} mutants compile, {} do not; all were built in {:.0} s",
        mutants.len(),
        tree.not_compiled(),
        started_at.elapsed().as_secs_f64()
    );
    if options.action == Action::Build {
        mutants
            .iter()
            .copied()
            .filter(is_selected)
            .for_each(|mutant| println!("{mutant}"));
        return Ok(true);
    }
    let mut judges = judge::judges(&built, &options.choice)?;
    for test in
        judge::calibration::calibrate(&mut judges, &tree.copy, options.threads, options.keep)?
    {
        println!("test left out, because it fails without any mutant: {test}");
    }
    for (judge, count) in judge::reach_counts(&judges) {
        println!("{count:>6} mutants reached by {judge}");
    }
    let mut selected: Vec<&Mutant> = mutants.iter().copied().filter(is_selected).collect();
    if let Some(test_counts) = &options.rare {
        selected.retain(|mutant| test_counts.contains(&judge::test_count(&judges, mutant.id)));
        println!(
            "{} mutants are reached by {} to {} tests",
            selected.len(),
            test_counts.start(),
            test_counts.end()
        );
    }
    let selected_count = selected.len();
    let sample_text = options.sample.map(|sample| {
        let seed = options.seed.unwrap_or_else(random_seed);
        selected.sort_by_key(|mutant| shuffle_key(mutant.id as u64, seed));
        selected.truncate(sample);
        format!(
            "{} of {selected_count} mutants, drawn with --seed {seed}",
            selected.len()
        )
    });
    if let Some(sample_text) = &sample_text {
        println!("judging {sample_text}");
    }
    let is_selected = selected.clone();
    selected.retain(|mutant| {
        options.mutant.is_some()
            || (options.alive == table.is_alive(mutant)
                && (options.alive || !table.contains(mutant)))
    });
    judge_all(&selected, &judges, &tree, &mut table, options)?;
    if let Some(sample_text) = &sample_text {
        println!("\n{sample_text}");
    }
    println!("{}", table.summary(&survivors, Some(&is_selected)));
    let is_unexplained_survivor =
        |mutant: &&Mutant| table.is_alive(mutant) && !is_explained(mutant);
    let alive_mutants: Vec<_> = is_selected
        .into_iter()
        .filter(is_unexplained_survivor)
        .collect();
    for mutant in &alive_mutants {
        println!("ALIVE {mutant}");
    }
    Ok(alive_mutants.is_empty())
}

/// Returns a random seed, different each time that the command is started.
fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::from(now.unwrap_or_default().subsec_nanos())
}

fn judge_all(
    selected: &[&Mutant],
    judges: &[Judge],
    tree: &Tree,
    table: &mut Table,
    options: &Options,
) -> Result<()> {
    let (next, started_at) = (AtomicUsize::new(0), Instant::now());
    let table = Mutex::new(table);
    let experience = Experience::default();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let judge_next_mutants = || {
            while let Some(mutant) = selected.get(next.fetch_add(1, Ordering::Relaxed)) {
                let fate = judge::fate::judge_mutant(judges, &experience, &tree.copy, mutant)?;
                let mut table = table
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                // Do not record that a mutant survived if only some judges ran: another judge may kill it.
                let is_alive = matches!(fate, Fate::Alive | Fate::Unreached);
                if !is_alive || options.choice.judge_names.is_empty() {
                    table.record_fate(mutant, &fate)?;
                }
                let (finished, total) = (
                    next.load(Ordering::Relaxed).min(selected.len()),
                    selected.len(),
                );
                let result_text = match fate {
                    Fate::Killed(test) => format!("killed by {test}"),
                    Fate::Hung(test) => format!("hung in {test}"),
                    Fate::Alive => "ALIVE".into(),
                    Fate::Unreached => "UNREACHED".into(),
                };
                let elapsed_s = started_at.elapsed().as_secs();
                println!("[{finished}/{total} {elapsed_s} s] {mutant}\n        {result_text}");
            }
            Ok(())
        };
        let workers: Vec<_> = (0..options.threads.max(1))
            .map(|_| scope.spawn(judge_next_mutants))
            .collect();
        let results_of_workers = workers.into_iter().map(|worker| {
            let panic_error = |_| Err(anyhow::anyhow!("a worker thread panicked"));
            worker.join().unwrap_or_else(panic_error)
        });
        results_of_workers.collect()
    });
    results.into_iter().collect()
}

/// Returns a sort key that puts mutants into a random order. The order depends on the seed, and is not related to the
/// order of the mutants in the code.
fn shuffle_key(id: u64, seed: u64) -> u64 {
    let mut hash =
        id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tests_are_read_with_and_without_a_least_one() {
        assert_eq!(test_counts("12").expect("a number"), 1..=12);
        assert_eq!(test_counts("13-50").expect("two numbers"), 13..=50);
        for wrong in ["", "x", "3-", "-3", "3-4-5", "50-13", "0"] {
            assert!(test_counts(wrong).is_err(), "{wrong}");
        }
    }
}
