//! Checks a run in which masters were changed:
//!
//! - The operator completed every step of each change.
//! - If the run injects faults, a fault hit a master between the operator's steps `close` and `open` of each change
//!   (see docs/operations.md).
//! - The masters refused no client that used the current masters.
//! - No lock stayed free for too long while a client waited for it.

use std::time::Duration;

use super::{Case, Finding, Violation, seconds};
use crate::change_statistics::{self, Step};
use crate::changes::{MasterChanges, Operator};
use crate::event::Event;
use crate::operator_tasks::STEPS;

/// The additional time for which a lock may be free before a waiter gets it. It covers masters that do not answer,
/// pauses between retries, and a busy machine.
const SLACK: Duration = Duration::from_millis(1_500);

pub(super) fn check(case: &Case<'_>) -> Finding {
    let Some(changes) = &case.scenario.changes else {
        return Finding::new(
            "changes",
            "no masters were replaced in this chaos run".into(),
            Vec::new(),
        );
    };
    let steps = change_statistics::steps(case.history);
    if changes.operator != Operator::Careful {
        let coverage = format!(
            "{} steps to replace masters were not checked, because the operator skips steps on purpose",
            steps.len()
        );
        return Finding::new("changes", coverage, Vec::new());
    }
    let mut violations = incomplete_steps(case, changes, &steps);
    let check_refusals = check_refusals(case, &steps, &mut violations);
    let longest_wait = check_waits(case, &mut violations);
    let completed = steps.iter().filter(|step| step.succeeded).count();
    let tries: usize = steps.iter().map(|step| step.tries).sum();
    let coverage = format!(
        "masters replaced {} times; {completed} steps completed in {tries} tries; {check_refusals} acquisitions refused because \
         the client used outdated masters; longest time that a lock was free despite a waiter: {}",
        changes.count(),
        seconds(longest_wait),
    );
    let changes_without_fault = if case.scenario.faults.is_empty() {
        Vec::new()
    } else {
        changes_without_fault(case, changes, &steps)
    };
    Finding::new("changes", coverage, violations).insufficient_because(&changes_without_fault)
}

fn violation(from: u64, to: u64, process: &str, description: String) -> Violation {
    Violation {
        checker: "changes".into(),
        from,
        to,
        processes: vec![process.to_owned()],
        resource: None,
        description,
        excused: None,
    }
}

/// Finds steps that the operator did not take or did not complete.
fn incomplete_steps(case: &Case<'_>, changes: &MasterChanges, steps: &[Step]) -> Vec<Violation> {
    let mut incomplete_steps = Vec::new();
    for change in 0..changes.count() {
        for name in STEPS {
            let is_impossible = case.scenario.clients == 1 && name == "clients of both";
            let mut attempts = steps
                .iter()
                .filter(|step| step.change == change && step.name == name);
            if attempts.any(|step| step.succeeded) || is_impossible {
                continue;
            }
            let description = format!(
                "master change {}: the operator did not complete the step '{name}'",
                change + 1
            );
            incomplete_steps.push(violation(case.end, case.end, "chaos", description));
        }
    }
    incomplete_steps
}

/// Returns one text for each change in which no fault hit a master between the steps `close` and `open`.
fn changes_without_fault(case: &Case<'_>, changes: &MasterChanges, steps: &[Step]) -> Vec<String> {
    let mut changes_without_fault = Vec::new();
    let has_fault = |from: u64, to: u64| {
        let mut faults = case.faults.iter();
        faults.any(|fault| {
            let hits_master = fault.targets.iter().any(|target| target.starts_with('m'));
            hits_master && fault.landed_at.is_some() && (from..to).contains(&fault.from)
        })
    };
    for change in 0..changes.count() {
        let step_named = |name: &str| {
            steps
                .iter()
                .find(|step| step.change == change && step.name == name)
        };
        let (Some(close), Some(open)) = (step_named("close"), step_named("open")) else {
            continue;
        };
        if !has_fault(close.to, open.to) {
            changes_without_fault.push(format!(
                "master change {}: no fault hit a master between the steps 'close' and 'open'",
                change + 1
            ));
        }
    }
    changes_without_fault
}

/// Adds a violation for each attempt that the masters refused although its client used the current masters. Returns the
/// number of all refused attempts, including the attempts of clients with outdated masters.
fn check_refusals(case: &Case<'_>, steps: &[Step], violations: &mut Vec<Violation>) -> usize {
    let processes = change_statistics::client_processes(case.history);
    // Returns when the masters begin to refuse clients with the configuration number `step_number` (see
    // `Settings::step`):
    //
    // - If `step_number` is even, the clients know one set of masters. Masters refuse them from the start of the step `close`.
    // - If `step_number` is odd, the clients know the old and the new set. Masters refuse them from the start of `finish`.
    let outdated_since = |step_number: u64| {
        let (change, name) = match step_number % 2 {
            0 => (step_number / 2, "close"),
            _ => (step_number / 2, "finish"),
        };
        let mut steps_named = steps
            .iter()
            .filter(|step| step.change as u64 == change && step.name == name);
        steps_named.next().map(|step| step.from)
    };
    let mut check_refusals = 0;
    for entry in &case.history.entries {
        let Event::Missed { why, op } = &entry.event else {
            continue;
        };
        if why != "other_masters" {
            continue;
        }
        check_refusals += 1;
        let process = processes
            .iter()
            .find(|process| process.process == entry.process);
        let step_number = process.map_or(0, |process| process.step);
        if outdated_since(step_number).is_none_or(|from| entry.t < from) {
            let description = format!(
                "acquisition {}#{op} was refused, although the masters of the client were not outdated (the client has \
                 the configuration of step {step_number})",
                entry.process
            );
            violations.push(violation(entry.t, entry.t, &entry.process, description));
        }
    }
    check_refusals
}

/// Adds a violation for each lock that was free for longer than allowed while a client waited for it. Returns the
/// longest time, in nanoseconds, for which any lock was free while a client waited for it.
fn check_waits(case: &Case<'_>, violations: &mut Vec<Violation>) -> u64 {
    let ttl = case.scenario.ttl;
    // A waiter possibly waits until a dead holder's lease expires (one TTL), and then until the queue entry of a dead
    // waiter expires (half a TTL).
    let allowed_wait = (ttl + ttl / 2 + SLACK).as_nanos() as u64;
    let calm = case.history.calm().unwrap_or(case.end);
    let mut longest_wait = 0;
    for interval in change_statistics::free_intervals(&case.attempts, case.end) {
        if interval.from >= calm {
            continue;
        }
        longest_wait = longest_wait.max(interval.to - interval.from);
        let process = interval
            .process
            .split('#')
            .next()
            .unwrap_or(&interval.process);
        let delay = case.delay_time(process, interval.from, interval.to);
        if (interval.to - interval.from).saturating_sub(delay) > allowed_wait {
            let free_time = seconds(interval.to - interval.from);
            let description = format!(
                "{:?} was free for too long ({free_time}) before the waiting {} acquired it",
                interval.resource, interval.process
            );
            let resource = Some(interval.resource.clone());
            violations.push(Violation {
                resource,
                ..violation(interval.from, interval.to, process, description)
            });
        }
    }
    longest_wait
}
