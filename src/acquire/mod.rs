//! Acquiring a lock: the loop from the first attempt to the last, and a waiter's place in the queue on the masters.

pub(crate) mod acquire_loop;
mod in_line;
pub(crate) mod kind;
