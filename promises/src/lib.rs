//! What a lock promises, as checkers over facts.
//!
//! The simulation tells them what happens as it happens, a chaos run what its history tells. So a promise
//! is judged in one way. Which assumptions had been broken by then, and what that excuses, is for those
//! who ask; the checkers know neither the library nor where the facts come from.
//!
//! Times are numbers on one time base, of any unit. Facts are told in the order in which they happened.

mod exclusion;
mod loss_notice;
mod order;
mod tokens;

pub use exclusion::{Belief, Exclusion, Overlap};
pub use loss_notice::LossNotice;
pub use order::Line;
pub use tokens::{Breach, Obtained, Tokens};
