//! A small model of the protocol, for two purposes:
//!
//! - [`search()`] visits every state of a small world: a few masters, a few attempts to take one lock, requests that
//!   arrive at any time or never, clocks that differ, restarts of masters, and a change of the masters. In each state,
//!   at most one client holds the lock, and fencing tokens have risen. With a changed rule ([`ChangedRule`]), the search
//!   finds a shortest schedule that breaks a promise.
//! - [`Replay`] checks recorded histories of the simulation: each event must be a step that the rules allow. So the model
//!   cannot drift from the code.
//!
//! Both use the same functions of the file `rules.rs`.
//!
//! # Not in the model
//!
//! - Several resources, shared locks, semaphores, values, queues and force-releases.
//! - Restarts during a change of the masters, and the age records of masters.
//! - Liveness: the model says which locks clients may get, and not that they get one.
//!
//! Ticks are coarse: a TTL is two or three ticks. Two times that differ by less than a tick are not told apart.
//!
//! # Why a search of our own
//!
//! The same model was searched with `stateright` 0.31 (one thread, breadth first). In the case `restarts`, it visited
//! 875,826 states, and this package visits 157,490: masters that are in the same sets can be exchanged, and `stateright`
//! supports such an exchange only in its depth-first search, which gives no shortest schedules. It took 13 times as long.
//! It brings 47 packages, whose build takes 31 s of processor time. This package has no dependencies, and its build takes
//! 4 s.
//!
//! Without the exchange, both searches visit the same number of states
//! (`search_without_the_exchange_of_masters_visits_as_many_states_as_stateright`).

#[macro_use]
mod count_fields;

mod action;
pub mod cases;
mod changed_rule;
mod counts;
mod effects;
pub mod history;
mod replay;
pub mod rules;
mod search;
mod steps;
mod world;

pub use action::Action;
pub use changed_rule::ChangedRule;
pub use counts::Counts;
pub use replay::{Accepted, Refusal, Replay};
pub use rules::Rules;
pub use search::{Model, Outcome, STATE_LIMIT, Schedule, search};
pub use steps::Search;
pub use world::{Case, World};
