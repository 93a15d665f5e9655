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
use crate::recorder::FOLLOWING;
use crate::workload::{Workload, family};

/// The largest number of marks in the drawing. A browser draws this number of marks quickly.
const MARKS: usize = 60_000;
/// The maximum number of rows for one label. If more holds with this label overlap in time, their marks overlap in the
/// last row.
const DEEP: usize = 6;

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
type Place = (usize, String, String, usize);

/// All rows and marks of the drawing.
pub(super) struct Drawing {
    pub(super) rows: Vec<Row>,
    pub(super) marks: Vec<Mark>,
    pub(super) left_out: usize,
}

impl Drawing {
    /// Draws the marks of all attempts. If there are more than [`MARKS`] marks, leaves out the oldest attempts, but no
    /// attempts near a violation. `near` returns whether a time interval is near a violation.
    pub(super) fn of(
        history: &History,
        attempts: &[Attempt],
        lane_of: impl Fn(&str) -> Option<usize>,
        near: impl Fn(u64, u64) -> bool,
    ) -> Self {
        let end = history.end();
        let most = attempts.len() * 2 > MARKS;
        let first = attempts.len().saturating_sub(MARKS / 2);
        let mut placed: Vec<(Place, Mark)> = Vec::new();
        let mut left_out = 0;
        let mut holds: Vec<&Attempt> = Vec::new();
        for (number, attempt) in attempts.iter().enumerate() {
            let Some(lane) = lane_of(&attempt.who) else {
                continue;
            };
            let over = attempt.served().or(attempt.missed).or(attempt.gone);
            let over = over.unwrap_or(end).max(attempt.began);
            if most && number < first && !near(attempt.began, over) {
                left_out += 1;
                continue;
            }
            let name = family(&attempt.resource).to_owned();
            let place = (lane, name.clone(), name, 0);
            placed.push((place.clone(), waited(attempt, over)));
            placed.extend(held(attempt, end).map(|mark| (place, mark)));
            holds.push(attempt);
        }
        placed.extend(side_by_side(&mut holds, &lane_of, end));
        placed.extend(followed(history, &lane_of));
        let (rows, marks) = in_rows(placed);
        Self {
            rows,
            marks,
            left_out,
        }
    }
}

fn waited(attempt: &Attempt, over: u64) -> Mark {
    let how = match (attempt.obtained, &attempt.answered, attempt.missed) {
        (Some(_), ..) => "obtained".to_owned(),
        (_, Some((_, answer, Some(left))), _) => format!("{answer}, {left} left"),
        (_, Some((_, answer, None)), _) => answer.clone(),
        (None, None, Some(_)) => "not obtained".to_owned(),
        (None, None, None) => "no end seen".to_owned(),
    };
    let (name, kind) = (attempt.name(), as_what(attempt));
    let (from, to) = (attempt.began / 1_000, over / 1_000);
    Mark(0, from, to, 0, None, name, kind, how)
}

fn held(attempt: &Attempt, end: u64) -> Option<Mark> {
    let (from, to) = attempt.belief(end)?;
    let how = match (&attempt.notified, attempt.release, attempt.gone) {
        (Some((_, cause)), ..) => format!("notified of the loss: {cause}"),
        (None, Some(release), _) if release <= to => "released".to_owned(),
        (None, Some(_), _) => "released after the validity of the lock had ended".to_owned(),
        (None, None, Some(_)) => "its client ended".to_owned(),
        (None, None, None) => "no end seen".to_owned(),
    };
    let (name, kind) = (attempt.name(), as_what(attempt));
    let (from, to) = (from / 1_000, to / 1_000);
    Some(Mark(0, from, to, 1, attempt.token, name, kind, how))
}

/// The mode of the attempt as text; empty if it is exclusive.
fn as_what(attempt: &Attempt) -> String {
    match (&attempt.claim, attempt.slot) {
        (Claim::Reader, _) => "reader".to_owned(),
        (Claim::Permit(_), Some(slot)) => format!("slot {slot}"),
        (Claim::Owner(id), _) => id.clone(),
        _ if family(&attempt.resource) == Workload::Readers.name() => "writer".to_owned(),
        _ if !attempt.also.is_empty() => attempt.resources().collect::<Vec<_>>().join(" and "),
        _ => String::new(),
    }
}

/// The marks for the lanes of workloads: one mark for each hold and row label.
fn side_by_side(
    holds: &mut [&Attempt],
    lane_of: impl Fn(&str) -> Option<usize>,
    end: u64,
) -> Vec<(Place, Mark)> {
    holds.sort_by_key(|attempt| attempt.obtained);
    let mut reached: BTreeMap<(usize, String), Vec<u64>> = BTreeMap::new();
    let mut placed = Vec::new();
    for attempt in holds {
        let workload = family(&attempt.resource);
        let Some(lane) = lane_of(workload) else {
            continue;
        };
        let labels: Vec<String> = match (workload, as_what(attempt)) {
            (_, kind) if kind.is_empty() => vec!["leads".to_owned()],
            _ if !attempt.also.is_empty() => attempt.resources().map(str::to_owned).collect(),
            (_, kind) => vec![kind],
        };
        for label in labels {
            let Some(mark) = held(attempt, end) else {
                continue;
            };
            let levels = reached.entry((lane, label.clone())).or_default();
            let free = levels.iter().position(|until| *until <= mark.1);
            let level = free.unwrap_or(levels.len()).min(DEEP - 1);
            match levels.get_mut(level) {
                Some(until) => *until = mark.2.max(*until),
                None => levels.push(mark.2),
            }
            placed.push(((lane, workload.to_owned(), label, level), mark));
        }
    }
    placed
}

/// The marks that show which leader each follower saw, and when.
fn followed(history: &History, lane_of: impl Fn(&str) -> Option<usize>) -> Vec<(Place, Mark)> {
    let mut open: BTreeMap<&str, (u64, u64, String)> = BTreeMap::new();
    let mut placed = Vec::new();
    for line in &history.lines {
        let who = line.who.as_str();
        let next = match &line.what {
            Event::Followed { term, leader } => {
                let leader = leader.clone().unwrap_or_else(|| "somebody".to_owned());
                term.map(|term| (line.t, term, leader))
            }
            Event::Gone { .. } | Event::Bye => None,
            _ => continue,
        };
        let before = open.remove(who);
        if let (Some((from, term, leader)), Some(lane)) = (before, lane_of(who)) {
            let name = FOLLOWING.to_owned();
            let place = (lane, Workload::Leader.name().to_owned(), name, 0);
            let (from, to) = (from / 1_000, line.t / 1_000);
            let how = "observer notified of a different leader or of no leader".to_owned();
            let leader = format!("follower of {leader}");
            let mark = Mark(0, from, to, 1, Some(term), who.to_owned(), leader, how);
            placed.push((place, mark));
        }
        open.extend(next.map(|next| (who, next)));
    }
    placed
}

/// The rows in order, and the marks sorted by time, each with the number of its row.
fn in_rows(placed: Vec<(Place, Mark)>) -> (Vec<Row>, Vec<Mark>) {
    let mut numbers: BTreeMap<Place, usize> = BTreeMap::new();
    for (place, _) in &placed {
        numbers.insert(place.clone(), 0);
    }
    let mut rows = Vec::new();
    for ((lane, resource, label, level), number) in &mut numbers {
        *number = rows.len();
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
    let mut marks: Vec<Mark> = placed
        .into_iter()
        .map(|(place, mark)| {
            Mark(
                numbers[&place],
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
