//! The rules of the lock as pure decisions: votes and times go in, verdicts come out.
//!
//! Nothing here awaits, reads a clock, draws a random number or talks to a master, so every rule
//! can be tested with plain values. The rules are those of `docs/protocol.md`; the section is
//! named where a rule is applied.

pub(crate) mod election;
pub(crate) mod fencing;
pub(crate) mod finding;
pub(crate) mod instant;
pub(crate) mod lease;
pub(crate) mod mark;
pub(crate) mod permits;
pub(crate) mod quorum;
pub(crate) mod register;
pub(crate) mod restart;
pub(crate) mod round;
pub(crate) mod validity;
