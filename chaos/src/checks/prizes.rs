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
    answered_at: u64,
    reply: &'a str,
    units_left: u64,
}

pub(super) fn check(case: &Case<'_>) -> Finding {
    let lines = case.history.entries.iter();
    let created: BTreeMap<&str, u64> = lines
        .filter_map(|entry| match &entry.event {
            Event::Created { quota, pieces } => Some((quota.as_str(), *pieces)),
            _ => None,
        })
        .collect();
    let mut answers: BTreeMap<&str, Vec<Answer<'_>>> = BTreeMap::new();
    let (mut taken_count, mut sold_out_count, mut lost_count) = (0, 0, 0);
    let mut violations = Vec::new();
    let must_keep = must_keep_quotas(case.scenario);
    for attempt in &case.attempts {
        let Some((answered_at, reply, units_left)) = &attempt.answer else {
            continue;
        };
        match (reply.as_str(), units_left) {
            ("taken", _) => taken_count += 1,
            ("sold_out", _) => sold_out_count += 1,
            _ => {
                lost_count += 1;
                violations.extend(must_keep.then(|| lost_by_change(attempt, *answered_at)));
            }
        }
        if let Some(units_left) = *units_left {
            let (answered_at, reply) = (*answered_at, reply.as_str());
            let answers_of_quota = answers.entry(&attempt.resource).or_default();
            answers_of_quota.push(Answer {
                attempt,
                answered_at,
                reply,
                units_left,
            });
        }
    }
    for (quota, mut answers) in answers {
        answers.sort_by_key(|answer| answer.answered_at);
        let pieces = created.get(quota).copied().unwrap_or(0);
        check_answers(quota, pieces, &answers, &mut violations);
    }
    let coverage = format!(
        "{taken_count} prizes taken from {} quotas; {sold_out_count} attempts found a quota sold out; {lost_count} attempts found no quota, \
         because the masters had lost the quota",
        created.len()
    );
    let finding = Finding::new("prizes", coverage, violations);
    if taken_count == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

/// Whether every quota must survive the changes of masters. True if the run injects no faults, and more than half of
/// the masters of each new set already belonged to the set before it: these masters store the quotas.
fn must_keep_quotas(scenario: &Scenario) -> bool {
    let shares_majority = |sets: &[Vec<usize>]| {
        let common = sets[1].iter().filter(|master| sets[0].contains(master));
        2 * common.count() > sets[1].len()
    };
    let changes = scenario.changes.as_ref();
    scenario.faults.is_empty()
        && changes.is_some_and(|changes| changes.sets.windows(2).all(shares_majority))
}

fn lost_by_change(attempt: &Attempt, answered_at: u64) -> Violation {
    let name = attempt.name();
    Violation {
        checker: "prizes".into(),
        from: attempt.began_at,
        to: answered_at,
        processes: vec![attempt.process.clone()],
        resource: Some(attempt.resource.clone()),
        description: format!(
            "{name} found no quota, although masters were replaced without any fault"
        ),
        excused: None,
    }
}

/// Checks the replies about one quota; they must be sorted by time.
fn check_answers(
    quota: &str,
    pieces: u64,
    answers: &[Answer<'_>],
    violations: &mut Vec<Violation>,
) {
    let mut taken_units: BTreeMap<u64, &Answer<'_>> = BTreeMap::new();
    for (index, answer) in answers.iter().enumerate() {
        let mut report = |earlier: &Answer<'_>, description: String| {
            violations.push(Violation {
                checker: "prizes".into(),
                from: earlier.answered_at.min(answer.attempt.began_at),
                to: answer.answered_at,
                processes: vec![
                    earlier.attempt.process.clone(),
                    answer.attempt.process.clone(),
                ],
                resource: Some(quota.to_owned()),
                description,
                excused: None,
            });
        };
        let name = answer.attempt.name();
        if answer.reply == "sold_out" && answer.units_left > 0 {
            report(
                answer,
                format!(
                    "{name} found the quota sold out, although {} units are left",
                    answer.units_left
                ),
            );
        }
        if answer.reply == "taken" {
            if answer.units_left >= pieces {
                report(
                    answer,
                    format!(
                        "{name} took a unit of a quota of {pieces} units, but the reply says that {} are left",
                        answer.units_left
                    ),
                );
            }
            if let Some(earlier) = taken_units.insert(answer.units_left, answer) {
                let piece = pieces.saturating_sub(answer.units_left);
                let other_name = earlier.attempt.name();
                report(
                    earlier,
                    format!("{other_name} and {name} both got prize {piece}"),
                );
            }
        }
        let earlier_answers = answers[..index].iter();
        let earlier_answers =
            earlier_answers.filter(|earlier| earlier.answered_at < answer.attempt.began_at);
        let fewest_left = earlier_answers.min_by_key(|earlier| earlier.units_left);
        if let Some(earlier) = fewest_left
            && (answer.units_left > earlier.units_left
                || (answer.reply == "taken" && answer.units_left == earlier.units_left))
        {
            let other_name = earlier.attempt.name();
            report(
                earlier,
                format!(
                    "{name} reports {} remaining units, which is too many: {other_name} reported {} earlier",
                    answer.units_left, earlier.units_left
                ),
            );
        }
    }
}
