//! The records of a simulated store. The version numbers of a record never repeat, except with a seeded bug.

use std::collections::BTreeMap;

use quorate::node::store::{Commit, Committed, NamedRecord, Record};

use crate::seeded_bugs::Flaw;

/// How many states are kept for each record: the current state and three earlier ones. A lagging follower can return an
/// earlier state.
const KEPT: usize = 4;

/// For the seeded bug `VersionsAgain`: the version numbers of a record repeat after this number of changes.
const AGAIN: u64 = 4;

/// One state of a record, after one change.
#[derive(Clone)]
struct State {
    /// The sequence number of the change that made this state.
    number: u64,
    record: Record,
    /// The session that wrote this state.
    writer: usize,
}

/// The newest states of a record, oldest first. The last state in the list is the current state.
#[derive(Clone, Default)]
struct Past {
    states: Vec<State>,
    /// Whether the oldest states were dropped from `states`.
    cut: bool,
}

impl Past {
    /// Returns the state that the record had after the change with this sequence number. If this state was dropped,
    /// returns the oldest kept state. Returns `None` if the record did not exist after that change.
    fn at(&self, number: u64) -> Option<&State> {
        let found = self.states.iter().rev().find(|one| one.number <= number);
        found.or_else(|| self.states.first().filter(|_| self.cut))
    }

    fn last(&self) -> Record {
        let last = self.states.last();
        last.map(|state| state.record.clone()).unwrap_or_default()
    }
}

#[derive(Clone, Default)]
pub(super) struct Records {
    all: BTreeMap<Vec<u8>, Past>,
    /// The sequence number of the latest change of any record of this store. The numbers continue after a restart.
    last: u64,
}

impl Records {
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the current state of the record with this name.
    pub(super) fn get(&self, name: &[u8]) -> Record {
        self.all.get(name).map(Past::last).unwrap_or_default()
    }

    /// Returns the state of the record after the change with the sequence number `number`. Also returns the sequence
    /// number of the change that made this state.
    pub(super) fn get_at(&self, name: &[u8], number: u64) -> (Record, u64) {
        let state = self.all.get(name).and_then(|past| past.at(number));
        state.map_or((Record::default(), 0), |one| {
            (one.record.clone(), one.number)
        })
    }

    /// Returns up to `count` records in the order of their names, starting with the record at the index `from`.
    pub(super) fn page(&self, from: u64, count: u32) -> Vec<NamedRecord> {
        let named = |(name, past): (&Vec<u8>, &Past)| (name.clone(), past.last());
        let all = self.all.iter().map(named);
        let there = all.filter(|(_, record)| record.version > 0);
        there.skip(from as usize).take(count as usize).collect()
    }

    /// Applies all changes of a commit. If the version of a record differs from the version in the commit, changes
    /// nothing and returns `Committed::Stale`.
    pub(super) fn commit(
        &mut self,
        commit: &Commit,
        writer: usize,
        flaw: Option<Flaw>,
    ) -> Committed {
        let fits = |(name, version): (&[u8], u64)| self.get(name).version == version;
        let mut asked = commit
            .changes
            .iter()
            .map(|one| (&one.name[..], one.version));
        if !asked.all(fits) {
            return Committed::Stale;
        }
        let mut versions = Vec::new();
        for change in &commit.changes {
            let Some(state) = &change.state else {
                versions.push(change.version);
                continue;
            };
            self.last += 1;
            let version = match flaw {
                Some(Flaw::VersionsAgain) => change.version % AGAIN + 1,
                _ => self.last,
            };
            versions.push(version);
            let state = state.clone();
            self.put(&change.name, Record::new(version, state), writer);
        }
        Committed::Done(versions)
    }

    /// Removes the record with this name if its current version is `version`.
    pub(super) fn remove(&mut self, name: &[u8], version: u64) {
        if version > 0 && self.get(name).version == version {
            self.last += 1;
            self.put(name, Record::default(), usize::MAX);
        }
    }

    fn put(&mut self, name: &[u8], record: Record, writer: usize) {
        let past = self.all.entry(name.to_vec()).or_default();
        if past.states.len() >= KEPT {
            past.states.remove(0);
            past.cut = true;
        }
        past.states.push(State {
            number: self.last,
            record,
            writer,
        });
    }

    /// Simulates a restart with an outdated disk: replaces all records by the records of `disk`. Sequence numbers of
    /// changes continue, so that no number is used twice.
    pub(super) fn fall_back_to(&mut self, disk: Self) {
        let last = self.last;
        *self = disk;
        self.last = last;
    }

    /// For a seeded bug: removes each record that was last written by the session `writer`.
    pub(super) fn remove_of(&mut self, writer: usize) {
        let of = |past: &Past| past.states.last().is_some_and(|one| one.writer == writer);
        let names = self.all.iter().filter(|(_, past)| of(past));
        let names: Vec<Vec<u8>> = names.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.last += 1;
            self.put(&name, Record::default(), usize::MAX);
        }
    }
}
