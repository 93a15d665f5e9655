//! The fate of a mutant: whether a judge notices it.
//!
//! The judges of one mutant run one after another. The judge that has detected the most mutants per second runs first.
//!
//! On a busy machine, a test can fail although the code is correct. Therefore a failed test counts only under two
//! conditions:
//!
//! - The test fails again when it runs alone, with the mutant.
//! - The test passes without the mutant.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Case, Judge, Kind, MIN_LIMIT, RunResult, usual_time};
use crate::mutant::Mutant;

/// The least time limit when a judge that has not ended in time runs again with the mutant. A mutant that only makes a
/// test wait for a timer instead of a wake-up is not hung.
const MIN_SECOND_LIMIT: Duration = Duration::from_secs(45);

/// The verdict on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A judge noticed the mutant. The text names the judge, and the test or rule that failed.
    Killed(String),
    /// The judge with this name did not end within its time limit.
    Hung(String),
    /// All judges that reach the mutant have passed.
    Alive,
    /// No judge executes the mutated code.
    Unreached,
}

impl Judge {
    /// Runs the cases against a mutant. Returns the verdict on the mutant; `None` if no case notices it.
    fn judge(&self, copy: &Path, mutant: usize, cases: &[&Case]) -> Result<Option<Fate>> {
        let (name, limit) = (&self.name, MIN_LIMIT + 4 * usual_time(cases));
        let result = self.run(copy, mutant, cases, None, limit)?;
        let (again, text) = match &result {
            RunResult::Passed => return Ok(None),
            RunResult::Failed(rule) if self.kind == Kind::Simulation => {
                return Ok(Some(Fate::Killed(format!("{name}: {rule}"))));
            }
            RunResult::Failed(test) => match cases.iter().find(|case| case.test == *test) {
                Some(case) => (vec![*case], format!("{name}: {test}")),
                // The test program was aborted, so its output names no failed test.
                None => (cases.to_vec(), format!("{name}: {test}")),
            },
            RunResult::TimedOut => (cases.to_vec(), name.clone()),
        };
        // The mutant has caused the failure only if the cases fail again, and pass without the mutant.
        let second_limit = limit.max(MIN_SECOND_LIMIT);
        let second_result = self.run(copy, mutant, &again, None, second_limit)?;
        if second_result == RunResult::Passed
            || self.run(copy, 0, &again, None, second_limit)? != RunResult::Passed
        {
            return Ok(None);
        }
        Ok(Some(match second_result {
            RunResult::TimedOut => Fate::Hung(text),
            _ => Fate::Killed(text),
        }))
    }
}

/// For each mutated file and each judge: the number of mutants that the judge has killed, and its run time in seconds.
/// The judge with the most kills per second runs first.
#[derive(Default)]
pub(crate) struct Experience(Mutex<HashMap<(String, String), (f64, f64)>>);

impl Experience {
    fn kill_rate(&self, file: &str, judge: &Judge, usual_time: Duration) -> f64 {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (kills, seconds) = entries
            .get(&(file.to_owned(), judge.name.clone()))
            .copied()
            .unwrap_or_default();
        // Add a few assumed kills, so that a judge without kills is also tried. Prefer the simulation and the unit
        // tests: they notice early that a mutant hangs, while other tests run until the time limit.
        let expected_kills = match judge.kind {
            Kind::Simulation => 2.0,
            Kind::Tests if judge.name.starts_with("lib") => 2.0,
            Kind::Tests => 0.3,
        };
        (kills + expected_kills) / (seconds + usual_time.as_secs_f64())
    }

    fn add(&self, file: &str, judge: &Judge, killed: bool, elapsed: Duration) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (kills, seconds) = entries
            .entry((file.to_owned(), judge.name.clone()))
            .or_default();
        *kills += if killed { 1.0 } else { 0.0 };
        *seconds += elapsed.as_secs_f64();
    }
}

/// Runs the judges against a mutant until one judge notices the mutant. The judge with the most kills per second so far
/// runs first. Returns the verdict.
pub(crate) fn judge_mutant(
    judges: &[Judge],
    experience: &Experience,
    copy: &Path,
    mutant: &Mutant,
) -> Result<Fate> {
    let mut reaching_judges: Vec<(f64, &Judge, Vec<&Case>)> = judges
        .iter()
        .map(|judge| (judge, judge.cases_that_reach(mutant.id)))
        .filter(|(_, cases)| !cases.is_empty())
        .map(|(judge, cases)| {
            let kill_rate = experience.kill_rate(&mutant.file, judge, usual_time(&cases));
            (kill_rate, judge, cases)
        })
        .collect();
    reaching_judges.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
    for (_, judge, cases) in &reaching_judges {
        let started_at = Instant::now();
        let fate = judge.judge(copy, mutant.id, cases)?;
        experience.add(&mutant.file, judge, fate.is_some(), started_at.elapsed());
        if let Some(fate) = fate {
            return Ok(fate);
        }
    }
    Ok(if reaching_judges.is_empty() {
        Fate::Unreached
    } else {
        Fate::Alive
    })
}
