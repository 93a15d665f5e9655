//! The records of a simulated store. The version numbers of a record never repeat.

use std::collections::BTreeMap;

use quorate::node::store::{Commit, Committed, NamedRecord, Record};

use super::run_row::RunRow;

/// How many states are kept for each record: the current state and three earlier ones. A lagging follower can return an
/// earlier state.
const STATES_KEPT: usize = 4;

/// One state of a record, after one change.
#[derive(Clone)]
struct RecordState {
    /// The sequence number of the change that made this state.
    change_number: u64,
    record: Record,
    /// The session that wrote this state.
    writer: usize,
}

/// The newest states of a record, oldest first. The last state in the list is the current state.
#[derive(Clone, Default)]
struct RecordHistory {
    states: Vec<RecordState>,
    /// Whether the oldest states were dropped from `states`.
    is_truncated: bool,
}

impl RecordHistory {
    /// Returns the state that the record had after the change with this sequence number. If this state was dropped,
    /// returns the oldest kept state. Returns `None` if the record did not exist after that change.
    fn state_after(&self, number: u64) -> Option<&RecordState> {
        let newest = self
            .states
            .iter()
            .rev()
            .find(|state| state.change_number <= number);
        newest.or_else(|| self.states.first().filter(|_| self.is_truncated))
    }

    fn current(&self) -> Record {
        let last = self.states.last();
        last.map(|state| state.record.clone()).unwrap_or_default()
    }
}

#[derive(Clone, Default)]
pub(super) struct Records {
    histories: BTreeMap<Vec<u8>, RecordHistory>,
    /// The sequence number of the latest change of any record of this store. The numbers continue after a restart.
    last_change: u64,
    /// The number of the file that contains the records. It changes when the table of records is emptied.
    pub(super) file: u32,
    /// The row of the current run, which the server keeps next to the records; `None` if it has none.
    pub(super) run: Option<RunRow>,
}

impl Records {
    pub(super) fn last_change(&self) -> u64 {
        self.last_change
    }

    /// Returns the current state of the record with this name.
    pub(super) fn get(&self, name: &[u8]) -> Record {
        self.histories
            .get(name)
            .map(RecordHistory::current)
            .unwrap_or_default()
    }

    /// Returns the state of the record after the change with the sequence number `number`. Also returns the sequence
    /// number of the change that made this state.
    pub(super) fn state_after(&self, name: &[u8], number: u64) -> (Record, u64) {
        let state = self
            .histories
            .get(name)
            .and_then(|history| history.state_after(number));
        state.map_or((Record::default(), 0), |state| {
            (state.record.clone(), state.change_number)
        })
    }

    /// Returns up to `count` records in the order of their names, starting with the record at the index `from`.
    pub(super) fn page(&self, from: u64, count: u32) -> Vec<NamedRecord> {
        let with_name =
            |(name, history): (&Vec<u8>, &RecordHistory)| (name.clone(), history.current());
        let records = self.histories.iter().map(with_name);
        let existing = records.filter(|(_, record)| record.version > 0);
        existing.skip(from as usize).take(count as usize).collect()
    }

    /// Applies all changes of a commit. If the version of a record differs from the version in the commit, changes
    /// nothing and returns `Committed::Stale`.
    pub(super) fn commit(&mut self, commit: &Commit, writer: usize) -> Committed {
        let is_current = |(name, version): (&[u8], u64)| self.get(name).version == version;
        let mut expected_versions = commit
            .changes
            .iter()
            .map(|change| (&change.name[..], change.version));
        if !expected_versions.all(is_current) {
            return Committed::Stale;
        }
        let mut versions = Vec::new();
        for change in &commit.changes {
            let Some(state) = &change.state else {
                versions.push(change.version);
                continue;
            };
            self.last_change += 1;
            let version = self.last_change;
            versions.push(version);
            self.put(&change.name, Record::new(version, state.clone()), writer);
        }
        Committed::Done(versions)
    }

    /// Removes the record with this name if its current version is `version`.
    pub(super) fn remove(&mut self, name: &[u8], version: u64) {
        if version > 0 && self.get(name).version == version {
            self.last_change += 1;
            self.put(name, Record::default(), usize::MAX);
        }
    }

    fn put(&mut self, name: &[u8], record: Record, writer: usize) {
        let history = self.histories.entry(name.to_vec()).or_default();
        if history.states.len() >= STATES_KEPT {
            history.states.remove(0);
            history.is_truncated = true;
        }
        history.states.push(RecordState {
            change_number: self.last_change,
            record,
            writer,
        });
    }

    /// Simulates a restart with an outdated disk: replaces all records by the records of `disk`. Sequence numbers of
    /// changes continue, so that no number is used twice. The file and the row of the run stay.
    pub(super) fn restore_from(&mut self, disk: Self) {
        self.histories = disk.histories;
    }

    /// Simulates a table that is emptied: removes all records. The records are then in another file.
    pub(super) fn empty(&mut self) {
        self.histories.clear();
        self.file += 1;
    }

    /// For a seeded bug: removes each record that was last written by the session `writer`.
    pub(super) fn remove_records_of(&mut self, writer: usize) {
        let is_written_by = |history: &RecordHistory| {
            history
                .states
                .last()
                .is_some_and(|state| state.writer == writer)
        };
        let written = self
            .histories
            .iter()
            .filter(|(_, history)| is_written_by(history));
        let names: Vec<Vec<u8>> = written.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.last_change += 1;
            self.put(&name, Record::default(), usize::MAX);
        }
    }
}
