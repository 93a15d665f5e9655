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
        .map(|attempt| ((attempt.process.as_str(), attempt.op), attempt))
        .collect();
    let mut first_writes: HashMap<(&str, &str), (u64, &str)> = HashMap::new();
    let mut violations = Vec::new();
    let mut write_count = 0;
    for entry in &case.history.entries {
        let Event::Wrote {
            op,
            key,
            from,
            began,
            ..
        } = &entry.event
        else {
            continue;
        };
        write_count += 1;
        let Some((first_at, process)) = first_writes.insert((key, from), (entry.t, &entry.process))
        else {
            continue;
        };
        // Excuse a late write of a paused holder. If the holder was paused after its last check of the lock, only a
        // fencing token could have prevented the write.
        let is_late = holds
            .get(&(entry.process.as_str(), *op))
            .and_then(|hold| hold.belief(case.end))
            .is_some_and(|(_, to)| entry.t > to);
        let was_paused = is_late && case.was_paused(&entry.process, *began, entry.t);
        let excuse = if was_paused {
            Some(
                "the writer was paused between its last check of the lock and its write".to_owned(),
            )
        } else {
            case.excuse(first_at, entry.t)
        };
        violations.push(Violation {
            checker: "effects".into(),
            from: *began,
            to: entry.t,
            processes: vec![process.to_owned(), entry.process.clone()],
            resource: Some(key.clone()),
            description: format!(
                "{process} and {} both overwrote the same content {from:?} of {key:?}",
                entry.process
            ),
            excused: excuse,
        });
    }
    Finding::new("effects", format!("{write_count} changes"), violations)
}
