//! What is built on a held lock.

pub(crate) mod register;
