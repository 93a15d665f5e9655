//! The promise of an election. A term is the fencing token of a leader.
//!
//! - The terms that an observer is notified of never fall.
//! - Each term has one leader: all observers of a term receive the same note, which is the note of this term's leader.
//! - If every leader has a note of its own, each leader is observed only with its own term.

use std::collections::HashMap;

use crate::history::{Assumption, Breach, Class, Event, Hold, Moment, Party, Promise};

/// The checker of the promise of an election.
#[derive(Debug, Default)]
pub struct Terms {
    /// The last term that each observer was notified of, and the time of this notification.
    last_observed: HashMap<u64, (u64, u64)>,
    /// The largest term that any observer was notified of, by resource.
    largest_observed: HashMap<u64, u64>,
    /// The largest term, by resource, before the masters were unused for days. Later terms must not be smaller.
    smallest_allowed: HashMap<u64, u64>,
    notes: HashMap<(u64, u64), TermNotes>,
    /// By resource and note; `None` if several leaders may have the same note.
    leaders: Option<HashMap<(u64, String), LeaderTerms>>,
    judged: u64,
    notifications: u64,
}

/// The notes of the leader of one term.
#[derive(Debug, Default)]
struct TermNotes {
    /// The hold of the leader, with its note; `None` until the leader has obtained the lock.
    own: Option<(Party, Option<String>)>,
    /// The first notification of an observer that contains a note.
    observed: Option<Observation>,
}

/// The terms of one leader.
#[derive(Debug, Default)]
struct LeaderTerms {
    own: Option<(Party, u64)>,
    observed: Vec<Observation>,
}

/// A notification of an observer.
#[derive(Clone, Debug)]
struct Observation {
    observer: u64,
    time: u64,
    term: u64,
    note: String,
}

impl Observation {
    fn breach(&self, (from, to): (u64, u64), place: u64, other: Party, text: String) -> Breach {
        Breach {
            from,
            to,
            place: Some(place),
            parties: vec![other, Party::Observer(self.observer)],
            text,
            assumption: Assumption::Nothing,
        }
    }
}

impl Terms {
    /// The checker for elections in which every hold has a note of its own.
    #[must_use]
    pub fn with_a_note_for_each_leader(self) -> Self {
        Self {
            leaders: Some(HashMap::new()),
            ..self
        }
    }

    fn check_falling(&mut self, time: u64, observer: u64, place: u64, term: u64) -> Vec<Breach> {
        let last = self.last_observed.insert(observer, (term, time));
        let smallest = self.smallest_allowed.get(&place).copied().unwrap_or(0);
        let largest = self.largest_observed.entry(place).or_default();
        *largest = term.max(*largest);
        let party = Party::Observer(observer);
        let breach = |from, text| Breach {
            from,
            to: time,
            place: Some(place),
            parties: vec![party],
            text,
            assumption: Assumption::Nothing,
        };
        let mut breaches = Vec::new();
        if smallest > term {
            let text = format!(
                "after days without any client, $0 was notified of the term {term} of $place, but an earlier leader had \
                 the larger term {smallest}"
            );
            breaches.push(breach(time, text));
        }
        if let Some((last_term, last_time)) = last.filter(|(last_term, _)| *last_term > term) {
            let text = format!(
                "$0 was notified of the term {term} of $place after the larger term {last_term}"
            );
            breaches.push(breach(last_time, text));
        }
        breaches
    }

    /// Checks the note of a notification against the earlier notes of this term and of this leader.
    fn check_note(&mut self, place: u64, new: &Observation) -> Option<Breach> {
        let notes = self.notes.entry((place, new.term)).or_default();
        let first = notes.observed.get_or_insert_with(|| new.clone());
        if first.note != new.note {
            let text = format!(
                "in term {}, $0 received the note {:?} of the leader of $place, and $1 received the note {:?}",
                new.term, first.note, new.note
            );
            let other = Party::Observer(first.observer);
            return Some(new.breach((first.time, new.time), place, other, text));
        }
        let leader = self.leaders.as_mut().map(|leaders| {
            let leader = leaders.entry((place, new.note.clone())).or_default();
            // Once the own term is known, each notification is checked at once.
            if leader.own.is_none() {
                leader.observed.push(new.clone());
            }
            &*leader
        });
        let wrong_term = leader.and_then(|leader| check_own_term(place, leader, new));
        self.check_own_note(place, new.term).or(wrong_term)
    }

    /// Checks that observers of a term received the note of this term's leader, if both are known.
    fn check_own_note(&mut self, place: u64, term: u64) -> Option<Breach> {
        let notes = self.notes.get(&(place, term))?;
        let ((leader, own), observed) = (notes.own.as_ref()?, notes.observed.as_ref()?);
        self.judged += 1;
        if own.as_ref() == Some(&observed.note) {
            return None;
        }
        let text = format!(
            "in term {term}, $1 received the note {:?} of the leader of $place, but the note of this leader, $0, is {own:?}",
            observed.note
        );
        Some(observed.breach((observed.time, observed.time), place, *leader, text))
    }

    /// Records the term and the note of a new leader.
    fn check_obtained(&mut self, hold: &Hold<'_>, term: u64) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let note = hold.note.map(str::to_owned);
        for place in hold.places.iter().copied() {
            let notes = self.notes.entry((place, term)).or_default();
            notes.own = Some((Party::of(hold), note.clone()));
            breaches.extend(self.check_own_note(place, term));
            if let (Some(leaders), Some(note)) = (&mut self.leaders, &note) {
                let leader = leaders.entry((place, note.clone())).or_default();
                leader.own = Some((Party::of(hold), term));
                let earlier = std::mem::take(&mut leader.observed);
                let earlier = earlier.iter();
                breaches.extend(earlier.filter_map(|seen| check_own_term(place, leader, seen)));
            }
        }
        breaches
    }
}

/// Checks that a leader was observed with its own term, if this term is known.
fn check_own_term(place: u64, leader: &LeaderTerms, observed: &Observation) -> Option<Breach> {
    let (party, own_term) = leader.own.filter(|(_, own)| *own != observed.term)?;
    let text = format!(
        "$1 was notified of $0 as the leader of the term {} of $place, but the term of $0 is {own_term}",
        observed.term
    );
    Some(observed.breach((observed.time, observed.time), place, party, text))
}

impl Promise for Terms {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        match event {
            Event::UnusedForDays => self.smallest_allowed = self.largest_observed.clone(),
            Event::ObservationStarted { observer } => {
                self.last_observed.remove(observer);
            }
            Event::LeaderObserved {
                observer,
                place,
                term,
                note,
            } => {
                self.judged += 1;
                self.notifications += 1;
                let mut breaches = self.check_falling(moment.time, *observer, *place, *term);
                if let Some(note) = note {
                    let new = Observation {
                        observer: *observer,
                        time: moment.time,
                        term: *term,
                        note: (*note).to_owned(),
                    };
                    breaches.extend(self.check_note(*place, &new));
                }
                return breaches;
            }
            Event::Obtained(hold) if hold.class == Class::Exclusive => {
                if let Some(term) = hold.token {
                    return self.check_obtained(hold, term);
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn judged(&self) -> u64 {
        self.judged
    }

    fn summary(&self) -> String {
        let observed = self.notes.values().filter(|notes| notes.observed.is_some());
        format!(
            "observers got {} notifications of a leader, of {} different leaders",
            self.notifications,
            observed.count()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::{breaches, hold};

    fn observed(observer: u64, term: u64, note: &str) -> Event<'_> {
        Event::LeaderObserved {
            observer,
            place: 4,
            term,
            note: Some(note),
        }
    }

    fn leader(id: u64, from: u64, term: u64, note: &str) -> Hold<'_> {
        Hold {
            note: Some(note),
            ..hold(id, from, from + 20, term)
        }
    }

    #[test]
    fn falling_terms_of_one_observer_are_reported() {
        let texts = |history: &[(u64, Event<'_>)]| breaches(&mut Terms::default(), history);
        let (first, second) = ((1, observed(1, 5, "a")), (2, observed(1, 7, "b")));
        let (falling, other) = ((3, observed(1, 5, "a")), (3, observed(2, 5, "a")));
        assert!(texts(&[first, second, other]).is_empty());
        let text = "o1 was notified of the term 5 of r4 after the larger term 7";
        assert_eq!(texts(&[first, second, falling]), [text]);
        let again = (3, Event::ObservationStarted { observer: 1 });
        assert!(texts(&[first, second, again, falling]).is_empty());
        let unused = (3, Event::UnusedForDays);
        assert_eq!(texts(&[first, second, unused, other]).len(), 1);
    }

    #[test]
    fn two_notes_for_one_term_are_reported() {
        let texts = |history: &[(u64, Event<'_>)]| breaches(&mut Terms::default(), history);
        let (leader, right) = (leader(9, 10, 5, "a"), observed(1, 5, "a"));
        let obtained = (10, Event::Obtained(&leader));
        assert!(texts(&[(1, right), obtained, (11, right)]).is_empty());
        let other = (12, observed(2, 5, "b"));
        assert_eq!(texts(&[(1, right), other]).len(), 1);
        assert_eq!(texts(&[obtained, other]).len(), 1);
        assert_eq!(texts(&[(1, observed(2, 5, "b")), obtained]).len(), 1);
    }

    #[test]
    fn leader_that_is_observed_with_the_term_of_another_leader_is_reported() {
        let leader = leader(9, 10, 5, "a");
        let obtained = (10, Event::Obtained(&leader));
        let wrong = observed(1, 6, "a");
        let text =
            "o1 was notified of h9 as the leader of the term 6 of r4, but the term of h9 is 5";
        for history in [[obtained, (11, wrong)], [(1, wrong), obtained]] {
            let unique = Terms::default().with_a_note_for_each_leader();
            assert_eq!(breaches(&mut { unique }, &history), [text]);
            assert!(breaches(&mut Terms::default(), &history).is_empty());
        }
    }
}
