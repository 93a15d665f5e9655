//! Checkers for the promises of a lock. Each promise has one checker, which receives the events of a history in their
//! order, e.g. "client 3 obtained the lock".
//!
//! The simulation, the chaos runs, and the tests with other clients (`scripts/interop`) and of the command
//! (`scripts/proof`) share these checkers. The simulation reports each event when it happens. The others replay a
//! history.
//!
//! The checkers report every breach of a promise. Each promise has assumptions, for example that masters keep their
//! data. If an assumption was false in a run, the caller may ignore the breach.
//!
//! Times are numbers in any unit, all with the same origin. Events must be reported in the order in which they happened.

mod believers;
mod exclusion;
mod history;
mod idle;
mod loss_notice;
mod order;
mod owner_tokens;
mod permits;
mod refusals;
mod terms;
mod token_order;
mod tokens;
mod values;

pub use exclusion::Exclusion;
pub use history::{
    Assumption, Breach, Class, Event, Hold, Moment, Party, Permit, Promise, Queue, ValueCall,
    ValueEvent, ValueResult,
};
pub use idle::{Idle, IdleLimits};
pub use loss_notice::LossNotice;
pub use order::Line;
pub use owner_tokens::OwnerTokens;
pub use permits::Permits;
pub use refusals::Refusals;
pub use terms::Terms;
pub use tokens::Tokens;
pub use values::Values;
