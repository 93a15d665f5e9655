//! Checks liveness: after all faults have been healed, every client must get every lock that it asks for within a
//! bounded time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Case, Finding, Verdict, Violation, seconds};
use crate::event::Event;
use crate::recorder::{FOLLOWING, client_index};
use crate::scenario::{Locker, Workload};
use crate::workload::family;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let (Some(calm), Some(finish)) = (case.history.calm(), case.history.finish()) else {
        let nothing = "the run had no phase without faults at its end".to_owned();
        return Finding::of("liveness", nothing, Vec::new()).at_least(Verdict::Unknown);
    };
    let mut got: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut first = None;
    for attempt in &case.attempts {
        if let Some(at) = attempt.served()
            && at > calm
            && let Some(client) = client_index(&attempt.who)
        {
            let workload = family(&attempt.resource);
            got.entry(workload).or_default().insert(client);
            first = Some(first.map_or(at, |first: u64| first.min(at)));
        }
    }
    for line in &case.history.lines {
        if let (Event::Followed { term: Some(_), .. }, Some(client)) =
            (&line.what, client_index(&line.who))
            && line.t > calm
        {
            got.entry(FOLLOWING).or_default().insert(client);
        }
    }
    let mut violations = Vec::new();
    let workloads = case.scenario.workloads.iter();
    let wanted = workloads.filter_map(|workload| shared(*workload, case));
    let leads = case.scenario.workloads.contains(&Workload::Leader);
    for resource in wanted.chain(leads.then_some(FOLLOWING)) {
        for client in 0..case.scenario.clients {
            if got.get(resource).is_some_and(|who| who.contains(&client)) {
                continue;
            }
            violations.push(Violation {
                checker: "liveness".into(),
                from: calm,
                to: finish,
                who: vec![format!("c{}", client + 1)],
                resource: Some(resource.to_owned()),
                what: format!(
                    "client c{} did not get {resource:?} within {} after the last fault had ended",
                    client + 1,
                    seconds(finish - calm)
                ),
                excused: None,
            });
        }
    }
    let mut looked_at = format!(
        "every client must get its locks within {} after the last fault had ended",
        seconds(finish - calm)
    );
    if let Some(first) = first {
        let _ = write!(
            looked_at,
            "; the first lock was obtained after {}",
            seconds(first - calm)
        );
    }
    // If no client got any lock after the last fault, the verdict is "invalid". This does not apply to known-bad lock
    // implementations: their clients can block each other even without a fault.
    let finding = Finding::of("liveness", looked_at, violations);
    if first.is_none() && case.scenario.locker == Locker::Quorate {
        return finding.at_least(Verdict::Invalid);
    }
    finding
}

/// The name of the resource that all clients of this workload lock. `None` if each client locks its own resources
/// (workload `many`), or if this machine cannot run the workload.
fn shared(workload: Workload, case: &Case<'_>) -> Option<&'static str> {
    let unavailable = case.history.lines.iter().any(|line| {
        matches!(
            &line.what,
            Event::Unavailable { kind, .. } if kind == workload.name()
        )
    });
    (workload.is_shared() && !unavailable).then(|| workload.name())
}
