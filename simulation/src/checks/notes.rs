//! Checks notes and the terms of leaders (docs/protocol.md, "Notes and leaders"). A note is a text that a holder stores
//! to describe itself.
//!
//! - Observers of an election receive the terms and notes that [`Terms`] allows.
//! - A note is shown only for the holder that wrote it.
//! - A note expires at most `3 * max_ttl` later than its lock key.
//! - A note is deleted when its lock is released.

use std::collections::{HashMap, HashSet, VecDeque};

use quorate_promises::{Event, Terms};

use super::kept::Kept;
use crate::check::{ByValue, Check, Moment};
use crate::clock::MS;
use crate::facts::{EndReason, Fact, LockState, short_hex};
use crate::scenario::Scenario;

type Value = [u8; 32];

pub(crate) struct NoteCheck {
    has_notes: bool,
    terms: Kept<Terms>,
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
            terms: Kept::new(Terms::default(), |kept| kept.tokens),
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
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.has_notes {
            return Ok(());
        }
        match fact {
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

    fn check_event(&mut self, moment: &Moment<'_>, event: &Event<'_>) -> Result<(), String> {
        if !self.has_notes {
            return Ok(());
        }
        self.terms.check_event(moment, event)
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases + self.terms.judged_cases()
    }
}
