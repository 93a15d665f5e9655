//! The queue of one lock on one master, as the messages make it.

use std::sync::Arc;

/// A waiter's rank: its ticket, then its name.
pub(super) type Rank = (u64, Arc<str>);

#[derive(Default)]
pub(super) struct Queue(Vec<Standing>);

struct Standing {
    rank: Rank,
    /// When the heartbeat expires, in milliseconds on the master's clock.
    until_ms: u64,
}

impl Queue {
    /// A waiter joins the queue, or sends a heartbeat.
    pub(super) fn stand(&mut self, rank: Rank, until_ms: u64, now_ms: u64) {
        // Expired waiters are removed, so that a clock that jumps back does not bring them back.
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

    /// The live waiters ahead of that rank; `None` for the end of the queue.
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
