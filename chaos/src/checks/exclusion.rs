//! At most one believer at a time: no two intervals from "obtained" to the first of "release
//! sent", "validity ended" and "loss told" may overlap.

use std::collections::BTreeMap;

use super::{Case, Finding, Verdict, Violation, seconds};
use crate::history::Attempt;
use crate::scenario::Exclusion;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut by_resource: BTreeMap<&str, Vec<(u64, u64, &Attempt)>> = BTreeMap::new();
    let mut holds = 0;
    for attempt in &case.attempts {
        if let Some((from, to)) = attempt.belief(case.end) {
            holds += 1;
            by_resource
                .entry(&attempt.resource)
                .or_default()
                .push((from, to, attempt));
        }
    }
    let mut violations = Vec::new();
    for (resource, mut intervals) in by_resource {
        intervals.sort_by_key(|(from, ..)| *from);
        // Those that have not ended yet; a sweep, because there may be many intervals.
        let mut open: Vec<(u64, u64, &Attempt)> = Vec::new();
        for (from, to, attempt) in intervals {
            open.retain(|(_, until, _)| *until > from);
            for (_, until, other) in &open {
                let overlap = (*until).min(to);
                if overlap <= from {
                    continue;
                }
                violations.push(Violation {
                    checker: "exclusion".into(),
                    from,
                    to: overlap,
                    who: vec![other.who.clone(), attempt.who.clone()],
                    resource: Some(resource.to_owned()),
                    what: format!(
                        "{} and {} both held {resource:?} for {} ({} and {})",
                        other.name(),
                        attempt.name(),
                        seconds(overlap - from),
                        token(other),
                        token(attempt)
                    ),
                    excused: case.excuse(from, overlap),
                });
            }
            open.push((from, to, attempt));
        }
    }
    let seen = violations.len();
    let promise = case.scenario.exclusion();
    let looked_at = match promise {
        Exclusion::Holds => format!("{holds} holds, {seen} overlaps"),
        Exclusion::MayBreak => format!("{holds} holds, {seen} overlaps, which may be here"),
        Exclusion::MustBreak => format!("{holds} holds, {seen} overlaps, which must be here"),
    };
    let finding = Finding::of("exclusion", looked_at, violations);
    if promise == Exclusion::MustBreak && seen == 0 {
        // It broke for certain, and was not seen: then nothing else that was not seen counts.
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn token(of: &Attempt) -> String {
    of.token
        .map_or_else(|| "no token".to_owned(), |token| format!("token {token}"))
}
