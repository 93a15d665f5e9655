//! Collects the history during the run, and answers questions of the driver, e.g. whether a client is ready.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{Clock, Entry, Event, STALLED};
use crate::workload::workload_name;

/// The workload name for clients that follow an election.
pub const FOLLOWERS: &str = "following";

/// Collects all events of a run. Clones are cheap and share the events.
#[derive(Clone, Debug)]
pub struct Recorder {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    totals: Totals,
    ended_disturbances: HashMap<usize, u64>,
    ready_pid: HashMap<String, u32>,
    last_success_times: HashMap<(usize, String), u64>,
    workloads_of_attempts: HashMap<(String, u64), String>,
    retired: HashSet<String>,
}

/// The numbers of events so far. The terminal shows them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// The number of attempts that obtained a lock or got an answer from a quota.
    pub obtained: u64,
    /// The number of attempts that failed or were dropped.
    pub missed: u64,
    /// The number of holders that were notified of a loss.
    pub notified: u64,
    /// The number of requests with a stale token that the register or the bank refused.
    pub refused: u64,
    /// The number of faults whose effect was observed.
    pub landed: u64,
    /// The number of faults that could not be injected or ended.
    pub failed: u64,
}

impl Recorder {
    /// A recorder without events. It reads the times of events from this clock.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Arc::default(),
        }
    }

    /// The clock on which event times are given.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Records an event that happens now.
    pub fn record(&self, process: impl Into<String>, event: Event) {
        let entry = Entry {
            t: self.clock.now(),
            process: process.into(),
            event,
        };
        self.push(entry);
    }

    /// Records an event that another process has observed.
    pub fn push(&self, entry: Entry) {
        let mut state = self.state();
        state.count(&entry);
        state.entries.push(entry);
    }

    /// The totals so far.
    pub fn totals(&self) -> Totals {
        self.state().totals
    }

    /// The number of disturbances inside this client (e.g. blocked threads) that have ended.
    pub fn ended_disturbances(&self, client: usize) -> u64 {
        self.state()
            .ended_disturbances
            .get(&client)
            .copied()
            .unwrap_or(0)
    }

    /// The process id of the client process with this name; `None` until the process is ready.
    pub fn ready_pid(&self, process: &str) -> Option<u32> {
        self.state().ready_pid.get(process).copied()
    }

    /// The time of the client's last success in this workload, in nanoseconds since the run began. A success is a lock,
    /// an answer from a quota, or a leader that a follower saw.
    pub fn last_served(&self, client: usize, workload: &str) -> Option<u64> {
        self.state()
            .last_success_times
            .get(&(client, workload.to_owned()))
            .copied()
    }

    /// Whether this master was stopped for good, because a change of masters has removed it.
    pub fn is_retired(&self, process: &str) -> bool {
        self.state().retired.contains(process)
    }

    /// All events so far, in the order in which they arrived.
    pub fn entries(&self) -> Vec<Entry> {
        self.state().entries.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, entry: &Entry) {
        let client = client_index(&entry.process);
        match &entry.event {
            Event::Ready { pid } => {
                self.ready_pid.insert(entry.process.clone(), *pid);
            }
            Event::Wait {
                op,
                resource: workload,
                ..
            } => {
                let key = (entry.process.clone(), *op);
                self.workloads_of_attempts
                    .insert(key, workload_name(workload).to_owned());
            }
            Event::Followed { term: Some(_), .. } => {
                if let Some(client) = client {
                    self.last_success_times
                        .insert((client, FOLLOWERS.to_owned()), entry.t);
                }
            }
            Event::Obtained { op, .. } | Event::Answered { op, .. } => {
                self.totals.obtained += 1;
                let workload = self
                    .workloads_of_attempts
                    .remove(&(entry.process.clone(), *op));
                if let (Some(client), Some(workload)) = (client, workload) {
                    self.last_success_times.insert((client, workload), entry.t);
                }
            }
            Event::Missed { op, .. } | Event::Dropped { op } => {
                self.totals.missed += 1;
                self.workloads_of_attempts
                    .remove(&(entry.process.clone(), *op));
            }
            Event::Retired => {
                self.retired.insert(entry.process.clone());
            }
            Event::Notified { .. } => self.totals.notified += 1,
            Event::Refused { .. } => self.totals.refused += 1,
            Event::Landed { .. } => self.totals.landed += 1,
            Event::Failed { .. } => self.totals.failed += 1,
            Event::Suffered { disturbance, .. } if disturbance != STALLED => {
                if let Some(client) = client {
                    *self.ended_disturbances.entry(client).or_default() += 1;
                }
            }
            _ => {}
        }
    }
}

/// Returns the index of the client whose process is named `process`. Indices begin at 0, so the process `c3` has the
/// index 2. So has `c3.2`, a later process of the same client. `None` if `process` is not the name of a client process.
pub fn client_index(process: &str) -> Option<usize> {
    let number = process.strip_prefix('c')?;
    let number = number.split('.').next()?;
    number.parse::<usize>().ok()?.checked_sub(1)
}
