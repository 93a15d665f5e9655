//! Plays many seeds in several threads. Each run is independent of the other runs, so the threads do not change the
//! result.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::check::Violation;
use crate::checks::{Healing, JudgedCases, Lateness, RULES, STORE_RULES};
use crate::coverage::Coverage;
use crate::crossings::Crossings;
use crate::flaw::Flaw;
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
}

impl ScenarioFamily {
    /// The family of scenarios that can reveal this seeded bug.
    pub fn for_flaw(flaw: Flaw) -> Self {
        if flaw.is_of_tries() {
            Self::Tries
        } else if flaw.is_of_stores() {
            Self::Stores
        } else if flaw.is_of_changes() {
            Self::Changes
        } else if flaw.is_of_clocks() {
            Self::Clocks
        } else {
            Self::Redis
        }
    }

    /// Draws this seed's scenario from this family.
    pub fn draw(self, seed: u64) -> Scenario {
        match self {
            Self::Redis => Scenario::draw(seed),
            Self::Stores => Scenario::draw_stores(seed),
            Self::Changes => Scenario::draw_changes(seed),
            Self::Tries => Scenario::draw_tries(seed),
            Self::Clocks => Scenario::draw_clocks(seed),
            Self::Bench => Scenario::bench(seed),
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

/// Plays the seeds from 0 to `seeds - 1` with a seeded bug. If `harmful_only` is true, checks only the rules whose
/// violation harms users. Returns the smallest seed whose run breaks a rule, with the violation; `None` if no run
/// breaks a rule.
pub fn first_caught(flaw: Flaw, harmful_only: bool, seeds: u64, threads: usize) -> Option<Failure> {
    let run_options = RunOptions {
        flaw: Some(flaw),
        harmful_only,
        ..RunOptions::default()
    };
    let next_seed = AtomicU64::new(0);
    let is_found = AtomicBool::new(false);
    let first_failure: Mutex<Option<Failure>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                // Threads take the seeds in ascending order. If a seed fails, all smaller seeds are still played to the
                // end, so the smallest failing seed is found.
                while !is_found.load(Ordering::Relaxed) {
                    let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let scenario = ScenarioFamily::for_flaw(flaw).draw(seed);
                    let needs_values = flaw.is_of_values() || flaw.is_of_carrying();
                    let is_suitable = scenario.has_values() || !needs_values;
                    if !is_suitable || flaw.is_of_notes() && !scenario.has_notes() {
                        continue;
                    }
                    // A bug in the replacement of masters may exclude a client from all locks. That is not unsafe, so
                    // ignore the rule `healing` (every waiter gets its lock).
                    let is_relevant = |violation: &Violation| {
                        !(flaw.is_of_changes() && violation.rule == Healing::RULE)
                    };
                    let violation = run_options.run(&scenario).violation;
                    if let Some(violation) = violation.filter(is_relevant) {
                        is_found.store(true, Ordering::Relaxed);
                        let mut first =
                            first_failure.lock().unwrap_or_else(PoisonError::into_inner);
                        if first.as_ref().is_none_or(|first| seed < first.seed) {
                            *first = Some(Failure { seed, violation });
                        }
                    }
                }
            });
        }
    });
    first_failure
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}
