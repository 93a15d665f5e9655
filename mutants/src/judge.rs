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
use crate::tree::Built;

/// The runs of the simulation: the simulation's option that selects the scenarios, the first seed, and the number of
/// seeds.
const PLAYED: [(&str, u64, u64); 6] = [
    ("", 0, 400),
    ("--stores", 0, 200),
    ("--changes", 0, 200),
    ("", 400, 2_600),
    ("--stores", 200, 1_300),
    ("--changes", 200, 1_300),
];

/// The number of entries of `PLAYED` that a `--quick` run uses: the short sweeps.
const QUICKLY_PLAYED: usize = 3;

/// The time limit for one run of a judge is `LEAST` plus four times the duration of a run without a mutant.
const LEAST: Duration = Duration::from_secs(5);

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
    usual: Duration,
    /// The numbers of the mutants whose code the judge executes.
    reaches: BTreeSet<usize>,
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
enum Ran {
    Passed,
    /// A test failed, or a rule of the simulation was violated. The text is the name of the test or rule.
    Failed(String),
    Overran,
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
pub(crate) fn judges(built: &Built, choice: &Choice) -> Result<Vec<Judge>> {
    let mut judges = Vec::new();
    for (name, part) in choice.tests() {
        let program = built
            .tests
            .get(*name)
            .context(format!("no test program {name}"))?;
        let mut args: Vec<String> = vec!["--test-threads=4".into()];
        let mut called = (*name).to_owned();
        match part {
            Part::All => {}
            Part::Only(names) => {
                args.extend(names.iter().map(|name| (*name).to_owned()));
                called = format!("{name} {}", names.join(" "));
            }
        }
        judges.push(Judge {
            name: called,
            program: program.clone(),
            args,
            kind: Kind::Tests,
            limit: LEAST,
            usual: LEAST,
            reaches: BTreeSet::new(),
        });
    }
    let Some(simulation) = &built.simulation else {
        return Ok(judges);
    };
    let most = if choice.quick {
        QUICKLY_PLAYED
    } else {
        PLAYED.len()
    };
    for (worlds, first, seeds) in &PLAYED[..most] {
        let words = format!("--first {first} --seeds {seeds} --threads 1 {worlds}");
        judges.push(Judge {
            name: format!("simulation {worlds} ({seeds} seeds)"),
            program: simulation.clone(),
            args: words.split_whitespace().map(str::to_owned).collect(),
            kind: Kind::Simulation,
            limit: LEAST,
            usual: LEAST,
            reaches: BTreeSet::new(),
        });
    }
    Ok(judges)
}

impl Judge {
    /// The path of the file with the numbers of the mutants that this judge reaches.
    fn trace(&self, copy: &Path) -> PathBuf {
        let words: String = self.name.chars().filter(|c| c.is_alphanumeric()).collect();
        copy.join(format!("../reached-by-{words}.txt"))
    }

    /// The path of the file with the results of a run of this judge without mutants. The first line is the duration of
    /// the run in milliseconds. The other lines are arguments for the judge's program, for example to skip a test.
    fn notes(&self, copy: &Path) -> PathBuf {
        self.trace(copy).with_extension("calibrated")
    }

    /// Reads the stored results of an earlier calibration of this judge. Returns false if there are none.
    fn recall(&mut self, copy: &Path) -> bool {
        let Ok(notes) = fs::read_to_string(self.notes(copy)) else {
            return false;
        };
        let mut lines = notes.lines();
        let Some(usual) = lines.next().and_then(|ms| ms.parse().ok()) else {
            return false;
        };
        self.args = lines.map(str::to_owned).collect();
        self.passes(copy, Duration::from_millis(usual));
        true
    }

    /// Records that the judge passes without a mutant, how long it takes, and which mutants it reaches.
    fn passes(&mut self, copy: &Path, usual: Duration) {
        self.usual = usual;
        self.limit = LEAST + 4 * usual;
        let reached = fs::read_to_string(self.trace(copy)).unwrap_or_default();
        self.reaches = reached.lines().filter_map(|id| id.parse().ok()).collect();
    }

    /// Runs the judge without a mutant. Records its duration and which mutants it reaches. Returns the tests that
    /// failed; later runs of the judge skip these tests.
    pub(crate) fn calibrate(&mut self, copy: &Path) -> Result<Vec<String>> {
        let (trace, notes) = (self.trace(copy), self.notes(copy));
        let _ = fs::remove_file(&notes);
        let mut deaf = Vec::new();
        let mut again = 0;
        loop {
            let _ = fs::remove_file(&trace);
            let began = Instant::now();
            let ran = self.run(copy, 0, &[], Some(&trace), 60 * LEAST)?;
            match ran {
                Ran::Passed => {
                    self.passes(copy, began.elapsed());
                    let usual = self.usual.as_millis().to_string();
                    let lines = std::iter::once(&usual).chain(&self.args);
                    let lines: Vec<&str> = lines.map(String::as_str).collect();
                    fs::write(notes, lines.join("\n"))?;
                    return Ok(deaf);
                }
                Ran::Failed(test) if self.kind == Kind::Tests && deaf.len() < 8 => {
                    // If the failed test passes alone, the machine was only busy. Run all tests of the judge again.
                    let alone = [test.clone(), "--exact".into()];
                    if again < 3 && self.run(copy, 0, &alone, None, 60 * LEAST)? == Ran::Passed {
                        again += 1;
                        continue;
                    }
                    let skip = ["--skip".to_owned(), test.clone()];
                    self.args.extend(skip);
                    deaf.push(test);
                }
                other => {
                    deaf.push(format!(
                        "all tests of {} (result without any mutant: {other:?})",
                        self.name
                    ));
                    return Ok(deaf);
                }
            }
        }
    }

    /// Whether this judge executes the code of the mutant with the number `mutant`.
    pub(crate) fn reaches(&self, mutant: usize) -> bool {
        self.reaches.contains(&mutant)
    }

    /// Runs the judge against a mutant. Returns the verdict on the mutant; `None` if the judge does not notice it.
    pub(crate) fn judge(&self, copy: &Path, mutant: usize) -> Result<Option<Fate>> {
        let name = &self.name;
        match self.run(copy, mutant, &[], None, self.limit)? {
            Ran::Passed => Ok(None),
            Ran::Overran => Ok(self.keeps_time(copy)?.then(|| Fate::Hung(name.clone()))),
            Ran::Failed(test) if self.kind == Kind::Tests => {
                let alone = [test.clone(), "--exact".into()];
                let ran = self.run(copy, mutant, &alone, None, self.limit)?;
                // The mutant is killed only if the test fails again when it runs alone, and passes without the mutant.
                let counts = ran != Ran::Passed
                    && self.run(copy, 0, &alone, None, self.limit)? == Ran::Passed;
                Ok(counts.then(|| match ran {
                    Ran::Overran => Fate::Hung(format!("{name}: {test}")),
                    _ => Fate::Killed(format!("{name}: {test}")),
                }))
            }
            Ran::Failed(rule) => Ok(Some(Fate::Killed(format!("{name}: {rule}")))),
        }
    }

    /// Runs the judge without a mutant. Returns whether it passes within its time limit. If it does not, the machine is
    /// too busy, so a mutant at the time limit may not hang.
    fn keeps_time(&self, copy: &Path) -> Result<bool> {
        Ok(self.run(copy, 0, &[], None, self.limit)? == Ran::Passed)
    }

    /// Runs the judge once in its own process group. Kills the group at the first failure or at the time limit.
    fn run(
        &self,
        copy: &Path,
        mutant: usize,
        instead: &[String],
        trace: Option<&Path>,
        limit: Duration,
    ) -> Result<Ran> {
        let args = if instead.is_empty() {
            &self.args
        } else {
            instead
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
        if let Some(trace) = trace {
            command.env("QUORATE_MUTANTS_REACHED", trace);
        }
        let mut child = command.spawn().context(self.name.clone())?;
        let group = Pid::from_raw(child.id() as i32);
        let stdout = child.stdout.take().context("the output must be a pipe")?;
        let (lines, said) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let until = Instant::now() + limit;
        let mut ran = None;
        while ran.is_none() {
            match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => ran = self.failure(&line).map(Ran::Failed),
                Err(RecvTimeoutError::Timeout) => ran = Some(Ran::Overran),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        drop(said);
        if ran.is_some() {
            let _ = killpg(group, Signal::SIGKILL);
        }
        let status = child.wait()?;
        // Kill the whole group before the reader thread is joined. A surviving child process would keep the output pipe
        // open, and the reader thread would not end.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = reader.join();
        Ok(ran.unwrap_or_else(|| {
            if status.success() {
                Ran::Passed
            } else {
                Ran::Failed(format!("{status}"))
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
                let (seed, says) = line.strip_prefix("seed ")?.split_once(": ")?;
                let rule = says.split([':', ',', ' ']).next().unwrap_or(says);
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
    let new = judges.iter_mut();
    let new: Vec<&mut Judge> = new
        .filter_map(|judge| (!(keep && judge.recall(copy))).then_some(judge))
        .collect();
    let queue = Mutex::new(new.into_iter());
    let results: Vec<Result<Vec<String>>> = std::thread::scope(|scope| {
        let work = || {
            let mut deaf = Vec::new();
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(judge) = next else {
                    return Ok(deaf);
                };
                let tests = judge.calibrate(copy)?;
                let name = &judge.name;
                deaf.extend(tests.into_iter().map(|test| format!("{name}: {test}")));
            }
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| {
            let panicked = |_| Err(anyhow::anyhow!("a worker thread panicked"));
            worker.join().unwrap_or_else(panicked)
        });
        joined.collect()
    });
    let all: Result<Vec<Vec<String>>> = results.into_iter().collect();
    Ok(all?.concat())
}

/// For each mutated file and each judge: the number of mutants that the judge has killed, and its run time in seconds.
/// The judge with the most kills per second runs first.
#[derive(Default)]
pub(crate) struct Experience(Mutex<HashMap<(String, String), (f64, f64)>>);

impl Experience {
    fn of(&self, file: &str, judge: &Judge) -> f64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (kills, seconds) = known
            .get(&(file.to_owned(), judge.name.clone()))
            .copied()
            .unwrap_or_default();
        // Add a few assumed kills, so that a judge without kills is also tried. Prefer the simulation and the unit
        // tests: they notice early that a mutant hangs, while other tests run until the time limit.
        let hoped = match judge.kind {
            Kind::Simulation => 2.0,
            Kind::Tests if judge.name.starts_with("lib") => 2.0,
            Kind::Tests => 0.3,
        };
        (kills + hoped) / (seconds + judge.usual.as_secs_f64())
    }

    fn add(&self, file: &str, judge: &Judge, killed: bool, took: Duration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (kills, seconds) = known
            .entry((file.to_owned(), judge.name.clone()))
            .or_default();
        *kills += if killed { 1.0 } else { 0.0 };
        *seconds += took.as_secs_f64();
    }
}

/// Runs the judges against a mutant until one judge notices the mutant. The judge with the most kills per second so far
/// runs first. Returns the verdict.
pub(crate) fn try_all(
    judges: &[Judge],
    experience: &Experience,
    copy: &Path,
    mutant: &Mutant,
) -> Result<Fate> {
    let reaching = judges.iter().filter(|judge| judge.reaches(mutant.id));
    let mut reaching: Vec<(f64, &Judge)> = reaching
        .map(|judge| (experience.of(&mutant.file, judge), judge))
        .collect();
    reaching.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    for (_, judge) in &reaching {
        let began = Instant::now();
        let fate = judge.judge(copy, mutant.id)?;
        experience.add(&mutant.file, judge, fate.is_some(), began.elapsed());
        if let Some(fate) = fate {
            return Ok(fate);
        }
    }
    Ok(if reaching.is_empty() {
        Fate::Unreached
    } else {
        Fate::Alive
    })
}

/// Returns the number of mutants that each judge reaches.
pub(crate) fn reach(judges: &[Judge]) -> BTreeMap<&str, usize> {
    let reach = judges
        .iter()
        .map(|judge| (&*judge.name, judge.reaches.len()));
    reach.collect()
}
