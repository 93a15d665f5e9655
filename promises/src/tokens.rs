//! The promise "rising tokens": every later holder of a resource has a larger fencing token. Holds that may share the
//! resource may have equal tokens, but no smaller ones.

use std::collections::HashMap;

use crate::history::{Assumption, Breach, Class, Event, Hold, Moment, Party, Promise};
use crate::token_order::{Obtained, TokenOrder, WrongToken};

/// The checker of the promise "rising tokens".
#[derive(Debug, Default)]
pub struct Tokens {
    order: TokenOrder<u64, Holder>,
    /// The holds of lock owners, by resource and token; `None` if a joined hold has no excuse.
    joined_holds: Option<HashMap<(u64, u64), Vec<JoinedHold>>>,
    judged: u64,
    without_token: u64,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    party: Party,
    class: Class,
    time: u64,
}

#[derive(Debug)]
struct JoinedHold {
    class: Class,
    until: u64,
    /// When the first attempt began that got this token.
    began: Moment,
}

impl Tokens {
    /// The checker for histories in which masters may lose locks, so that another client holds the lock as well. A hold
    /// that joins an existing hold of its owner has the token of this hold, and counts as begun with it. For this,
    /// [`Hold::until`] must be the real end of each hold when it is obtained.
    #[must_use]
    pub fn with_joined_holds(self) -> Self {
        Self {
            joined_holds: Some(HashMap::new()),
            ..self
        }
    }

    /// When the first attempt began that got this token: the attempt of `hold`, unless it joined another hold.
    fn first_begin(&mut self, hold: &Hold<'_>, token: u64) -> Moment {
        let (Class::Owner(_), Some(holds), [place, ..]) =
            (hold.class, &mut self.joined_holds, hold.places)
        else {
            return hold.began;
        };
        let holds = holds.entry((*place, token)).or_default();
        let joined = holds
            .iter()
            .find(|other| other.class == hold.class && other.until > hold.began.time);
        let began = joined.map_or(hold.began, |joined| joined.began);
        holds.push(JoinedHold {
            class: hold.class,
            until: hold.until,
            began,
        });
        began
    }

    fn check_obtained(&mut self, moment: Moment, hold: &Hold<'_>) -> Vec<Breach> {
        let Some(token) = hold.token else {
            self.without_token += 1;
            return vec![Breach {
                from: moment.time,
                to: moment.time,
                place: hold.places.first().copied(),
                parties: vec![Party::of(hold)],
                text: "$0 obtained a lock without a fencing token".to_owned(),
                assumption: Assumption::Nothing,
            }];
        };
        let began = self.first_begin(hold, token);
        let mut breaches = Vec::new();
        for place in hold.places {
            self.judged += 1;
            let obtained = Obtained {
                who: Holder {
                    party: Party::of(hold),
                    class: hold.class,
                    time: moment.time,
                },
                began: began.order,
                at: moment.order,
                token,
            };
            let may_share = |other: &Holder| other.class.may_share_with(hold.class);
            let wrong = self.order.obtained(*place, obtained, may_share);
            breaches.extend(wrong.map(|wrong| breach(*place, (moment, began), hold, token, wrong)));
        }
        breaches
    }
}

fn breach(
    place: u64,
    (moment, began): (Moment, Moment),
    hold: &Hold<'_>,
    token: u64,
    wrong: WrongToken<Holder>,
) -> Breach {
    let (from, earlier, text) = match wrong {
        WrongToken::Twice(earlier) => {
            let text = format!("$0 and $1 both got the fencing token {token} for $place");
            (earlier.who.time, earlier, text)
        }
        WrongToken::Smaller(earlier) => {
            let text = format!(
                "$0 had the fencing token {} for $place before $1 began its attempt, but $1 got the smaller token \
                 {token}",
                earlier.token
            );
            (began.time, earlier, text)
        }
    };
    Breach {
        from,
        to: moment.time,
        place: Some(place),
        parties: vec![earlier.who.party, Party::of(hold)],
        text,
        assumption: Assumption::Nothing,
    }
}

impl Promise for Tokens {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        match event {
            Event::Obtained(hold) => self.check_obtained(moment, hold),
            _ => Vec::new(),
        }
    }

    fn judged(&self) -> u64 {
        self.judged
    }

    fn summary(&self) -> String {
        let without_token = match self.without_token {
            0 => String::new(),
            count => format!(", {count} acquisitions without a fencing token"),
        };
        format!("{} fencing tokens{without_token}", self.judged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::{breaches, hold};

    fn texts(promise: Tokens, holds: &[(u64, Hold<'_>)]) -> Vec<String> {
        let mut promise = promise;
        let events: Vec<_> = holds
            .iter()
            .map(|(time, hold)| (*time, Event::Obtained(hold)))
            .collect();
        breaches(&mut promise, &events)
    }

    #[test]
    fn equal_and_smaller_tokens_of_later_holders_are_reported() {
        let texts = |second| texts(Tokens::default(), &[(10, hold(1, 10, 20, 7)), second]);
        assert!(texts((30, hold(2, 30, 40, 8))).is_empty());
        let same = "h1 and h2 both got the fencing token 7 for r4";
        assert_eq!(texts((30, hold(2, 30, 40, 7))), [same]);
        let smaller = "h1 had the fencing token 7 for r4 before h2 began its attempt, but h2 got the smaller token 6";
        assert_eq!(texts((30, hold(2, 30, 40, 6))), [smaller]);
        let overlapping = Hold {
            began: Moment::at(5),
            ..hold(2, 30, 40, 6)
        };
        assert!(texts((30, overlapping)).is_empty());
    }

    #[test]
    fn hold_without_a_token_is_reported() {
        let without = Hold {
            token: None,
            ..hold(1, 10, 20, 0)
        };
        assert_eq!(texts(Tokens::default(), &[(10, without)]).len(), 1);
    }

    #[test]
    fn owner_may_get_its_smaller_token_again_only_by_joining_a_hold() {
        let owner_hold = |id, owner, from, until, token| Hold {
            class: Class::Owner(owner),
            ..hold(id, from, until, token)
        };
        let holds = |first_ends_at| {
            [
                (10, owner_hold(1, 1, 10, first_ends_at, 5)),
                (20, owner_hold(2, 2, 20, 100, 7)),
                (50, owner_hold(3, 1, 50, 60, 5)),
            ]
        };
        let joining = || Tokens::default().with_joined_holds();
        assert!(texts(joining(), &holds(70)).is_empty());
        assert_eq!(texts(joining(), &holds(45)).len(), 1);
        assert_eq!(texts(Tokens::default(), &holds(70)).len(), 1);
    }
}
