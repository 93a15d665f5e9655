//! First come, first served: once a client is certainly queued, no client whose first attempt began later gets the lock
//! before it. This is checked in true time, not by the tickets of the queue.

use std::collections::BTreeSet;

/// The clients that are certainly queued for one resource, each with the time since when.
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
    /// Records that the client `who` has been certainly queued since `since`.
    pub fn stands(&mut self, who: I, since: u64) {
        self.waiting.insert((since, who));
    }

    /// Records that the client `who` has the lock or stops waiting.
    pub fn leaves(&mut self, who: &I) {
        self.waiting.retain(|(_, one)| one != who);
    }

    /// Returns the client that has been queued the longest, and since when.
    pub fn first(&self) -> Option<(u64, &I)> {
        self.waiting.first().map(|(since, one)| (*since, one))
    }

    /// Returns the client that has been queued the longest among those for which `is` returns true, and since when.
    pub fn first_of(&self, is: impl Fn(&I) -> bool) -> Option<(u64, &I)> {
        let first = self.waiting.iter().find(|(_, one)| is(one));
        first.map(|(since, one)| (*since, one))
    }

    /// Returns the client that was overtaken by a winner whose first attempt began at `began`; `None` if there is none.
    /// The winner must have left the queue before.
    pub fn passed(&self, began: u64) -> Option<&I> {
        let (since, first) = self.first()?;
        (since < began).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_client_may_not_win_before_a_queued_waiter() {
        let mut line = Line::default();
        assert_eq!(line.passed(100), None);
        line.stands(1, 10);
        line.stands(2, 20);
        assert_eq!(line.passed(10), None, "begun by then");
        assert_eq!(line.passed(15), Some(&1));
        assert_eq!(line.first_of(|one| *one != 1), Some((20, &2)));
        line.leaves(&1);
        assert_eq!(line.passed(15), None);
        assert_eq!(line.passed(21), Some(&2));
    }
}
