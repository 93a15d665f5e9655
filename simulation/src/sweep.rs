//! Plays many seeds in several threads. Each run is independent of the other runs, so the threads do not change the
//! result.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_model::Replay;

use crate::check::{CheckedRules, Violation};
use crate::checks::{JudgedCases, Lateness, RULES, STORE_RULES};
use crate::coverage::Coverage;
use crate::crossings::Crossings;
use crate::hand_written::HAND_WRITTEN;
use crate::run::RunResult;
use crate::run_options::RunOptions;
use crate::scenario::Scenario;

/// The number of consecutive seeds that a thread takes at a time.
const SEEDS_PER_BLOCK: u64 = 50;

/// A range of seeds to play, and how to play them.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The first seed to play.
    pub first: u64,
    /// The number of seeds to play.
    pub seeds: u64,
    /// The number of threads that play seeds.
    pub threads: usize,
    /// The family of scenarios from which each seed draws one.
    pub family: ScenarioFamily,
}

/// A family of scenarios. Each seed draws one scenario from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScenarioFamily {
    /// All masters are Redis.
    #[default]
    Redis,
    /// Some or all masters are stores.
    Stores,
    /// Masters are replaced during the run.
    Changes,
    /// Some or all masters are stores without a clock. Each client process takes only one step, and dies often.
    Tries,
    /// Masters restart, and their clocks jump before, during and after the restarts.
    Clocks,
    /// Scenarios for measuring speed. They have no faults, and the same clients, masters and settings for all seeds.
    Bench,
    /// Scenarios with Redis masters that contain only what the model has.
    Modelled,
    /// Scenarios in which masters are replaced, and that contain only what the model has.
    ModelledChanges,
    /// A scenario written by hand, in as many variants as there are seeds: the number is its index in
    /// [`HAND_WRITTEN`](crate::HAND_WRITTEN).
    HandWritten(usize),
}

impl ScenarioFamily {
    /// Draws this seed's scenario from this family.
    pub fn draw(self, seed: u64) -> Scenario {
        match self {
            Self::Redis => Scenario::draw(seed),
            Self::Stores => Scenario::draw_stores(seed),
            Self::Changes => Scenario::draw_changes(seed),
            Self::Tries => Scenario::draw_tries(seed),
            Self::Clocks => Scenario::draw_clocks(seed),
            Self::Bench => Scenario::bench(seed),
            Self::Modelled => Scenario::draw_modelled(seed),
            Self::ModelledChanges => Scenario::draw_modelled_changes(seed),
            Self::HandWritten(index) => HAND_WRITTEN[index].draw(seed),
        }
    }
}

/// A seed whose run broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed that was played. Replaying it breaks the same rule again.
    pub seed: u64,
    /// How the run broke a rule.
    pub violation: Violation,
}

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The number of seeds that were played.
    pub seeds: u64,
    /// The failed seeds in ascending order, at most one hundred.
    pub failures: Vec<Failure>,
    /// How often each event happened in all runs together.
    pub coverage: Coverage,
    /// The number of cases that each rule has judged in all runs together, in the order of [`RULES`](crate::RULES).
    pub judged_cases: JudgedCases,
    /// How often rules were checked after an event such as a restart, for each kind of lock or value and each kind of
    /// event.
    pub crossings: Crossings,
    /// The call that used the largest share of the time allowed after its timeout, and the seed of its run; `None` if
    /// no call was checked.
    pub latest_call: Option<(u64, Lateness)>,
    /// The wall-clock time that the sweep took.
    pub elapsed: Duration,
}

impl Summary {
    fn add_run(&mut self, seed: u64, result: RunResult) {
        self.seeds += 1;
        self.coverage.add(&result.coverage);
        self.crossings.add(&result.crossings);
        for (sum, judged_cases) in self.judged_cases.iter_mut().zip(result.judged_cases) {
            *sum += judged_cases;
        }
        self.note_latest_call(result.latest_call.map(|latest_call| (seed, latest_call)));
        let failure = |violation| Failure { seed, violation };
        self.failures.extend(result.violation.map(failure));
    }

    fn add_summary(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.coverage.add(&other.coverage);
        self.crossings.add(&other.crossings);
        for (sum, judged_cases) in self.judged_cases.iter_mut().zip(other.judged_cases) {
            *sum += judged_cases;
        }
        self.note_latest_call(other.latest_call);
        self.failures.extend(other.failures);
    }

    /// Replaces `self.latest_call` by `latest_call` if that call used a larger share of its allowed time. If both calls
    /// used the same share, keeps the one with the smaller seed.
    fn note_latest_call(&mut self, latest_call: Option<(u64, Lateness)>) {
        let rank = |(seed, late): &(u64, Lateness)| {
            (late.thousandths_of_allowed(), std::cmp::Reverse(*seed))
        };
        self.latest_call = self
            .latest_call
            .take()
            .into_iter()
            .chain(latest_call)
            .max_by_key(rank);
    }

    /// Whether the rule can be checked in these runs. The rules about stores need a run with stores.
    fn can_judge(&self, rule: &str) -> bool {
        !STORE_RULES.contains(&rule) || self.coverage.sessions > 0
    }

    /// Returns the names of the rules that could be checked in these runs, but checked no case.
    pub fn idle_rules(&self) -> Vec<&'static str> {
        let rules = RULES.into_iter().zip(self.judged_cases);
        rules
            .filter(|(rule, judged_cases)| *judged_cases == 0 && self.can_judge(rule))
            .map(|(rule, _)| rule)
            .collect()
    }
}

impl Sweep {
    /// Plays all seeds. `progress` is called with the number of seeds played so far and the number of failures so far.
    pub fn run(&self, progress: impl Fn(u64, u64) + Sync) -> Summary {
        let started_at = Instant::now();
        let next_offset = AtomicU64::new(0);
        let finished = AtomicU64::new(0);
        let summary = Mutex::new(Summary::default());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let first_offset =
                            next_offset.fetch_add(SEEDS_PER_BLOCK, Ordering::Relaxed);
                        if first_offset >= self.seeds {
                            return;
                        }
                        let block = first_offset..(first_offset + SEEDS_PER_BLOCK).min(self.seeds);
                        let count = block.end - block.start;
                        let of_block = self.run_block(block);
                        let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                        summary.add_summary(of_block);
                        let finished_seeds = finished.fetch_add(count, Ordering::Relaxed) + count;
                        progress(finished_seeds, summary.failures.len() as u64);
                    }
                });
            }
        });
        let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
        summary.failures.sort_by_key(|failure| failure.seed);
        summary.failures.truncate(100);
        summary.elapsed = started_at.elapsed();
        summary
    }

    fn run_block(&self, seeds: std::ops::Range<u64>) -> Summary {
        let mut summary = Summary::default();
        for seed in seeds.map(|offset| self.first + offset) {
            let scenario = self.family.draw(seed);
            summary.add_run(seed, RunOptions::default().run(&scenario));
        }
        summary
    }
}

/// A search for the smallest seed whose run breaks a rule.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The family of scenarios from which each seed draws one.
    pub family: ScenarioFamily,
    /// The scenarios of the family that are played.
    pub subject: Subject,
    /// How to play each scenario.
    pub run_options: RunOptions,
    /// If this is true, a run breaks a rule if the model refuses its history; the rules of the simulation are ignored.
    pub asks_model: bool,
    /// The seeds from 0 to `seeds - 1` are played, until one of them is found.
    pub seeds: u64,
    /// The number of threads that play seeds.
    pub threads: usize,
}

/// Which scenarios a search plays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// All scenarios.
    #[default]
    Any,
    /// Scenarios with quotas or once-per-period records.
    Values,
    /// Scenarios with notes or elections.
    Notes,
}

impl Subject {
    fn is_in(self, scenario: &Scenario) -> bool {
        match self {
            Self::Any => true,
            Self::Values => scenario.has_values(),
            Self::Notes => scenario.has_notes(),
        }
    }
}

impl Search {
    /// Returns the smallest seed whose run breaks a rule, with the violation; `None` if no run breaks a rule.
    pub fn first_failure(&self) -> Option<Failure> {
        let next_seed = AtomicU64::new(0);
        let is_found = AtomicBool::new(false);
        let first_failure: Mutex<Option<Failure>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    // Threads take the seeds in ascending order. If a seed fails, all smaller seeds are still played to
                    // the end, so the smallest failing seed is found.
                    while !is_found.load(Ordering::Relaxed) {
                        let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                        if seed >= self.seeds {
                            return;
                        }
                        let Some(violation) = self.violation_of(seed) else {
                            continue;
                        };
                        is_found.store(true, Ordering::Relaxed);
                        let mut first =
                            first_failure.lock().unwrap_or_else(PoisonError::into_inner);
                        if first.as_ref().is_none_or(|first| seed < first.seed) {
                            *first = Some(Failure { seed, violation });
                        }
                    }
                });
            }
        });
        first_failure
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn violation_of(&self, seed: u64) -> Option<Violation> {
        let scenario = self.family.draw(seed);
        if !self.subject.is_in(&scenario) {
            return None;
        }
        if !self.asks_model {
            return self.run_options.run(&scenario).violation;
        }
        let run_options = RunOptions {
            history: true,
            checked_rules: CheckedRules::Only(UNCHECKED),
            ..self.run_options
        };
        let history = run_options.run(&scenario).history;
        let refusal = Replay::check(scenario.model_settings(), &history).err()?;
        Some(Violation {
            rule: refusal.rule,
            at_nanos: 0,
            description: refusal.to_string(),
        })
    }
}

/// No rule has this name. A run that reports only violations of this rule goes on to its end.
const UNCHECKED: &str = "";
