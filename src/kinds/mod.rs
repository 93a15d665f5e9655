//! The public interfaces of all kinds of lock other than the plain one. `acquire/kind.rs` describes what each kind
//! claims on the masters.

pub(crate) mod election;
pub(crate) mod owner;
pub(crate) mod semaphore;
pub(crate) mod shared;
