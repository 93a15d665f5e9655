//! Checks that overlapping holds of one lock owner have the same fencing token.

use super::{Case, Finding, Verdict, Violation};
use crate::claim::Claim;
use crate::history::Attempt;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let owner_attempts = case.attempts.iter();
    let owner_attempts = owner_attempts.filter(|attempt| matches!(attempt.claim, Claim::Owner(_)));
    let mut holds: Vec<(u64, u64, &Attempt)> = owner_attempts
        .filter_map(|attempt| {
            let (from, to) = attempt.belief(case.end)?;
            Some((from, to, attempt))
        })
        .collect();
    holds.sort_by_key(|(from, ..)| *from);
    let mut active_holds: Vec<(u64, &Attempt)> = Vec::new();
    let mut violations = Vec::new();
    let (mut overlapping_pairs, mut pairs_across_processes) = (0, 0);
    for (from, to, attempt) in holds {
        active_holds.retain(|(ends_at, _)| *ends_at > from);
        for (ends_at, earlier) in &active_holds {
            let ends_at = to.min(*ends_at);
            if earlier.claim != attempt.claim
                || earlier.resource != attempt.resource
                || ends_at <= from
            {
                continue;
            }
            overlapping_pairs += 1;
            pairs_across_processes += usize::from(earlier.process != attempt.process);
            if earlier.token == attempt.token {
                continue;
            }
            violations.push(Violation {
                checker: "owners".into(),
                from,
                to: ends_at,
                processes: vec![earlier.process.clone(), attempt.process.clone()],
                resource: Some(attempt.resource.clone()),
                description: format!(
                    "{} and {} hold one lock for the same owner, but with the fencing tokens {:?} and {:?}",
                    earlier.name(),
                    attempt.name(),
                    earlier.token,
                    attempt.token
                ),
                excused: case.excuse(from, ends_at),
            });
        }
        active_holds.push((to, attempt));
    }
    let coverage = format!(
        "{overlapping_pairs} pairs of overlapping lock holds of one owner, {pairs_across_processes} of them in different processes"
    );
    let finding = Finding::new("owners", coverage, violations);
    if overlapping_pairs == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}
