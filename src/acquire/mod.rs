//! Acquiring a lock: the loop that makes the attempts, the choice of a semaphore's slot, and a waiter's entry in the
//! queue on the masters.

pub(crate) mod acquire_loop;
pub(crate) mod kind;
mod queue_place;
mod slots;
#[cfg(test)]
mod tests;
