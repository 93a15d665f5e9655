//! The promise of a lock owner: all holds of one owner that exist at the same time have the same fencing token.

use crate::believers::{Belief, Believers, Holder, Overlap};
use crate::history::{Assumption, Breach, Class, Event, Hold, Moment, Party, Promise};

/// The checker of the promise of a lock owner.
#[derive(Debug, Default)]
pub struct OwnerTokens {
    /// The holds of owners, by resource.
    believers: Believers<u64, Holder>,
    pairs: u64,
    pairs_across_clients: u64,
}

impl OwnerTokens {
    /// Compares a new hold of a resource with another hold at the same time.
    fn check_pair(
        &mut self,
        place: u64,
        hold: Holder,
        overlap: &Overlap<Holder>,
    ) -> Option<Breach> {
        let other = overlap.other;
        if other.class != hold.class {
            return None;
        }
        let client = |party| match party {
            Party::Hold { client, .. } => Some(client),
            _ => None,
        };
        self.pairs += 1;
        self.pairs_across_clients += u64::from(client(other.party) != client(hold.party));
        (other.token != hold.token).then(|| Breach {
            from: overlap.from,
            to: overlap.to,
            place: Some(place),
            parties: vec![other.party, hold.party],
            text: format!(
                "$0 and $1 hold one lock for the same owner, but with different fencing tokens: {:?} and {:?}",
                other.token, hold.token
            ),
            assumption: Assumption::LocksAreKept,
        })
    }

    fn check_obtained(&mut self, now: u64, hold: &Hold<'_>) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for place in hold.places {
            let who = Holder::of(hold);
            let (from, until) = (now, hold.until);
            let overlaps = self.believers.begins(*place, Belief { who, from, until });
            let pairs = overlaps.iter();
            breaches.extend(pairs.filter_map(|overlap| self.check_pair(*place, who, overlap)));
        }
        breaches
    }
}

impl Promise for OwnerTokens {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        match event {
            Event::Obtained(hold) if matches!(hold.class, Class::Owner(_)) => {
                return self.check_obtained(moment.time, hold);
            }
            Event::Extended(hold) => {
                for place in hold.places {
                    let (who, until) = (Holder::of(hold), hold.until);
                    self.believers.moves(place, who, moment.time, until);
                }
            }
            Event::Ended(hold) => {
                for place in hold.places {
                    self.believers.ends(place, Holder::of(hold));
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn judged(&self) -> u64 {
        self.pairs
    }

    fn summary(&self) -> String {
        format!(
            "{} pairs of overlapping lock holds of one owner, {} of them in different processes",
            self.pairs, self.pairs_across_clients
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::{breaches, hold};

    #[test]
    fn two_tokens_of_one_owner_are_reported_only_while_both_holds_exist() {
        let owner_hold = |id, owner, from, token| Hold {
            class: Class::Owner(owner),
            ..hold(id, from, from + 50, token)
        };
        let first = owner_hold(1, 7, 10, 5);
        let texts = |second: Hold<'_>, at, ends_at| {
            let mut history = vec![
                (10, Event::Obtained(&first)),
                (ends_at, Event::Ended(&first)),
                (at, Event::Obtained(&second)),
            ];
            history.sort_by_key(|(time, _)| *time);
            let mut promise = OwnerTokens::default();
            let texts = breaches(&mut promise, &history);
            (texts.len(), promise.judged())
        };
        assert_eq!(texts(owner_hold(2, 7, 20, 5), 20, 40), (0, 1));
        assert_eq!(texts(owner_hold(2, 7, 20, 6), 20, 40), (1, 1));
        assert_eq!(texts(owner_hold(2, 8, 20, 6), 20, 40), (0, 0));
        assert_eq!(texts(owner_hold(2, 7, 20, 6), 20, 15), (0, 0));
        assert_eq!(texts(owner_hold(2, 7, 60, 6), 60, 70), (0, 0));
    }
}
