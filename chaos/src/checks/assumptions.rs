//! Checks that the run tested something: its faults had their effect, and its clients got locks. If not, the verdict
//! "valid" of another checker proves little.

use super::{Case, Finding, Violation};
use crate::event::Event;

/// The minimum number of acquisitions per client, on average over all clients. With fewer, the run has tested too
/// little, and its verdict is "unknown".
const MIN_ACQUISITIONS_PER_CLIENT: usize = 3;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let violations = failures(case);
    let acquisitions = case
        .attempts
        .iter()
        .filter(|attempt| attempt.served_at().is_some());
    let acquisitions = acquisitions.count();
    let reasons = reasons_for_unknown(case, acquisitions);
    let landed_faults = case
        .faults
        .iter()
        .filter(|attempt| attempt.landed_at.is_some());
    let unavailable_events = case.history.entries.iter();
    let unavailable_events =
        unavailable_events.filter(|entry| matches!(entry.event, Event::Unavailable { .. }));
    let coverage = format!(
        "{} of {} faults took effect; {} faults or workloads not supported on this machine; {acquisitions} locks acquired",
        landed_faults.count(),
        case.faults.len(),
        unavailable_events.count()
    );
    Finding::new("assumptions", coverage, violations).insufficient_because(&reasons)
}

/// Finds faults that had no effect, and clients that ended unexpectedly.
fn failures(case: &Case<'_>) -> Vec<Violation> {
    let violation = |t: u64, process: &str, description: String| Violation {
        checker: "assumptions".into(),
        from: t,
        to: t,
        processes: vec![process.to_owned()],
        resource: None,
        description,
        excused: None,
    };
    let failed_faults = case.faults.iter().filter_map(|fault| {
        let description = if let Some(why) = &fault.failure {
            format!("the fault {} failed: {why}", fault.kind)
        } else if fault.landed_at.is_none() || fault.healed_at.is_none() {
            format!(
                "the fault {} failed: its effect or its end was not observed",
                fault.kind
            )
        } else {
            return None;
        };
        Some(violation(fault.from, &fault.targets.join(" "), description))
    });
    let ended_clients = case.history.entries.iter().filter_map(|entry| {
        let Event::Gone { meant: false, how } = &entry.event else {
            return None;
        };
        Some(violation(
            entry.t,
            &entry.process,
            format!("the client ended: {how}"),
        ))
    });
    failed_faults.chain(ended_clients).collect()
}

/// The reasons why the history is not sufficient for a verdict, e.g. that there were too few acquisitions.
fn reasons_for_unknown(case: &Case<'_>, acquisitions: usize) -> Vec<String> {
    let mut reasons_for_unknown = Vec::new();
    // If the scenario has only one kind of fault, this kind must have been injected. With several kinds, a short run
    // can end before each kind was injected.
    if let [kind] = case.scenario.faults[..] {
        let unavailable = case.history.entries.iter().any(|entry| {
            matches!(&entry.event, Event::Unavailable { kind: name, .. } if name == kind.name())
        });
        if unavailable {
            reasons_for_unknown.push(format!("the fault {kind} is unavailable"));
        } else if !case.faults.iter().any(|fault| fault.kind == kind.name()) {
            reasons_for_unknown.push(format!("the fault {kind} was never injected"));
        }
    }
    if case.history.calm().is_none() || case.history.finish().is_none() {
        reasons_for_unknown.push("the run was cut short".into());
    }
    let count = |matches_kind: fn(&Event) -> bool| {
        let lines = case.history.entries.iter();
        lines.filter(|entry| matches_kind(&entry.event)).count()
    };
    let ready_count = count(|event| matches!(event, Event::Ready { .. }));
    let finished_count =
        count(|event| matches!(event, Event::Bye | Event::Gone { meant: true, .. }));
    if finished_count < ready_count {
        reasons_for_unknown.push("the history does not show that every client ended".into());
    }
    if acquisitions < MIN_ACQUISITIONS_PER_CLIENT * case.scenario.clients {
        reasons_for_unknown.push(format!(
            "only {acquisitions} acquisitions: use a longer run"
        ));
    }
    reasons_for_unknown
}
