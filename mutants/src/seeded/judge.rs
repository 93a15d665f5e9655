//! Lets the simulation of the copy find each seeded bug.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::list::{Caught, SeededBug};

/// The time limit of one search. A search takes minutes on a busy machine; only an endless loop takes longer than this.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// One judgement: a bug, and a rule that must catch it.
#[derive(Clone, Copy)]
struct Judgement<'a> {
    bug: &'a SeededBug,
    caught: &'a Caught,
}

/// The result of one judgement.
struct Verdict {
    /// The seed that revealed the bug; `None` if no seed below the bound did.
    seed: Option<u64>,
    /// The last line that the simulation printed.
    message: String,
    elapsed: Duration,
}

/// Lets the simulation judge the bugs, and prints a table. Judges only within bounds below `limit` seeds. Returns whether
/// all bugs were caught.
pub(super) fn judge_all(
    simulation: &Path,
    bugs: &[&SeededBug],
    limit: u64,
    threads: usize,
) -> Result<bool> {
    let judgements = bugs.iter().flat_map(|bug| {
        let caught = bug.caught.iter();
        caught.map(|caught| Judgement { bug, caught })
    });
    let judgements = judgements.filter(|judgement| judgement.caught.seeds < limit);
    let judgements: Vec<Judgement<'_>> = judgements.collect();
    ensure!(
        !judgements.is_empty(),
        "no search for these seeded bugs has a bound below {limit} seeds"
    );
    let started_at = Instant::now();
    let verdicts = run_all(simulation, &judgements, threads)?;
    println!(
        "\n{:<26}{:<31}{:<45}{:>8}{:>8}{:>7}",
        "seeded bug", "rule", "scenarios", "seed", "bound", "s"
    );
    let mut are_all_caught = true;
    for (Judgement { bug, caught }, verdict) in judgements.iter().zip(&verdicts) {
        let seed = verdict.seed.map_or("-".to_owned(), |seed| seed.to_string());
        are_all_caught &= verdict.seed.is_some();
        println!(
            "{:<26}{:<31}{:<45}{seed:>8}{:>8}{:>7.1}",
            bug.name,
            caught.by,
            caught.scenarios,
            caught.seeds,
            verdict.elapsed.as_secs_f64()
        );
    }
    let missed = verdicts.iter().filter(|verdict| verdict.seed.is_none());
    let judged: BTreeSet<usize> = judgements
        .iter()
        .map(|judgement| judgement.bug.id)
        .collect();
    println!(
        "{} searches for {} seeded bugs in {:.0} s, {} NOT CAUGHT",
        judgements.len(),
        judged.len(),
        started_at.elapsed().as_secs_f64(),
        missed.count()
    );
    Ok(are_all_caught)
}

/// Runs the judgements, `threads` at a time, and prints each result. Those that may take longest begin first.
fn run_all(
    simulation: &Path,
    judgements: &[Judgement<'_>],
    threads: usize,
) -> Result<Vec<Verdict>> {
    let mut order: Vec<usize> = (0..judgements.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(judgements[*index].caught.seeds));
    let next = AtomicUsize::new(0);
    let verdicts: Mutex<Vec<Option<Verdict>>> =
        Mutex::new(judgements.iter().map(|_| None).collect());
    let judge_next = || -> Result<()> {
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(&index) = order.get(position) else {
                return Ok(());
            };
            let Judgement { bug, caught } = judgements[index];
            let mut arguments = caught.arguments();
            arguments.extend(["--seeds".into(), caught.seeds.to_string()]);
            let verdict = find(simulation, bug, &caught.by, &arguments)?;
            let result = match verdict.seed {
                Some(_) => "caught",
                None => "NOT CAUGHT",
            };
            let (count, total) = (position + 1, judgements.len());
            println!(
                "[{count}/{total}] {result} {}: {}",
                bug.name, verdict.message
            );
            if let Some(place) = lock(&verdicts).get_mut(index) {
                *place = Some(verdict);
            }
        }
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| scope.spawn(judge_next))
            .collect();
        let panicked = |_| Err(anyhow::anyhow!("a worker thread panicked"));
        let joined = workers.into_iter();
        joined
            .map(|worker| worker.join().unwrap_or_else(panicked))
            .collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    let verdicts = verdicts
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let verdicts: Option<Vec<Verdict>> = verdicts.into_iter().collect();
    verdicts.context("a judgement has no verdict")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The command that lets the simulation search for a violation of `rule` with this bug.
fn command(simulation: &Path, bug: &SeededBug, rule: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(simulation);
    command.args(arguments).args(["--find", rule]);
    if bug.world {
        command.args(["--world-bug", &bug.name]);
    } else {
        command.env("QUORATE_MUTANT", bug.id.to_string());
    }
    command
}

fn find(simulation: &Path, bug: &SeededBug, rule: &str, arguments: &[String]) -> Result<Verdict> {
    let started_at = Instant::now();
    let mut child = command(simulation, bug, rule, arguments)
        .args(["--threads", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(simulation.display().to_string())?;
    // The simulation prints a single line, so it never waits for a reader of its output.
    while child.try_wait()?.is_none() {
        if started_at.elapsed() > LIMIT {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A search that was killed or crashed prints no result. It counts as not caught, and the others go on.
    let message = match text.lines().last() {
        Some(line) => line.to_owned(),
        None => format!("no result, {}", output.status),
    };
    let seed = message
        .strip_prefix("seed ")
        .and_then(|rest| rest.split_once(':')?.0.parse().ok());
    Ok(Verdict {
        seed: seed.filter(|_| output.status.success()),
        message,
        elapsed: started_at.elapsed(),
    })
}

/// Prints the smallest scenario that reveals the only one of the bugs, and its trace. If `harm_seeds` is a number of
/// seeds, the scenario must break a rule whose violation harms users.
pub(super) fn show(
    simulation: &Path,
    bugs: &[&SeededBug],
    harm_seeds: Option<u64>,
) -> Result<bool> {
    let [bug] = bugs else {
        anyhow::bail!("--show needs the name of one seeded bug");
    };
    let caught = bug.caught.first().context("the bug has no rule")?;
    let caught = harm_seeds.map_or_else(|| caught.clone(), |seeds| caught.as_harm(seeds));
    let mut arguments = caught.arguments();
    arguments.extend(["--seeds".into(), caught.seeds.to_string(), "--trace".into()]);
    let status = command(simulation, bug, &caught.by, &arguments).status()?;
    Ok(status.success())
}

/// Prints, for each bug, the first seed in which it breaks a rule whose violation harms users.
pub(super) fn find_harm(
    simulation: &Path,
    bugs: &[&SeededBug],
    seeds: u64,
    threads: usize,
) -> Result<bool> {
    let first_rule = |bug: &&SeededBug| bug.caught.first().map(|caught| caught.as_harm(seeds));
    let harms: Vec<Caught> = bugs.iter().filter_map(first_rule).collect();
    let judgements = bugs.iter().zip(&harms);
    let judgements: Vec<Judgement<'_>> = judgements
        .map(|(bug, caught)| Judgement { bug, caught })
        .collect();
    let verdicts = run_all(simulation, &judgements, threads)?;
    println!();
    for (Judgement { bug, .. }, verdict) in judgements.iter().zip(verdicts) {
        println!("{:<26}{}", bug.name, verdict.message);
    }
    Ok(true)
}
