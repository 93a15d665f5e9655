//! The history of one chaos run: its events in order of time, and the attempts and faults that they describe.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::Context;

use crate::claim::Claim;
use crate::event::{Entry, Event};
use crate::faults::Kind;

/// All recorded events of a run, in order of time.
#[derive(Debug, Default)]
pub struct History {
    /// The events, one per line of the history file.
    pub entries: Vec<Entry>,
}

impl History {
    /// A history from events in any order.
    pub fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| entry.t);
        Self { entries }
    }

    /// Reads a stored history.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or a line is malformed.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let mut entries = Vec::new();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let entry = serde_json::from_str(&line?)
                .with_context(|| format!("{}, line {}", path.display(), number + 1))?;
            entries.push(entry);
        }
        Ok(Self::new(entries))
    }

    /// Writes the history to a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn store(&self, path: &Path) -> anyhow::Result<()> {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        let mut out = BufWriter::new(file);
        for entry in &self.entries {
            serde_json::to_writer(&mut out, entry)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    /// The time of the last event, in nanoseconds since the run began.
    pub fn end(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.t)
    }

    /// The time at which all faults had been healed. The fault-free period at the end of the run begins at this time.
    /// `None` if the run ended while a fault was still active.
    pub fn calm(&self) -> Option<u64> {
        self.entries
            .iter()
            .find(|entry| entry.event == Event::Calm)
            .map(|entry| entry.t)
    }

    /// The time at which the clients were asked to finish, or `None` if they were not.
    pub fn finish(&self) -> Option<u64> {
        self.entries
            .iter()
            .find(|entry| entry.event == Event::Finish)
            .map(|entry| entry.t)
    }

    /// All attempts, sorted by their start.
    pub fn attempts(&self) -> Vec<Attempt> {
        let mut attempts_by_name: BTreeMap<(&str, u64), Attempt> = BTreeMap::new();
        let mut ends_by_process: BTreeMap<&str, u64> = BTreeMap::new();
        for Entry { t, process, event } in &self.entries {
            if let Event::Gone { .. } = event {
                ends_by_process.insert(process, *t);
            }
            let Some(op) = event.op() else { continue };
            if let Event::Wait { .. } = event {
                attempts_by_name.insert((process, op), Attempt::new(process, op, *t));
            }
            let Some(attempt) = attempts_by_name.get_mut(&(process.as_str(), op)) else {
                continue;
            };
            attempt.apply(*t, event);
        }
        let mut attempts: Vec<Attempt> = attempts_by_name.into_values().collect();
        for attempt in &mut attempts {
            attempt.process_ended_at = ends_by_process.get(attempt.process.as_str()).copied();
        }
        attempts.sort_by_key(|attempt| attempt.began_at);
        attempts
    }

    /// All faults that the driver tried to inject.
    pub fn faults(&self) -> Vec<FaultSpan> {
        let mut spans: BTreeMap<usize, FaultSpan> = BTreeMap::new();
        for Entry { t, event, .. } in &self.entries {
            match event {
                Event::Inject {
                    fault,
                    kind,
                    targets,
                } => {
                    let span = FaultSpan {
                        number: *fault,
                        kind: kind.clone(),
                        targets: targets.clone(),
                        from: *t,
                        landed_at: None,
                        healed_at: None,
                        failure: None,
                        over_at: None,
                    };
                    spans.insert(*fault, span);
                }
                Event::Landed { fault, .. } => {
                    if let Some(span) = spans.get_mut(fault) {
                        span.landed_at = Some(*t);
                    }
                }
                Event::Healed { fault } => {
                    if let Some(span) = spans.get_mut(fault) {
                        span.healed_at = Some(*t);
                        span.over_at = Some(*t);
                    }
                }
                Event::Failed { fault, why } => {
                    if let Some(span) = spans.get_mut(fault) {
                        span.failure = Some(why.clone());
                        span.over_at = Some(*t);
                    }
                }
                _ => {}
            }
        }
        spans.into_values().collect()
    }
}

/// One attempt to acquire a lock, and the resulting hold. All times are in nanoseconds since the run began.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The client and its process, e.g. `c1.2` for the second process of `c1`.
    pub process: String,
    /// The attempt's number. Each client process numbers its attempts from 1.
    pub op: u64,
    /// The resource to be locked.
    pub resource: String,
    /// The resources that are locked together with `resource`.
    pub further_resources: Vec<String>,
    /// The lock mode: exclusive, reader, semaphore permit, or owner (only holds of the same owner may overlap).
    pub claim: Claim,
    /// The number of the attempt that acquired the hold, if this attempt only changes the mode of the hold (e.g. from
    /// writer to reader). Otherwise `None`.
    pub continued_hold: Option<u64>,
    /// The time at which the attempt began.
    pub began_at: u64,
    /// The time at which the lock was obtained; `None` if it was not.
    pub obtained_at: Option<u64>,
    /// The fencing token of the lock; `None` if the attempt obtained no lock, or a lock without a token.
    pub token: Option<u64>,
    /// The slot of the semaphore permit; `None` if the hold is not a permit.
    pub slot: Option<usize>,
    /// The answer to a request to a quota: its time, the answer (e.g. `taken`; see [`Event::Answered`]), and the number
    /// of units left. `None` if the attempt made no such request, or got no answer.
    pub answer: Option<(u64, String, Option<u64>)>,
    /// The end of the lock's validity, as last recorded. `None` if none was recorded.
    pub until: Option<u64>,
    /// The time at which the client began to release the lock, before its first request to a master. `None` if it did
    /// not.
    pub release_at: Option<u64>,
    /// The loss notification: its time and the cause of the loss. `None` if there was no notification.
    pub loss: Option<(u64, String)>,
    /// The time at which the attempt failed or was dropped. `None` if neither happened.
    pub failed_at: Option<u64>,
    /// Whether the attempt failed because another client held the lock.
    pub is_refused: bool,
    /// The time at which the client process ended; `None` if no end was recorded.
    pub process_ended_at: Option<u64>,
}

impl Attempt {
    fn new(process: &str, op: u64, began_at: u64) -> Self {
        Self {
            process: process.to_owned(),
            op,
            resource: String::new(),
            further_resources: Vec::new(),
            claim: Claim::default(),
            continued_hold: None,
            began_at,
            slot: None,
            answer: None,
            obtained_at: None,
            token: None,
            until: None,
            release_at: None,
            loss: None,
            failed_at: None,
            is_refused: false,
            process_ended_at: None,
        }
    }

    fn apply(&mut self, t: u64, event: &Event) {
        match event {
            Event::Wait {
                resource,
                further_resources,
                claim,
                continued_hold,
                ..
            } => {
                self.continued_hold = *continued_hold;
                self.resource.clone_from(resource);
                self.further_resources.clone_from(further_resources);
                self.claim.clone_from(claim);
            }
            Event::Obtained {
                token, until, slot, ..
            } => {
                self.obtained_at = Some(t);
                self.token = *token;
                self.until = *until;
                self.slot = *slot;
            }
            Event::Answered { answer, left, .. } => {
                self.answer = Some((t, answer.clone(), *left));
            }
            Event::Renewed { until, .. } => self.until = Some(*until),
            Event::Release { until, .. } => {
                self.release_at = Some(t);
                self.until = until.or(self.until);
            }
            Event::Notified { cause, until, .. } => {
                self.loss = Some((t, cause.clone()));
                self.until = until.or(self.until);
            }
            Event::Missed { why, .. } => {
                self.failed_at = Some(t);
                self.is_refused = why == "held";
            }
            Event::Dropped { .. } => self.failed_at = Some(t),
            _ => {}
        }
    }

    /// All resources of the attempt.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        let further_resources = self.further_resources.iter().map(String::as_str);
        std::iter::once(self.resource.as_str()).chain(further_resources)
    }

    /// Each resource of the attempt, and the number of the semaphore permit (`None` for other kinds of locks).
    /// Exclusion and fencing are checked separately for each such pair.
    pub fn resource_slots(&self) -> impl Iterator<Item = (&str, Option<usize>)> {
        self.resources().map(|resource| (resource, self.slot))
    }

    /// The time at which the attempt obtained the lock, or got an answer from a quota. `None` if neither happened.
    pub fn served_at(&self) -> Option<u64> {
        let answered_at = self.answer.as_ref().map(|(t, ..)| *t);
        self.obtained_at.or(answered_at)
    }

    /// The interval in which the client believed that it held the lock, in nanoseconds since the run began. `None` if
    /// the client never obtained the lock.
    ///
    /// The interval ends at the earliest of these recorded events. If none of them was recorded, it ends at `end`.
    ///
    /// - The client began to release the lock.
    /// - The lock's validity ended.
    /// - The client was notified of the loss.
    /// - The client process ended.
    pub fn belief(&self, end: u64) -> Option<(u64, u64)> {
        let from = self.obtained_at?;
        let to = self.end().map_or(end, |(ended_at, _)| ended_at);
        Some((from, to.max(from)))
    }

    /// The end of the hold as in [`belief`](Self::belief), and its cause: `expired`, `released`, `notified` or `died`.
    /// `None` if no such end was recorded.
    pub fn end(&self) -> Option<(u64, &'static str)> {
        let notified_at = self.loss.as_ref().map(|(t, _)| *t);
        let possible_ends = [
            (self.until, "expired"),
            (self.release_at, "released"),
            (notified_at, "notified"),
            (self.process_ended_at, "died"),
        ];
        let possible_ends = possible_ends.into_iter();
        let ends = possible_ends.filter_map(|(ended_at, cause)| Some((ended_at?, cause)));
        ends.min_by_key(|(ended_at, _)| *ended_at)
    }

    /// The name of the attempt in reports, e.g. `c1.2#7`.
    pub fn name(&self) -> String {
        format!("{}#{}", self.process, self.op)
    }
}

/// One injected fault, from its start to its end. All times are in nanoseconds since the run began.
#[derive(Clone, Debug)]
pub struct FaultSpan {
    /// The fault's number. A run numbers its faults from 0.
    pub number: usize,
    /// The kind of the fault, by name.
    pub kind: String,
    /// The masters and clients that the fault affects.
    pub targets: Vec<String>,
    /// The time at which the fault was injected.
    pub from: u64,
    /// The time at which the effect was observed; `None` if it was not.
    pub landed_at: Option<u64>,
    /// The time at which the end of the fault was observed; `None` if it was not.
    pub healed_at: Option<u64>,
    /// The reason why the fault could not be injected or could not be ended. `None` if neither was recorded.
    pub failure: Option<String>,
    /// The time at which the fault was healed, or at which injecting or healing it failed. `None` if neither was
    /// recorded.
    pub over_at: Option<u64>,
}

impl FaultSpan {
    /// The kind of the fault, or `None` if its name is not known.
    pub fn kind(&self) -> Option<Kind> {
        self.kind.parse().ok()
    }
}
