//! The checkers. Each looks at a whole history and gives a verdict; the worst one counts, and
//! "unknown" is not "valid".

pub mod all;
mod assumptions;
mod changes;
mod effects;
mod exclusion;
mod fencing;
mod leaders;
mod ledger;
mod litter;
mod liveness;
mod order;
mod owners;
mod permits;
mod prizes;
mod told;
mod views;

pub(crate) use litter::{NOTE_LIVES, is_note};

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::{Attempt, FaultSpan, History};
use crate::scenario::{Exclusion, Scenario};

/// No thread waits longer than this for a processor.
const LONGEST_WAIT: u64 = 5_000_000_000;

/// What a checker says, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was looked at, and it is right.
    Valid,
    /// The history does not say enough.
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

/// Something that should not have happened, or that the scenario allows to happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// Which checker saw it.
    pub checker: String,
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// Who is concerned: clients and masters.
    pub who: Vec<String>,
    /// About which resource, if it is about one.
    pub resource: Option<String>,
    /// In words.
    pub what: String,
    /// Why the scenario allows it, if it does.
    pub excused: Option<String>,
}

/// What one checker found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The checker.
    pub checker: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// What it looked at, in a few words.
    pub looked_at: String,
    /// What it saw.
    pub violations: Vec<Violation>,
}

impl Finding {
    /// Invalid if there is a violation without excuse.
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

    /// A finding that is at least this bad.
    fn at_least(mut self, verdict: Verdict) -> Self {
        self.verdict = self.verdict.max(verdict);
        self
    }

    /// A finding that says why the history is not enough, if there is a reason: at best unknown then.
    fn lacking(mut self, reasons: &[String]) -> Self {
        for why in reasons {
            self.looked_at.push_str("; ");
            self.looked_at.push_str(why);
            self = self.at_least(Verdict::Unknown);
        }
        self
    }
}

/// What all checkers found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The worst verdict.
    pub verdict: Verdict,
    /// One entry a checker.
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

    /// What one checker found.
    pub fn by(&self, checker: &str) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.checker == checker)
    }
}

/// What the checkers look at, worked out once.
pub(crate) struct Case<'a> {
    scenario: &'a Scenario,
    history: &'a History,
    attempts: Vec<Attempt>,
    faults: Vec<FaultSpan>,
    /// When each client was passed over by a busy machine.
    stalls: HashMap<&'a str, Vec<(u64, u64)>>,
    /// For how long each client's threads waited for a processor: from, to, and the sum.
    starved: HashMap<&'a str, Vec<(u64, u64, u64)>>,
    end: u64,
}

impl Case<'_> {
    /// Whether two holders are allowed at some point from `from` to `to`, and by which fault: from
    /// its beginning until every lock that it can have touched has run out.
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

    /// For how long this client was kept from running from `from` to `to`: stopped, its threads
    /// blocked, or passed over by a busy machine.
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
        // Their union, cut to the time in question.
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

    /// By how much this client may be late from `from` to `to` through no fault of its own: what
    /// it was [paused](Self::paused), and what its threads waited for a processor beside that.
    fn kept_waiting(&self, who: &str, from: u64, to: u64) -> u64 {
        let mut sum = self.paused(who, from, to);
        let Some(starved) = self.starved.get(who) else {
            return sum;
        };
        let near = starved.partition_point(|(_, until, _)| *until < from);
        for (since, until, waited) in &starved[near..] {
            // Told when it was over, and so not in order of beginning.
            if *until > to.saturating_add(LONGEST_WAIT) {
                break;
            }
            if *since >= to {
                continue;
            }
            let (since, until) = ((*since).max(from), (*until).min(to));
            // When in that time they waited is not known: it may all have been in our part of it.
            let waited = (*waited).min(until.saturating_sub(since));
            sum += waited.saturating_sub(self.paused(who, since, until));
        }
        sum
    }

    /// Whether this client was kept from running at some point from `from` to `to`.
    fn was_paused(&self, who: &str, from: u64, to: u64) -> bool {
        self.kept_waiting(who, from, to) > 0
    }
}

/// Nanoseconds as seconds for people.
pub(crate) fn seconds(t: u64) -> String {
    format!("{:.3} s", t as f64 / 1e9)
}
