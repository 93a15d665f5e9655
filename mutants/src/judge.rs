//! Judges of mutants. A judge is a group of tests of one test program, or a simulation of many seeds.
//!
//! Each test first runs alone, without a mutant ([`calibration`]). Against a mutant, a judge then runs only the tests that
//! execute the mutant's code, and stops at its first failure. A simulation runs as a whole. [`fate`] decides in which
//! order the judges of a mutant run.

pub(crate) mod calibration;
pub(crate) mod fate;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::choice::{Choice, Part};
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

/// The number of tests of a judge that run at the same time.
const TEST_THREADS: u32 = 4;

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
}

impl Judge {
    /// The cases that execute the code of the mutant with the number `mutant`.
    fn cases_that_reach(&self, mutant: usize) -> Vec<&Case> {
        let cases = self.cases.iter();
        let reaching = cases.filter(|case| case.reached_mutants.contains(&mutant));
        reaching.collect()
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
