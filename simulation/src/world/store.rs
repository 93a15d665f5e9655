//! Reports to the checkers which requests clients send to stores, and which answers clients receive from stores.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quorate::node::{Answer, Ended, Fault, KeyState, Node, Phase, Reply, ReplySink, Request};
use quorate_promises::ValueEvent;

use super::{Shared, World};
use crate::facts::{Fact, short_hex};
use crate::happening::Happening;
use crate::locker::{key_of_place, place_of_key};

/// A client's connection to a store. The simulation force-releases (breaks) locks through it. The members are the index
/// of the client, the index of the store among the masters, and the client's `Node` for the store.
pub(crate) type StoreConnection = (usize, usize, Arc<dyn Node>);

/// A force-release of one lock at all stores. It is sent through the connections of one client process.
pub(super) struct StoreForceRelease {
    nodes: Vec<Arc<dyn Node>>,
    key: Arc<[u8]>,
    force_released: ForceReleasedValues,
    resource: u8,
    finished: FinishedForceReleases,
}

/// The resources whose locks were force-released at stores since the checkers were notified.
pub(super) type FinishedForceReleases = Arc<Mutex<Vec<u8>>>;

/// The lock values that a force-release has added to the break records of stores.
pub(super) type ForceReleasedValues = Arc<Mutex<HashSet<[u8; 32]>>>;

impl StoreForceRelease {
    pub(super) fn send(self) {
        let Self {
            nodes,
            key,
            force_released,
            resource,
            finished,
        } = self;
        let steps = Arc::new_cyclic(|own| ForceReleaseSteps {
            own: own.clone(),
            nodes,
            key,
            force_released,
            resource,
            finished,
            state: Mutex::default(),
        });
        steps.begin_step(Arc::default(), false);
    }
}

/// The steps of a force-release at the stores. Each step begins when all stores have answered the previous step.
struct ForceReleaseSteps {
    own: Weak<Self>,
    nodes: Vec<Arc<dyn Node>>,
    key: Arc<[u8]>,
    force_released: ForceReleasedValues,
    resource: u8,
    finished: FinishedForceReleases,
    state: Mutex<StepState>,
}

#[derive(Default)]
struct StepState {
    /// The number of steps that were begun.
    begun_steps: u8,
    /// The number of stores that have not answered the present step.
    unanswered_stores: usize,
    /// Whether a store has executed the present step.
    is_executed: bool,
    /// The states of the lock that the first step has read.
    lock_states: Vec<KeyState>,
}

impl ForceReleaseSteps {
    fn begin_step(&self, ended: Arc<[Ended]>, delete: bool) {
        let Some(own) = self.own.upgrade() else {
            return;
        };
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.begun_steps += 1;
            state.unanswered_stores = self.nodes.len();
            state.is_executed = false;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let request = Request::Break {
                key: self.key.clone(),
                ended: ended.clone(),
                delete,
            };
            node.send(request, Reply::new(own.clone(), index, Phase::Look));
        }
    }
}

impl ReplySink for ForceReleaseSteps {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        let (begun_steps, ended) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_executed |= answer.is_ok();
            if let (1, Ok(Answer::State(lock_state))) = (state.begun_steps, answer) {
                state.lock_states.push(lock_state);
            }
            state.unanswered_stores = state.unanswered_stores.saturating_sub(1);
            if state.unanswered_stores > 0 {
                return;
            }
            if state.begun_steps == 3 && state.is_executed {
                let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
                finished.push(self.resource);
            }
            (state.begun_steps, Ended::all(state.lock_states.iter()))
        };
        if begun_steps < 3 && !ended.is_empty() {
            let mut values = self
                .force_released
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            values.extend(ended.iter().flat_map(|lock| lock_values(&lock.record)));
            drop(values);
            self.begin_step(ended.into(), begun_steps == 2);
        }
    }
}

impl Shared {
    /// Reports to the checkers that a client sends a request to a store. If the client's process is dead, reports
    /// nothing and returns false.
    pub(crate) fn report_store_request(
        &self,
        link: usize,
        master: usize,
        request: &Request,
    ) -> bool {
        let mut world = self.world();
        if world.links[link].is_dead {
            return false;
        }
        world.report_request(link, request);
        world.report_request_to_store(master, request);
        true
    }
}

impl World {
    fn report_request_to_store(&mut self, master: usize, request: &Request) {
        let now = self.now;
        match request {
            Request::Acquire { claim, .. } => {
                self.released_values
                    .remove(&(master, claim.token().to_hex()));
            }
            Request::Release { claim, leave: true } => {
                if let Some(ticket) = claim.ticket() {
                    self.left_waiters.insert((master, ticket.waiter.clone()));
                }
                self.observer
                    .report_fact(now, &Fact::WaiterLeft { master, claim });
            }
            Request::Write {
                claim,
                token,
                value,
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                let fact = Fact::Value {
                    resource: place_of_key(claim.key()),
                    operation: None,
                    event: ValueEvent::Stored(*token, bytes),
                };
                self.observer.report_fact(now, &fact);
            }
            _ => {}
        }
    }

    /// Reports to the checkers that a client has received an answer from a store.
    pub(crate) fn report_store_answer(
        &mut self,
        master: usize,
        (request, sent_at): (&Request, u64),
        answer: &Result<Answer, Fault>,
    ) {
        let now = self.now;
        self.trace_store_answer(master, request, answer);
        let fact = Fact::StoreAnswered {
            master,
            sent_at,
            answer,
        };
        self.observer.report_fact(now, &fact);
        match (request, answer) {
            (Request::Acquire { claim, .. }, Ok(Answer::Refused { line: Some(_), .. })) => {
                let has_left =
                    |waiter: &Arc<str>| self.left_waiters.contains(&(master, waiter.clone()));
                if claim
                    .ticket()
                    .is_some_and(|ticket| !has_left(&ticket.waiter))
                {
                    self.observer
                        .report_fact(now, &Fact::WaiterQueued { master, claim });
                }
            }
            (Request::Release { claim, .. }, Ok(Answer::Released(_))) => {
                self.released_values
                    .insert((master, claim.token().to_hex()));
                self.observer.report_fact(now, &Fact::ReleaseReported);
            }
            (Request::Extend { items }, Ok(Answer::Extended(results))) => {
                for (item, result) in items.iter().zip(results) {
                    if item.claim.group().is_none() {
                        let fact = Fact::StoreExtended {
                            master,
                            claim: &item.claim,
                            result,
                        };
                        self.observer.report_fact(now, &fact);
                    }
                }
            }
            _ => {}
        }
    }

    /// Replaces the connections of one client process to all stores, and returns the previous connections. The caller
    /// must unlock the `World` before it drops them, because the drop of a connection locks the `World`.
    pub(crate) fn replace_store_connections(
        &mut self,
        client: usize,
        connections: Vec<StoreConnection>,
    ) -> Vec<StoreConnection> {
        let is_of_client = |connection: &mut StoreConnection| connection.0 == client;
        let previous = self
            .store_connections
            .extract_if(.., is_of_client)
            .collect();
        self.store_connections.extend(connections);
        previous
    }

    fn trace_store_answer(
        &mut self,
        master: usize,
        request: &Request,
        answer: &Result<Answer, Fault>,
    ) {
        self.trace_line(|| {
            let verb_and_claim = match request {
                Request::Acquire { claim, .. } => ("Acquire", claim),
                Request::Release { claim, .. } => ("Release", claim),
                Request::Extend { items } => ("Extend", &items[0].claim),
                _ => return format!("store {master}: {answer:?}"),
            };
            let (verb, claim) = verb_and_claim;
            let (value, key) = (short_hex(&claim.token().to_hex()), claim.key());
            let key = String::from_utf8_lossy(key);
            format!("store {master} answers {verb} of {value} on {key}: {answer:?}")
        });
    }

    /// Called when a store has lost its records without a restart. The client processes may then write values again that
    /// the store has reported as released.
    pub(super) fn forget_released_values(&mut self, master: usize) {
        self.released_values.retain(|(of, _)| *of != master);
    }

    /// Called when a record in a store changes from `before` to `state`. If the change adds a lock value whose release
    /// the store has already answered, reports this value. Values in break records are left out: a force-release writes
    /// each value that it read from one master to all masters.
    pub(super) fn check_written_again(&mut self, master: usize, state: &[u8], before: &[u8]) {
        let values_before = lock_values(before);
        let force_released = self
            .force_released_values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for value in lock_values(state) {
            let is_new = !values_before.contains(&value) && !force_released.contains(&value);
            if is_new && self.released_values.contains(&(master, value)) {
                let value = &value;
                self.observer
                    .report_fact(self.now, &Fact::ReleasedValueWritten { master, value });
            }
        }
    }

    /// Prepares a force-release of a lock at all stores. It will be sent through the connections of the first client
    /// process that is running.
    pub(super) fn prepare_store_force_release(
        &self,
        resource: u8,
        missed: u16,
    ) -> StoreForceRelease {
        let is_running = |(client, ..): &&StoreConnection| {
            !self.processes[*client].is_killed && self.processes[*client].paused_until <= self.now
        };
        let first_client = self
            .store_connections
            .iter()
            .find(is_running)
            .map(|(client, ..)| *client);
        let connections = self.store_connections.iter().filter(|(client, master, _)| {
            Some(*client) == first_client && missed >> master & 1 == 0
        });
        StoreForceRelease {
            nodes: connections.map(|(.., node)| node.clone()).collect(),
            key: key_of_place(resource).as_bytes().into(),
            force_released: self.force_released_values.clone(),
            resource,
            finished: self.finished_force_releases.clone(),
        }
    }

    /// Reports to the checkers the force-releases that stores have executed since the last call.
    pub(super) fn report_finished_force_releases(&mut self) {
        if self.store_connections.is_empty() {
            return;
        }
        let mut finished = self
            .finished_force_releases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let resources = std::mem::take(&mut *finished);
        drop(finished);
        for resource in resources {
            self.observer.coverage.store_force_releases += 1;
            self.report_happening_to(Happening::ForceRelease, None, Some(resource.into()));
        }
    }
}

/// All texts in these bytes that look like a lock value: 32 hexadecimal digits.
fn lock_values(bytes: &[u8]) -> Vec<[u8; 32]> {
    let windows = bytes.windows(32);
    let hex = windows.filter(|window| window.iter().all(u8::is_ascii_hexdigit));
    hex.filter_map(|window| window.try_into().ok()).collect()
}
