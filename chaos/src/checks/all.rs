//! Runs all checkers over one history.

use std::collections::HashMap;

use super::{
    Case, Finding, Findings, Verdict, assumptions, changes, effects, kept, ledger, leftovers,
    liveness, notified, order, views,
};
use crate::event::{Event, STALLED};
use crate::history::History;
use crate::scenario::{Scenario, Workload};

type Checker = fn(&Case<'_>) -> Finding;

/// The checkers for all kinds of locks except plain locks, if their question is one that only chaos runs ask (see
/// `kept.rs` for the others). Each checker has a list of workloads, and runs only if the scenario has one of them.
const CHECKERS_OF_KINDS: [(Checker, &[Workload]); 2] = [
    (ledger::check, &[Workload::Transfer]),
    (views::check, &[Workload::Readers, Workload::Owners]),
];

/// Runs all checkers over the history, and returns their findings.
pub fn check(scenario: &Scenario, history: &History) -> Findings {
    let case = Case {
        scenario,
        history,
        attempts: history.attempts(),
        faults: history.faults(),
        stalls: stalls(history),
        starved: starved(history),
        end: history.end(),
    };
    let mut findings = vec![assumptions::check(&case)];
    findings.extend(kept::check(&case));
    findings.extend([
        effects::check(&case),
        liveness::check(&case),
        order::check(&case),
        leftovers::check(&case),
        notified::check(&case),
    ]);
    for (check, workloads) in CHECKERS_OF_KINDS {
        if workloads
            .iter()
            .any(|workload| scenario.workloads.contains(workload))
        {
            findings.push(check(&case));
        }
    }
    if scenario.changes.is_some() {
        findings.push(changes::check(&case));
    }
    let verdict = findings
        .iter()
        .map(|finding| finding.verdict)
        .max()
        .unwrap_or(Verdict::Unknown);
    Findings { verdict, findings }
}

fn stalls(history: &History) -> HashMap<&str, Vec<(u64, u64)>> {
    let mut stalls: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
    for entry in &history.entries {
        if let Event::Suffered { disturbance, since } = &entry.event
            && disturbance == STALLED
        {
            let intervals = stalls.entry(&entry.process).or_default();
            intervals.push((*since, entry.t));
        }
    }
    stalls
}

fn starved(history: &History) -> HashMap<&str, Vec<(u64, u64, u64)>> {
    let mut starved: HashMap<&str, Vec<(u64, u64, u64)>> = HashMap::new();
    for entry in &history.entries {
        if let Event::Starved { since, waited } = entry.event {
            let intervals = starved.entry(&entry.process).or_default();
            intervals.push((since, entry.t, waited));
        }
    }
    starved
}
