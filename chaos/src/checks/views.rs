//! Checks the data that holders find under their locks. Readers must see complete writes. The holders of a reentrant
//! lock write the id of their lock owner to a file, and must never find the id of another owner there.

use std::collections::{HashMap, HashSet};

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::Attempt;

/// The name of the data that readers read. It consists of two files, which are named `readers-1` and `readers-2`.
const BOTH_FILES: &str = "readers";
const SECOND_HALF: &str = "readers-2";

pub(super) fn check(case: &Case<'_>) -> Finding {
    let holds: HashMap<String, &Attempt> = case
        .attempts
        .iter()
        .map(|attempt| (attempt.name(), attempt))
        .collect();
    let finished_writers = finished_writers(case);
    let mut violations = Vec::new();
    let (mut read_count, mut incomplete_reads) = (0, 0);
    for entry in &case.history.entries {
        let Event::Found {
            op,
            key,
            expected,
            found,
            writer,
        } = &entry.event
        else {
            continue;
        };
        read_count += 1;
        if expected == found {
            continue;
        }
        let reader = format!("{}#{op}", entry.process);
        let obtained_at = holds.get(&reader).and_then(|hold| hold.obtained_at);
        let obtained_at = obtained_at.unwrap_or(entry.t);
        let writer_attempt = holds.get(writer);
        let writer_ended_at = writer_attempt.and_then(|writer| Some(writer.belief(case.end)?.1));
        let earlier_end = writer_ended_at.filter(|writer_ended_at| *writer_ended_at <= obtained_at);
        // The writer was killed or lost its lock after it had written only one of the two files. No lock can prevent
        // such incomplete data.
        if key == BOTH_FILES && earlier_end.is_some() && !finished_writers.contains(writer) {
            incomplete_reads += 1;
            continue;
        }
        let was_paused = earlier_end.is_some_and(|writer_ended_at| {
            writer_attempt
                .is_some_and(|writer| case.was_paused(&writer.process, writer_ended_at, entry.t))
        });
        let excuse = if was_paused {
            Some(
                "the writer was paused between its last check of the lock and its write".to_owned(),
            )
        } else {
            case.excuse(obtained_at, entry.t)
        };
        let writer_process = writer_attempt.map(|writer_attempt| writer_attempt.process.clone());
        violations.push(Violation {
            checker: "views".into(),
            from: obtained_at,
            to: entry.t,
            processes: [writer_process, Some(entry.process.clone())]
                .into_iter()
                .flatten()
                .collect(),
            resource: Some(key.clone()),
            description: format!("{reader} read {found:?} in {key:?}, but must read {expected:?}"),
            excused: excuse,
        });
    }
    let coverage = format!(
        "{read_count} reads; {incomplete_reads} of them found an incomplete write of an interrupted writer"
    );
    let finding = Finding::new("views", coverage, violations);
    if read_count == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

/// The names of the attempts that wrote both files of the workload `readers`.
fn finished_writers(case: &Case<'_>) -> HashSet<String> {
    let lines = case.history.entries.iter();
    let writers = lines.filter_map(|entry| match &entry.event {
        Event::Wrote { op, key, .. } if key == SECOND_HALF => {
            Some(format!("{}#{op}", entry.process))
        }
        _ => None,
    });
    writers.collect()
}
