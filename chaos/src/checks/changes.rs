//! Checks a run in which masters were changed:
//!
//! - The operator completed every step of each change.
//! - If the run injects faults, a fault hit a master between the operator's steps `close` and `open` of each change
//!   (see docs/operations.md).
//! - The masters refused no client that used the current masters.
//! - No lock stayed free for too long while a client waited for it.

use std::time::Duration;

use super::{Case, Finding, Violation, seconds};
use crate::changes::{Changes, Operator};
use crate::event::Event;
use crate::pace::{self, Step};
use crate::walk::STEPS;

/// The additional time for which a lock may be free before a waiter gets it. It covers masters that do not answer,
/// pauses between retries, and a busy machine.
const SLACK: Duration = Duration::from_millis(1_500);

pub(super) fn check(case: &Case<'_>) -> Finding {
    let Some(changes) = &case.scenario.changes else {
        return Finding::of(
            "changes",
            "no masters were replaced in this chaos run".into(),
            Vec::new(),
        );
    };
    let steps = pace::steps(case.history);
    if changes.operator != Operator::Careful {
        let looked_at = format!(
            "{} steps to replace masters were not checked, because the operator skips steps on purpose",
            steps.len()
        );
        return Finding::of("changes", looked_at, Vec::new());
    }
    let mut violations = missing(case, changes, &steps);
    let refused = refused(case, &steps, &mut violations);
    let longest = waits(case, &mut violations);
    let done = steps.iter().filter(|step| step.done).count();
    let tries: usize = steps.iter().map(|step| step.tries).sum();
    let looked_at = format!(
        "masters replaced {} times; {done} steps completed in {tries} tries; {refused} acquisitions refused because \
         the client used outdated masters; longest time that a lock was free despite a waiter: {}",
        changes.count(),
        seconds(longest),
    );
    let unhurt = if case.scenario.faults.is_empty() {
        Vec::new()
    } else {
        unhurt(case, changes, &steps)
    };
    Finding::of("changes", looked_at, violations).lacking(&unhurt)
}

fn violation(from: u64, to: u64, who: &str, what: String) -> Violation {
    Violation {
        checker: "changes".into(),
        from,
        to,
        who: vec![who.to_owned()],
        resource: None,
        what,
        excused: None,
    }
}

/// Finds steps that the operator did not take or did not complete.
fn missing(case: &Case<'_>, changes: &Changes, steps: &[Step]) -> Vec<Violation> {
    let mut missing = Vec::new();
    for change in 0..changes.count() {
        for name in STEPS {
            let nobody = case.scenario.clients == 1 && name == "clients of both";
            let mut of = steps
                .iter()
                .filter(|step| step.change == change && step.name == name);
            if of.any(|step| step.done) || nobody {
                continue;
            }
            let what = format!(
                "master change {}: the operator did not complete the step '{name}'",
                change + 1
            );
            missing.push(violation(case.end, case.end, "chaos", what));
        }
    }
    missing
}

/// Returns one text for each change in which no fault hit a master between the steps `close` and `open`.
fn unhurt(case: &Case<'_>, changes: &Changes, steps: &[Step]) -> Vec<String> {
    let mut unhurt = Vec::new();
    let hit = |from: u64, to: u64| {
        let mut faults = case.faults.iter();
        faults.any(|fault| {
            let of_master = fault.targets.iter().any(|target| target.starts_with('m'));
            of_master && fault.landed.is_some() && (from..to).contains(&fault.from)
        })
    };
    for change in 0..changes.count() {
        let of = |name: &str| {
            steps
                .iter()
                .find(|step| step.change == change && step.name == name)
        };
        let (Some(closed), Some(open)) = (of("close"), of("open")) else {
            continue;
        };
        if !hit(closed.to, open.to) {
            unhurt.push(format!(
                "master change {}: no fault hit a master between the steps 'close' and 'open'",
                change + 1
            ));
        }
    }
    unhurt
}

/// Adds a violation for each attempt that the masters refused although its client used the current masters. Returns the
/// number of all refused attempts, including the attempts of clients with outdated masters.
fn refused(case: &Case<'_>, steps: &[Step], violations: &mut Vec<Violation>) -> usize {
    let lives = pace::lives(case.history);
    // Returns when the masters begin to refuse clients with the configuration number `step` (see `Settings::step`):
    //
    // - If `step` is even, the clients know one set of masters. Masters refuse them from the start of the step `close`.
    // - If `step` is odd, the clients know the old and the new set. Masters refuse them from the start of `finish`.
    let outdated = |step: u64| {
        let (change, name) = match step % 2 {
            0 => (step / 2, "close"),
            _ => (step / 2, "finish"),
        };
        let mut of = steps
            .iter()
            .filter(|one| one.change as u64 == change && one.name == name);
        of.next().map(|one| one.from)
    };
    let mut refused = 0;
    for line in &case.history.lines {
        let Event::Missed { why, op } = &line.what else {
            continue;
        };
        if why != "other_masters" {
            continue;
        }
        refused += 1;
        let life = lives.iter().find(|life| life.who == line.who);
        let step = life.map_or(0, |life| life.step);
        if outdated(step).is_none_or(|from| line.t < from) {
            let what = format!(
                "acquisition {}#{op} was refused, although the masters of the client were not outdated (the client has \
                 the configuration of step {step})",
                line.who
            );
            violations.push(violation(line.t, line.t, &line.who, what));
        }
    }
    refused
}

/// Adds a violation for each lock that was free for longer than allowed while a client waited for it. Returns the
/// longest time, in nanoseconds, for which any lock was free while a client waited for it.
fn waits(case: &Case<'_>, violations: &mut Vec<Violation>) -> u64 {
    let ttl = case.scenario.ttl;
    // A waiter possibly waits until a dead holder's lease expires (one TTL), and then until the queue entry of a dead
    // waiter expires (half a TTL).
    let allowed = (ttl + ttl / 2 + SLACK).as_nanos() as u64;
    let calm = case.history.calm().unwrap_or(case.end);
    let mut longest = 0;
    for idle in pace::idle(&case.attempts, case.end) {
        if idle.from >= calm {
            continue;
        }
        longest = longest.max(idle.to - idle.from);
        let who = idle.who.split('#').next().unwrap_or(&idle.who);
        let kept = case.kept_waiting(who, idle.from, idle.to);
        if (idle.to - idle.from).saturating_sub(kept) > allowed {
            let free = seconds(idle.to - idle.from);
            let what = format!(
                "{:?} was free for too long ({free}) before the waiting {} acquired it",
                idle.resource, idle.who
            );
            let resource = Some(idle.resource.clone());
            violations.push(Violation {
                resource,
                ..violation(idle.from, idle.to, who, what)
            });
        }
    }
    longest
}
