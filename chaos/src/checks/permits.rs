//! Checks semaphores: there are never more holders at a time than permits, and no two holders have the same slot (the
//! number of a permit).

use super::{Case, Finding, Verdict, Violation};
use crate::claim::Claim;
use crate::history::Attempt;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut holds: Vec<(u64, u64, usize, &Attempt)> = Vec::new();
    for attempt in &case.attempts {
        let (Claim::Permit(of), Some((from, to))) = (&attempt.claim, attempt.belief(case.end))
        else {
            continue;
        };
        if attempt.slot.is_none_or(|slot| slot >= *of) {
            let what = format!(
                "{} has slot {:?}, but the semaphore has only {of} slots",
                attempt.name(),
                attempt.slot
            );
            violations.push(violation(from, from, &[attempt], what));
        }
        holds.push((from, to, *of, attempt));
    }
    holds.sort_by_key(|(from, ..)| *from);
    let mut open: Vec<(u64, &Attempt)> = Vec::new();
    let mut most = 0;
    for (from, to, of, attempt) in &holds {
        open.retain(|(until, _)| until > from);
        if to > from {
            open.push((*to, attempt));
        }
        most = most.max(open.len());
        if open.len() > *of {
            let until = open.iter().map(|(until, _)| *until).min().unwrap_or(*from);
            let who: Vec<&Attempt> = open.iter().map(|(_, one)| *one).collect();
            let what = format!(
                "{} clients hold a permit at the same time, but there are only {of} permits",
                open.len()
            );
            let mut bad = violation(*from, until, &who, what);
            bad.excused = case.excuse(*from, until);
            violations.push(bad);
        }
    }
    let looked_at = format!(
        "{} permits acquired, at most {most} held at the same time",
        holds.len()
    );
    let finding = Finding::of("permits", looked_at, violations);
    if holds.is_empty() {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn violation(from: u64, to: u64, who: &[&Attempt], what: String) -> Violation {
    Violation {
        checker: "permits".into(),
        from,
        to,
        who: who.iter().map(|attempt| attempt.who.clone()).collect(),
        resource: who.first().map(|attempt| attempt.resource.clone()),
        what,
        excused: None,
    }
}
