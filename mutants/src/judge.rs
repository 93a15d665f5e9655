//! Judges of mutants. A judge is a group of tests of one test program, or a simulation of many seeds.
//!
//! Each test first runs alone, without a mutant. This run records the mutants whose code the test executes. Against a
//! mutant, a judge then runs only the tests that execute the mutant's code. A simulation runs as a whole.
//!
//! The judges of one mutant run one after another. The judge that has detected the most mutants per second runs first.
//! A judge stops at its first failure.
//!
//! On a busy machine, a test can fail although the code is correct. Therefore a failed test counts only under two
//! conditions:
//!
//! - The test fails again when it runs alone, with the mutant.
//! - The test passes without the mutant.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::choice::{Choice, Part};
use crate::mutant::Mutant;
use crate::tree::BuiltPrograms;

/// The runs of the simulation: the simulation's option that selects the scenarios, the first seed, and the number of
/// seeds.
const SIMULATION_RUNS: [(&str, u64, u64); 6] = [
    ("", 0, 400),
    ("--stores", 0, 200),
    ("--changes", 0, 200),
    ("", 400, 2_600),
    ("--stores", 200, 1_300),
    ("--changes", 200, 1_300),
];

/// The number of entries of `SIMULATION_RUNS` that a `--quick` run uses: the short sweeps.
const QUICK_SIMULATION_RUNS: usize = 3;

/// The time limit for one run of a judge is `MIN_LIMIT` plus four times the duration of a run without a mutant.
const MIN_LIMIT: Duration = Duration::from_secs(5);

/// The time limit for one run of a judge without a mutant.
const CALIBRATION_LIMIT: Duration = Duration::from_secs(900);

/// How many tests are calibrated at the same time for each mutant that is judged at the same time. Most tests wait for
/// servers and clocks.
const CALIBRATIONS_PER_THREAD: usize = 4;

/// The least time limit when a judge that has not ended in time runs again with the mutant. A mutant that only makes a
/// test wait for a timer instead of a wake-up is not hung.
const MIN_SECOND_LIMIT: Duration = Duration::from_secs(45);

/// The number of tests of a judge that run at the same time.
const TEST_THREADS: u32 = 4;

/// How often a test must fail without a mutant to be left out. On a busy machine, a test can fail once.
const MAX_FAILURES: u32 = 2;

/// One judge: a group of tests of one test program, or a sweep of the simulation.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// The judge's name in the table of verdicts.
    pub(crate) name: String,
    program: PathBuf,
    kind: Kind,
    /// The arguments of each run, without the names of tests.
    args: Vec<String>,
    cases: Vec<Case>,
}

/// One test of a judge's program, or a whole sweep of the simulation.
#[derive(Clone, Debug)]
struct Case {
    /// The name of the test; empty for a sweep of the simulation.
    test: String,
    /// How long the case takes without a mutant.
    usual_time: Duration,
    /// The numbers of the mutants whose code the case executes.
    reached_mutants: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The judge is a test program.
    Tests,
    /// The judge is a sweep of the simulation.
    Simulation,
}

/// The result of one run of a judge.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RunResult {
    Passed,
    /// A test failed, or a rule of the simulation was violated. The text is the name of the test or rule.
    Failed(String),
    TimedOut,
}

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

/// Returns the chosen judges: first the test programs, the cheapest first, then the sweeps of the simulation. A test
/// belongs only to the first judge that selects it.
pub(crate) fn judges(built: &BuiltPrograms, choice: &Choice) -> Result<Vec<Judge>> {
    let mut judges = Vec::new();
    let mut listed_tests = BTreeSet::new();
    for (name, part) in choice.tests() {
        let program = built
            .tests
            .get(*name)
            .context(format!("no test program {name}"))?;
        let (judge_name, filters): (String, &[&str]) = match part {
            Part::All => ((*name).to_owned(), &[]),
            Part::Only(filters) => (format!("{name} {}", filters.join(" ")), filters),
        };
        let mut tests = list_tests(program, filters)?;
        tests.retain(|test| listed_tests.insert((*name, test.clone())));
        judges.push(Judge {
            name: judge_name,
            program: program.clone(),
            kind: Kind::Tests,
            args: vec![format!("--test-threads={TEST_THREADS}"), "--exact".into()],
            cases: tests.into_iter().map(Case::new).collect(),
        });
    }
    let Some(simulation) = &built.simulation else {
        return Ok(judges);
    };
    let run_count = if choice.quick {
        QUICK_SIMULATION_RUNS
    } else {
        SIMULATION_RUNS.len()
    };
    for (worlds, first, seeds) in &SIMULATION_RUNS[..run_count] {
        let options = format!("--first {first} --seeds {seeds} --threads 1 {worlds}");
        judges.push(Judge {
            name: format!("simulation {worlds} ({seeds} seeds)"),
            program: simulation.clone(),
            kind: Kind::Simulation,
            args: options.split_whitespace().map(str::to_owned).collect(),
            cases: vec![Case::new(String::new())],
        });
    }
    Ok(judges)
}

/// The names of the program's tests that contain one of the `filters`, without the tests that are ignored.
fn list_tests(program: &Path, filters: &[&str]) -> Result<Vec<String>> {
    let list = |options: &[&str]| -> Result<BTreeSet<String>> {
        let mut command = Command::new(program);
        command.args(["--list", "--format", "terse"]);
        let output = command.args(options).args(filters).output();
        let output = output.context(program.display().to_string())?;
        ensure!(
            output.status.success(),
            "{} cannot list its tests: {}",
            program.display(),
            output.status
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(tests.map(str::to_owned).collect())
    };
    let ignored_tests = list(&["--ignored"])?;
    Ok(list(&[])?.difference(&ignored_tests).cloned().collect())
}

impl Case {
    fn new(test: String) -> Self {
        Self {
            test,
            usual_time: MIN_LIMIT,
            reached_mutants: BTreeSet::new(),
        }
    }

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

    /// The cases that execute the code of the mutant with the number `mutant`.
    fn cases_that_reach(&self, mutant: usize) -> Vec<&Case> {
        let cases = self.cases.iter();
        let reaching = cases.filter(|case| case.reached_mutants.contains(&mutant));
        reaching.collect()
    }

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

    /// Runs the cases once, in a process group of their own. Kills the group at the first failure or at the time limit.
    fn run(
        &self,
        copy: &Path,
        mutant: usize,
        cases: &[&Case],
        trace_file: Option<&Path>,
        limit: Duration,
    ) -> Result<RunResult> {
        let tests = cases.iter().map(|case| &case.test);
        let tests = tests.filter(|test| !test.is_empty());
        let mut command = Command::new("nice");
        command
            .arg(&self.program)
            .args(&self.args)
            .args(tests)
            .current_dir(copy)
            .env("QUORATE_MUTANT", mutant.to_string())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        if let Some(trace_file) = trace_file {
            command.env("QUORATE_MUTANTS_REACHED", trace_file);
        }
        let mut child = command.spawn().context(self.name.clone())?;
        let process_group = Pid::from_raw(child.id() as i32);
        let stdout = child.stdout.take().context("the output must be a pipe")?;
        let (lines, output_lines) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let ends_at = Instant::now() + limit;
        let mut result = None;
        while result.is_none() {
            match output_lines.recv_timeout(ends_at.saturating_duration_since(Instant::now())) {
                Ok(line) => result = self.failure(&line).map(RunResult::Failed),
                Err(RecvTimeoutError::Timeout) => result = Some(RunResult::TimedOut),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        drop(output_lines);
        if result.is_some() {
            let _ = killpg(process_group, Signal::SIGKILL);
        }
        let status = child.wait()?;
        // Kill the whole group before the reader thread is joined. A surviving child process would keep the output pipe
        // open, and the reader thread would not end.
        let _ = killpg(process_group, Signal::SIGKILL);
        let _ = reader.join();
        Ok(result.unwrap_or_else(|| {
            if status.success() {
                RunResult::Passed
            } else {
                RunResult::Failed(format!("{status}"))
            }
        }))
    }

    /// Returns the failed test or rule that a line of output names; `None` for other lines.
    fn failure(&self, line: &str) -> Option<String> {
        match self.kind {
            Kind::Tests => {
                let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
                Some(test.trim_end_matches(" - should panic").to_owned())
            }
            Kind::Simulation => {
                let (seed, message) = line.strip_prefix("seed ")?.split_once(": ")?;
                let rule = message.split([':', ',', ' ']).next().unwrap_or(message);
                Some(format!("{rule} at seed {seed}"))
            }
        }
    }
}

/// The time that the cases take together without a mutant.
fn usual_time(cases: &[&Case]) -> Duration {
    let total: Duration = cases.iter().map(|case| case.usual_time).sum();
    let longest = cases.iter().map(|case| case.usual_time).max();
    longest.unwrap_or_default().max(total / TEST_THREADS)
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

/// Returns the number of mutants that each judge reaches.
pub(crate) fn reach_counts(judges: &[Judge]) -> BTreeMap<&str, usize> {
    let reach = judges.iter().map(|judge| {
        let reached = judge.cases.iter().flat_map(|case| &case.reached_mutants);
        (&*judge.name, reached.collect::<BTreeSet<_>>().len())
    });
    reach.collect()
}

/// Returns the number of tests that execute the code of the mutant with the number `mutant`.
pub(crate) fn test_count(judges: &[Judge], mutant: usize) -> usize {
    let tests = judges.iter().filter(|judge| judge.kind == Kind::Tests);
    tests
        .map(|judge| judge.cases_that_reach(mutant).len())
        .sum()
}
