//! The promise "one holder": at most one client at a time believes that it holds a resource. Holds of one class
//! (readers, or one owner) may share a resource.

use crate::believers::{Belief, Believers, Holder, Overlap};
use crate::history::{Assumption, Breach, Event, Moment, Promise};

/// The checker of the promise "one holder".
#[derive(Debug, Default)]
pub struct Exclusion {
    believers: Believers<u64, Holder>,
    judged: u64,
}

fn token_text(token: Option<u64>) -> String {
    token.map_or("no token".to_owned(), |token| format!("token {token}"))
}

fn breach(place: u64, later: Holder, overlap: &Overlap<Holder>) -> Breach {
    let earlier = overlap.other;
    Breach {
        from: overlap.from,
        to: overlap.to,
        place: Some(place),
        parties: vec![earlier.party, later.party],
        text: format!(
            "$0 and $1 both held $place ({} and {})",
            token_text(earlier.token),
            token_text(later.token)
        ),
        assumption: Assumption::LocksAreKept,
    }
}

impl Promise for Exclusion {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        let (hold, is_new) = match event {
            Event::Obtained(hold) => (hold, true),
            Event::Extended(hold) => (hold, false),
            Event::Ended(hold) => {
                for place in hold.places {
                    self.believers.ends(place, Holder::of(hold));
                }
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        let (who, until) = (Holder::of(hold), hold.until);
        let mut breaches = Vec::new();
        for place in hold.places {
            let overlaps = if is_new {
                self.judged += 1;
                let from = moment.time;
                self.believers.begins(*place, Belief { who, from, until })
            } else {
                self.believers.moves(place, who, moment.time, until)
            };
            let forbidden = overlaps
                .iter()
                .filter(|overlap| !overlap.other.class.may_share_with(who.class));
            breaches.extend(forbidden.map(|overlap| breach(*place, who, overlap)));
        }
        breaches
    }

    fn judged(&self) -> u64 {
        self.judged
    }

    fn summary(&self) -> String {
        format!("{} lock holds checked", self.judged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::{breaches, hold};
    use crate::history::{Class, Hold};

    #[test]
    fn second_holder_is_reported_unless_the_first_hold_is_over() {
        let (first, second) = (hold(1, 10, 100, 1), hold(2, 20, 120, 2));
        let texts = |history: &[(u64, Event<'_>)]| breaches(&mut Exclusion::default(), history);
        let overlap = "h1 and h2 both held r4 (token 1 and token 2)";
        let begin = (10, Event::Obtained(&first));
        assert_eq!(texts(&[begin, (20, Event::Obtained(&second))]), [overlap]);
        let end = (15, Event::Ended(&first));
        assert!(texts(&[begin, end, (20, Event::Obtained(&second))]).is_empty());
        assert!(texts(&[begin, (100, Event::Obtained(&second))]).is_empty());
        // The first holder extends the validity of its lock after the second client has obtained the lock.
        let extended = hold(1, 10, 200, 1);
        let late = [
            begin,
            (100, Event::Obtained(&second)),
            (101, Event::Extended(&extended)),
        ];
        let overlap = "h2 and h1 both held r4 (token 2 and token 1)";
        assert_eq!(texts(&late), [overlap]);
    }

    #[test]
    fn holds_may_share_a_resource_only_if_all_are_readers_or_of_one_owner() {
        let of_class = |id, class| Hold {
            class,
            ..hold(id, 10, 100, 1)
        };
        let is_broken = |one, other| {
            let (one, other) = (of_class(1, one), of_class(2, other));
            let history = [(10, Event::Obtained(&one)), (11, Event::Obtained(&other))];
            !breaches(&mut Exclusion::default(), &history).is_empty()
        };
        assert!(!is_broken(Class::Readers, Class::Readers));
        assert!(!is_broken(Class::Owner(1), Class::Owner(1)));
        assert!(is_broken(Class::Owner(1), Class::Owner(2)));
        assert!(is_broken(Class::Readers, Class::Exclusive));
        assert!(is_broken(Class::Exclusive, Class::Exclusive));
    }
}
