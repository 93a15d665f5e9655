//! The kinds of lock beside the plain one, as users meet them. What each claims stands in
//! `acquire/kind.rs`.

pub(crate) mod election;
pub(crate) mod owner;
pub(crate) mod shared;
