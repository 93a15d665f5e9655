//! Requests that are sent to all masters at the same time: the fan-out, and one file per kind of request.
//!
//! Only [`attempt`] decides whether a lock is held.

pub(crate) mod acquire;
pub(crate) mod attempt;
mod confirm;
pub(crate) mod coordinator;
pub(crate) mod extend;
pub(crate) mod fan_out;
pub(crate) mod force_release;
mod key_states;
mod list;
pub(crate) mod lock_target;
mod note;
pub(crate) mod register;
pub(crate) mod release;

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
