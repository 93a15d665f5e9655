//! The queue of waiters for one lock on one master, computed from the requests that the master has executed.

use std::sync::Arc;

/// A waiter's rank in the queue: its ticket number, then its name.
pub(super) type Rank = (u64, Arc<str>);

#[derive(Default)]
pub(super) struct MasterQueue(Vec<QueuedWaiter>);

struct QueuedWaiter {
    rank: Rank,
    /// When the waiter's heartbeat expires, in milliseconds on the master's clock.
    expires_at_ms: u64,
}

impl MasterQueue {
    /// Adds a waiter to the queue. If the waiter is queued already, records its heartbeat, which expires at
    /// `expires_at_ms`.
    pub(super) fn enqueue(&mut self, rank: Rank, expires_at_ms: u64, now_ms: u64) {
        // Remove waiters whose heartbeats have expired. If they were kept, a clock that jumps back would make them live
        // again.
        self.0
            .retain(|waiter| waiter.expires_at_ms > now_ms || waiter.rank == rank);
        match self.0.iter_mut().find(|waiter| waiter.rank == rank) {
            Some(waiter) => waiter.expires_at_ms = expires_at_ms,
            None => self.0.push(QueuedWaiter {
                rank,
                expires_at_ms,
            }),
        }
    }

    pub(super) fn dequeue(&mut self, name: &str) {
        self.0.retain(|waiter| *waiter.rank.1 != *name);
    }

    /// Returns the live waiters ahead of `rank`. If `rank` is `None`, returns all live waiters.
    pub(super) fn ahead_of(
        &self,
        rank: Option<&Rank>,
        now_ms: u64,
    ) -> impl Iterator<Item = &Arc<str>> {
        let live_waiters = self
            .0
            .iter()
            .filter(move |waiter| waiter.expires_at_ms > now_ms);
        live_waiters
            .filter(move |waiter| rank.is_none_or(|rank| waiter.rank < *rank))
            .map(|waiter| &waiter.rank.1)
    }
}
