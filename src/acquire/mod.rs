//! Acquiring a lock: the loop from the first attempt to the last, and a waiter's place in the queue on the masters.

pub(crate) mod acquire_loop;
pub(crate) mod kind;
mod queue_place;
