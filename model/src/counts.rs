//! Counts of the situations that a search has tested. A search that never reaches a case proves nothing about it.

use crate::action::Action;
use crate::rules::Masters;
use crate::world::{Attempt, Phase, World};

count_fields! {
    /// How often the search has taken steps of some kinds.
    Counts
    /// A client got the lock.
    obtained,
    /// A client got the lock after another client had held it.
    obtained_again,
    /// A client got the lock after it had its token confirmed.
    confirmed,
    /// A client got the lock although a request to a minority of the masters had not arrived.
    obtained_without_minority,
    /// An extension was counted.
    extended,
    /// A holder's validity ended.
    expired,
    /// A holder released its lock.
    released,
    /// A lock key expired early.
    expired_early,
    /// A client got the lock while a restarted master had no vote.
    obtained_while_guarded,
    /// A client got the lock after a restart whose guard had ended.
    obtained_after_guard,
    /// A client of both sets got the lock.
    obtained_from_both,
    /// A client of the next masters got the lock.
    obtained_from_next,
}

impl Counts {
    pub(crate) fn count(&mut self, before: &World, action: Action, after: &World) {
        let is_holding =
            |world: &World, index: usize| world.attempts[index].phase == Phase::Holding;
        match action {
            Action::CountVotes { attempt, .. } | Action::CountConfirmations { attempt }
                if is_holding(after, attempt) && !is_holding(before, attempt) =>
            {
                self.count_obtained(before, action, attempt);
            }
            Action::CountExtension { .. } => self.extended += 1,
            Action::Tick => {
                let ended =
                    |index: &usize| is_holding(before, *index) && !is_holding(after, *index);
                self.expired += (0..before.attempts.len()).filter(ended).count() as u64;
            }
            Action::Release { .. } => self.released += 1,
            Action::ExpireEarly { .. } => self.expired_early += 1,
            _ => {}
        }
    }

    fn count_obtained(&mut self, before: &World, action: Action, attempt: usize) {
        self.obtained += 1;
        self.obtained_again += u64::from(before.attempts.iter().any(Attempt::has_lock));
        self.confirmed += u64::from(matches!(action, Action::CountConfirmations { .. }));
        let missed: Masters =
            before.masters_where(|master| master.exchanges[attempt].in_flight > 0);
        self.obtained_without_minority += u64::from(missed > 0);
        let is_guarded = before.masters.iter().any(|master| master.guard > 0);
        self.obtained_while_guarded += u64::from(is_guarded);
        self.obtained_after_guard += u64::from(before.restarts > 0 && !is_guarded);
        self.obtained_from_both += u64::from(before.attempts[attempt].step == 1);
        self.obtained_from_next += u64::from(before.attempts[attempt].step == 2);
    }
}
