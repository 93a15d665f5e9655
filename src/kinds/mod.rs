//! The kinds of locks other than the plain lock, as users see them; `acquire/kind.rs` determines what each claims. Also
//! the values under locks.

pub(crate) mod election;
pub(crate) mod once;
pub(crate) mod owner;
pub(crate) mod quota;
pub(crate) mod register;
pub(crate) mod semaphore;
pub(crate) mod shared;
pub(crate) mod value;
pub(crate) mod value_error;
