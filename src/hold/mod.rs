//! Held locks: validity, extension, renewal and end.

pub(crate) mod core;
mod end;
mod extension;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod released;
pub(crate) mod renewal;
pub(crate) mod risk;
pub(crate) mod schedule;
