//! Taking a lock: the loop from first attempt to last, and a waiter's place in line on the masters.

pub(crate) mod acquire_loop;
mod in_line;
pub(crate) mod kind;
