//! Lets the simulation of the copy find each seeded bug, and lets chaos runs of the copy reveal some of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::list::{Bound, Caught, SeededBug};
use super::process::wait_or_kill;
use super::verdict::Verdict;
use super::woven::Programs;
use super::{Selection, chaos_run};

/// The time limit of one search. A search takes minutes on a busy machine; only an endless loop takes longer than this.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// One judgement: a bug, and a rule that must catch it.
#[derive(Clone, Copy)]
struct Judgement<'a> {
    bug: &'a SeededBug,
    caught: &'a Caught,
}

/// Lets the simulation and the chaos runs judge the bugs by the selected rules, and prints a table. Returns whether all
/// bugs were caught.
pub(super) fn judge_all(
    programs: &Programs,
    bugs: &[&SeededBug],
    selection: Selection,
    threads: usize,
) -> Result<bool> {
    let judgements = bugs.iter().flat_map(|bug| {
        let caught = bug.caught.iter();
        caught.map(|caught| Judgement { bug, caught })
    });
    let judgements = judgements.filter(|judgement| selection.includes(judgement.caught.bound));
    let judgements: Vec<Judgement<'_>> = judgements.collect();
    ensure!(
        !judgements.is_empty(),
        "these seeded bugs have no such rules"
    );
    let started_at = Instant::now();
    let verdicts = run_all(programs, &judgements, threads, !selection.is_short)?;
    println!(
        "\n{:<26}{:<31}{:<82}{:>8}{:>8}{:>7}",
        "seeded bug", "rule", "scenarios", "caught", "bound", "s"
    );
    let mut are_all_caught = true;
    for (Judgement { bug, caught }, verdict) in judgements.iter().zip(&verdicts) {
        let found = verdict
            .found
            .map_or("-".to_owned(), |found| found.to_string());
        are_all_caught &= verdict.found.is_some();
        println!(
            "{:<26}{:<31}{:<82}{found:>8}{:>8}{:>7.1}",
            bug.name,
            caught.by,
            caught.scenarios,
            caught.bound,
            verdict.elapsed.as_secs_f64()
        );
    }
    let missed = verdicts.iter().filter(|verdict| verdict.found.is_none());
    let judged: BTreeSet<usize> = judgements
        .iter()
        .map(|judgement| judgement.bug.id)
        .collect();
    println!(
        "{} judgements of {} seeded bugs in {:.0} s, {} NOT CAUGHT",
        judgements.len(),
        judged.len(),
        started_at.elapsed().as_secs_f64(),
        missed.count()
    );
    Ok(are_all_caught)
}

/// The results so far, by the index of the judgement.
struct Board<'a> {
    judgements: &'a [Judgement<'a>],
    verdicts: Mutex<Vec<Option<Verdict>>>,
}

impl Board<'_> {
    /// Stores and prints a result.
    fn add(&self, index: usize, verdict: Verdict) {
        let result = match verdict.found {
            Some(_) => "caught",
            None => "NOT CAUGHT",
        };
        let mut verdicts = lock(&self.verdicts);
        let count = verdicts.iter().flatten().count() + 1;
        println!(
            "[{count}/{}] {result} {}: {}",
            self.judgements.len(),
            self.judgements[index].bug.name,
            verdict.message
        );
        verdicts[index] = Some(verdict);
    }
}

/// Runs the judgements, and prints each result. `threads` searches run at a time, and those that may take longest begin
/// first. The chaos runs mostly wait, so they take place at the same time, one after the other. If `has_controls` is true,
/// each bug that a chaos run caught is compared with a run without the bug.
fn run_all(
    programs: &Programs,
    judgements: &[Judgement<'_>],
    threads: usize,
    has_controls: bool,
) -> Result<Vec<Verdict>> {
    let is_chaos = |index: &usize| matches!(judgements[*index].caught.bound, Bound::Seconds(_));
    let (chaos_runs, mut searches): (Vec<usize>, Vec<usize>) =
        (0..judgements.len()).partition(is_chaos);
    searches.sort_by_key(|index| std::cmp::Reverse(judgements[*index].caught.bound));
    let next = AtomicUsize::new(0);
    let board = Board {
        judgements,
        verdicts: Mutex::new(judgements.iter().map(|_| None).collect()),
    };
    let search_next = || -> Result<()> {
        while let Some(&index) = searches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Judgement { bug, caught } = judgements[index];
            board.add(index, find(&programs.simulation, bug, caught)?);
        }
        Ok(())
    };
    let make_chaos_runs = || -> Result<()> {
        // One run can show the violations of several rules.
        let is_same_run = |a: &usize, b: &usize| {
            let (a, b) = (judgements[*a], judgements[*b]);
            a.bug.id == b.bug.id && a.caught.scenarios == b.caught.scenarios
        };
        for group in chaos_runs.chunk_by(is_same_run) {
            let caught: Vec<&Caught> = group
                .iter()
                .map(|index| judgements[*index].caught)
                .collect();
            let bug = judgements[group[0]].bug;
            let verdicts = chaos_run::judge(&programs.chaos, bug, &caught, has_controls)?;
            for (index, verdict) in group.iter().zip(verdicts) {
                board.add(*index, verdict);
            }
        }
        Ok(())
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let mut workers = vec![scope.spawn(make_chaos_runs)];
        workers.extend((0..threads.max(1)).map(|_| scope.spawn(search_next)));
        let panicked = |_| Err(anyhow::anyhow!("a worker thread panicked"));
        let joined = workers.into_iter();
        joined
            .map(|worker| worker.join().unwrap_or_else(panicked))
            .collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    let verdicts = board.verdicts.into_inner();
    let verdicts = verdicts.unwrap_or_else(std::sync::PoisonError::into_inner);
    let verdicts: Option<Vec<Verdict>> = verdicts.into_iter().collect();
    verdicts.context("a judgement has no verdict")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The command that lets the simulation search for a violation of the rule with this bug.
fn search_command(simulation: &Path, bug: &SeededBug, caught: &Caught) -> Command {
    let mut command = Command::new(simulation);
    command
        .args(caught.arguments())
        .args(["--find", &caught.by]);
    command.args(["--seeds", &caught.bound.to_string()]);
    if bug.world {
        command.args(["--world-bug", &bug.name]);
    } else {
        command.env("QUORATE_MUTANT", bug.id.to_string());
    }
    command
}

fn find(simulation: &Path, bug: &SeededBug, caught: &Caught) -> Result<Verdict> {
    let started_at = Instant::now();
    let mut child = search_command(simulation, bug, caught)
        .args(["--threads", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(simulation.display().to_string())?;
    // The simulation prints a single line, so it never waits for a reader of its output.
    wait_or_kill(&mut child, LIMIT)?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A search that was killed or crashed prints no result. It counts as not caught, and the others go on.
    let message = match text.lines().last() {
        Some(line) => line.to_owned(),
        None => format!("no result, {}", output.status),
    };
    let seed: Option<u64> = message
        .strip_prefix("seed ")
        .and_then(|rest| rest.split_once(':')?.0.parse().ok());
    Ok(Verdict {
        found: seed.filter(|_| output.status.success()).map(Bound::Seeds),
        message,
        elapsed: started_at.elapsed(),
    })
}

/// Prints the smallest scenario that reveals the only one of the bugs, and its trace. If `harm_seeds` is a number of
/// seeds, the scenario must break a rule whose violation harms users. If only a chaos run reveals the bug, shows this
/// run.
pub(super) fn show(
    programs: &Programs,
    bugs: &[&SeededBug],
    harm_seeds: Option<u64>,
) -> Result<bool> {
    let [bug] = bugs else {
        anyhow::bail!("--show needs the name of one seeded bug");
    };
    let caught = bug.caught.first().context("the bug has no rule")?;
    if let Bound::Seconds(seconds) = caught.bound {
        return chaos_run::show(&programs.chaos, bug, caught, seconds);
    }
    let caught = harm_seeds.map_or_else(|| caught.clone(), |seeds| caught.as_harm(seeds));
    let mut command = search_command(&programs.simulation, bug, &caught);
    Ok(command.arg("--trace").status()?.success())
}

/// Prints, for each bug that the simulation judges, the first seed in which it breaks a rule whose violation harms users.
pub(super) fn find_harm(
    programs: &Programs,
    bugs: &[&SeededBug],
    seeds: u64,
    threads: usize,
) -> Result<bool> {
    let is_simulated = |caught: &&Caught| matches!(caught.bound, Bound::Seeds(_));
    let harms = bugs.iter().filter_map(|bug| {
        let caught = bug.caught.iter().find(is_simulated);
        if caught.is_none() {
            println!("{:<26}only chaos runs reveal it", bug.name);
        }
        Some((*bug, caught?.as_harm(seeds)))
    });
    let harms: Vec<(&SeededBug, Caught)> = harms.collect();
    let judgements: Vec<Judgement<'_>> = harms
        .iter()
        .map(|(bug, caught)| Judgement { bug, caught })
        .collect();
    let verdicts = run_all(programs, &judgements, threads, false)?;
    println!();
    for (Judgement { bug, .. }, verdict) in judgements.iter().zip(verdicts) {
        println!("{:<26}{}", bug.name, verdict.message);
    }
    Ok(true)
}
