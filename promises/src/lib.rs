//! The promises of a lock, as checkers over facts.
//!
//! The simulation reports facts while they happen, and a chaos run reports them from its history. So both judge a
//! promise in the same way. The caller decides which assumptions were violated, and which violations of promises that
//! excuses. The checkers know neither the library nor the source of the facts.
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
