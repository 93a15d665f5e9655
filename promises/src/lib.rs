//! The promises of a lock, as checkers that receive facts, e.g. "client 3 obtained the lock".
//!
//! The simulation reports facts while they happen. A chaos run reports facts from its history afterwards. So the same
//! code judges a promise for both. A fault may violate the assumptions behind a promise; the caller decides which
//! breaches this excuses. The checkers know neither the library nor the source of the facts.
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
