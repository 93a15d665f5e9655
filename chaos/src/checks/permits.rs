//! Checks semaphores: there are never more holders at a time than permits, and no two holders have the same slot (the
//! number of a permit).

use super::{Case, Finding, Verdict, Violation};
use crate::claim::Claim;
use crate::history::Attempt;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut holds: Vec<(u64, u64, usize, &Attempt)> = Vec::new();
    for attempt in &case.attempts {
        let (Claim::Permit(permit_count), Some((from, to))) =
            (&attempt.claim, attempt.belief(case.end))
        else {
            continue;
        };
        if attempt.slot.is_none_or(|slot| slot >= *permit_count) {
            let description = format!(
                "{} has slot {:?}, but the semaphore has only {permit_count} slots",
                attempt.name(),
                attempt.slot
            );
            violations.push(violation(from, from, &[attempt], description));
        }
        holds.push((from, to, *permit_count, attempt));
    }
    holds.sort_by_key(|(from, ..)| *from);
    let mut active_holds: Vec<(u64, &Attempt)> = Vec::new();
    let mut most_at_once = 0;
    for (from, to, permit_count, attempt) in &holds {
        active_holds.retain(|(until, _)| until > from);
        if to > from {
            active_holds.push((*to, attempt));
        }
        most_at_once = most_at_once.max(active_holds.len());
        if active_holds.len() > *permit_count {
            let until = active_holds
                .iter()
                .map(|(until, _)| *until)
                .min()
                .unwrap_or(*from);
            let holders: Vec<&Attempt> = active_holds.iter().map(|(_, attempt)| *attempt).collect();
            let description = format!(
                "{} clients hold a permit at the same time, but there are only {permit_count} permits",
                active_holds.len()
            );
            let mut too_many = violation(*from, until, &holders, description);
            too_many.excused = case.excuse(*from, until);
            violations.push(too_many);
        }
    }
    let coverage = format!(
        "{} permits acquired, at most {most_at_once} held at the same time",
        holds.len()
    );
    let finding = Finding::new("permits", coverage, violations);
    if holds.is_empty() {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn violation(from: u64, to: u64, attempts: &[&Attempt], description: String) -> Violation {
    Violation {
        checker: "permits".into(),
        from,
        to,
        processes: attempts
            .iter()
            .map(|attempt| attempt.process.clone())
            .collect(),
        resource: attempts.first().map(|attempt| attempt.resource.clone()),
        description,
        excused: None,
    }
}
