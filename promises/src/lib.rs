//! Checkers for the promises of a lock. They receive facts, e.g. "client 3 obtained the lock".
//!
//! The simulation and the chaos runs share these checkers. The simulation reports each fact when it happens. A chaos
//! run reports the facts from its history after the run.
//!
//! The checkers report every breach of a promise. Each promise has assumptions, for example that masters keep their
//! data. If an assumption was false in a run, the caller may ignore the breach.
//!
//! Times are numbers in any unit, all with the same origin. Facts must be reported in the order in which they happened.

mod exclusion;
mod loss_notice;
mod order;
mod tokens;

pub use exclusion::{Belief, Exclusion, Overlap};
pub use loss_notice::LossNotice;
pub use order::Line;
pub use tokens::{Breach, Obtained, Tokens};
