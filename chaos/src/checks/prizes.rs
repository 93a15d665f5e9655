//! Checks quotas. No fault excuses a violation of these rules:
//!
//! - A quota never hands out more prizes than it was created with.
//! - A quota never hands out the same prize twice.
//! - If two requests for a prize did not overlap, the reply to the later one reports fewer remaining prizes.
//! - After the last prize, no prize is handed out.
//! - If a run without faults replaces a minority of the masters at a time, every quota survives.

use std::collections::BTreeMap;

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::Attempt;
use crate::scenario::Scenario;

/// One reply to a client's request for a prize.
struct Answer<'a> {
    attempt: &'a Attempt,
    at: u64,
    says: &'a str,
    left: u64,
}

pub(super) fn check(case: &Case<'_>) -> Finding {
    let lines = case.history.lines.iter();
    let created: BTreeMap<&str, u64> = lines
        .filter_map(|line| match &line.what {
            Event::Created { quota, pieces } => Some((quota.as_str(), *pieces)),
            _ => None,
        })
        .collect();
    let mut answers: BTreeMap<&str, Vec<Answer<'_>>> = BTreeMap::new();
    let (mut taken, mut over, mut lost) = (0, 0, 0);
    let mut violations = Vec::new();
    let keeps = keeps_all(case.scenario);
    for attempt in &case.attempts {
        let Some((at, answer, left)) = &attempt.answered else {
            continue;
        };
        match (answer.as_str(), left) {
            ("taken", _) => taken += 1,
            ("sold_out", _) => over += 1,
            _ => {
                lost += 1;
                violations.extend(keeps.then(|| lost_by_change(attempt, *at)));
            }
        }
        if let Some(left) = *left {
            let (at, says) = (*at, answer.as_str());
            let about = answers.entry(&attempt.resource).or_default();
            about.push(Answer {
                attempt,
                at,
                says,
                left,
            });
        }
    }
    for (quota, mut answers) in answers {
        answers.sort_by_key(|one| one.at);
        let pieces = created.get(quota).copied().unwrap_or(0);
        look_at(quota, pieces, &answers, &mut violations);
    }
    let looked_at = format!(
        "{taken} prizes taken from {} quotas; {over} attempts found a quota sold out; {lost} attempts found no quota, \
         because the masters had lost the quota",
        created.len()
    );
    let finding = Finding::of("prizes", looked_at, violations);
    if taken == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

/// Whether every quota must survive the changes of masters. True if the run injects no faults, and more than half of
/// the masters of each new set already belonged to the set before it: these masters store the quotas.
fn keeps_all(scenario: &Scenario) -> bool {
    let meets = |sets: &[Vec<usize>]| {
        let both = sets[1].iter().filter(|master| sets[0].contains(master));
        2 * both.count() > sets[1].len()
    };
    let changes = scenario.changes.as_ref();
    scenario.faults.is_empty() && changes.is_some_and(|changes| changes.sets.windows(2).all(meets))
}

fn lost_by_change(attempt: &Attempt, at: u64) -> Violation {
    let name = attempt.name();
    Violation {
        checker: "prizes".into(),
        from: attempt.began,
        to: at,
        who: vec![attempt.who.clone()],
        resource: Some(attempt.resource.clone()),
        what: format!("{name} found no quota, although masters were replaced without any fault"),
        excused: None,
    }
}

/// Checks the replies about one quota; they must be sorted by time.
fn look_at(quota: &str, pieces: u64, answers: &[Answer<'_>], violations: &mut Vec<Violation>) {
    let mut handed: BTreeMap<u64, &Answer<'_>> = BTreeMap::new();
    for (number, one) in answers.iter().enumerate() {
        let mut bad = |other: &Answer<'_>, what: String| {
            violations.push(Violation {
                checker: "prizes".into(),
                from: other.at.min(one.attempt.began),
                to: one.at,
                who: vec![other.attempt.who.clone(), one.attempt.who.clone()],
                resource: Some(quota.to_owned()),
                what,
                excused: None,
            });
        };
        let name = one.attempt.name();
        if one.says == "sold_out" && one.left > 0 {
            bad(
                one,
                format!(
                    "{name} found the quota sold out, although {} units are left",
                    one.left
                ),
            );
        }
        if one.says == "taken" {
            if one.left >= pieces {
                bad(
                    one,
                    format!(
                        "{name} took a unit of a quota of {pieces} units, but the reply says that {} are left",
                        one.left
                    ),
                );
            }
            if let Some(other) = handed.insert(one.left, one) {
                let (other_name, piece) = (other.attempt.name(), pieces.saturating_sub(one.left));
                bad(
                    other,
                    format!("{other_name} and {name} both got prize {piece}"),
                );
            }
        }
        let before = answers[..number].iter();
        let before = before.filter(|other| other.at < one.attempt.began);
        let least = before.min_by_key(|other| other.left);
        if let Some(other) = least
            && (one.left > other.left || (one.says == "taken" && one.left == other.left))
        {
            let other_name = other.attempt.name();
            bad(
                other,
                format!(
                    "{name} reports {} remaining units, which is too many: {other_name} reported {} earlier",
                    one.left, other.left
                ),
            );
        }
    }
}
