//! An exhaustive search: visits every state that a model can reach, in the order of the number of steps.
//!
//! The search keeps a fingerprint of 64 bits of each visited state, and not the state itself. If two states had the same
//! fingerprint, the search would skip the second one. With ten million states, the probability of this is about one in
//! 400,000.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The interface between the search and a model.
pub trait Model {
    /// A state of the model.
    type State: Clone + Hash;
    /// A step from one state to the next.
    type Action: Copy + Display;

    /// The first state.
    fn initial_state(&self) -> Self::State;

    /// Adds all actions that are possible in this state.
    fn add_actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);

    /// The state after the action; `None` if the action changes nothing.
    fn next_state(&self, state: &Self::State, action: Self::Action) -> Option<Self::State>;

    /// Brings a state into the form that it shares with all states that differ only by an exchange of equal masters.
    fn normalize(&self, state: &mut Self::State);

    /// The promise that is broken in this state; `None` if all promises are kept.
    fn broken_promise(&self, state: &Self::State) -> Option<&'static str>;

    /// Counts what the action, which leads from `before` to `after`, has tested.
    fn count(&mut self, before: &Self::State, action: Self::Action, after: &Self::State);

    /// Describes what is true in the state, for a reader of a schedule.
    fn describe(&self, state: &Self::State) -> String;
}

/// A shortest schedule that breaks a promise.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The name of the broken promise.
    pub promise: &'static str,
    /// The steps: each an action, and the state that it leads to.
    pub steps: Vec<(String, String)>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .steps
            .iter()
            .map(|(action, _)| action.chars().count())
            .max();
        let width = width.unwrap_or(0);
        for (action, state) in &self.steps {
            writeln!(f, "  {action:<width$}  {state}")?;
        }
        write!(f, "  The promise \"{}\" is broken.", self.promise)
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of different states that the search has visited.
    pub states: usize,
    /// The number of actions that the search has taken.
    pub actions: u64,
    /// The largest number of steps to any visited state.
    pub depth: usize,
    /// The first schedule that breaks a promise; `None` if no state breaks one.
    pub schedule: Option<Schedule>,
}

/// The largest number of states that any search in this package may visit. The search then needs about 6 GiB.
pub const STATE_LIMIT: usize = 60_000_000;

/// The fingerprint of each visited state, with the fingerprint of the state before it.
type Visited = HashMap<u64, u64, BuildHasherDefault<Unchanged>>;

/// Visits all states of `model`. Stops at the first state that breaks a promise.
///
/// # Panics
///
/// If the model has more than `limit` states, because a search that ends too early proves nothing.
pub fn search<M: Model>(model: &mut M, limit: usize) -> Outcome {
    let mut first = model.initial_state();
    model.normalize(&mut first);
    let mut visited = Visited::default();
    visited.insert(fingerprint(&first), 0);
    let (mut level, mut next_level) = (vec![first], Vec::new());
    let (mut depth, mut taken, mut actions) = (0, 0, Vec::new());
    while !level.is_empty() {
        for state in &level {
            let from = fingerprint(state);
            actions.clear();
            model.add_actions(state, &mut actions);
            for &action in &actions {
                let Some(mut next) = model.next_state(state, action) else {
                    continue;
                };
                taken += 1;
                model.count(state, action, &next);
                let broken = model.broken_promise(&next);
                model.normalize(&mut next);
                let reached = fingerprint(&next);
                if visited.contains_key(&reached) {
                    continue;
                }
                visited.insert(reached, from);
                if let Some(promise) = broken {
                    let steps = steps_to(model, &visited, reached);
                    return Outcome {
                        states: visited.len(),
                        actions: taken,
                        depth: depth + 1,
                        schedule: Some(Schedule { promise, steps }),
                    };
                }
                next_level.push(next);
            }
            assert!(
                visited.len() <= limit,
                "the model has more than {limit} states, so the search is not complete"
            );
        }
        std::mem::swap(&mut level, &mut next_level);
        next_level.clear();
        depth += usize::from(!level.is_empty());
    }
    Outcome {
        states: visited.len(),
        actions: taken,
        depth,
        schedule: None,
    }
}

/// The steps from the first state to the state with the fingerprint `last`. The search has exchanged equal masters, so
/// the steps are taken again, without an exchange.
fn steps_to<M: Model>(model: &M, visited: &Visited, last: u64) -> Vec<(String, String)> {
    let mut path = vec![last];
    while let Some(before) = visited
        .get(&path[path.len() - 1])
        .filter(|from| **from != 0)
    {
        path.push(*before);
    }
    let (mut state, mut steps) = (model.initial_state(), Vec::new());
    for wanted in path.into_iter().rev().skip(1) {
        let mut actions = Vec::new();
        model.add_actions(&state, &mut actions);
        let reaches = |action: &M::Action| {
            let next = model.next_state(&state, *action)?;
            let mut normalized = next.clone();
            model.normalize(&mut normalized);
            (fingerprint(&normalized) == wanted).then_some((*action, next))
        };
        let step = actions.iter().find_map(reaches);
        let (action, next) = step.expect("the search has taken a step to each state");
        steps.push((action.to_string(), model.describe(&next)));
        state = next;
    }
    steps
}

fn fingerprint<S: Hash>(state: &S) -> u64 {
    let mut hasher = Fingerprint::default();
    state.hash(&mut hasher);
    hasher.finish().max(1)
}

/// A hash of bytes, eight at a time: each group is multiplied, and both halves of the product are kept.
#[derive(Default)]
struct Fingerprint {
    mixed: u64,
    group: u64,
    bytes: u32,
}

impl Fingerprint {
    fn mix(&mut self, group: u64) {
        let factor = u128::from(self.mixed ^ 0x9E37_79B9_7F4A_7C15);
        let product = u128::from(group ^ 0xD6E8_FEB8_6659_FD93) * factor;
        self.mixed = (product as u64) ^ (product >> 64) as u64 ^ group.rotate_left(29);
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.group = self.group << 8 | u64::from(byte);
        self.bytes += 1;
        if self.bytes.is_multiple_of(8) {
            self.mix(self.group);
            self.group = 0;
        }
    }

    fn finish(&self) -> u64 {
        let mut last = Self { ..*self };
        last.mix(self.group);
        last.mix(u64::from(self.bytes));
        last.mix(last.mixed >> 32);
        last.mixed
    }
}

/// The hash of a fingerprint is the fingerprint itself.
#[derive(Default)]
struct Unchanged(u64);

impl Hasher for Unchanged {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
