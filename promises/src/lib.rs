//! Checkers for the promises of a lock. They receive facts, e.g. "client 3 obtained the lock".
//!
//! The simulation reports each fact when it happens. A chaos run reports the facts from its history after the run. So
//! the same code judges a promise in the simulation and in chaos runs. If a fault has violated an assumption behind a
//! promise, the caller decides whether that excuses a breach. The checkers know neither the library nor the source of
//! the facts.
//!
//! Times are numbers on one time base, in any unit. Facts must be reported in the order in which they happened.

mod exclusion;
mod loss_notice;
mod order;
mod tokens;

pub use exclusion::{Belief, Exclusion, Overlap};
pub use loss_notice::LossNotice;
pub use order::Line;
pub use tokens::{Breach, Obtained, Tokens};
