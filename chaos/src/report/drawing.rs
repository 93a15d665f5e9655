//! The drawing of the attempts on the timeline page.
//!
//! A lane is a group of rows:
//!
//! - Each client has a lane, with a row for each workload.
//! - Some workloads have a lane as well, with a row for each reader, writer, semaphore permit, lock owner or account
//!   that clients lock in this workload.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::claim::Claim;
use crate::event::Event;
use crate::history::{Attempt, History};
use crate::recorder::FOLLOWERS;
use crate::workload::{Workload, workload_name};

/// The largest number of marks in the drawing. A browser draws this number of marks quickly.
const MAX_MARKS: usize = 60_000;
/// The maximum number of rows for one label. If more holds with this label overlap in time, their marks overlap in the
/// last row.
const MAX_LEVELS: usize = 6;

/// A row of a lane in the drawing.
#[derive(Serialize)]
pub(super) struct Row {
    lane: usize,
    /// The name of the workload whose attempts this row shows.
    resource: String,
    /// The label of the row; empty if the row continues the row above.
    label: String,
}

/// One mark in the drawing. It is a tuple, because named fields would make the page larger. The fields are:
///
/// - row number
/// - start in microseconds
/// - end in microseconds
/// - 1 if the client held the lock, 0 if it waited
/// - fencing token
/// - attempt or client
/// - lock mode
/// - outcome
#[derive(Serialize)]
pub(super) struct Mark(usize, u64, u64, u8, Option<u64>, String, String, String);

/// The key of a row: lane, workload, label, and the row's number among the rows with the same label.
type RowKey = (usize, String, String, usize);

/// All rows and marks of the drawing.
pub(super) struct Drawing {
    pub(super) rows: Vec<Row>,
    pub(super) marks: Vec<Mark>,
    pub(super) left_out: usize,
}

impl Drawing {
    /// Draws the marks of all attempts. If there are more than [`MAX_MARKS`] marks, leaves out the oldest attempts, but
    /// no attempts near a violation. `is_near_violation` returns whether a time interval is near a violation.
    pub(super) fn of(
        history: &History,
        attempts: &[Attempt],
        lane_of: impl Fn(&str) -> Option<usize>,
        is_near_violation: impl Fn(u64, u64) -> bool,
    ) -> Self {
        let end = history.end();
        let is_too_many = attempts.len() * 2 > MAX_MARKS;
        let first_kept = attempts.len().saturating_sub(MAX_MARKS / 2);
        let mut placed_marks: Vec<(RowKey, Mark)> = Vec::new();
        let mut left_out = 0;
        let mut drawn_attempts: Vec<&Attempt> = Vec::new();
        for (number, attempt) in attempts.iter().enumerate() {
            let Some(lane) = lane_of(&attempt.process) else {
                continue;
            };
            let wait_ended_at = attempt
                .served_at()
                .or(attempt.failed_at)
                .or(attempt.process_ended_at);
            let wait_ended_at = wait_ended_at.unwrap_or(end).max(attempt.began_at);
            if is_too_many
                && number < first_kept
                && !is_near_violation(attempt.began_at, wait_ended_at)
            {
                left_out += 1;
                continue;
            }
            let name = workload_name(&attempt.resource).to_owned();
            let row_key = (lane, name.clone(), name, 0);
            placed_marks.push((row_key.clone(), wait_mark(attempt, wait_ended_at)));
            placed_marks.extend(hold_mark(attempt, end).map(|mark| (row_key, mark)));
            drawn_attempts.push(attempt);
        }
        placed_marks.extend(workload_marks(&mut drawn_attempts, &lane_of, end));
        placed_marks.extend(follower_marks(history, &lane_of));
        let (rows, marks) = number_rows(placed_marks);
        Self {
            rows,
            marks,
            left_out,
        }
    }
}

fn wait_mark(attempt: &Attempt, wait_ended_at: u64) -> Mark {
    let outcome = match (attempt.obtained_at, &attempt.answer, attempt.failed_at) {
        (Some(_), ..) => "obtained".to_owned(),
        (_, Some((_, answer, Some(left))), _) => format!("{answer}, {left} left"),
        (_, Some((_, answer, None)), _) => answer.clone(),
        (None, None, Some(_)) => "not obtained".to_owned(),
        (None, None, None) => "no end seen".to_owned(),
    };
    let (name, mode) = (attempt.name(), mode_text(attempt));
    let (from, to) = (attempt.began_at / 1_000, wait_ended_at / 1_000);
    Mark(0, from, to, 0, None, name, mode, outcome)
}

fn hold_mark(attempt: &Attempt, end: u64) -> Option<Mark> {
    let (from, to) = attempt.belief(end)?;
    let outcome = match (&attempt.loss, attempt.release_at, attempt.process_ended_at) {
        (Some((_, cause)), ..) => format!("notified of the loss: {cause}"),
        (None, Some(release), _) if release <= to => "released".to_owned(),
        (None, Some(_), _) => "released after the validity of the lock had ended".to_owned(),
        (None, None, Some(_)) => "its client ended".to_owned(),
        (None, None, None) => "no end seen".to_owned(),
    };
    let (name, mode) = (attempt.name(), mode_text(attempt));
    let (from, to) = (from / 1_000, to / 1_000);
    Some(Mark(0, from, to, 1, attempt.token, name, mode, outcome))
}

/// The mode of the attempt as text; empty if it is exclusive.
fn mode_text(attempt: &Attempt) -> String {
    match (&attempt.claim, attempt.slot) {
        (Claim::Reader, _) => "reader".to_owned(),
        (Claim::Permit(_), Some(slot)) => format!("slot {slot}"),
        (Claim::Owner(id), _) => id.clone(),
        _ if workload_name(&attempt.resource) == Workload::Readers.name() => "writer".to_owned(),
        _ if !attempt.further_resources.is_empty() => {
            attempt.resources().collect::<Vec<_>>().join(" and ")
        }
        _ => String::new(),
    }
}

/// The marks for the lanes of workloads: one mark for each hold and row label.
fn workload_marks(
    holds: &mut [&Attempt],
    lane_of: impl Fn(&str) -> Option<usize>,
    end: u64,
) -> Vec<(RowKey, Mark)> {
    holds.sort_by_key(|attempt| attempt.obtained_at);
    let mut level_ends: BTreeMap<(usize, String), Vec<u64>> = BTreeMap::new();
    let mut placed_marks = Vec::new();
    for attempt in holds {
        let workload = workload_name(&attempt.resource);
        let Some(lane) = lane_of(workload) else {
            continue;
        };
        let labels: Vec<String> = match (workload, mode_text(attempt)) {
            (_, mode) if mode.is_empty() => vec!["leads".to_owned()],
            _ if !attempt.further_resources.is_empty() => {
                attempt.resources().map(str::to_owned).collect()
            }
            (_, mode) => vec![mode],
        };
        for label in labels {
            let Some(mark) = hold_mark(attempt, end) else {
                continue;
            };
            let ends = level_ends.entry((lane, label.clone())).or_default();
            let free_level = ends.iter().position(|until| *until <= mark.1);
            let level = free_level.unwrap_or(ends.len()).min(MAX_LEVELS - 1);
            match ends.get_mut(level) {
                Some(until) => *until = mark.2.max(*until),
                None => ends.push(mark.2),
            }
            placed_marks.push(((lane, workload.to_owned(), label, level), mark));
        }
    }
    placed_marks
}

/// The marks that show which leader each follower saw, and when.
fn follower_marks(
    history: &History,
    lane_of: impl Fn(&str) -> Option<usize>,
) -> Vec<(RowKey, Mark)> {
    let mut followed_leaders: BTreeMap<&str, (u64, u64, String)> = BTreeMap::new();
    let mut placed_marks = Vec::new();
    for entry in &history.entries {
        let process = entry.process.as_str();
        let new_leader = match &entry.event {
            Event::Followed { term, leader } => {
                let leader = leader.clone().unwrap_or_else(|| "somebody".to_owned());
                term.map(|term| (entry.t, term, leader))
            }
            Event::Gone { .. } | Event::Bye => None,
            _ => continue,
        };
        let earlier_leader = followed_leaders.remove(process);
        if let (Some((from, term, leader)), Some(lane)) = (earlier_leader, lane_of(process)) {
            let name = FOLLOWERS.to_owned();
            let row_key = (lane, Workload::Leader.name().to_owned(), name, 0);
            let (from, to) = (from / 1_000, entry.t / 1_000);
            let outcome = "observer notified of a different leader or of no leader".to_owned();
            let leader = format!("follower of {leader}");
            let mark = Mark(
                0,
                from,
                to,
                1,
                Some(term),
                process.to_owned(),
                leader,
                outcome,
            );
            placed_marks.push((row_key, mark));
        }
        followed_leaders.extend(new_leader.map(|new_leader| (process, new_leader)));
    }
    placed_marks
}

/// The rows in order, and the marks sorted by time, each with the number of its row.
fn number_rows(placed_marks: Vec<(RowKey, Mark)>) -> (Vec<Row>, Vec<Mark>) {
    let mut numbers: BTreeMap<RowKey, usize> = BTreeMap::new();
    for (row_key, _) in &placed_marks {
        numbers.insert(row_key.clone(), 0);
    }
    let mut rows = Vec::new();
    for ((lane, resource, label, level), row_number) in &mut numbers {
        *row_number = rows.len();
        rows.push(Row {
            lane: *lane,
            resource: resource.clone(),
            label: if *level == 0 {
                label.clone()
            } else {
                String::new()
            },
        });
    }
    let mut marks: Vec<Mark> = placed_marks
        .into_iter()
        .map(|(row_key, mark)| {
            Mark(
                numbers[&row_key],
                mark.1,
                mark.2,
                mark.3,
                mark.4,
                mark.5,
                mark.6,
                mark.7,
            )
        })
        .collect();
    marks.sort_by_key(|mark| mark.1);
    (rows, marks)
}
