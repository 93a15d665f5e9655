//! Judges of mutants. A judge is a test program, or a simulation of many seeds.
//!
//! Each judge first runs once without a mutant. This run records the mutants whose code the judge executes. The judge
//! then runs only against these mutants.
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
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
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

/// One judge: a test program or a sweep of the simulation, with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// The judge's name in the table of verdicts.
    pub(crate) name: String,
    program: PathBuf,
    args: Vec<String>,
    kind: Kind,
    /// The time limit for one run of the judge. A run that takes longer is killed, and the mutant is recorded as hung.
    limit: Duration,
    /// How long a run of the judge takes without a mutant.
    usual_time: Duration,
    /// The numbers of the mutants whose code the judge executes.
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

/// Returns the chosen judges: first the test programs, the cheapest first, then the sweeps of the simulation.
pub(crate) fn judges(built: &BuiltPrograms, choice: &Choice) -> Result<Vec<Judge>> {
    let mut judges = Vec::new();
    for (name, part) in choice.tests() {
        let program = built
            .tests
            .get(*name)
            .context(format!("no test program {name}"))?;
        let mut args: Vec<String> = vec!["--test-threads=4".into()];
        let mut judge_name = (*name).to_owned();
        match part {
            Part::All => {}
            Part::Only(names) => {
                args.extend(names.iter().map(|name| (*name).to_owned()));
                judge_name = format!("{name} {}", names.join(" "));
            }
        }
        judges.push(Judge {
            name: judge_name,
            program: program.clone(),
            args,
            kind: Kind::Tests,
            limit: MIN_LIMIT,
            usual_time: MIN_LIMIT,
            reached_mutants: BTreeSet::new(),
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
            args: options.split_whitespace().map(str::to_owned).collect(),
            kind: Kind::Simulation,
            limit: MIN_LIMIT,
            usual_time: MIN_LIMIT,
            reached_mutants: BTreeSet::new(),
        });
    }
    Ok(judges)
}

impl Judge {
    /// The path of the file with the numbers of the mutants that this judge reaches.
    fn trace_file(&self, copy: &Path) -> PathBuf {
        let words: String = self.name.chars().filter(|c| c.is_alphanumeric()).collect();
        copy.join(format!("../reached-by-{words}.txt"))
    }

    /// The path of the file with the results of a run of this judge without mutants. The first line is the duration of
    /// the run in milliseconds. The other lines are arguments for the judge's program, for example to skip a test.
    fn calibration_file(&self, copy: &Path) -> PathBuf {
        self.trace_file(copy).with_extension("calibrated")
    }

    /// Reads the stored results of an earlier calibration of this judge. Returns false if there are none.
    fn read_calibration(&mut self, copy: &Path) -> bool {
        let Ok(calibration_file) = fs::read_to_string(self.calibration_file(copy)) else {
            return false;
        };
        let mut lines = calibration_file.lines();
        let Some(usual_time) = lines.next().and_then(|ms| ms.parse().ok()) else {
            return false;
        };
        self.args = lines.map(str::to_owned).collect();
        self.set_times(copy, Duration::from_millis(usual_time));
        true
    }

    /// Records that the judge passes without a mutant, how long it takes, and which mutants it reaches.
    fn set_times(&mut self, copy: &Path, usual_time: Duration) {
        self.usual_time = usual_time;
        self.limit = MIN_LIMIT + 4 * usual_time;
        let reached = fs::read_to_string(self.trace_file(copy)).unwrap_or_default();
        self.reached_mutants = reached.lines().filter_map(|id| id.parse().ok()).collect();
    }

    /// Runs the judge without a mutant. Records its duration and which mutants it reaches. Returns the tests that
    /// failed; later runs of the judge skip these tests.
    pub(crate) fn calibrate(&mut self, copy: &Path) -> Result<Vec<String>> {
        let (trace_file, calibration_file) = (self.trace_file(copy), self.calibration_file(copy));
        let _ = fs::remove_file(&calibration_file);
        let mut skipped_tests = Vec::new();
        let mut retries = 0;
        loop {
            let _ = fs::remove_file(&trace_file);
            let started_at = Instant::now();
            let result = self.run(copy, 0, &[], Some(&trace_file), 60 * MIN_LIMIT)?;
            match result {
                RunResult::Passed => {
                    self.set_times(copy, started_at.elapsed());
                    let usual_time = self.usual_time.as_millis().to_string();
                    let lines = std::iter::once(&usual_time).chain(&self.args);
                    let lines: Vec<&str> = lines.map(String::as_str).collect();
                    fs::write(calibration_file, lines.join("\n"))?;
                    return Ok(skipped_tests);
                }
                RunResult::Failed(test) if self.kind == Kind::Tests && skipped_tests.len() < 8 => {
                    // If the failed test passes alone, the machine was only busy. Run all tests of the judge again.
                    let only_test = [test.clone(), "--exact".into()];
                    if retries < 3
                        && self.run(copy, 0, &only_test, None, 60 * MIN_LIMIT)? == RunResult::Passed
                    {
                        retries += 1;
                        continue;
                    }
                    let skip = ["--skip".to_owned(), test.clone()];
                    self.args.extend(skip);
                    skipped_tests.push(test);
                }
                other => {
                    skipped_tests.push(format!(
                        "all tests of {} (result without any mutant: {other:?})",
                        self.name
                    ));
                    return Ok(skipped_tests);
                }
            }
        }
    }

    /// Whether this judge executes the code of the mutant with the number `mutant`.
    pub(crate) fn reached_mutants(&self, mutant: usize) -> bool {
        self.reached_mutants.contains(&mutant)
    }

    /// Runs the judge against a mutant. Returns the verdict on the mutant; `None` if the judge does not notice it.
    pub(crate) fn judge(&self, copy: &Path, mutant: usize) -> Result<Option<Fate>> {
        let name = &self.name;
        match self.run(copy, mutant, &[], None, self.limit)? {
            RunResult::Passed => Ok(None),
            RunResult::TimedOut => Ok(self
                .is_in_time_without_mutant(copy)?
                .then(|| Fate::Hung(name.clone()))),
            RunResult::Failed(test) if self.kind == Kind::Tests => {
                let only_test = [test.clone(), "--exact".into()];
                let result = self.run(copy, mutant, &only_test, None, self.limit)?;
                // The mutant is killed only if the test fails again when it runs alone, and passes without the mutant.
                let is_caused_by_mutant = result != RunResult::Passed
                    && self.run(copy, 0, &only_test, None, self.limit)? == RunResult::Passed;
                Ok(is_caused_by_mutant.then(|| match result {
                    RunResult::TimedOut => Fate::Hung(format!("{name}: {test}")),
                    _ => Fate::Killed(format!("{name}: {test}")),
                }))
            }
            RunResult::Failed(rule) => Ok(Some(Fate::Killed(format!("{name}: {rule}")))),
        }
    }

    /// Runs the judge without a mutant. Returns whether it passes within its time limit. If it does not, the machine is
    /// too busy, so a mutant at the time limit may not hang.
    fn is_in_time_without_mutant(&self, copy: &Path) -> Result<bool> {
        Ok(self.run(copy, 0, &[], None, self.limit)? == RunResult::Passed)
    }

    /// Runs the judge once in its own process group. Kills the group at the first failure or at the time limit.
    fn run(
        &self,
        copy: &Path,
        mutant: usize,
        other_args: &[String],
        trace_file: Option<&Path>,
        limit: Duration,
    ) -> Result<RunResult> {
        let args = if other_args.is_empty() {
            &self.args
        } else {
            other_args
        };
        let mut command = Command::new("nice");
        command
            .arg(&self.program)
            .args(args)
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

/// Calibrates the judges, up to `threads` at a time. Returns the tests that fail without a mutant; later runs skip
/// these tests.
///
/// If `keep` is true, uses the stored results of earlier calibrations where they exist.
pub(crate) fn calibrate(
    judges: &mut [Judge],
    copy: &Path,
    threads: usize,
    keep: bool,
) -> Result<Vec<String>> {
    let all_judges = judges.iter_mut();
    let uncalibrated_judges: Vec<&mut Judge> = all_judges
        .filter_map(|judge| (!(keep && judge.read_calibration(copy))).then_some(judge))
        .collect();
    let queue = Mutex::new(uncalibrated_judges.into_iter());
    let results: Vec<Result<Vec<String>>> = std::thread::scope(|scope| {
        let work = || {
            let mut skipped_tests = Vec::new();
            loop {
                let next_judge = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(judge) = next_judge else {
                    return Ok(skipped_tests);
                };
                let tests = judge.calibrate(copy)?;
                let name = &judge.name;
                skipped_tests.extend(tests.into_iter().map(|test| format!("{name}: {test}")));
            }
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| {
            let panicked = |_| Err(anyhow::anyhow!("a worker thread panicked"));
            worker.join().unwrap_or_else(panicked)
        });
        joined.collect()
    });
    let per_thread: Result<Vec<Vec<String>>> = results.into_iter().collect();
    Ok(per_thread?.concat())
}

/// For each mutated file and each judge: the number of mutants that the judge has killed, and its run time in seconds.
/// The judge with the most kills per second runs first.
#[derive(Default)]
pub(crate) struct Experience(Mutex<HashMap<(String, String), (f64, f64)>>);

impl Experience {
    fn kill_rate(&self, file: &str, judge: &Judge) -> f64 {
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
        (kills + expected_kills) / (seconds + judge.usual_time.as_secs_f64())
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
    let reaching_judges = judges
        .iter()
        .filter(|judge| judge.reached_mutants(mutant.id));
    let mut reaching_judges: Vec<(f64, &Judge)> = reaching_judges
        .map(|judge| (experience.kill_rate(&mutant.file, judge), judge))
        .collect();
    reaching_judges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    for (_, judge) in &reaching_judges {
        let started_at = Instant::now();
        let fate = judge.judge(copy, mutant.id)?;
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
    let reach = judges
        .iter()
        .map(|judge| (&*judge.name, judge.reached_mutants.len()));
    reach.collect()
}
