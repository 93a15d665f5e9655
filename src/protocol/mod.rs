//! The rules of the lock as pure functions: their inputs are votes and times, their results are verdicts.
//!
//! Nothing here awaits, reads a clock, draws a random number or contacts a master, so every rule can be tested with
//! plain values. The rules and their reasons are in `docs/protocol.md`. Code that applies a rule names the heading
//! under which the rule is explained there.

pub(crate) mod age;
pub(crate) mod clocks;
pub(crate) mod election;
pub(crate) mod fencing;
pub(crate) mod finding;
pub(crate) mod instant;
pub(crate) mod lease;
pub(crate) mod marker;
pub(crate) mod permits;
pub(crate) mod quorum;
pub(crate) mod register;
pub(crate) mod restart;
pub(crate) mod round;
pub(crate) mod validity;
