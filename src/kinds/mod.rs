//! The public interfaces of all kinds of lock except plain locks. `acquire/kind.rs` lists the keys that each kind
//! takes.

pub(crate) mod election;
pub(crate) mod owner;
pub(crate) mod semaphore;
pub(crate) mod shared;
