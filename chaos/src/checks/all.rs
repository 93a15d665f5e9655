//! All checkers over one history.

use std::collections::HashMap;

use super::{
    Case, Findings, Verdict, assumptions, effects, exclusion, fencing, litter, liveness, order,
    told,
};
use crate::event::{Event, STALLED};
use crate::history::History;
use crate::scenario::Scenario;

/// Runs all checkers.
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
    let findings = vec![
        assumptions::check(&case),
        exclusion::check(&case),
        effects::check(&case),
        fencing::check(&case),
        liveness::check(&case),
        order::check(&case),
        litter::check(&case),
        told::check(&case),
    ];
    let verdict = findings
        .iter()
        .map(|finding| finding.verdict)
        .max()
        .unwrap_or(Verdict::Unknown);
    Findings { verdict, findings }
}

fn stalls(history: &History) -> HashMap<&str, Vec<(u64, u64)>> {
    let mut stalls: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
    for line in &history.lines {
        if let Event::Suffered { what, since } = &line.what
            && what == STALLED
        {
            let of = stalls.entry(&line.who).or_default();
            of.push((*since, line.t));
        }
    }
    stalls
}

fn starved(history: &History) -> HashMap<&str, Vec<(u64, u64, u64)>> {
    let mut starved: HashMap<&str, Vec<(u64, u64, u64)>> = HashMap::new();
    for line in &history.lines {
        if let Event::Starved { since, waited } = line.what {
            let of = starved.entry(&line.who).or_default();
            of.push((since, line.t, waited));
        }
    }
    starved
}
