//! The promise of a lock owner: all holds of one owner that exist at the same time have the same fencing token.

use crate::history::{Assumption, Breach, Class, Event, Hold, Moment, Party, Promise};

/// The checker of the promise of a lock owner.
#[derive(Debug, Default)]
pub struct OwnerTokens {
    open: Vec<OwnerHold>,
    pairs: u64,
    pairs_across_clients: u64,
}

#[derive(Debug)]
struct OwnerHold {
    id: u64,
    client: u64,
    class: Class,
    places: Vec<u64>,
    token: Option<u64>,
    until: u64,
}

impl OwnerTokens {
    /// Compares a new hold with all other holds of its owner.
    fn check_obtained(&mut self, now: u64, hold: &Hold<'_>) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for other in self.open.iter().filter(|other| other.until > now) {
            let place = hold
                .places
                .iter()
                .find(|place| other.places.contains(place));
            let (Some(place), true) = (place, other.class == hold.class && hold.until > now) else {
                continue;
            };
            self.pairs += 1;
            self.pairs_across_clients += u64::from(other.client != hold.client);
            if other.token == hold.token {
                continue;
            }
            let (id, client) = (other.id, other.client);
            breaches.push(Breach {
                from: now,
                to: other.until.min(hold.until),
                place: Some(*place),
                parties: vec![Party::Hold { id, client }, Party::of(hold)],
                text: format!(
                    "$0 and $1 hold one lock for the same owner, but with different fencing tokens: {:?} and {:?}",
                    other.token, hold.token
                ),
                assumption: Assumption::LocksAreKept,
            });
        }
        self.open.push(OwnerHold {
            id: hold.id,
            client: hold.client,
            class: hold.class,
            places: hold.places.to_vec(),
            token: hold.token,
            until: hold.until,
        });
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
                let own = self.open.iter_mut().find(|open| open.id == hold.id);
                if let Some(own) = own {
                    own.until = hold.until;
                }
            }
            Event::Ended(hold) => self.open.retain(|open| open.id != hold.id),
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
