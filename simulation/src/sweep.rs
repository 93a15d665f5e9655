//! Plays many seeds in several threads. Each run is independent of the other runs, so the threads do not change the
//! result.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::checks::{Healing, Judged, Lateness, OF_STORES, RULES, Violation};
use crate::coverage::Coverage;
use crate::crossings::Crossings;
use crate::play::Play;
use crate::run::RunResult;
use crate::scenario::Scenario;
use crate::seeded_bugs::Flaw;

/// The number of consecutive seeds that a thread takes at a time.
const BLOCK: u64 = 50;

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
    pub worlds: Worlds,
}

/// A family of scenarios. Each seed draws one scenario from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worlds {
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

impl Worlds {
    /// The family of scenarios that can reveal this seeded bug.
    pub fn of(flaw: Flaw) -> Self {
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
    pub judged: Judged,
    /// How often rules were checked after an event such as a restart, for each kind of lock or value and each kind of
    /// event.
    pub crossings: Crossings,
    /// The call that used the largest share of the time allowed after its timeout, and the seed of its run; `None` if
    /// no call was checked.
    pub worst: Option<(u64, Lateness)>,
    /// The wall-clock time that the sweep took.
    pub took: Duration,
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: RunResult) {
        self.seeds += 1;
        self.coverage.add(&outcome.coverage);
        self.crossings.add(&outcome.crossings);
        for (sum, judged) in self.judged.iter_mut().zip(outcome.judged) {
            *sum += judged;
        }
        self.note_worst(outcome.worst.map(|worst| (seed, worst)));
        let failure = |violation| Failure { seed, violation };
        self.failures.extend(outcome.violation.map(failure));
    }

    fn join(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.coverage.add(&other.coverage);
        self.crossings.add(&other.crossings);
        for (sum, judged) in self.judged.iter_mut().zip(other.judged) {
            *sum += judged;
        }
        self.note_worst(other.worst);
        self.failures.extend(other.failures);
    }

    /// Replaces `self.worst` by `worst` if that call used a larger share of its allowed time. If both calls used the
    /// same share, keeps the one with the smaller seed.
    fn note_worst(&mut self, worst: Option<(u64, Lateness)>) {
        let rank = |(seed, late): &(u64, Lateness)| (late.used(), std::cmp::Reverse(*seed));
        self.worst = self.worst.take().into_iter().chain(worst).max_by_key(rank);
    }

    /// Whether the rule can be checked in these runs. The rule about stores needs a run with stores.
    fn may_judge(&self, rule: &str) -> bool {
        rule != OF_STORES || self.coverage.sessions > 0
    }

    /// Returns the names of the rules that could be checked in these runs, but checked no case.
    pub fn idle_rules(&self) -> Vec<&'static str> {
        let rules = RULES.into_iter().zip(self.judged);
        rules
            .filter(|(rule, judged)| *judged == 0 && self.may_judge(rule))
            .map(|(rule, _)| rule)
            .collect()
    }
}

impl Sweep {
    /// Plays all seeds. `progress` is called with the number of seeds played so far and the number of failures so far.
    pub fn run(&self, progress: impl Fn(u64, u64) + Sync) -> Summary {
        let began = Instant::now();
        let next = AtomicU64::new(0);
        let done = AtomicU64::new(0);
        let summary = Mutex::new(Summary::default());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let from = next.fetch_add(BLOCK, Ordering::Relaxed);
                        if from >= self.seeds {
                            return;
                        }
                        let block = from..(from + BLOCK).min(self.seeds);
                        let count = block.end - block.start;
                        let of_block = self.block(block);
                        let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                        summary.join(of_block);
                        let done = done.fetch_add(count, Ordering::Relaxed) + count;
                        progress(done, summary.failures.len() as u64);
                    }
                });
            }
        });
        let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
        summary.failures.sort_by_key(|failure| failure.seed);
        summary.failures.truncate(100);
        summary.took = began.elapsed();
        summary
    }

    fn block(&self, seeds: std::ops::Range<u64>) -> Summary {
        let mut summary = Summary::default();
        for seed in seeds.map(|offset| self.first + offset) {
            let scenario = self.worlds.draw(seed);
            summary.add(seed, Play::default().run(&scenario));
        }
        summary
    }
}

/// Plays the seeds from 0 to `seeds - 1` with a seeded bug. If `harm` is true, checks only the rules whose violation
/// harms users. Returns the smallest seed whose run breaks a rule, with the violation; `None` if no run breaks a rule.
pub fn first_caught(flaw: Flaw, harm: bool, seeds: u64, threads: usize) -> Option<Failure> {
    let play = Play {
        flaw: Some(flaw),
        harm,
        ..Play::default()
    };
    let next = AtomicU64::new(0);
    let found = AtomicBool::new(false);
    let first: Mutex<Option<Failure>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                // Threads take the seeds in ascending order. If a seed fails, all smaller seeds are still played to the
                // end, so the smallest failing seed is found.
                while !found.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let scenario = Worlds::of(flaw).draw(seed);
                    let of_values = flaw.is_of_values() || flaw.is_of_carrying();
                    let shows = scenario.has_values() || !of_values;
                    if !shows || flaw.is_of_notes() && !scenario.has_notes() {
                        continue;
                    }
                    // A bug in the replacement of masters may exclude a client from all locks. That is not unsafe, so
                    // ignore the rule `healing` (every waiter gets its lock).
                    let counts = |violation: &Violation| {
                        !(flaw.is_of_changes() && violation.rule == Healing::RULE)
                    };
                    let violation = play.run(&scenario).violation;
                    if let Some(violation) = violation.filter(counts) {
                        found.store(true, Ordering::Relaxed);
                        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                        if first.as_ref().is_none_or(|first| seed < first.seed) {
                            *first = Some(Failure { seed, violation });
                        }
                    }
                }
            });
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner)
}
