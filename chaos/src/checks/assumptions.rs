//! Checks that the run tested something: its faults had their effect, and its clients got locks. If not, the verdict
//! "valid" of another checker proves little.

use super::{Case, Finding, Violation};
use crate::event::Event;

/// The minimum number of acquisitions per client, on average over all clients. With fewer, the run has tested too
/// little, and its verdict is "unknown".
const FEW: usize = 3;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let violations = gone_wrong(case);
    let obtained = case.attempts.iter().filter(|one| one.served().is_some());
    let obtained = obtained.count();
    let missing = missing(case, obtained);
    let landed = case.faults.iter().filter(|one| one.landed.is_some());
    let unavailable = case.history.lines.iter();
    let unavailable = unavailable.filter(|line| matches!(line.what, Event::Unavailable { .. }));
    let looked_at = format!(
        "{} of {} faults took effect; {} faults or workloads not supported on this machine; {obtained} locks acquired",
        landed.count(),
        case.faults.len(),
        unavailable.count()
    );
    Finding::of("assumptions", looked_at, violations).lacking(&missing)
}

/// Finds faults that had no effect, and clients that ended unexpectedly.
fn gone_wrong(case: &Case<'_>) -> Vec<Violation> {
    let bad = |t: u64, who: &str, what: String| Violation {
        checker: "assumptions".into(),
        from: t,
        to: t,
        who: vec![who.to_owned()],
        resource: None,
        what,
        excused: None,
    };
    let faults = case.faults.iter().filter_map(|fault| {
        let what = if let Some(why) = &fault.failed {
            format!("the fault {} failed: {why}", fault.kind)
        } else if fault.landed.is_none() || fault.healed.is_none() {
            format!(
                "the fault {} failed: its effect or its end was not observed",
                fault.kind
            )
        } else {
            return None;
        };
        Some(bad(fault.from, &fault.targets.join(" "), what))
    });
    let clients = case.history.lines.iter().filter_map(|line| {
        let Event::Gone { meant: false, how } = &line.what else {
            return None;
        };
        Some(bad(line.t, &line.who, format!("the client ended: {how}")))
    });
    faults.chain(clients).collect()
}

/// The reasons why the history is not sufficient for a verdict, e.g. that there were too few acquisitions.
fn missing(case: &Case<'_>, obtained: usize) -> Vec<String> {
    let mut missing = Vec::new();
    // If the scenario has only one kind of fault, this kind must have been injected. With several kinds, a short run
    // can end before each kind was injected.
    if let [kind] = case.scenario.faults[..] {
        let unavailable = case.history.lines.iter().any(|line| {
            matches!(&line.what, Event::Unavailable { kind: name, .. } if name == kind.name())
        });
        if unavailable {
            missing.push(format!("the fault {kind} is unavailable"));
        } else if !case.faults.iter().any(|one| one.kind == kind.name()) {
            missing.push(format!("the fault {kind} was never injected"));
        }
    }
    if case.history.calm().is_none() || case.history.finish().is_none() {
        missing.push("the run was cut short".into());
    }
    let count = |is: fn(&Event) -> bool| {
        let lines = case.history.lines.iter();
        lines.filter(|line| is(&line.what)).count()
    };
    let begun = count(|what| matches!(what, Event::Ready { .. }));
    let finished = count(|what| matches!(what, Event::Bye | Event::Gone { meant: true, .. }));
    if finished < begun {
        missing.push("the history does not show that every client ended".into());
    }
    if obtained < FEW * case.scenario.clients {
        missing.push(format!("only {obtained} acquisitions: use a longer run"));
    }
    missing
}
