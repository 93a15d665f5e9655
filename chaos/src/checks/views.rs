//! Checks the data that holders find under their locks. Readers must see complete writes. The holders of a reentrant
//! lock write the id of their lock owner to a file, and must never find the id of another owner there.

use std::collections::{HashMap, HashSet};

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::Attempt;

/// The name of the data that readers read. It consists of two files, which are named `readers-1` and `readers-2`.
const WHOLE: &str = "readers";
const SECOND_HALF: &str = "readers-2";

pub(super) fn check(case: &Case<'_>) -> Finding {
    let holds: HashMap<String, &Attempt> = case
        .attempts
        .iter()
        .map(|attempt| (attempt.name(), attempt))
        .collect();
    let finished = finished(case);
    let mut violations = Vec::new();
    let (mut looks, mut halves) = (0, 0);
    for line in &case.history.lines {
        let Event::Found {
            op,
            key,
            expected,
            found,
            writer,
        } = &line.what
        else {
            continue;
        };
        looks += 1;
        if expected == found {
            continue;
        }
        let name = format!("{}#{op}", line.who);
        let began = holds.get(&name).and_then(|hold| hold.obtained);
        let began = began.unwrap_or(line.t);
        let other = holds.get(writer);
        let over = other.and_then(|other| Some(other.belief(case.end)?.1));
        let before = over.filter(|over| *over <= began);
        // The writer was killed or lost its lock after it had written only one of the two files. No lock can prevent
        // such incomplete data.
        if key == WHOLE && before.is_some() && !finished.contains(writer) {
            halves += 1;
            continue;
        }
        let paused = before.is_some_and(|over| {
            other.is_some_and(|other| case.was_paused(&other.who, over, line.t))
        });
        let excused = if paused {
            Some(
                "the writer was paused between its last check of the lock and its write".to_owned(),
            )
        } else {
            case.excuse(began, line.t)
        };
        let writers = other.map(|other| other.who.clone());
        violations.push(Violation {
            checker: "views".into(),
            from: began,
            to: line.t,
            who: writers.into_iter().chain([line.who.clone()]).collect(),
            resource: Some(key.clone()),
            what: format!("{name} read {found:?} in {key:?}, but must read {expected:?}"),
            excused,
        });
    }
    let looked_at = format!(
        "{looks} reads; {halves} of them found an incomplete write of an interrupted writer"
    );
    let finding = Finding::of("views", looked_at, violations);
    if looks == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

/// The names of the attempts that wrote both files of the workload `readers`.
fn finished(case: &Case<'_>) -> HashSet<String> {
    let lines = case.history.lines.iter();
    let wrote = lines.filter_map(|line| match &line.what {
        Event::Wrote { op, key, .. } if key == SECOND_HALF => Some(format!("{}#{op}", line.who)),
        _ => None,
    });
    wrote.collect()
}
