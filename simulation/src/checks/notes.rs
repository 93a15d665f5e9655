//! Checks notes and the terms of leaders (docs/protocol.md, "Notes and leaders"). A note is a text that a holder stores
//! to describe itself. A term is the fencing token of a leader.
//!
//! - The terms that an observer receives never fall.
//! - A note is shown only for the holder that wrote it.
//! - A note expires at most `3 * max_ttl` later than its lock key.
//! - A note is deleted when its lock is released.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::check::{ByValue, Check, Moment};
use crate::clock::MS;
use crate::facts::{EndReason, Fact, LockState, short_hex};
use crate::happening::Happening;
use crate::scenario::Scenario;

type Value = [u8; 32];

pub(crate) struct NoteCheck {
    has_notes: bool,
    /// For each task that observes an election: the largest term (the leader's fencing token) that it has received.
    /// Reset when the task begins another observation.
    observed_terms: HashMap<usize, u64>,
    /// The largest term that any observer has received, by resource.
    largest_terms: HashMap<usize, u64>,
    /// The largest term, by resource, that any observer had received before all clocks last advanced by some days
    /// (`FaultKind::UnusedDays`). Terms that observers receive later must not be smaller.
    smallest_terms: HashMap<usize, u64>,
    /// The leader's note that observers have received, by resource and term.
    observed_notes: HashMap<(usize, u64), String>,
    /// The note that the leader itself leaves, by resource and term; `None` if the leader leaves no note.
    leader_notes: HashMap<(usize, u64), Option<String>>,
    /// The note that each holder leaves, by the lock value of the holder.
    holder_notes: ByValue<String>,
    /// All notes that holders have left, each with its resource.
    written_notes: HashSet<(usize, String)>,
    /// By master and resource: the lock value of the holder whose note the master keeps, and the true time at which
    /// this note expires.
    stored_notes: HashMap<(usize, usize), (Value, u64)>,
    /// In calm scenarios: the lock values of the holds that have ended, each with the true time by which the hold's
    /// note must be deleted.
    ended_values: VecDeque<(u64, Value)>,
    longest_deletion: Option<u64>,
    /// The longest time for which a note may outlive its lock, in microseconds. If clocks jump in the scenario, there
    /// is no limit: this is `u64::MAX / 2`.
    longest_excess_us: u64,
    judged_cases: u64,
}

impl NoteCheck {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let delays = 4 * (scenario.net.delay + scenario.net.jitter) + MS;
        Self {
            has_notes: scenario.has_notes(),
            observed_terms: HashMap::new(),
            largest_terms: HashMap::new(),
            smallest_terms: HashMap::new(),
            observed_notes: HashMap::new(),
            leader_notes: HashMap::new(),
            holder_notes: ByValue::default(),
            written_notes: HashSet::new(),
            stored_notes: HashMap::new(),
            ended_values: VecDeque::new(),
            longest_deletion: scenario.promises().calm.then_some(delays),
            longest_excess_us: if scenario.has_jumps() {
                u64::MAX / 2
            } else {
                3 * scenario.settings.max_ttl / 1_000
            },
            judged_cases: 0,
        }
    }

    /// Checks that observers of a term received the note that the leader of this term leaves. Returns `Ok` if one of
    /// the two notes is not known yet.
    fn check_leader_note(&mut self, resource: usize, term: u64) -> Result<(), String> {
        let key = (resource, term);
        let (Some(observed_note), Some(leader_note)) =
            (self.observed_notes.get(&key), self.leader_notes.get(&key))
        else {
            return Ok(());
        };
        self.judged_cases += 1;
        if leader_note.as_ref() == Some(observed_note) {
            return Ok(());
        }
        Err(format!(
            "observers of r{resource} received the note {observed_note:?} with the term {term}, but the note of this \
             term's leader is {leader_note:?}"
        ))
    }

    fn check_observation(
        &mut self,
        task: usize,
        resource: usize,
        (term, note): (u64, Option<&str>),
    ) -> Result<(), String> {
        self.judged_cases += 1;
        let previous_term = self.observed_terms.insert(task, term).unwrap_or(0);
        let smallest_term = self.smallest_terms.get(&resource).copied().unwrap_or(0);
        let largest_term = self.largest_terms.entry(resource).or_default();
        *largest_term = term.max(*largest_term);
        if smallest_term > term {
            return Err(format!(
                "after days without any client, an observer of r{resource} received the term {term}, but an earlier \
                 leader had the larger term {smallest_term}"
            ));
        }
        if previous_term > term {
            return Err(format!(
                "an observer got the term {term} of r{resource} after the larger term {previous_term}"
            ));
        }
        let Some(note) = note else {
            return Ok(());
        };
        let first_note = self
            .observed_notes
            .entry((resource, term))
            .or_insert_with(|| note.to_owned());
        if first_note != note {
            return Err(format!(
                "observers got different notes {first_note:?} and {note:?} for the term {term} of r{resource}"
            ));
        }
        self.check_leader_note(resource, term)
    }

    /// Checks the note that a master keeps next to a lock.
    fn check_stored_note(
        &mut self,
        key: (usize, usize),
        note: Option<(&[u8], u64)>,
        lock: LockState,
        expires_at: u64,
    ) -> Result<(), String> {
        let Some((note, note_expires_us)) = note else {
            self.stored_notes.remove(&key);
            return Ok(());
        };
        self.judged_cases += 1;
        let (master, resource) = key;
        let Some((value, text)) = note.split_first_chunk::<32>() else {
            return Err(format!(
                "master {master} stores a malformed note for r{resource}"
            ));
        };
        self.stored_notes.insert(key, (*value, expires_at));
        // A note consists of the start time, pid, host, program and text, separated by tabs. In a leader's note, the
        // term follows after another tab.
        let text_part = text.split(|byte| *byte == b'\t').nth(4).unwrap_or(text);
        let stored_text = String::from_utf8_lossy(text_part);
        if self
            .holder_notes
            .get(value)
            .is_some_and(|holder_note| *holder_note != stored_text)
        {
            return Err(format!(
                "master {master} stores the note {stored_text:?} for the lock value {} on r{resource}, but the holder \
                 with this lock value has a different note",
                short_hex(value)
            ));
        }
        if lock.holder == Some(*value) && note_expires_us > lock.expires_us + self.longest_excess_us
        {
            return Err(format!(
                "master {master} keeps the note of the lock value {} on r{resource} for {} us longer than the lock",
                short_hex(value),
                note_expires_us - lock.expires_us
            ));
        }
        Ok(())
    }

    /// Checks the note that a refused waiter received. If the waiter also received the lock value of the holder, the
    /// note must be from this holder. Otherwise, the note may be from any holder of the resource.
    fn check_refusal(
        &mut self,
        resource: usize,
        holder: Option<&[u8]>,
        note: Option<&str>,
    ) -> Result<(), String> {
        self.judged_cases += 1;
        let holder: Option<Value> = holder.and_then(|holder| holder.try_into().ok());
        let holder_note = holder.map(|holder| self.holder_notes.get(&holder).map(String::as_str));
        let is_written = |note: &str| self.written_notes.contains(&(resource, note.to_owned()));
        if holder_note.is_some_and(|holder_note| holder_note != note)
            || !note.is_none_or(is_written)
        {
            return Err(format!(
                "a waiter for r{resource} received the note {note:?} for the holder {}, whose note is {holder_note:?}",
                holder.map_or("unknown".to_owned(), |holder| short_hex(&holder))
            ));
        }
        Ok(())
    }

    /// Returns an error if a note that should have been deleted before `now` still exists on some master.
    fn check_deadlines(&mut self, now: u64) -> Result<(), String> {
        while let Some((deadline, value)) = self
            .ended_values
            .front()
            .copied()
            .filter(|(deadline, _)| *deadline < now)
        {
            self.ended_values.pop_front();
            self.judged_cases += 1;
            let is_left = |(_, (stored_value, expires_at)): &(_, &(Value, u64))| {
                *stored_value == value && *expires_at > deadline
            };
            if let Some(((master, resource), _)) = self.stored_notes.iter().find(is_left) {
                return Err(format!(
                    "master {master} still stores a note for r{resource} {} ms after the client released, dropped or \
                     failed to acquire the lock",
                    self.longest_deletion.unwrap_or(0) / MS
                ));
            }
        }
        Ok(())
    }
}

impl Check for NoteCheck {
    const RULE: &'static str = "terms and notes";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.has_notes {
            return Ok(());
        }
        match fact {
            Fact::Happened {
                happening: Happening::UnusedDays,
                ..
            } => self.smallest_terms = self.largest_terms.clone(),
            Fact::ObservationStarted { task } => {
                self.observed_terms.remove(task);
            }
            Fact::LeaderObserved {
                task,
                resource,
                leader: Some(leader),
            } if moment.promises.tokens => {
                return self.check_observation(*task, *resource, *leader);
            }
            Fact::HolderNote {
                resource,
                value,
                note,
            } => {
                self.holder_notes.insert(value.to_hex(), (*note).to_owned());
                self.written_notes.insert((*resource, (*note).to_owned()));
            }
            Fact::WaiterRefused {
                resource,
                holder,
                note,
            } => return self.check_refusal(*resource, *holder, *note),
            Fact::LockObtained { believer } if believer.scope.class.is_none() => {
                let Some(term) = believer.fencing_token.filter(|_| moment.promises.tokens) else {
                    return Ok(());
                };
                let leader_note = self.holder_notes.get(&believer.value.to_hex()).cloned();
                for resource in believer.scope.resources() {
                    self.leader_notes
                        .insert((resource, term), leader_note.clone());
                    self.check_leader_note(resource, term)?;
                }
            }
            Fact::BeliefEnded { believer, reason } if *reason != EndReason::Downgraded => {
                let deadline = self.longest_deletion.map(|longest| moment.now + longest);
                let value = believer.value.to_hex();
                self.ended_values
                    .extend(deadline.map(|deadline| (deadline, value)));
            }
            Fact::MasterRestarted { master, .. } => self
                .stored_notes
                .retain(|(stored_on, _), _| stored_on != master),
            Fact::StoredNote {
                master,
                resource,
                note,
                lock,
                expires_at,
            } => {
                self.check_deadlines(moment.now)?;
                return self.check_stored_note((*master, *resource), *note, *lock, *expires_at);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
