//! Everything that the page knows: locks, masters, values and the history. The survey changes it, and requests read it.
//!
//! No function here waits, asks a master or reads a clock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use quorate::{Fault, Inspection, Listed, LockName, SeenValue, Status, StatusVerdict};

use crate::event::{Event, EventKind};
use crate::history_file::HistoryFile;
use crate::lock::{State, lock_id, read};
use crate::master::{Finding, MasterRecord};
use crate::past::open_holds;
use crate::record::{OpenHold, Record};
use crate::ring::Ring;
use crate::schedule::{ReadSchedule, reread_after_ms};
use crate::value::ValueRecord;
use crate::verdict::{Facts, LockFacts, ValueFacts};

/// The largest number of locks that the page follows.
pub(crate) const MAX_LOCKS: usize = 100_000;

/// How long the page still asks for a lock after it has become free, in milliseconds. Many locks are taken again soon.
const LINGER_MS: u64 = 30_000;

/// The state of the page.
pub(crate) struct PageState {
    pub(crate) started_ms: u64,
    pub(crate) interval_ms: u64,
    pub(crate) slow_wait_ms: u64,
    pub(crate) masters: Vec<MasterRecord>,
    pub(crate) quorum: usize,
    /// Whether a majority of the masters answered last; `None` before the first answers.
    pub(crate) has_quorum: Option<bool>,
    pub(crate) records: HashMap<Arc<str>, Record>,
    pub(crate) read_schedule: ReadSchedule,
    pub(crate) values: Vec<ValueRecord>,
    pub(crate) ring: Ring,
    file: Option<HistoryFile>,
    file_error: Option<String>,
    /// Holds from the history file whose locks have not been found yet.
    unfound_holds: HashMap<Arc<str>, Vec<OpenHold>>,
    /// When the last complete search for names began; 0 if there was none.
    pub(crate) names_ms: u64,
    /// Whether the last search for names found all of them.
    pub(crate) are_names_complete: bool,
    /// The locks that have changed, or are gone, since the last message to the viewers.
    pub(crate) changed: BTreeSet<Arc<str>>,
    /// The number of the last event that the viewers have got.
    pub(crate) sent_seq: u64,
    /// When the last answers about the votes of the masters came.
    pub(crate) probed_ms: u64,
    pub(crate) is_watching: bool,
}

impl PageState {
    pub(crate) fn new(
        masters: Vec<String>,
        interval_ms: u64,
        slow_wait_ms: u64,
        now_ms: u64,
    ) -> Self {
        Self {
            started_ms: now_ms,
            interval_ms,
            slow_wait_ms,
            quorum: masters.len() / 2 + 1,
            masters: masters.iter().map(|name| MasterRecord::new(name)).collect(),
            has_quorum: None,
            records: HashMap::new(),
            read_schedule: ReadSchedule::default(),
            values: Vec::new(),
            ring: Ring::default(),
            file: None,
            file_error: None,
            unfound_holds: HashMap::new(),
            names_ms: 0,
            are_names_complete: true,
            changed: BTreeSet::new(),
            sent_seq: 0,
            probed_ms: 0,
            is_watching: false,
        }
    }

    /// Adds the events of the history file, and writes new events to it from now on.
    pub(crate) fn use_file(&mut self, file: HistoryFile, events: Vec<Event>, now_ms: u64) {
        for event in events {
            self.ring.restore(event, now_ms);
        }
        self.unfound_holds = open_holds(self.ring.iter());
        self.sent_seq = self.ring.last_seq();
        self.file = Some(file);
    }

    /// Writes the rest of the history file, and closes it.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn file_error(&self) -> Option<&str> {
        self.file_error.as_deref()
    }

    pub(crate) fn add_event(&mut self, event: Event) {
        let event = self.ring.push(event);
        if let Some(file) = &self.file {
            file.write(event);
        }
    }

    fn add_events(&mut self, events: Vec<Event>) {
        for event in events {
            self.add_event(event);
        }
    }

    /// Notes whether the history file can be written now.
    pub(crate) fn check_file(&mut self, now_ms: u64) {
        let Some(file) = &self.file else { return };
        let error = file.error();
        let kind = match (&self.file_error, &error) {
            (None, Some(_)) => EventKind::HistoryFailed,
            (Some(_), None) => EventKind::HistoryRestored,
            _ => return,
        };
        self.file_error = error;
        let detail = self.file_error.as_deref().map(Into::into);
        self.add_event(Event {
            detail,
            ..Event::new(kind, now_ms)
        });
    }

    /// Notes that the survey begins or pauses.
    pub(crate) fn set_watched(&mut self, is_watching: bool, now_ms: u64) {
        if std::mem::replace(&mut self.is_watching, is_watching) != is_watching {
            let kind = if is_watching {
                EventKind::WatchBegan
            } else {
                EventKind::WatchPaused
            };
            self.add_event(Event::new(kind, now_ms));
            // The next answers cannot show what happened meanwhile.
            self.names_ms = 0;
        }
    }

    /// Takes in the masters' answers about a lock that need not exist: they show which masters vote.
    pub(crate) fn apply_probe(&mut self, status: &Status, now_ms: u64) {
        self.quorum = status.quorum;
        let mut events = Vec::new();
        for (master, node) in self.masters.iter_mut().zip(&status.nodes) {
            let answer: Result<(), Fault> = node.state.as_ref().map(|_| ()).map_err(Clone::clone);
            events.extend(master.update(answer, node.latency, now_ms));
        }
        let wrong_type = status
            .nodes
            .iter()
            .any(|node| matches!(node.state, Err(Fault::WrongType)));
        let votes = self.masters.iter().filter(|master| master.votes()).count();
        let has_quorum =
            status.verdict() != StatusVerdict::Unknown || (wrong_type && votes >= self.quorum);
        let kind = match (self.has_quorum.replace(has_quorum), has_quorum) {
            (Some(true) | None, false) => Some(EventKind::QuorumLost),
            (Some(false), true) => Some(EventKind::QuorumRestored),
            _ => None,
        };
        let detail = format!(
            "{votes} of {} masters vote, {} are needed",
            self.masters.len(),
            self.quorum
        );
        events.extend(kind.map(|kind| Event {
            detail: Some(detail.into()),
            ..Event::new(kind, now_ms)
        }));
        self.probed_ms = now_ms;
        self.add_events(events);
    }

    /// Takes in the names of all locks, from a search that began at `began_ms`. New names are read at once.
    pub(crate) fn apply_names(
        &mut self,
        names: Vec<LockName>,
        is_complete: bool,
        started_at_ms: u64,
        now_ms: u64,
    ) {
        self.are_names_complete = is_complete;
        let mut listed_ids: BTreeSet<Arc<str>> = BTreeSet::new();
        for name in names {
            let id: Arc<str> = lock_id(&name).into();
            if !self.records.contains_key(&id) && self.records.len() < MAX_LOCKS {
                let open = self.unfound_holds.remove(&id).unwrap_or_default();
                let record = Record::new(name, self.names_ms, open);
                self.read_schedule.plan(&id, 0);
                self.records.insert(id.clone(), record);
            }
            if is_complete {
                listed_ids.insert(id);
            }
        }
        if !is_complete {
            return;
        }
        self.names_ms = started_at_ms;
        // A lock that is no longer listed has probably been released: read it next.
        let unlisted_ids = self
            .records
            .values()
            .filter(|record| record.state() == State::Held && !listed_ids.contains(&record.id));
        let unlisted_ids: Vec<Arc<str>> = unlisted_ids.map(|record| record.id.clone()).collect();
        for id in &unlisted_ids {
            self.read_schedule.plan(id, 0);
        }
        self.end_open_holds(now_ms);
    }

    /// Ends the holds from the history file whose locks are no longer listed.
    fn end_open_holds(&mut self, now_ms: u64) {
        for (lock, holds) in std::mem::take(&mut self.unfound_holds) {
            for hold in holds {
                self.add_event(Event {
                    lock: Some(lock.clone()),
                    ..hold.ended(now_ms)
                });
            }
        }
    }

    /// Takes in what the masters answered about some locks.
    pub(crate) fn apply_locks(
        &mut self,
        requested_ids: &[Arc<str>],
        listed: &[Listed],
        now_ms: u64,
    ) {
        let known_count = self.records.len();
        for listed in listed {
            let name = LockName {
                resource: listed.resource.clone(),
                slot: listed.slot,
            };
            let Some(record) = self.records.get_mut(lock_id(&name).as_str()) else {
                continue;
            };
            let was_shown = record.is_shown();
            let events = record.update(read(listed), now_ms);
            if was_shown || record.is_shown() {
                self.changed.insert(record.id.clone());
            }
            self.add_events(events);
        }
        for id in requested_ids {
            let Some(record) = self.records.get(id) else {
                continue;
            };
            let is_idle = !record.is_shown() && record.state() == State::Free;
            let last_ms = record.changed_ms;
            if is_idle && now_ms.saturating_sub(last_ms) > LINGER_MS {
                self.records.remove(id);
                continue;
            }
            let is_hot = is_idle
                || !record.waits.is_empty()
                || record.is_overdue()
                || record
                    .left_ms()
                    .is_some_and(|left| left < 2 * self.interval_ms);
            self.read_schedule.plan(
                id,
                now_ms + reread_after_ms(self.interval_ms, is_hot, known_count),
            );
        }
    }

    /// The names of the locks that are due, at most `max`.
    pub(crate) fn due_locks(&mut self, now_ms: u64, max: usize) -> (Vec<Arc<str>>, Vec<LockName>) {
        let mut ids = self.read_schedule.take_due(now_ms, max);
        ids.sort();
        ids.dedup();
        ids.retain(|id| self.records.contains_key(id));
        let names = ids
            .iter()
            .filter_map(|id| self.records.get(id))
            .map(|record| record.name.clone());
        let names = names.collect();
        (ids, names)
    }

    pub(crate) fn apply_inspections(
        &mut self,
        inspections: Vec<Inspection>,
        findings: Vec<Finding>,
        now_ms: u64,
    ) {
        let mut events = Vec::new();
        for (master, inspection) in self.masters.iter_mut().zip(inspections) {
            let name = master.name.clone();
            let own = findings
                .iter()
                .filter(|finding| finding.master.as_deref() == Some(&*name));
            // The state of the tile says already that a master is down.
            master.findings = if inspection.fault.is_none() {
                own.cloned().collect()
            } else {
                Vec::new()
            };
            events.extend(master.inspect(inspection, now_ms));
        }
        self.add_events(events);
    }

    pub(crate) fn apply_values(&mut self, seen: &[SeenValue], now_ms: u64) {
        let before = std::mem::take(&mut self.values).into_iter();
        let mut before: HashMap<Vec<u8>, ValueRecord> = before
            .map(|record| (record.bytes.clone(), record))
            .collect();
        let mut events = Vec::new();
        for value in seen {
            if let Some(mut record) = before.remove(&value.name) {
                events.extend(record.update(value, now_ms));
                self.values.push(record);
            } else {
                let name = quorate::printable::json_name(&value.name);
                let starts = self.period_starts(&name);
                self.values.push(ValueRecord::new(value, &starts));
            }
        }
        self.add_events(events);
    }

    /// The starts of the periods of a job that the history has, oldest first.
    fn period_starts(&self, job: &str) -> Vec<u64> {
        let records = self
            .ring
            .iter()
            .filter(|event| event.kind == EventKind::JobRecorded);
        let own = records.filter(|event| event.detail.as_deref() == Some(job));
        own.filter_map(|event| event.from_ms).collect()
    }

    /// Everything that the sentence depends on.
    pub(crate) fn facts(&self, now_ms: u64) -> Facts {
        let mut facts = Facts {
            masters: self.masters.iter().map(MasterRecord::facts).collect(),
            quorum: self.quorum,
            has_quorum: self.has_quorum,
            values: self.value_facts(now_ms),
            history_error: self.file_error.clone(),
            slow_wait_ms: self.slow_wait_ms,
            ..Facts::default()
        };
        let mut semaphores = BTreeSet::new();
        for record in self.records.values() {
            facts.held += usize::from(record.state() == State::Held);
            if record.waits.is_empty() && !record.is_overdue() {
                continue;
            }
            let mut lock = record.facts(now_ms);
            // All permits of a semaphore share one queue.
            if record.name.slot.is_some() && !semaphores.insert(&record.text) {
                (lock.waiters, lock.longest_wait_ms) = (0, 0);
            }
            facts.waiters += lock.waiters;
            facts.longest_wait_ms = facts.longest_wait_ms.max(lock.longest_wait_ms);
            facts.locks.push(lock);
        }
        facts
    }

    fn value_facts(&self, now_ms: u64) -> Vec<ValueFacts> {
        self.values
            .iter()
            .map(|value| value.facts(now_ms))
            .collect()
    }
}

impl Record {
    fn facts(&self, now_ms: u64) -> LockFacts {
        let longest_wait = self
            .waits
            .iter()
            .map(|wait| now_ms.saturating_sub(wait.from_ms))
            .max();
        let worst = self
            .holds
            .iter()
            .find(|hold| hold.is_overdue)
            .or(self.holds.first());
        let permit = self
            .name
            .slot
            .map(|slot| format!(", permit {slot}"))
            .unwrap_or_default();
        let elapsed = now_ms.saturating_sub(self.read_ms);
        LockFacts {
            id: self.id.to_string(),
            title: format!("{}{permit}", self.text),
            word: self.word.to_string(),
            slot: self.name.slot,
            holder: worst
                .and_then(|hold| hold.client.as_ref())
                .map(crate::lock::Client::text),
            held_ms: worst.map(|hold| now_ms.saturating_sub(hold.from_ms)),
            is_overdue: self.is_overdue() && self.state() == State::Held,
            has_renewed: worst.is_some_and(|hold| hold.margin_ms.is_some()),
            unrenewed_ms: worst.map_or(0, |hold| now_ms.saturating_sub(hold.renewed_ms)),
            left_ms: self.left_ms().map(|left| left.saturating_sub(elapsed)),
            waiters: self.waits.len(),
            longest_wait_ms: longest_wait.unwrap_or(0),
        }
    }
}
