//! The checkers. Each one reads a whole history and gives a verdict. The worst verdict counts, and "unknown" is not
//! "valid".

pub mod all;
mod assumptions;
mod changes;
mod effects;
mod exclusion;
mod fencing;
mod leaders;
mod ledger;
mod leftovers;
mod liveness;
mod notified;
mod order;
mod owners;
mod permits;
mod prizes;
mod views;

pub(crate) use leftovers::{NOTE_LIVES, is_note};

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::{Attempt, FaultSpan, History};
use crate::scenario::{Exclusion, Scenario};

/// No thread waits longer than this for a processor, in nanoseconds.
const LONGEST_WAIT: u64 = 5_000_000_000;

/// A checker's verdict, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The promise was checked and is kept.
    Valid,
    /// The history does not contain enough to decide.
    Unknown,
    /// A promise was broken.
    Invalid,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Valid => "valid",
            Self::Unknown => "unknown",
            Self::Invalid => "INVALID",
        })
    }
}

/// An event that should not have happened, or that the scenario allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// The checker that found it.
    pub checker: String,
    /// Its start, in nanoseconds of the run.
    pub from: u64,
    /// Its end, in nanoseconds of the run.
    pub to: u64,
    /// The clients and masters involved.
    pub who: Vec<String>,
    /// The resource, if it is about one.
    pub resource: Option<String>,
    /// A description.
    pub what: String,
    /// The reason why the scenario allows it, if it does.
    pub excused: Option<String>,
}

/// The result of one checker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the checker.
    pub checker: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// The subject of the check, in a few words.
    pub looked_at: String,
    /// The violations it found.
    pub violations: Vec<Violation>,
}

impl Finding {
    /// A finding that is invalid if there is a violation without an excuse.
    fn of(checker: &str, looked_at: String, violations: Vec<Violation>) -> Self {
        let broken = violations.iter().any(|one| one.excused.is_none());
        Self {
            checker: checker.to_owned(),
            verdict: if broken {
                Verdict::Invalid
            } else {
                Verdict::Valid
            },
            looked_at,
            violations,
        }
    }

    /// The finding with a verdict at least this bad.
    fn at_least(mut self, verdict: Verdict) -> Self {
        self.verdict = self.verdict.max(verdict);
        self
    }

    /// The finding with reasons why the history is not enough. If there are any, the verdict is at best unknown.
    fn lacking(mut self, reasons: &[String]) -> Self {
        for why in reasons {
            self.looked_at.push_str("; ");
            self.looked_at.push_str(why);
            self = self.at_least(Verdict::Unknown);
        }
        self
    }
}

/// The results of all checkers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The worst verdict.
    pub verdict: Verdict,
    /// One entry per checker.
    pub findings: Vec<Finding>,
}

impl Findings {
    /// All violations, in order of time.
    pub fn violations(&self) -> Vec<&Violation> {
        let mut all: Vec<&Violation> = self
            .findings
            .iter()
            .flat_map(|finding| &finding.violations)
            .collect();
        all.sort_by_key(|violation| violation.from);
        all
    }

    /// The result of one checker.
    pub fn by(&self, checker: &str) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.checker == checker)
    }
}

/// The data that the checkers share, computed once.
pub(crate) struct Case<'a> {
    scenario: &'a Scenario,
    history: &'a History,
    attempts: Vec<Attempt>,
    faults: Vec<FaultSpan>,
    /// When each client was not scheduled because the machine was busy.
    stalls: HashMap<&'a str, Vec<(u64, u64)>>,
    /// How long each client's threads waited for a processor: from, to, and the sum.
    starved: HashMap<&'a str, Vec<(u64, u64, u64)>>,
    end: u64,
}

impl Case<'_> {
    /// The fault that allows two holders at some point between `from` and `to`, if any: from its start until every lock
    /// that it may have affected has expired.
    fn excuse(&self, from: u64, to: u64) -> Option<String> {
        if self.scenario.exclusion() == Exclusion::Holds {
            return None;
        }
        let after = self.scenario.max_ttl.as_nanos() as u64 + 1_000_000_000;
        let (scenario, nodes) = (self.scenario, self.scenario.nodes());
        let near = |fault: &&FaultSpan| {
            fault
                .kind()
                .is_some_and(|kind| kind.breaks_exclusion(scenario.guarded, &nodes))
                && fault.from <= to
                && from <= fault.healed.unwrap_or(self.end).saturating_add(after)
        };
        let fault = self.faults.iter().find(near)?;
        Some(format!("{} on {}", fault.kind, fault.targets.join(", ")))
    }

    /// For how long this client did not run between `from` and `to`: stopped, with blocked threads, or not scheduled by
    /// a busy machine.
    fn paused(&self, who: &str, from: u64, to: u64) -> u64 {
        let name = who.split('.').next().unwrap_or(who);
        let mut pauses: Vec<(u64, u64)> = self
            .faults
            .iter()
            .filter(|fault| {
                matches!(fault.kind.as_str(), "client-sigstop" | "client-starve")
                    && fault.targets.iter().any(|target| target == name)
            })
            .map(|fault| (fault.from, fault.over.unwrap_or(self.end)))
            .collect();
        if let Some(stalls) = self.stalls.get(who) {
            let near = stalls.partition_point(|(_, over)| *over < from);
            let near = stalls[near..].iter().take_while(|(since, _)| *since <= to);
            pauses.extend(near);
        }
        pauses.sort_unstable();
        // The union of these intervals, limited to the time in question.
        let (mut sum, mut reached) = (0, from);
        for (since, over) in pauses {
            let (since, over) = (since.max(reached), over.min(to));
            if over > since {
                sum += over - since;
                reached = over;
            }
        }
        sum
    }

    /// The delay that this client may have between `from` and `to` through no fault of its own: its
    /// [pauses](Self::paused), plus the time its threads waited for a processor.
    fn kept_waiting(&self, who: &str, from: u64, to: u64) -> u64 {
        let mut sum = self.paused(who, from, to);
        let Some(starved) = self.starved.get(who) else {
            return sum;
        };
        let near = starved.partition_point(|(_, until, _)| *until < from);
        for (since, until, waited) in &starved[near..] {
            // Entries are recorded at their end, so they are not sorted by their start.
            if *until > to.saturating_add(LONGEST_WAIT) {
                break;
            }
            if *since >= to {
                continue;
            }
            let (since, until) = ((*since).max(from), (*until).min(to));
            // It is unknown when in that interval the threads waited; all of it may lie in the part in question.
            let waited = (*waited).min(until.saturating_sub(since));
            sum += waited.saturating_sub(self.paused(who, since, until));
        }
        sum
    }

    /// Whether this client did not run at some point between `from` and `to`.
    fn was_paused(&self, who: &str, from: u64, to: u64) -> bool {
        self.kept_waiting(who, from, to) > 0
    }
}

/// Nanoseconds, formatted as seconds.
pub(crate) fn seconds(t: u64) -> String {
    format!("{:.3} s", t as f64 / 1e9)
}
