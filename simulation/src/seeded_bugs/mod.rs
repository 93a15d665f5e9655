//! Seeded bugs (wrong implementations) that the checkers must catch. An uncaught bug means that a checker is wrong.
//!
//! [`Flaw`](crate::Flaw) has their names. Some bugs are in the simulated masters, connections or operators; the clients
//! then use the real library. Other bugs are variants of a small client, `wrong_locker::WrongLocker`, which replaces the
//! library. The variant without a flaw must break no rule.

mod ages;
pub(crate) mod counted_holds;
pub(crate) mod frozen_hold;
mod masters;
mod mget;
pub(crate) mod notes;
pub(crate) mod permits;
mod request_context;
pub(crate) mod scripts;
mod tickets;
mod votes;
pub(crate) mod wrong_locker;
pub(crate) mod wrong_register;
