//! The kinds of lock beside the plain one, as users meet them. What each claims stands in
//! `acquire/kind.rs`. And what is kept under a lock: a register, and what is built on it.

pub(crate) mod election;
pub(crate) mod once;
pub(crate) mod owner;
pub(crate) mod quota;
pub(crate) mod register;
pub(crate) mod semaphore;
pub(crate) mod shared;
pub(crate) mod value;
pub(crate) mod value_error;
