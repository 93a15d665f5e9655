//! The kinds of lock next to the plain one, as users meet them. `acquire/kind.rs` says what each claims.

pub(crate) mod election;
pub(crate) mod owner;
pub(crate) mod semaphore;
pub(crate) mod shared;
