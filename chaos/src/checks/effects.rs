//! Checks the unprotected files that clients change under their locks: no two writes may start from the same content.
//! Otherwise the second write has overwritten the first.

use std::collections::HashMap;

use super::{Case, Finding, Violation};
use crate::event::Event;
use crate::history::Attempt;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let holds: HashMap<(&str, u64), &Attempt> = case
        .attempts
        .iter()
        .map(|attempt| ((attempt.who.as_str(), attempt.op), attempt))
        .collect();
    let mut firsts: HashMap<(&str, &str), (u64, &str)> = HashMap::new();
    let mut violations = Vec::new();
    let mut steps = 0;
    for line in &case.history.lines {
        let Event::Wrote {
            op,
            key,
            from,
            began,
        } = &line.what
        else {
            continue;
        };
        steps += 1;
        let Some((t, who)) = firsts.insert((key, from), (line.t, &line.who)) else {
            continue;
        };
        // Excuse a late write of a paused holder. If the holder was paused after its last check of the lock, only a
        // fencing token could have prevented the write.
        let late = holds
            .get(&(line.who.as_str(), *op))
            .and_then(|hold| hold.belief(case.end))
            .is_some_and(|(_, to)| line.t > to);
        let paused = late && case.was_paused(&line.who, *began, line.t);
        let excused = if paused {
            Some(
                "the writer was paused between its last check of the lock and its write".to_owned(),
            )
        } else {
            case.excuse(t, line.t)
        };
        violations.push(Violation {
            checker: "effects".into(),
            from: *began,
            to: line.t,
            who: vec![who.to_owned(), line.who.clone()],
            resource: Some(key.clone()),
            what: format!(
                "{who} and {} both overwrote the same content {from:?} of {key:?}",
                line.who
            ),
            excused,
        });
    }
    Finding::of("effects", format!("{steps} changes"), violations)
}
