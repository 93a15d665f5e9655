//! Did the run do what it set out to do? Otherwise its other verdicts say little.

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;

/// Fewer acquisitions than this for each client, and nothing was tested.
const FEW: usize = 3;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut missing = Vec::new();
    let mut bad = |t: u64, who: &str, what: String| {
        violations.push(Violation {
            checker: "assumptions".into(),
            from: t,
            to: t,
            who: vec![who.to_owned()],
            resource: None,
            what,
            excused: None,
        });
    };
    for fault in &case.faults {
        let who = fault.targets.join(" ");
        if let Some(why) = &fault.failed {
            bad(fault.from, &who, format!("{} failed: {why}", fault.kind));
        } else if fault.landed.is_none() || fault.healed.is_none() {
            let what = format!("{} was not seen to land and to end", fault.kind);
            bad(fault.from, &who, what);
        }
    }
    let mut unavailable = 0;
    let (mut begun, mut finished) = (0, 0);
    for line in &case.history.lines {
        match &line.what {
            Event::Gone { meant: false, how } => {
                bad(line.t, &line.who, format!("the client ended: {how}"));
            }
            Event::Unavailable { .. } => unavailable += 1,
            Event::Ready { .. } => begun += 1,
            Event::Bye | Event::Gone { meant: true, .. } => finished += 1,
            _ => {}
        }
    }
    let planned = &case.scenario.faults;
    for kind in planned {
        let told = case.faults.iter().any(|fault| fault.kind == kind.name());
        let excused = case.history.lines.iter().any(|line| {
            matches!(&line.what, Event::Unavailable { kind: name, .. } if name == kind.name())
        });
        // A short run of many kinds does not reach them all; a run for one kind must.
        if !told && !excused && planned.len() == 1 {
            missing.push(format!("{kind} was never injected"));
        }
        if excused && planned.len() == 1 {
            missing.push(format!("{kind} is unavailable"));
        }
    }
    if case.history.calm().is_none() || case.history.finish().is_none() {
        missing.push("the run was cut short".into());
    }
    if finished < begun {
        missing.push("not every client's end is known".into());
    }
    let obtained = case
        .attempts
        .iter()
        .filter(|attempt| attempt.obtained.is_some())
        .count();
    if obtained < FEW * case.scenario.clients {
        missing.push(format!("only {obtained} acquisitions"));
    }
    let landed = case
        .faults
        .iter()
        .filter(|fault| fault.landed.is_some())
        .count();
    let mut looked_at = format!(
        "{landed} of {} faults landed, {unavailable} unavailable, {obtained} acquisitions",
        case.faults.len()
    );
    for why in &missing {
        looked_at.push_str("; ");
        looked_at.push_str(why);
    }
    let finding = Finding::of("assumptions", looked_at, violations);
    if missing.is_empty() {
        finding
    } else {
        finding.at_least(Verdict::Unknown)
    }
}
