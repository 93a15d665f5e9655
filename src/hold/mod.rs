//! A held lock: until when, how it is prolonged, and how it ends.

pub(crate) mod core;
mod end;
mod extension;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod released;
pub(crate) mod renewal;
pub(crate) mod schedule;
