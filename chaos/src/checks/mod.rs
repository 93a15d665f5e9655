//! The checkers. Each one reads a whole history and gives a verdict. The overall verdict is the worst verdict of all
//! checkers. A run whose overall verdict is "unknown" has not passed.

pub mod all;
mod assumptions;
mod changes;
mod effects;
mod exclusion;
mod fencing;
mod kept;
mod ledger;
mod leftovers;
mod liveness;
mod notified;
mod order;
mod prizes;
mod views;

pub(crate) use leftovers::{NOTE_LIFETIME_IN_TTLS, is_note};

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::{Attempt, FaultSpan, History};
use crate::scenario::{Exclusion, Scenario};

/// The longest time for which a thread is assumed to wait for a CPU, in nanoseconds.
const LONGEST_WAIT: u64 = 5_000_000_000;

/// A checker's verdict, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The history contains enough events for a verdict. Each violation in it, if there are any, has an excuse.
    Valid,
    /// The history contains too few events for a verdict.
    Unknown,
    /// A promise of the lock was broken.
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

/// A violation that a checker found. If the scenario allows the violation, `excused` gives the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// The checker that found the violation.
    pub checker: String,
    /// The start of the violation, in nanoseconds since the start of the run.
    pub from: u64,
    /// The end of the violation, in nanoseconds since the start of the run.
    pub to: u64,
    /// The clients and masters that took part in the violation.
    #[serde(rename = "who")]
    pub processes: Vec<String>,
    /// The affected resource, or `None` if the violation does not concern a single resource.
    pub resource: Option<String>,
    /// A description of the violation.
    #[serde(rename = "what")]
    pub description: String,
    /// The reason why the scenario allows the violation, or `None` if it does not.
    pub excused: Option<String>,
}

/// The finding of one checker: its verdict and the violations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the checker.
    pub checker: String,
    /// The verdict of the checker.
    pub verdict: Verdict,
    /// A summary of what the checker looked at, in a few words, e.g. a number of acquisitions.
    #[serde(rename = "looked_at")]
    pub coverage: String,
    /// The violations that the checker found.
    pub violations: Vec<Violation>,
}

impl Finding {
    /// Creates a finding. Its verdict is "invalid" if one of the violations has no excuse, otherwise "valid".
    fn new(checker: &str, coverage: String, violations: Vec<Violation>) -> Self {
        let is_broken = violations
            .iter()
            .any(|violation| violation.excused.is_none());
        Self {
            checker: checker.to_owned(),
            verdict: if is_broken {
                Verdict::Invalid
            } else {
                Verdict::Valid
            },
            coverage,
            violations,
        }
    }

    /// Replaces the verdict of this finding with `verdict` if `verdict` is worse.
    fn at_least(mut self, verdict: Verdict) -> Self {
        self.verdict = self.verdict.max(verdict);
        self
    }

    /// Adds the reasons why the history is not sufficient for this checker. If there is any reason, a verdict of
    /// "valid" becomes "unknown".
    fn insufficient_because(mut self, reasons: &[String]) -> Self {
        for reason in reasons {
            self.coverage.push_str("; ");
            self.coverage.push_str(reason);
            self = self.at_least(Verdict::Unknown);
        }
        self
    }
}

/// The results of all checkers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The worst verdict of all checkers.
    pub verdict: Verdict,
    /// The findings, one per checker.
    pub findings: Vec<Finding>,
}

impl Findings {
    /// All violations, in order of time.
    pub fn violations(&self) -> Vec<&Violation> {
        let mut violations: Vec<&Violation> = self
            .findings
            .iter()
            .flat_map(|finding| &finding.violations)
            .collect();
        violations.sort_by_key(|violation| violation.from);
        violations
    }

    /// The finding of the checker with this name.
    pub fn of_checker(&self, checker: &str) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.checker == checker)
    }
}

/// The data of one chaos run that the checkers share, computed once.
pub(crate) struct Case<'a> {
    scenario: &'a Scenario,
    history: &'a History,
    attempts: Vec<Attempt>,
    faults: Vec<FaultSpan>,
    /// For each client: the intervals in which the busy machine did not schedule it, as (start, end), in nanoseconds
    /// since the run began.
    stalls: HashMap<&'a str, Vec<(u64, u64)>>,
    /// For each client: the intervals in which its threads waited for a CPU, as (start, end, total waiting time of all
    /// threads), in nanoseconds. Start and end are relative to the start of the run.
    starved: HashMap<&'a str, Vec<(u64, u64, u64)>>,
    end: u64,
}

impl Case<'_> {
    /// Returns a description of a fault that excuses two simultaneous holders between `from` and `to`. A fault is an
    /// excuse while it lasts, and for some time after its end: the run's longest TTL plus one second.
    ///
    /// `None` if there is no such fault, or if the scenario promises that there are never two holders.
    fn excuse(&self, from: u64, to: u64) -> Option<String> {
        if self.scenario.exclusion() == Exclusion::Holds {
            return None;
        }
        let aftermath = self.scenario.max_ttl.as_nanos() as u64 + 1_000_000_000;
        let (scenario, nodes) = (self.scenario, self.scenario.nodes());
        let explains = |fault: &&FaultSpan| {
            fault
                .kind()
                .is_some_and(|kind| kind.breaks_exclusion(scenario.guarded, &nodes))
                && fault.from <= to
                && from
                    <= fault
                        .healed_at
                        .unwrap_or(self.end)
                        .saturating_add(aftermath)
        };
        let fault = self.faults.iter().find(explains)?;
        Some(format!("{} on {}", fault.kind, fault.targets.join(", ")))
    }

    /// The time between `from` and `to`, in nanoseconds, during which this client did not run. The process was stopped,
    /// its threads were blocked, or the busy machine did not schedule it.
    fn paused_time(&self, process: &str, from: u64, to: u64) -> u64 {
        let client = process.split('.').next().unwrap_or(process);
        let mut pauses: Vec<(u64, u64)> = self
            .faults
            .iter()
            .filter(|fault| {
                matches!(fault.kind.as_str(), "client-sigstop" | "client-starve")
                    && fault.targets.iter().any(|target| target == client)
            })
            .map(|fault| (fault.from, fault.over_at.unwrap_or(self.end)))
            .collect();
        if let Some(stalls) = self.stalls.get(process) {
            let first_near = stalls.partition_point(|(_, ends_at)| *ends_at < from);
            let first_near = stalls[first_near..]
                .iter()
                .take_while(|(begins_at, _)| *begins_at <= to);
            pauses.extend(first_near);
        }
        pauses.sort_unstable();
        // Add up the pauses within `from..to`. If pauses overlap, count their common time only once.
        let (mut paused_time, mut counted_until) = (0, from);
        for (begins_at, ends_at) in pauses {
            let (begins_at, ends_at) = (begins_at.max(counted_until), ends_at.min(to));
            if ends_at > begins_at {
                paused_time += ends_at - begins_at;
                counted_until = ends_at;
            }
        }
        paused_time
    }

    /// The time between `from` and `to`, in nanoseconds, by which the machine or a fault may have delayed this client.
    /// It is the time of the client's [pauses](Self::paused), plus the time for which its threads waited for a CPU.
    fn delay_time(&self, process: &str, from: u64, to: u64) -> u64 {
        let mut delay = self.paused_time(process, from, to);
        let Some(starved) = self.starved.get(process) else {
            return delay;
        };
        let first_near = starved.partition_point(|(_, ends_at, _)| *ends_at < from);
        for (begins_at, ends_at, waited) in &starved[first_near..] {
            // A wait lasts at most `LONGEST_WAIT`, so this wait began after `to`. So did all waits after it in the
            // list, which is sorted by end.
            if *ends_at > to.saturating_add(LONGEST_WAIT) {
                break;
            }
            if *begins_at >= to {
                continue;
            }
            let (begins_at, ends_at) = ((*begins_at).max(from), (*ends_at).min(to));
            // For each interval, only the total waiting time is known, not when the threads waited. In favour of the
            // lock, assume that they waited within `from..to`.
            let waited = (*waited).min(ends_at.saturating_sub(begins_at));
            delay += waited.saturating_sub(self.paused_time(process, begins_at, ends_at));
        }
        delay
    }

    /// Whether this client did not run at some point between `from` and `to`.
    fn was_paused(&self, process: &str, from: u64, to: u64) -> bool {
        self.delay_time(process, from, to) > 0
    }
}

/// Formats nanoseconds as seconds.
pub(crate) fn seconds(t: u64) -> String {
    format!("{:.3} s", t as f64 / 1e9)
}
