//! The queue of waiters for one lock on one master, computed from the requests that the master has executed.

use std::sync::Arc;

/// A waiter's rank in the queue: its ticket number, then its name.
pub(super) type Rank = (u64, Arc<str>);

#[derive(Default)]
pub(super) struct Queue(Vec<Standing>);

struct Standing {
    rank: Rank,
    /// When the waiter's heartbeat expires, in milliseconds on the master's clock.
    until_ms: u64,
}

impl Queue {
    /// Adds a waiter to the queue. If the waiter is queued already, records its heartbeat, which expires at `until_ms`.
    pub(super) fn stand(&mut self, rank: Rank, until_ms: u64, now_ms: u64) {
        // Remove waiters whose heartbeats have expired. If they were kept, a clock that jumps back would make them live
        // again.
        self.0
            .retain(|one| one.until_ms > now_ms || one.rank == rank);
        match self.0.iter_mut().find(|one| one.rank == rank) {
            Some(one) => one.until_ms = until_ms,
            None => self.0.push(Standing { rank, until_ms }),
        }
    }

    pub(super) fn leave(&mut self, name: &str) {
        self.0.retain(|one| *one.rank.1 != *name);
    }

    /// Returns the live waiters ahead of `rank`. If `rank` is `None`, returns all live waiters.
    pub(super) fn before(
        &self,
        rank: Option<&Rank>,
        now_ms: u64,
    ) -> impl Iterator<Item = &Arc<str>> {
        let live = self.0.iter().filter(move |one| one.until_ms > now_ms);
        live.filter(move |one| rank.is_none_or(|rank| one.rank < *rank))
            .map(|one| &one.rank.1)
    }
}
