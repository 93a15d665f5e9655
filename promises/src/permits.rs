//! The promise of a semaphore: there are never more holders at a time than permits. The promise "one holder" checks
//! that each slot has only one holder.

use crate::believers::{Belief, Believers, Overlap};
use crate::history::{Assumption, Breach, Event, Hold, Moment, Party, Permit, Promise};

/// The checker of the promise of a semaphore.
#[derive(Debug, Default)]
pub struct Permits {
    /// The holds of each semaphore.
    believers: Believers<u64, Party>,
    most_at_once: usize,
    judged: u64,
}

impl Permits {
    fn check_count(
        &mut self,
        now: u64,
        hold: &Hold<'_>,
        permit: Permit,
        others: &[Overlap<Party>],
    ) -> Option<Breach> {
        let holders = others.len() + usize::from(hold.until > now);
        self.most_at_once = self.most_at_once.max(holders);
        if holders as u64 <= permit.permits {
            return None;
        }
        let other_parties = others.iter().map(|overlap| overlap.other);
        let first_end = others.iter().map(|overlap| overlap.to).min();
        Some(Breach {
            from: now,
            to: first_end.unwrap_or(hold.until),
            place: Some(hold.places[0]),
            parties: [Party::of(hold)].into_iter().chain(other_parties).collect(),
            text: format!(
                "{holders} clients hold a permit at the same time, but there are only {} permits (latest: $0)",
                permit.permits
            ),
            assumption: Assumption::LocksAreKept,
        })
    }
}

/// Checks that the slot of a permit exists.
fn check_slot(now: u64, hold: &Hold<'_>, permit: Permit) -> Option<Breach> {
    let Permit { slot, permits, .. } = permit;
    let is_right = slot.is_some_and(|slot| slot < permits);
    (!is_right).then(|| Breach {
        from: now,
        to: now,
        place: Some(hold.places[0]),
        parties: vec![Party::of(hold)],
        text: format!("$0 has slot {slot:?}, but the semaphore has only {permits} slots"),
        assumption: Assumption::Nothing,
    })
}

impl Promise for Permits {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        let (Event::Obtained(hold) | Event::Extended(hold) | Event::Ended(hold)) = event else {
            return Vec::new();
        };
        let Some(permit) = hold.permit else {
            return Vec::new();
        };
        let (semaphore, who) = (permit.semaphore, Party::of(hold));
        let (from, until) = (moment.time, hold.until);
        let (slot, others) = match event {
            Event::Obtained(_) => {
                self.judged += 1;
                let belief = Belief { who, from, until };
                let others = self.believers.begins(semaphore, belief);
                (check_slot(from, hold, permit), others)
            }
            Event::Extended(_) => (None, self.believers.moves(&semaphore, who, from, until)),
            _ => {
                self.believers.ends(&semaphore, who);
                return Vec::new();
            }
        };
        let count = self.check_count(from, hold, permit, &others);
        slot.into_iter().chain(count).collect()
    }

    fn judged(&self) -> u64 {
        self.judged
    }

    fn summary(&self) -> String {
        format!(
            "{} permits acquired, at most {} held at the same time",
            self.judged, self.most_at_once
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::testing::{breaches, hold};

    #[test]
    fn holder_above_the_number_of_permits_and_slot_above_it_are_reported() {
        let permit = |id, slot, from, until| Hold {
            permit: Some(Permit {
                semaphore: 1,
                slot,
                permits: 2,
            }),
            ..hold(id, from, until, id)
        };
        let (one, two) = (permit(1, Some(0), 10, 100), permit(2, Some(1), 20, 100));
        let (three, last) = (permit(3, Some(1), 30, 130), permit(3, Some(2), 30, 130));
        let begin = [(10, Event::Obtained(&one)), (20, Event::Obtained(&two))];
        let texts = |further: &[(u64, Event<'_>)]| {
            let history: Vec<_> = begin.iter().chain(further).copied().collect();
            breaches(&mut Permits::default(), &history)
        };
        let too_many =
            "3 clients hold a permit at the same time, but there are only 2 permits (latest: h3)";
        let no_slot = "h3 has slot Some(2), but the semaphore has only 2 slots";
        assert!(texts(&[]).is_empty());
        assert_eq!(texts(&[(30, Event::Obtained(&three))]), [too_many]);
        assert_eq!(texts(&[(30, Event::Obtained(&last))]), [no_slot, too_many]);
        let end = (25, Event::Ended(&one));
        assert!(texts(&[end, (30, Event::Obtained(&three))]).is_empty());
        assert!(texts(&[(100, Event::Obtained(&three))]).is_empty());
        // The first two holds are extended after their validity has ended, when another client has one of the permits.
        let (one, two) = (permit(1, Some(0), 10, 200), permit(2, Some(1), 20, 200));
        let late = [
            (100, Event::Obtained(&three)),
            (101, Event::Extended(&one)),
            (102, Event::Extended(&two)),
        ];
        assert_eq!(texts(&late).len(), 1);
    }
}
