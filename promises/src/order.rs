//! Checks "first come, first served": a client must not overtake a waiter that was queued before the client's first
//! attempt. The checker compares times; it does not read the queues of the masters.

use std::collections::BTreeSet;

/// The clients that are queued for one resource, each with the time at which it joined the queue. The caller decides
/// when a client counts as queued, e.g. once a majority of the masters has queued this client.
#[derive(Debug)]
pub struct Line<I> {
    waiting: BTreeSet<(u64, I)>,
}

impl<I> Default for Line<I> {
    fn default() -> Self {
        Self {
            waiting: BTreeSet::new(),
        }
    }
}

impl<I: Ord + Clone> Line<I> {
    /// Records that the client `who` has certainly been queued from the time `since` on.
    pub fn stands(&mut self, who: I, since: u64) {
        self.waiting.insert((since, who));
    }

    /// Records that the client `who` has obtained the lock or has stopped waiting.
    pub fn leaves(&mut self, who: &I) {
        self.waiting.retain(|(_, client)| client != who);
    }

    /// Returns the client that has been queued for the longest time, and the time from which it was certainly queued;
    /// `None` if no client is queued.
    pub fn first(&self) -> Option<(u64, &I)> {
        self.waiting.first().map(|(since, client)| (*since, client))
    }

    /// Like [`first`](Self::first), but considers only the clients for which `is_matching` returns true.
    pub fn first_of(&self, is_matching: impl Fn(&I) -> bool) -> Option<(u64, &I)> {
        let first_match = self.waiting.iter().find(|(_, client)| is_matching(client));
        first_match.map(|(since, client)| (*since, client))
    }

    /// Checks whether a client that obtained the lock has overtaken a queued client. If so, returns the client that has
    /// been queued for the longest time.
    ///
    /// `began` is the start of the new holder's first attempt. Before this method, call [`leaves`](Self::leaves) for
    /// the new holder.
    pub fn passed(&self, began: u64) -> Option<&I> {
        let (since, first) = self.first()?;
        (since < began).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_begins_after_a_waiter_was_queued_must_not_overtake_the_waiter() {
        let mut line = Line::default();
        assert_eq!(line.passed(100), None);
        line.stands(1, 10);
        line.stands(2, 20);
        assert_eq!(
            line.passed(10),
            None,
            "an attempt that began exactly when the waiter was queued must not count as overtaking the waiter"
        );
        assert_eq!(line.passed(15), Some(&1));
        assert_eq!(line.first_of(|client| *client != 1), Some((20, &2)));
        line.leaves(&1);
        assert_eq!(line.passed(15), None);
        assert_eq!(line.passed(21), Some(&2));
    }
}
