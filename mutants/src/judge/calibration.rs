//! Calibration: each test runs alone, without a mutant. The run shows how long the test takes, and records the mutants
//! whose code the test executes. A test that fails is left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Case, Judge, RunResult};

/// The time limit for one run of a judge without a mutant.
const CALIBRATION_LIMIT: Duration = Duration::from_secs(900);

/// How many tests are calibrated at the same time for each mutant that is judged at the same time. Most tests wait for
/// servers and clocks.
const CALIBRATIONS_PER_THREAD: usize = 4;

/// How often a test must fail without a mutant to be left out. On a busy machine, a test can fail once.
const MAX_FAILURES: u32 = 2;

impl Case {
    /// Formats the result of the calibration as one line of [`Judge::calibration_file`].
    fn line(&self) -> String {
        let ids: Vec<String> = self.reached_mutants.iter().map(usize::to_string).collect();
        let usual_ms = self.usual_time.as_millis();
        format!("{usual_ms}\t{}\t{}", self.test, ids.join(","))
    }

    /// Reads a line that [`line`](Self::line) wrote.
    fn read(line: &str) -> Option<Self> {
        let (usual_ms, rest) = line.split_once('\t')?;
        let (test, ids) = rest.split_once('\t')?;
        Some(Self {
            test: test.to_owned(),
            usual_time: Duration::from_millis(usual_ms.parse().ok()?),
            reached_mutants: ids.split(',').filter_map(|id| id.parse().ok()).collect(),
        })
    }
}

impl Judge {
    /// The path of a file with the results of the runs of this judge without mutants.
    fn calibration_file(&self, copy: &Path) -> PathBuf {
        let words: String = self.name.chars().filter(|c| c.is_alphanumeric()).collect();
        copy.join(format!("../reached-by-{words}.txt"))
    }

    /// Reads the stored results of an earlier calibration of this judge. Returns false if there are none.
    fn read_calibration(&mut self, copy: &Path) -> bool {
        let Ok(text) = fs::read_to_string(self.calibration_file(copy)) else {
            return false;
        };
        self.cases = text.lines().filter_map(Case::read).collect();
        true
    }

    fn write_calibration(&self, copy: &Path) -> Result<()> {
        let lines: Vec<String> = self.cases.iter().map(Case::line).collect();
        Ok(fs::write(self.calibration_file(copy), lines.join("\n"))?)
    }

    /// Runs one case without a mutant. Returns how long it takes and which mutants it reaches. Returns the last failure
    /// if the case fails [`MAX_FAILURES`] times.
    fn calibrated(
        &self,
        case: &Case,
        copy: &Path,
        trace_file: &Path,
    ) -> Result<std::result::Result<Case, RunResult>> {
        let mut failures = 0;
        loop {
            let _ = fs::remove_file(trace_file);
            let started_at = Instant::now();
            let result = self.run(copy, 0, &[case], Some(trace_file), CALIBRATION_LIMIT)?;
            if result == RunResult::Passed {
                let trace = fs::read_to_string(trace_file).unwrap_or_default();
                let _ = fs::remove_file(trace_file);
                return Ok(Ok(Case {
                    test: case.test.clone(),
                    usual_time: started_at.elapsed(),
                    reached_mutants: trace.lines().filter_map(|id| id.parse().ok()).collect(),
                }));
            }
            failures += 1;
            if failures == MAX_FAILURES {
                return Ok(Err(result));
            }
        }
    }
}

/// Calibrates the judges, for judging `threads` mutants at a time. Returns the tests that fail without a mutant; they
/// are left out.
///
/// If `keep` is true, uses the stored results of earlier calibrations where they exist.
pub(crate) fn calibrate(
    judges: &mut [Judge],
    copy: &Path,
    threads: usize,
    keep: bool,
) -> Result<Vec<String>> {
    let is_missing = |judge: &mut Judge| !(keep && judge.read_calibration(copy));
    let uncalibrated_judges: Vec<&mut Judge> = judges
        .iter_mut()
        .filter_map(|judge| is_missing(judge).then_some(judge))
        .collect();
    // Begin with the sweeps of the simulation, which take the longest.
    let all_cases = uncalibrated_judges.iter().enumerate().rev();
    let queue: Vec<(usize, &Case)> = all_cases
        .flat_map(|(index, judge)| judge.cases.iter().map(move |case| (index, case)))
        .collect();
    if !queue.is_empty() {
        println!("running {} tests and sweeps without a mutant", queue.len());
    }
    let next = AtomicUsize::new(0);
    let work = |worker: usize| -> Result<_> {
        let trace_file = copy.join(format!("../reached-{worker}.txt"));
        let mut results = Vec::new();
        while let Some((index, case)) = queue.get(next.fetch_add(1, Ordering::Relaxed)) {
            let judge = &uncalibrated_judges[*index];
            let result = judge.calibrated(case, copy, &trace_file)?;
            results.push((*index, result.map_err(|result| (case.test.clone(), result))));
        }
        Ok(results)
    };
    let results = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..CALIBRATIONS_PER_THREAD * threads.max(1))
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        let joined = workers.into_iter().map(|worker| {
            let panicked = |_| Err(anyhow::anyhow!("a worker thread panicked"));
            worker.join().unwrap_or_else(panicked)
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let mut calibrated_cases: Vec<Vec<Case>> = vec![Vec::new(); uncalibrated_judges.len()];
    let mut left_out = Vec::new();
    for (index, result) in results.into_iter().flatten() {
        match result {
            Ok(case) => calibrated_cases[index].push(case),
            Err((test, result)) => {
                let name = &uncalibrated_judges[index].name;
                left_out.push(format!("{name}: {test} ({result:?})"));
            }
        }
    }
    for (judge, cases) in uncalibrated_judges.into_iter().zip(calibrated_cases) {
        judge.cases = cases;
        judge.write_calibration(copy)?;
    }
    Ok(left_out)
}
