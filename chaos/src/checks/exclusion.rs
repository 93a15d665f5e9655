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
    let believers = case.attempts.iter().enumerate();
    let mut beliefs: Vec<Belief<usize>> = believers
        .filter_map(|(who, attempt)| {
            let (from, until) = attempt.belief(case.end)?;
            Some(Belief { who, from, until })
        })
        .collect();
    beliefs.sort_by_key(|belief| belief.from);
    let mut exclusion = Exclusion::default();
    let mut violations = Vec::new();
    for belief in beliefs {
        let attempt = &case.attempts[belief.who];
        for place in attempt.places() {
            for overlap in exclusion.begins(place, belief) {
                let other = &case.attempts[overlap.other];
                if !other.claim.is_compatible_with(&attempt.claim) {
                    violations.push(overlapping(case, place.0, other, attempt, &overlap));
                }
            }
        }
    }
    let (seen, holds) = (violations.len(), exclusion.judged());
    let promise = case.scenario.exclusion();
    let looked_at = match promise {
        Promise::Holds => format!("{holds} lock holds checked, {seen} overlaps"),
        Promise::MayBreak => {
            format!("{holds} lock holds checked, {seen} overlaps, which this scenario allows")
        }
        Promise::MustBreak => {
            format!("{holds} lock holds checked, {seen} overlaps, which this scenario must cause")
        }
    };
    let finding = Finding::of("exclusion", looked_at, violations);
    if promise == Promise::MustBreak && seen == 0 {
        // This scenario must cause overlapping holds. If the checker found none, either the faults or the checker did
        // not work.
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn overlapping(
    case: &Case<'_>,
    resource: &str,
    other: &Attempt,
    attempt: &Attempt,
    Overlap { from, to, .. }: &Overlap<usize>,
) -> Violation {
    let slot = attempt.slot.map(|slot| format!(", slot {slot},"));
    Violation {
        checker: "exclusion".into(),
        from: *from,
        to: *to,
        who: vec![other.who.clone(), attempt.who.clone()],
        resource: Some(resource.to_owned()),
        what: format!(
            "{} and {} both held {resource:?}{} for {} ({} and {})",
            other.name(),
            attempt.name(),
            slot.unwrap_or_default(),
            seconds(to - from),
            token(other),
            token(attempt)
        ),
        excused: case.excuse(*from, *to),
    }
}

fn token(of: &Attempt) -> String {
    of.token
        .map_or_else(|| "no token".to_owned(), |token| format!("token {token}"))
}
