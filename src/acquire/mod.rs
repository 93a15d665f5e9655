//! Acquiring a lock: the loop that makes the attempts, and a waiter's entry in the queue on the masters.

pub(crate) mod acquire_loop;
pub(crate) mod kind;
mod queue_place;
