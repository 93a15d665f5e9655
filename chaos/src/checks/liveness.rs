//! Checks liveness: after all faults have been healed, every client must get every lock that it asks for within a
//! bounded time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Case, Finding, Verdict, Violation, seconds};
use crate::event::Event;
use crate::recorder::{FOLLOWERS, client_index};
use crate::scenario::Workload;
use crate::workload::workload_name;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let (Some(calm), Some(finish)) = (case.history.calm(), case.history.finish()) else {
        let reason = "the run had no phase without faults at its end".to_owned();
        return Finding::new("liveness", reason, Vec::new()).at_least(Verdict::Unknown);
    };
    let mut served_clients: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut first_served_at = None;
    for attempt in &case.attempts {
        if let Some(served_at) = attempt.served_at()
            && served_at > calm
            && let Some(client) = client_index(&attempt.process)
        {
            let workload = workload_name(&attempt.resource);
            served_clients.entry(workload).or_default().insert(client);
            first_served_at =
                Some(first_served_at.map_or(served_at, |first: u64| first.min(served_at)));
        }
    }
    for entry in &case.history.entries {
        if let (Event::Followed { term: Some(_), .. }, Some(client)) =
            (&entry.event, client_index(&entry.process))
            && entry.t > calm
        {
            served_clients.entry(FOLLOWERS).or_default().insert(client);
        }
    }
    let mut violations = Vec::new();
    let workloads = case.scenario.workloads.iter();
    let resources = workloads.filter_map(|workload| shared_resource(*workload, case));
    let has_leader = case.scenario.workloads.contains(&Workload::Leader);
    for resource in resources.chain(has_leader.then_some(FOLLOWERS)) {
        for client in 0..case.scenario.clients {
            let clients = served_clients.get(resource);
            if clients.is_some_and(|clients| clients.contains(&client)) {
                continue;
            }
            violations.push(Violation {
                checker: "liveness".into(),
                from: calm,
                to: finish,
                processes: vec![format!("c{}", client + 1)],
                resource: Some(resource.to_owned()),
                description: format!(
                    "client c{} did not get {resource:?} within {} after the last fault had ended",
                    client + 1,
                    seconds(finish - calm)
                ),
                excused: None,
            });
        }
    }
    let mut coverage = format!(
        "every client must get its locks within {} after the last fault had ended",
        seconds(finish - calm)
    );
    if let Some(first_served_at) = first_served_at {
        let _ = write!(
            coverage,
            "; the first lock was obtained after {}",
            seconds(first_served_at - calm)
        );
    }
    // If no client got any lock after the last fault, the verdict is "invalid". This does not apply to clients with
    // a seeded bug: they can block each other even without a fault.
    let finding = Finding::new("liveness", coverage, violations);
    if first_served_at.is_none() && case.scenario.seeded_bug.is_none() {
        return finding.at_least(Verdict::Invalid);
    }
    finding
}

/// The name of the resource that all clients of this workload lock. `None` if each client locks its own resources
/// (workload `many`), or if this machine cannot run the workload.
fn shared_resource(workload: Workload, case: &Case<'_>) -> Option<&'static str> {
    let is_unavailable = case.history.entries.iter().any(|entry| {
        matches!(
            &entry.event,
            Event::Unavailable { kind, .. } if kind == workload.name()
        )
    });
    (workload.is_shared() && !is_unavailable).then(|| workload.name())
}
