//! Who leads, as far as the masters' answers go, and what observers are told of it.

use super::quorum::Quorum;

/// What one master says of an election: the value of its lock key and its counter.
pub(crate) type Standing<'a> = (&'a [u8], u64);

/// What a majority agrees on, value and counter alike; none where there is none.
pub(crate) fn leader<'a>(votes: &[Standing<'a>], quorum: Quorum) -> Option<Standing<'a>> {
    let agree = |vote: &Standing<'_>| votes.iter().filter(|other| *other == vote).count();
    let mut elected = votes.iter().filter(|vote| agree(vote) >= quorum.size());
    elected.next().copied()
}

/// What an observer has been told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// The largest term.
    term: u64,
    /// Whether a note came with it.
    noted: bool,
    /// Whether somebody leads, once anything was told.
    led: Option<bool>,
}

impl Observed {
    /// Takes in what a look found: the term of a leader and whether there is a note, or none. True when it
    /// is to be told. A term below one that was told comes from a look at what has been, and is never told.
    pub(crate) fn takes(&mut self, found: Option<(u64, bool)>) -> bool {
        match found {
            Some((term, _)) if term < self.term => false,
            Some((term, noted)) => {
                let same = term == self.term && self.led == Some(true);
                let news = !same || noted && !self.noted;
                (self.term, self.led) = (term, Some(true));
                self.noted = noted || same && self.noted;
                news
            }
            None => self.led.replace(false) != Some(false),
        }
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
        let (a, b) = (&b"a"[..], &b"b"[..]);
        for (votes, elected) in [
            (vec![(a, 1), (a, 1), (a, 1)], Some((a, 1))),
            (vec![(b, 2), (a, 1), (a, 1), (b, 2), (b, 2)], Some((b, 2))),
            (vec![(a, 1), (a, 1)], None),
            // One holder, whose number no majority has.
            (vec![(a, 1), (a, 1), (a, 2), (a, 2), (a, 3)], None),
            (vec![(a, 1), (b, 1), (a, 1), (b, 1)], None),
            (vec![], None),
        ] {
            assert_eq!(leader(&votes, quorum), elected, "{votes:?}");
        }
    }

    #[test]
    fn terms_that_are_told_never_fall() {
        let mut observed = Observed::default();
        let with = |term| Some((term, true));
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
            (Some((11, false)), true),
            (Some((11, false)), false),
            // The note comes late, and may be missed at times.
            (with(11), true),
            (Some((11, false)), false),
            (with(11), false),
            (None, true),
        ] {
            assert_eq!(observed.takes(found), told, "{found:?}");
        }
        assert!(!observed.is_led());
        assert!(observed.is_new(12) && !observed.is_new(11));
    }
}
