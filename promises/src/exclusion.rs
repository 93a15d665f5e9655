//! Checks that at most one client at a time believes that it holds a lock.
//!
//! The belief begins when the client obtains the lock. It ends at the first of these events:
//!
//! - The client sends the release.
//! - The validity of the lock ends.
//! - The client is notified that the lock was lost.

use std::collections::HashMap;
use std::hash::Hash;

/// A client's belief that it holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief<I> {
    /// The id of the client. If one client can hold the lock twice at the same time, use a different id for each hold.
    pub who: I,
    /// When the client obtained the lock.
    pub from: u64,
    /// When the lock's validity ends. From this time on, the client no longer believes that it holds the lock.
    pub until: u64,
}

/// A period in which two clients both believe that they hold the same lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap<I> {
    /// The `who` of the belief that began first.
    pub other: I,
    /// When the overlap begins.
    pub from: u64,
    /// When the overlap ends: the earlier [`until`](Belief::until) of the two clients.
    pub to: u64,
}

/// Checks that no two clients believe at the same time that they hold the same resource.
#[derive(Debug)]
pub struct Exclusion<R, I> {
    open: HashMap<R, Vec<Belief<I>>>,
    judged: u64,
}

impl<R, I> Default for Exclusion<R, I> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            judged: 0,
        }
    }
}

impl<R: Eq + Hash, I: Copy + Eq> Exclusion<R, I> {
    /// Records that a client has obtained `resource`. Returns the overlaps of this `belief` with the earlier beliefs of
    /// other clients.
    pub fn begins(&mut self, resource: R, belief: Belief<I>) -> Vec<Overlap<I>> {
        self.judged += 1;
        let open = self.open.entry(resource).or_default();
        open.retain(|other_belief| other_belief.until > belief.from);
        let overlaps = overlaps(open, &belief);
        open.push(belief);
        overlaps
    }

    /// Records that the lock of `who` is now valid until `until`, for example after an extension. Returns the overlaps
    /// with other clients from the time `now` on.
    pub fn moves(&mut self, resource: &R, who: I, now: u64, until: u64) -> Vec<Overlap<I>> {
        let Some(open) = self.open.get_mut(resource) else {
            return Vec::new();
        };
        let Some(own_belief) = open.iter_mut().find(|own_belief| own_belief.who == who) else {
            return Vec::new();
        };
        own_belief.until = until;
        let from_now = Belief {
            from: now,
            ..*own_belief
        };
        overlaps(open, &from_now)
    }

    /// Records that `who` has stopped believing that it holds `resource`, e.g. because it sent the release.
    pub fn ends(&mut self, resource: &R, who: I) {
        if let Some(open) = self.open.get_mut(resource) {
            open.retain(|other_belief| other_belief.who != who);
        }
    }

    /// The number of calls of [`begins`](Self::begins).
    pub fn judged(&self) -> u64 {
        self.judged
    }
}

fn overlaps<I: Copy + Eq>(open: &[Belief<I>], belief: &Belief<I>) -> Vec<Overlap<I>> {
    let overlap_with = |other_belief: &Belief<I>| Overlap {
        other: other_belief.who,
        from: belief.from,
        to: other_belief.until.min(belief.until),
    };
    let other_overlaps = open
        .iter()
        .filter(|other_belief| other_belief.who != belief.who)
        .map(overlap_with);
    other_overlaps
        .filter(|overlap| overlap.to > overlap.from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(who: u8, from: u64, until: u64) -> Belief<u8> {
        Belief { who, from, until }
    }

    #[test]
    fn checker_reports_two_clients_that_hold_one_resource_at_the_same_time() {
        let mut exclusion = Exclusion::default();
        assert_eq!(exclusion.begins("a", belief(1, 10, 20)), []);
        assert_eq!(exclusion.begins("b", belief(2, 12, 30)), []);
        assert_eq!(
            exclusion.begins("a", belief(3, 20, 40)),
            [],
            "a client that obtains the lock exactly when the validity of another client ends must not be reported"
        );
        let overlap = |other, from, to| Overlap { other, from, to };
        assert_eq!(
            exclusion.begins("a", belief(4, 39, 60)),
            [overlap(3, 39, 40)]
        );
        exclusion.ends(&"a", 3);
        assert_eq!(exclusion.begins("a", belief(5, 60, 70)), []);
        // Client 5 holds the resource until 70, and client 6 obtains it at 65.
        assert_eq!(
            exclusion.begins("a", belief(6, 65, 66)),
            [overlap(5, 65, 66)]
        );
        exclusion.ends(&"a", 5);
        assert_eq!(exclusion.begins("a", belief(7, 66, 90)), []);
        assert_eq!(exclusion.moves(&"a", 7, 70, 95), []);
        assert_eq!(exclusion.judged(), 7);
    }
}
