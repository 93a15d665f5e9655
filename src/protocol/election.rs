//! Who leads, as far as the masters' answers go, and what observers are told of it.

use super::quorum::{MasterSet, Quorum};

/// What one master says of an election: the value of its lock key and the term.
pub(crate) type Standing = (u128, u64);

/// What a majority agrees on, value and term alike; none where there is none. `votes` are the masters and their words.
/// Of one set, where there are two: who was elected by clients that know only that set leads all the same.
pub(crate) fn leader(votes: &[(usize, Standing)], quorum: Quorum) -> Option<Standing> {
    let agree = |vote: &Standing| -> MasterSet {
        let same = votes.iter().filter(|(_, other)| other == vote);
        same.map(|(node, _)| *node).collect()
    };
    let mut said = votes.iter().map(|(_, vote)| vote);
    said.find(|vote| quorum.is_met_somewhere(agree(vote)))
        .copied()
}

/// What an observer has been told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// The largest term.
    term: u64,
    /// The value of the lock whose term it is.
    value: u128,
    /// Whether a note came with it.
    noted: bool,
    /// Whether somebody leads, once anything was told.
    led: Option<bool>,
}

impl Observed {
    /// Takes in what a look found: value and term of a leader and whether there is a note, or none. True when it
    /// is to be told. A term below one that was told comes from a look at what has been, and is never told.
    pub(crate) fn takes(&mut self, found: Option<(u128, u64, bool)>) -> bool {
        match found {
            Some((_, term, _)) if term < self.term => false,
            Some((value, term, noted)) => {
                let same = term == self.term && self.led == Some(true);
                let news = !same || noted && !self.noted;
                (self.value, self.term, self.led) = (value, term, Some(true));
                self.noted = noted || same && self.noted;
                news
            }
            None => self.led.replace(false) != Some(false),
        }
    }

    /// Whether this term was another's: then who holds the lock has no number, and was not elected.
    pub(crate) fn was_of_another(&self, value: u128, term: u64) -> bool {
        term == self.term && value != self.value
    }

    /// The term of the lock of this value, where it was told.
    pub(crate) fn term_of(&self, value: u128) -> Option<u64> {
        (self.term > 0 && self.value == value).then_some(self.term)
    }

    /// Whether this term has not been told yet.
    pub(crate) fn is_new(&self, term: u64) -> bool {
        term > self.term
    }

    /// Whether somebody leads, as far as it was told.
    pub(crate) fn is_led(&self) -> bool {
        self.led == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leads_is_what_a_majority_of_all_masters_agrees_on() {
        let quorum = Quorum::of(5);
        let (a, b) = (10, 11);
        for (votes, elected) in [
            (vec![(a, 1), (a, 1), (a, 1)], Some((a, 1))),
            (vec![(b, 2), (a, 1), (a, 1), (b, 2), (b, 2)], Some((b, 2))),
            (vec![(a, 1), (a, 1)], None),
            // One holder, whose number no majority has.
            (vec![(a, 1), (a, 1), (a, 2), (a, 2), (a, 3)], None),
            (vec![(a, 1), (b, 1), (a, 1), (b, 1)], None),
            (vec![], None),
        ] {
            let votes: Vec<_> = votes.into_iter().enumerate().collect();
            assert_eq!(leader(&votes, quorum), elected, "{votes:?}");
        }
    }

    #[test]
    fn terms_that_are_told_never_fall() {
        let mut observed = Observed::default();
        let with = |term| Some((u128::from(term), term, true));
        let without = |term| Some((u128::from(term), term, false));
        for (found, told) in [
            (None, true),
            (None, false),
            (with(5), true),
            (with(5), false),
            (with(4), false),
            (None, true),
            (with(4), false),
            (with(5), true),
            (with(7), true),
            (with(9), true),
            (with(7), false),
            (None, true),
            (without(11), true),
            (without(11), false),
            // The note comes late, and may be missed at times.
            (with(11), true),
            (without(11), false),
            (with(11), false),
            (None, true),
        ] {
            assert_eq!(observed.takes(found), told, "{found:?}");
        }
        assert!(!observed.is_led());
        assert!(observed.is_new(12) && !observed.is_new(11));
        assert_eq!(
            (observed.term_of(11), observed.term_of(9)),
            (Some(11), None)
        );
        assert!(observed.was_of_another(9, 11) && !observed.was_of_another(11, 11));
        assert!(!observed.was_of_another(12, 12));
    }
}
