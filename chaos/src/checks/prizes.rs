//! The events of the quotas in a chaos run, for the checker of values in `quorate-promises`. The workload `prizes` takes
//! one unit at a time.

use quorate_promises::{Party, ValueCall, ValueEvent, ValueResult};

use super::{Case, Finding, Verdict};
use crate::event::Event;

/// An event about a quota: its time, the name of the quota, and the event.
pub(super) type QuotaEvent<'a> = (u64, &'a str, ValueEvent<'static>);

/// All events about quotas; for each call its beginning before its end. All creations are at the beginning of the run,
/// because a client records a creation only after the quota exists. `client_number` numbers the client processes.
pub(super) fn events<'a>(
    case: &'a Case<'a>,
    mut client_number: impl FnMut(&'a str) -> u64,
) -> Vec<QuotaEvent<'a>> {
    // The step at which a quota may be missing (see `ValueEvent::Called`).
    let step = may_lose_quotas(case).into();
    let mut events = Vec::new();
    let mut add =
        |(task, caller): (u64, Party), quota: &'a str, times: (u64, u64), call, result| {
            let called = ValueEvent::Called {
                task,
                caller,
                call,
                step,
            };
            events.push((times.0, quota, called));
            events.push((times.1, quota, ValueEvent::Returned(task, result)));
        };
    for entry in &case.history.entries {
        if let Event::Created { quota, pieces } = &entry.event {
            let (call, result) = (ValueCall::Create(*pieces), ValueResult::Created);
            // No attempt has this number.
            let creation = (u64::MAX, Party::Client(client_number(&entry.process)));
            add(creation, quota, (0, 0), call, result);
        }
    }
    for (index, attempt) in case.attempts.iter().enumerate() {
        let Some((answered_at, answer, units_left)) = &attempt.answer else {
            continue;
        };
        let result = match (answer.as_str(), units_left) {
            ("taken", Some(left)) => ValueResult::Taken(*left),
            (_, Some(left)) => ValueResult::UnitsLeft(*left),
            (_, None) => ValueResult::Lost,
        };
        let (quota, times) = (&attempt.resource, (attempt.began_at, *answered_at));
        let call = ValueCall::Take(1);
        let client = client_number(&attempt.process);
        let id = index as u64;
        add((id, Party::Hold { id, client }), quota, times, call, result);
    }
    events
}

/// Whether a quota may be lost. False if the run replaces masters without any fault, and more than half of the masters of
/// each new set already belonged to the set before it: these masters store the quotas.
fn may_lose_quotas(case: &Case<'_>) -> bool {
    let shares_majority = |sets: &[Vec<usize>]| {
        let common = sets[1].iter().filter(|master| sets[0].contains(master));
        2 * common.count() > sets[1].len()
    };
    let changes = case.scenario.changes.as_ref();
    !case.scenario.faults.is_empty()
        || !changes.is_some_and(|changes| changes.sets.windows(2).all(shares_majority))
}

/// A run in which no client took a unit has not tested the promises.
pub(super) fn conclude(case: &Case<'_>, finding: Finding) -> Finding {
    let mut answers = case
        .attempts
        .iter()
        .filter_map(|attempt| attempt.answer.as_ref());
    if answers.any(|(_, answer, _)| answer == "taken") {
        return finding;
    }
    finding.at_least(Verdict::Unknown)
}
