//! Checks notes and the terms of leaders (docs/protocol.md, "Notes and leaders"). A note is a text that a holder stores
//! to describe itself. A term is the fencing token of a leader.
//!
//! - The terms that an observer receives never fall.
//! - A note is shown only for the holder that wrote it.
//! - A note expires at most `3 * max_ttl` later than its lock key.
//! - A note is deleted when its lock is released.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{ByValue, Check, Moment};
use crate::clock::MS;
use crate::facts::{Fact, Seen, Why, short};
use crate::happening::Happening;
use crate::scenario::Scenario;

type Value = [u8; 32];

pub(crate) struct Notes {
    on: bool,
    /// For each task that observes an election: the largest term (the leader's fencing token) that it has received.
    /// Reset when the task begins another observation.
    terms: HashMap<usize, u64>,
    /// The largest term that any observer has received, by resource.
    largest: HashMap<usize, u64>,
    /// The largest term, by resource, that any observer had received before all clocks last advanced by some days
    /// (`FaultKind::Skip`). Terms that observers receive later must not be smaller.
    floor: HashMap<usize, u64>,
    /// The leader's note that observers have received, by resource and term.
    received: HashMap<(usize, u64), String>,
    /// The note that the leader itself leaves, by resource and term; `None` if the leader leaves no note.
    says: HashMap<(usize, u64), Option<String>>,
    /// The note that each holder leaves, by the lock value of the holder.
    values: ByValue<String>,
    /// All notes that holders have left, each with its resource.
    said: HashSet<(usize, String)>,
    /// By master and resource: the lock value of the holder whose note the master keeps, and the true time at which
    /// this note expires.
    stored: HashMap<(usize, usize), (Value, u64)>,
    /// In calm scenarios: the lock values of the holds that have ended, each with the true time by which the hold's
    /// note must be deleted.
    done: VecDeque<(u64, Value)>,
    bound: Option<u64>,
    /// The longest time for which a note may outlive its lock, in microseconds. If clocks jump in the scenario, there
    /// is no limit: this is `u64::MAX / 2`.
    longer: u64,
    judged: u64,
}

impl Notes {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let ways = 4 * (scenario.net.delay + scenario.net.jitter) + MS;
        Self {
            on: scenario.has_notes(),
            terms: HashMap::new(),
            largest: HashMap::new(),
            floor: HashMap::new(),
            received: HashMap::new(),
            says: HashMap::new(),
            values: ByValue::default(),
            said: HashSet::new(),
            stored: HashMap::new(),
            done: VecDeque::new(),
            bound: scenario.promises().calm.then_some(ways),
            longer: if scenario.has_jumps() {
                u64::MAX / 2
            } else {
                3 * scenario.settings.max_ttl / 1_000
            },
            judged: 0,
        }
    }

    /// Checks that observers of a term received the note that the leader of this term leaves. Returns `Ok` if one of
    /// the two notes is not known yet.
    fn agree(&mut self, resource: usize, term: u64) -> Result<(), String> {
        let place = (resource, term);
        let (Some(received), Some(says)) = (self.received.get(&place), self.says.get(&place))
        else {
            return Ok(());
        };
        self.judged += 1;
        if says.as_ref() == Some(received) {
            return Ok(());
        }
        Err(format!(
            "observers of r{resource} received the note {received:?} with the term {term}, but the note of this \
             term's leader is {says:?}"
        ))
    }

    fn observed(
        &mut self,
        task: usize,
        resource: usize,
        (term, note): (u64, Option<&str>),
    ) -> Result<(), String> {
        self.judged += 1;
        let last = self.terms.insert(task, term).unwrap_or(0);
        let floor = self.floor.get(&resource).copied().unwrap_or(0);
        let largest = self.largest.entry(resource).or_default();
        *largest = term.max(*largest);
        if floor > term {
            return Err(format!(
                "after days without any client, an observer of r{resource} received the term {term}, but an earlier \
                 leader had the larger term {floor}"
            ));
        }
        if last > term {
            return Err(format!(
                "an observer got the term {term} of r{resource} after the larger term {last}"
            ));
        }
        let Some(note) = note else {
            return Ok(());
        };
        let known = self.received.entry((resource, term));
        let known = known.or_insert_with(|| note.to_owned());
        if known != note {
            return Err(format!(
                "observers got different notes {known:?} and {note:?} for the term {term} of r{resource}"
            ));
        }
        self.agree(resource, term)
    }

    /// Checks the note that a master keeps next to a lock.
    fn check_stored_note(
        &mut self,
        place: (usize, usize),
        note: Option<(&[u8], u64)>,
        lock: Seen,
        until: u64,
    ) -> Result<(), String> {
        let Some((note, expires)) = note else {
            self.stored.remove(&place);
            return Ok(());
        };
        self.judged += 1;
        let (master, resource) = place;
        let Some((value, text)) = note.split_first_chunk::<32>() else {
            return Err(format!(
                "master {master} stores a malformed note for r{resource}"
            ));
        };
        self.stored.insert(place, (*value, until));
        // A note consists of the start time, pid, host, program and text, separated by tabs. In a leader's note, the
        // term follows after another tab.
        let says = text.split(|byte| *byte == b'\t').nth(4).unwrap_or(text);
        let says = String::from_utf8_lossy(says);
        if self.values.get(value).is_some_and(|known| *known != says) {
            return Err(format!(
                "master {master} stores the note {says:?} for the lock value {} on r{resource}, but the holder with \
                 this lock value has a different note",
                short(value)
            ));
        }
        if lock.holder == Some(*value) && expires > lock.expires + self.longer {
            return Err(format!(
                "master {master} keeps the note of the lock value {} on r{resource} for {} us longer than the lock",
                short(value),
                expires - lock.expires
            ));
        }
        Ok(())
    }

    /// Checks the note that a refused waiter received. If the waiter also received the lock value of the holder, the
    /// note must be from this holder. Otherwise, the note may be from any holder of the resource.
    fn refused(
        &mut self,
        resource: usize,
        holder: Option<&[u8]>,
        note: Option<&str>,
    ) -> Result<(), String> {
        self.judged += 1;
        let holder: Option<Value> = holder.and_then(|holder| holder.try_into().ok());
        let says = holder.map(|holder| self.values.get(&holder).map(String::as_str));
        let known = |note: &str| self.said.contains(&(resource, note.to_owned()));
        if says.is_some_and(|says| says != note) || !note.is_none_or(known) {
            return Err(format!(
                "a waiter for r{resource} received the note {note:?} for the holder {}, whose note is {says:?}",
                holder.map_or("unknown".to_owned(), |holder| short(&holder))
            ));
        }
        Ok(())
    }

    /// Returns an error if a note that should have been deleted before `now` still exists on some master.
    fn sweep(&mut self, now: u64) -> Result<(), String> {
        while let Some((by, value)) = self.done.front().copied().filter(|(by, _)| *by < now) {
            self.done.pop_front();
            self.judged += 1;
            let left = |(_, (whose, until)): &(_, &(Value, u64))| *whose == value && *until > by;
            if let Some(((master, resource), _)) = self.stored.iter().find(left) {
                return Err(format!(
                    "master {master} still stores a note for r{resource} {} ms after the client released, dropped or \
                     failed to acquire the lock",
                    self.bound.unwrap_or(0) / MS
                ));
            }
        }
        Ok(())
    }
}

impl Check for Notes {
    const RULE: &'static str = "terms and notes";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.on {
            return Ok(());
        }
        match fact {
            Fact::Happened {
                what: Happening::Unused,
                ..
            } => self.floor = self.largest.clone(),
            Fact::Observes { task } => {
                self.terms.remove(task);
            }
            Fact::Observed {
                task,
                resource,
                leader: Some(leader),
            } if at.promises.tokens => return self.observed(*task, *resource, *leader),
            Fact::Says {
                resource,
                value,
                note,
            } => {
                self.values.insert(value.to_hex(), (*note).to_owned());
                self.said.insert((*resource, (*note).to_owned()));
            }
            Fact::Refused {
                resource,
                holder,
                note,
            } => return self.refused(*resource, *holder, *note),
            Fact::Obtained { believer } if believer.scope.class.is_none() => {
                let Some(term) = believer.fencing.filter(|_| at.promises.tokens) else {
                    return Ok(());
                };
                let says = self.values.get(&believer.value.to_hex()).cloned();
                for resource in believer.scope.resources() {
                    self.says.insert((resource, term), says.clone());
                    self.agree(resource, term)?;
                }
            }
            Fact::Retired { believer, why } if *why != Why::Downgraded => {
                let by = self.bound.map(|bound| at.now + bound);
                let value = believer.value.to_hex();
                self.done.extend(by.map(|by| (by, value)));
            }
            Fact::Restarted { master, .. } => self.stored.retain(|(of, _), _| of != master),
            Fact::StoredNote {
                master,
                resource,
                note,
                lock,
                until,
            } => {
                self.sweep(at.now)?;
                return self.check_stored_note((*master, *resource), *note, *lock, *until);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
