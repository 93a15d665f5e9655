//! Decides from the masters' answers which client leads an election, and whether to notify an observer.

use super::instant::Instant;
use super::quorum::{MasterSet, Quorum};

/// The leader of an election according to one master: the value of the lock key, and the leader's term.
pub(crate) type Candidate = (u128, u64);

/// Returns the lock value and the term that a majority of the masters reports; `None` if no majority agrees. `votes`
/// are pairs of a master's index and its answer.
///
/// While masters are replaced, a majority of the old masters or of the new masters is enough: the leader may know only
/// one of the two sets.
pub(crate) fn elected_leader(votes: &[(usize, Candidate)], quorum: Quorum) -> Option<Candidate> {
    let masters_with = |vote: &Candidate| -> MasterSet {
        let same_votes = votes.iter().filter(|(_, other)| other == vote);
        same_votes.map(|(node, _)| *node).collect()
    };
    let mut candidates = votes.iter().map(|(_, vote)| vote);
    candidates
        .find(|vote| quorum.is_met_in_one_set(masters_with(vote)))
        .copied()
}

/// The last state that an observer has been notified of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// The largest term that the observer has been notified of.
    term: u64,
    /// The lock value of the leader whose term is `term`.
    value: u128,
    /// Whether the observer has received the note of this leader (the text that is stored with the lock).
    has_note: bool,
    /// Whether the last notification of the observer named a leader; `None` before the first notification.
    had_leader: Option<bool>,
}

impl Observed {
    /// Records the current leader, and returns whether to notify the observer. Ignores a term that is smaller than the
    /// largest known term.
    ///
    /// `leader` is the leader's lock value, its term, and whether a note is stored with its lock; `None` if there is no
    /// leader.
    pub(crate) fn update(&mut self, leader: Option<(u128, u64, bool)>) -> bool {
        match leader {
            Some((_, term, _)) if term < self.term => false,
            Some((value, term, has_note)) => {
                let is_same_leader = term == self.term && self.had_leader == Some(true);
                let is_news = !is_same_leader || has_note && !self.has_note;
                (self.value, self.term, self.had_leader) = (value, term, Some(true));
                self.has_note = has_note || is_same_leader && self.has_note;
                is_news
            }
            None => self.had_leader.replace(false) != Some(false),
        }
    }

    /// Whether the observer knows that another holder, with a lock value other than `value`, is the leader of this
    /// term. A term has only one leader, so the holder with `value` was not elected.
    pub(crate) fn was_of_another(&self, value: u128, term: u64) -> bool {
        term == self.term && value != self.value
    }

    /// The term of the leader with this lock value, if the observer has been notified of that leader.
    pub(crate) fn term_of(&self, value: u128) -> Option<u64> {
        (self.term > 0 && self.value == value).then_some(self.term)
    }

    /// Whether the observer has not been notified of this term yet.
    pub(crate) fn is_new(&self, term: u64) -> bool {
        term > self.term
    }

    /// Whether the last notification named a leader.
    pub(crate) fn is_led(&self) -> bool {
        self.had_leader == Some(true)
    }
}

/// The wait for the note of a new leader: the leader's term, and the end of the wait. Before the first wait, it is
/// `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NoteWait(Option<(u64, Instant)>);

impl NoteWait {
    /// When the wait for the note of the leader with this term ends. The first call for a term begins the wait, which
    /// then ends at `limit`. Later calls do not lengthen it.
    pub(crate) fn ends_at(&mut self, term: u64, limit: Instant) -> Instant {
        let begun_wait = self.0.filter(|(begun_term, _)| *begun_term == term);
        let (_, ends_at) = *self.0.insert(begun_wait.unwrap_or((term, limit)));
        ends_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_is_known_only_for_the_leader_that_the_observer_was_notified_of() {
        let mut observed = Observed::default();
        assert_eq!(observed.term_of(0), None);
        observed.update(Some((7, 1, true)));
        assert_eq!([observed.term_of(7), observed.term_of(8)], [Some(1), None]);
    }

    #[test]
    fn wait_for_a_note_begins_again_only_for_another_leader() {
        let mut wait = NoteWait::default();
        let mut ends_at = |term, limit| wait.ends_at(term, Instant::from_nanos(limit)).as_nanos();
        assert_eq!([ends_at(1, 50), ends_at(1, 60)], [50, 50]);
        assert_eq!([ends_at(2, 70), ends_at(2, 80)], [70, 70]);
    }

    #[test]
    fn leader_is_the_holder_reported_by_a_majority_with_the_same_term() {
        let quorum = Quorum::new(5);
        let (a, b) = (10, 11);
        for (votes, elected) in [
            (vec![(a, 1), (a, 1), (a, 1)], Some((a, 1))),
            (vec![(b, 2), (a, 1), (a, 1), (b, 2), (b, 2)], Some((b, 2))),
            (vec![(a, 1), (a, 1)], None),
            // All masters show the same holder, but no majority shows the same term.
            (vec![(a, 1), (a, 1), (a, 2), (a, 2), (a, 3)], None),
            (vec![(a, 1), (b, 1), (a, 1), (b, 1)], None),
            (vec![], None),
        ] {
            let votes: Vec<_> = votes.into_iter().enumerate().collect();
            assert_eq!(elected_leader(&votes, quorum), elected, "{votes:?}");
        }
    }

    #[test]
    fn observer_is_never_notified_of_a_smaller_term() {
        let mut observed = Observed::default();
        let with_note = |term| Some((u128::from(term), term, true));
        let without_note = |term| Some((u128::from(term), term, false));
        for (observation, is_news) in [
            (None, true),
            (None, false),
            (with_note(5), true),
            (with_note(5), false),
            (with_note(4), false),
            (None, true),
            (with_note(4), false),
            (with_note(5), true),
            (with_note(7), true),
            (with_note(9), true),
            (with_note(7), false),
            (None, true),
            (without_note(11), true),
            (without_note(11), false),
            // The note causes one notification. Later answers with or without the note cause none.
            (with_note(11), true),
            (without_note(11), false),
            (with_note(11), false),
            (None, true),
        ] {
            assert_eq!(observed.update(observation), is_news, "{observation:?}");
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
