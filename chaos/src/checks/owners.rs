//! Checks that overlapping holds of one lock owner have the same fencing token.

use super::{Case, Finding, Verdict, Violation};
use crate::claim::Claim;
use crate::history::Attempt;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let owned = case.attempts.iter();
    let owned = owned.filter(|attempt| matches!(attempt.claim, Claim::Owner(_)));
    let mut holds: Vec<(u64, u64, &Attempt)> = owned
        .filter_map(|attempt| {
            let (from, to) = attempt.belief(case.end)?;
            Some((from, to, attempt))
        })
        .collect();
    holds.sort_by_key(|(from, ..)| *from);
    let mut open: Vec<(u64, &Attempt)> = Vec::new();
    let mut violations = Vec::new();
    let (mut together, mut apart) = (0, 0);
    for (from, to, attempt) in holds {
        open.retain(|(until, _)| *until > from);
        for (until, other) in &open {
            let until = to.min(*until);
            if other.claim != attempt.claim || other.resource != attempt.resource || until <= from {
                continue;
            }
            together += 1;
            apart += usize::from(other.who != attempt.who);
            if other.token == attempt.token {
                continue;
            }
            violations.push(Violation {
                checker: "owners".into(),
                from,
                to: until,
                who: vec![other.who.clone(), attempt.who.clone()],
                resource: Some(attempt.resource.clone()),
                what: format!(
                    "{} and {} hold one lock for the same owner, but with the fencing tokens {:?} and {:?}",
                    other.name(),
                    attempt.name(),
                    other.token,
                    attempt.token
                ),
                excused: case.excuse(from, until),
            });
        }
        open.push((to, attempt));
    }
    let looked_at = format!(
        "{together} pairs of overlapping lock holds of one owner, {apart} of them in different processes"
    );
    let finding = Finding::of("owners", looked_at, violations);
    if together == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}
