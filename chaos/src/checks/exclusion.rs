//! Checks mutual exclusion: two clients never hold one lock at the same time, unless their modes are compatible (for
//! example, both are readers).
//!
//! A hold begins when the client obtains the lock. It ends when the client begins to release the lock, is notified of
//! its loss, or dies, and at the latest when the lock's validity ends.

use quorate_promises::{Belief, Exclusion, Overlap};

use super::{Case, Finding, Verdict, Violation, seconds};
use crate::history::Attempt;
use crate::scenario::Exclusion as Promise;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let attempts = case.attempts.iter().enumerate();
    let mut beliefs: Vec<Belief<usize>> = attempts
        .filter_map(|(index, attempt)| {
            let (from, until) = attempt.belief(case.end)?;
            Some(Belief {
                who: index,
                from,
                until,
            })
        })
        .collect();
    beliefs.sort_by_key(|belief| belief.from);
    let mut exclusion = Exclusion::default();
    let mut violations = Vec::new();
    for belief in beliefs {
        let attempt = &case.attempts[belief.who];
        for resource_slot in attempt.resource_slots() {
            for overlap in exclusion.begins(resource_slot, belief) {
                let earlier = &case.attempts[overlap.other];
                if !earlier.claim.is_compatible_with(&attempt.claim) {
                    violations.push(overlap_violation(
                        case,
                        resource_slot.0,
                        earlier,
                        attempt,
                        &overlap,
                    ));
                }
            }
        }
    }
    let (overlap_count, hold_count) = (violations.len(), exclusion.judged());
    let promise = case.scenario.exclusion();
    let coverage = match promise {
        Promise::Holds => format!("{hold_count} lock holds checked, {overlap_count} overlaps"),
        Promise::MayBreak => {
            format!(
                "{hold_count} lock holds checked, {overlap_count} overlaps, which this scenario allows"
            )
        }
        Promise::MustBreak => {
            format!(
                "{hold_count} lock holds checked, {overlap_count} overlaps, which this scenario must cause"
            )
        }
    };
    let finding = Finding::new("exclusion", coverage, violations);
    if promise == Promise::MustBreak && overlap_count == 0 {
        // This scenario must cause overlapping holds. If the checker found none, either the faults or the checker did
        // not work.
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn overlap_violation(
    case: &Case<'_>,
    resource: &str,
    earlier: &Attempt,
    attempt: &Attempt,
    Overlap { from, to, .. }: &Overlap<usize>,
) -> Violation {
    let slot = attempt.slot.map(|slot| format!(", slot {slot},"));
    Violation {
        checker: "exclusion".into(),
        from: *from,
        to: *to,
        processes: vec![earlier.process.clone(), attempt.process.clone()],
        resource: Some(resource.to_owned()),
        description: format!(
            "{} and {} both held {resource:?}{} for {} ({} and {})",
            earlier.name(),
            attempt.name(),
            slot.unwrap_or_default(),
            seconds(to - from),
            token_text(earlier),
            token_text(attempt)
        ),
        excused: case.excuse(*from, *to),
    }
}

fn token_text(attempt: &Attempt) -> String {
    attempt.token.map_or_else(
        || "no token".to_owned(),
        |token_text| format!("token {token_text}"),
    )
}
