//! The clients that believe at a time that they hold a resource.
//!
//! The belief begins when the client obtains the lock. It ends at the first of these events:
//!
//! - The client sends the release.
//! - The validity of the lock ends.
//! - The client is notified that the lock was lost.

use std::collections::HashMap;
use std::hash::Hash;

use crate::history::{Class, Hold, Party};

/// The facts about a hold that a breach needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) party: Party,
    pub(crate) class: Class,
    pub(crate) token: Option<u64>,
}

impl Holder {
    pub(crate) fn of(hold: &Hold<'_>) -> Self {
        Self {
            party: Party::of(hold),
            class: hold.class,
            token: hold.token,
        }
    }
}

/// A client's belief that it holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Belief<I> {
    /// The id of the client. If one client can hold the lock twice at the same time, use a different id for each hold.
    pub(crate) who: I,
    /// When the client obtained the lock.
    pub(crate) from: u64,
    /// When the lock's validity ends. From this time on, the client no longer believes that it holds the lock.
    pub(crate) until: u64,
}

/// A period in which two clients both believe that they hold the same lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlap<I> {
    /// The `who` of the belief that began first.
    pub(crate) other: I,
    /// When the overlap begins.
    pub(crate) from: u64,
    /// When the overlap ends: the earlier [`until`](Belief::until) of the two clients.
    pub(crate) to: u64,
}

/// The beliefs of all clients, by resource.
#[derive(Debug)]
pub(crate) struct Believers<R, I> {
    open: HashMap<R, Vec<Belief<I>>>,
}

impl<R, I> Default for Believers<R, I> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
        }
    }
}

impl<R: Eq + Hash, I: Copy + Eq> Believers<R, I> {
    /// Records that a client has obtained `resource`. Returns the overlaps of this `belief` with the earlier beliefs of
    /// other clients.
    pub(crate) fn begins(&mut self, resource: R, belief: Belief<I>) -> Vec<Overlap<I>> {
        let open = self.open.entry(resource).or_default();
        let overlaps = overlaps(open, &belief);
        open.push(belief);
        overlaps
    }

    /// Records that the lock of `who` is now valid until `until`, for example after an extension. Returns the overlaps
    /// with other clients from the time `now` on.
    pub(crate) fn moves(&mut self, resource: &R, who: I, now: u64, until: u64) -> Vec<Overlap<I>> {
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
    pub(crate) fn ends(&mut self, resource: &R, who: I) {
        if let Some(open) = self.open.get_mut(resource) {
            open.retain(|other_belief| other_belief.who != who);
        }
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
    fn two_beliefs_overlap_only_if_both_are_of_one_resource_and_of_one_time() {
        let mut believers = Believers::default();
        assert_eq!(believers.begins("a", belief(1, 10, 20)), []);
        assert_eq!(believers.begins("b", belief(2, 12, 30)), []);
        assert_eq!(
            believers.begins("a", belief(3, 20, 40)),
            [],
            "a client that obtains the lock exactly when the validity of another client ends must not be reported"
        );
        let overlap = |other, from, to| Overlap { other, from, to };
        assert_eq!(
            believers.begins("a", belief(4, 39, 60)),
            [overlap(3, 39, 40)]
        );
        believers.ends(&"a", 3);
        assert_eq!(believers.begins("a", belief(5, 60, 70)), []);
        // Client 5 holds the resource until 70, and client 6 obtains it at 65.
        assert_eq!(
            believers.begins("a", belief(6, 65, 66)),
            [overlap(5, 65, 66)]
        );
        believers.ends(&"a", 5);
        assert_eq!(believers.begins("a", belief(7, 66, 90)), []);
        assert_eq!(believers.moves(&"a", 7, 70, 95), []);
    }
}
