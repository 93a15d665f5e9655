//! A store in memory for tests and simulations. A test chooses whether the store reads out its clock, returns the date
//! of the last change, and sends wake-ups.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::contract::{
    Clocked, Commit, Committed, Date, Greeting, Listener, NamedRecord, Record, Session, Store,
    Traits,
};
use crate::clock;
use crate::node::inspection::Inspection;
use crate::node::{Fault, NodeName, ServerRun};

/// A store in memory that answers immediately.
#[derive(Clone, Debug)]
pub struct Table {
    name: NodeName,
    traits: Traits,
    /// Whether the store has its own clock.
    has_clock: bool,
    /// Whether sessions return the time of their last change ([`Session::date`]).
    has_dates: bool,
    /// If this value is a session: the date of its last change, or of its beginning.
    last_date: Option<Date>,
    state: Arc<Mutex<State>>,
    committed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<Vec<u8>, Record>,
    /// The largest version of all records. Each change gets the next number, so no version is used twice.
    last_version: u64,
    messages: BTreeMap<Arc<str>, VecDeque<Vec<u8>>>,
    /// The number of leaders that the store has had before the present one.
    leaders: u64,
    /// How far the leader's clock is ahead of the true time, in microseconds.
    clock_ahead: i64,
}

impl Table {
    /// Creates an empty store. If `clocked` is true, answers contain the store's time ([`Clocked::clock`]). If false,
    /// sessions report only the time of their last change ([`Session::date`]).
    pub fn new(name: &str, clocked: bool) -> Self {
        Self {
            name: NodeName::new(name),
            traits: Traits::new(Duration::from_millis(250)).lanes(5).batch(4),
            has_clock: clocked,
            has_dates: !clocked,
            last_date: None,
            state: Arc::default(),
            committed: Arc::default(),
        }
    }

    /// Declares that a session does not report when its last change was made ([`Session::date`]).
    #[must_use]
    pub fn undated(self) -> Self {
        Self {
            has_dates: false,
            ..self
        }
    }

    fn map_traits(mut self, change: impl FnOnce(Traits) -> Traits) -> Self {
        self.traits = change(self.traits);
        self
    }

    /// Sets the number of sessions over which a process distributes its requests.
    #[must_use]
    pub fn lanes(self, lanes: usize) -> Self {
        self.map_traits(|traits| traits.lanes(lanes))
    }

    /// Declares that the store does not wake waiters.
    #[must_use]
    pub fn without_wakes(self) -> Self {
        self.map_traits(Traits::without_wakes)
    }

    /// Sets the largest number of records in one commit.
    #[must_use]
    pub fn records(self, records: usize) -> Self {
        self.map_traits(|traits| traits.records(records))
    }

    /// Declares that the store's sessions write the age of the server's run to the server.
    #[must_use]
    pub fn counts_age(self) -> Self {
        self.map_traits(Traits::counts_age)
    }

    /// Sets the clock of the store's leader, which gives the dates: it is then ahead of the true time by `ahead`
    /// microseconds.
    pub fn set_date_ahead(&self, ahead: i64) {
        self.state().clock_ahead = ahead;
    }

    /// Gives the store another leader, whose clock is ahead of the true time by `ahead` microseconds.
    pub fn elect(&self, ahead: i64) {
        self.state().leaders += 1;
        self.set_date_ahead(ahead);
    }

    /// The date that the store gives to a change now; `None` if it gives no dates.
    pub fn date_now(&self) -> Option<Date> {
        let State {
            leaders,
            clock_ahead,
            ..
        } = *self.state();
        let date = || {
            Date::new(
                clock::paced::wall_micros().saturating_add_signed(clock_ahead),
                leaders,
            )
        };
        self.has_dates.then(date)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clocked<T>(&self, what: T) -> Clocked<T> {
        let clock = self.has_clock.then(clock::wall_micros);
        Clocked { what, clock }
    }
}

impl State {
    fn commit(&mut self, commit: &Commit) -> Committed {
        let has_version = |name: &[u8], version: u64| {
            self.records.get(name).map_or(0, |record| record.version) == version
        };
        if !commit
            .changes
            .iter()
            .all(|change| has_version(&change.name, change.version))
        {
            return Committed::Stale;
        }
        let mut versions = Vec::new();
        for change in &commit.changes {
            let Some(state) = &change.state else {
                versions.push(change.version);
                continue;
            };
            self.last_version += 1;
            versions.push(self.last_version);
            let record = Record::new(self.last_version, state.clone());
            self.records.insert(change.name.to_vec(), record);
        }
        for wake in &commit.wakes {
            let messages = self.messages.entry(wake.process.clone()).or_default();
            messages.push_back(wake.word.clone());
        }
        Committed::Done(versions)
    }
}

impl Store for Table {
    type Session = Self;
    type Listener = TableListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        self.traits.clone()
    }

    async fn connect(&self) -> Result<(Self, Greeting), Fault> {
        let session = Self {
            last_date: self.date_now(),
            ..self.clone()
        };
        Ok((session, Greeting::new(ServerRun::new("1"))))
    }

    async fn listen(&self, process: Arc<str>) -> Result<TableListener, Fault> {
        let table = self.clone();
        Ok(TableListener { table, process })
    }

    async fn inspect(&self) -> Inspection {
        Inspection::new(self.name.clone())
    }
}

impl Session for Table {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let state = self.state();
        let record = |name: &Arc<[u8]>| state.records.get(&name[..]).cloned().unwrap_or_default();
        let records = names.iter().map(record).collect();
        drop(state);
        Ok(self.clocked(records))
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let mut state = self.state();
        let results: Vec<Committed> = commits.iter().map(|commit| state.commit(commit)).collect();
        drop(state);
        if results.iter().any(|result| *result != Committed::Stale) {
            self.last_date = self.date_now();
        }
        self.committed.notify_waiters();
        Ok(self.clocked(results))
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let state = self.state();
        let page = state.records.iter().skip(from).take(count as usize);
        let page = page.map(|(name, record)| (name.clone(), record.clone()));
        let page = page.collect();
        drop(state);
        Ok(self.clocked(page))
    }

    fn date(&self) -> Option<Date> {
        self.last_date
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        let mut state = self.state();
        for (name, version) in records {
            if state
                .records
                .get(&name[..])
                .is_some_and(|record| record.version == *version)
            {
                state.records.remove(&name[..]);
            }
        }
        Ok(())
    }
}

/// Receives the wake-ups of one process.
#[derive(Debug)]
pub struct TableListener {
    table: Table,
    process: Arc<str>,
}

impl Listener for TableListener {
    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            let committed = self.table.committed.notified();
            let messages = self.table.state().messages.remove(&self.process);
            if let Some(messages) = messages.filter(|messages| !messages.is_empty()) {
                return Ok(messages.into());
            }
            committed.await;
        }
    }
}
