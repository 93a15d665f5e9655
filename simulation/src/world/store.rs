//! Reports to the checkers which requests clients send to stores, and which answers clients receive from stores.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quorate::node::{
    Answer, Ended, Extended, Fault, KeyState, Node, Phase, Reply, ReplySink, Request,
};

use super::{Shared, World};
use crate::facts::{Fact, short};
use crate::locker::{name, resource_of};

/// A client's connection to a store. The simulation force-releases (breaks) locks through it. The members are the index
/// of the client, the index of the store among the masters, and the client's `Node` for the store.
pub(crate) type Breaker = (usize, usize, Arc<dyn Node>);

/// A force-release of one lock at all stores. It is sent through the connections of one client process.
pub(super) struct Breaks {
    nodes: Vec<Arc<dyn Node>>,
    key: Arc<[u8]>,
    force_released: ForceReleased,
}

/// The lock values that a force-release has added to the break records of stores.
pub(super) type ForceReleased = Arc<Mutex<HashSet<[u8; 32]>>>;

impl Breaks {
    pub(super) fn send(self) {
        let Self {
            nodes,
            key,
            force_released,
        } = self;
        let steps = Arc::new_cyclic(|own| StoreBreak {
            own: own.clone(),
            nodes,
            key,
            force_released,
            state: Mutex::default(),
        });
        steps.next(Arc::default(), false);
    }
}

/// The steps of a force-release at the stores. Each step begins when all stores have answered the previous step.
struct StoreBreak {
    own: Weak<Self>,
    nodes: Vec<Arc<dyn Node>>,
    key: Arc<[u8]>,
    force_released: ForceReleased,
    state: Mutex<Steps>,
}

#[derive(Default)]
struct Steps {
    /// The number of steps that were begun.
    begun: u8,
    /// The number of stores that have not answered the present step.
    open: usize,
    /// The states of the lock that the first step has read.
    states: Vec<KeyState>,
}

impl StoreBreak {
    fn next(&self, ended: Arc<[Ended]>, delete: bool) {
        let Some(own) = self.own.upgrade() else {
            return;
        };
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.begun += 1;
            state.open = self.nodes.len();
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

impl ReplySink for StoreBreak {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        let (begun, ended) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let (1, Ok(Answer::State(was))) = (state.begun, answer) {
                state.states.push(was);
            }
            state.open = state.open.saturating_sub(1);
            if state.open > 0 {
                return;
            }
            (state.begun, Ended::all(state.states.iter()))
        };
        if begun < 3 && !ended.is_empty() {
            let mut known = self
                .force_released
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            known.extend(ended.iter().flat_map(|one| lock_values(&one.record)));
            drop(known);
            self.next(ended.into(), begun == 2);
        }
    }
}

impl Shared {
    /// Reports to the checkers that a client sends a request to a store. If the client's process is dead, reports
    /// nothing and returns false.
    pub(crate) fn asks_store(&self, link: usize, master: usize, request: &Request) -> bool {
        let mut world = self.world();
        if world.links[link].dead {
            return false;
        }
        world.started(link, request);
        world.asks_store(master, request);
        true
    }
}

impl World {
    fn asks_store(&mut self, master: usize, request: &Request) {
        let now = self.now;
        match request {
            Request::Acquire { claim, .. } => {
                self.released.remove(&(master, claim.token().to_hex()));
            }
            Request::Release { claim, leave: true } => {
                if let Some(place) = claim.ticket() {
                    self.left.insert((master, place.waiter.clone()));
                }
                self.watch.fact(now, &Fact::Left { master, claim });
            }
            Request::Write {
                claim,
                token,
                value,
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                let resource = resource_of(claim.key());
                let fact = Fact::Writes {
                    resource,
                    token: *token,
                    bytes,
                };
                self.watch.fact(now, &fact);
            }
            _ => {}
        }
    }

    /// Reports to the checkers that a client has received an answer from a store.
    pub(crate) fn hears_store(
        &mut self,
        master: usize,
        request: &Request,
        answer: &Result<Answer, Fault>,
    ) {
        let now = self.now;
        self.say_heard(master, request, answer);
        match (request, answer) {
            (Request::Acquire { claim, .. }, Ok(Answer::Refused { line: Some(_), .. })) => {
                let left = |waiter: &Arc<str>| self.left.contains(&(master, waiter.clone()));
                if claim.ticket().is_some_and(|place| !left(&place.waiter)) {
                    self.watch.fact(now, &Fact::Stood { master, claim });
                }
            }
            (Request::Release { claim, .. }, Ok(Answer::Released(_))) => {
                self.released.insert((master, claim.token().to_hex()));
                self.watch.fact(now, &Fact::Released);
            }
            (Request::Extend { items }, Ok(Answer::Extended(said))) => {
                let denied = items.iter().zip(said);
                for (item, said) in denied {
                    if *said == Extended::NotOurs && item.claim.group().is_none() {
                        let claim = &item.claim;
                        self.watch.fact(now, &Fact::Denied { master, claim });
                    }
                }
            }
            _ => {}
        }
    }

    /// Replaces the connections of one client process to all stores, and returns the previous connections. The caller
    /// must unlock the `World` before it drops them, because the drop of a connection locks the `World`.
    pub(crate) fn replace_breakers(&mut self, client: usize, new: Vec<Breaker>) -> Vec<Breaker> {
        let of = |breaker: &mut Breaker| breaker.0 == client;
        let old = self.breakers.extract_if(.., of).collect();
        self.breakers.extend(new);
        old
    }

    fn say_heard(&mut self, master: usize, request: &Request, answer: &Result<Answer, Fault>) {
        self.say(|| {
            let what = match request {
                Request::Acquire { claim, .. } => ("Acquire", claim),
                Request::Release { claim, .. } => ("Release", claim),
                Request::Extend { items } => ("Extend", &items[0].claim),
                _ => return format!("store {master}: {answer:?}"),
            };
            let (verb, claim) = what;
            let (value, key) = (short(&claim.token().to_hex()), claim.key());
            let key = String::from_utf8_lossy(key);
            format!("store {master} answers {verb} of {value} on {key}: {answer:?}")
        });
    }

    /// Called when a record in a store changes from `before` to `state`. If the change adds a lock value whose release
    /// the store has already answered, reports this value. Values in break records are left out: a force-release writes
    /// each value that it read from one master to all masters.
    pub(super) fn written_again(&mut self, master: usize, state: &[u8], before: &[u8]) {
        let known = lock_values(before);
        let broken = self
            .force_released
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for value in lock_values(state) {
            let is_new = !known.contains(&value) && !broken.contains(&value);
            if is_new && self.released.contains(&(master, value)) {
                let value = &value;
                self.watch
                    .fact(self.now, &Fact::WrittenAgain { master, value });
            }
        }
    }

    /// Prepares a force-release of a lock at all stores. It will be sent through the connections of the first client
    /// process that is running.
    pub(super) fn breaks_at_stores(&self, resource: u8, missed: u16) -> Breaks {
        let alive = |(client, ..): &&Breaker| {
            !self.processes[*client].killed && self.processes[*client].paused_until <= self.now
        };
        let first = self.breakers.iter().find(alive).map(|(client, ..)| *client);
        let of = self
            .breakers
            .iter()
            .filter(|(client, master, _)| Some(*client) == first && missed >> master & 1 == 0);
        Breaks {
            nodes: of.map(|(.., node)| node.clone()).collect(),
            key: name(resource).as_bytes().into(),
            force_released: self.force_released.clone(),
        }
    }
}

/// All texts in these bytes that look like a lock value: 32 hexadecimal digits.
fn lock_values(bytes: &[u8]) -> Vec<[u8; 32]> {
    let windows = bytes.windows(32);
    let hex = windows.filter(|window| window.iter().all(u8::is_ascii_hexdigit));
    hex.filter_map(|window| window.try_into().ok()).collect()
}
