//! Checks that at most n clients at a time believe that they hold a permit of a semaphore with n permits
//! (docs/protocol.md, "Several resources, readers, owners, semaphores"). Other rules check that each slot has only one
//! holder, and that fencing tokens are unique, as for any lock.
//!
//! If clients configure different numbers of permits, the largest number is the limit.

use quorate_promises::{Belief, Exclusion};

use super::{Check, Moment};
use crate::facts::Fact;
use crate::kind::Kind;
use crate::locker::{SEMAPHORES, semaphore_of};
use crate::scenario::Scenario;

pub(crate) struct Permits {
    /// The largest configured number of permits, by semaphore.
    most: [usize; SEMAPHORES],
    /// The clients that believe that they hold a permit, by semaphore.
    believers: Exclusion<usize, u64>,
    judged: u64,
}

impl Permits {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            most: asked_for(scenario).map(|(_, most)| most),
            believers: Exclusion::default(),
            judged: 0,
        }
    }
}

/// The smallest and the largest configured number of permits, by semaphore.
pub(super) fn asked_for(scenario: &Scenario) -> [(usize, usize); SEMAPHORES] {
    let mut asked = [(usize::MAX, 0); SEMAPHORES];
    for client in &scenario.clients {
        for step in &client.steps {
            let Kind::Permit(permits) = step.kind else {
                continue;
            };
            let place = usize::from(step.kind.place(step.resource));
            note(&mut asked, place, permits.into());
        }
        // If a client's last step takes a permit, the client takes one more permit at the end, for the first resource.
        if let Some(Kind::Permit(permits)) = client.steps.last().map(|step| step.kind) {
            let place = Kind::Permit(permits).place(0);
            note(&mut asked, place.into(), permits.into());
        }
    }
    asked
}

fn note(asked: &mut [(usize, usize); SEMAPHORES], place: usize, permits: usize) {
    if let Some(semaphore) = semaphore_of(place) {
        let (fewest, most) = &mut asked[semaphore];
        (*fewest, *most) = ((*fewest).min(permits), (*most).max(permits));
    }
}

impl Check for Permits {
    const RULE: &'static str = "permits";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let (Fact::Obtained { believer }
        | Fact::Extended { believer, .. }
        | Fact::Over { believer }
        | Fact::Retired { believer, .. }) = fact
        else {
            return Ok(());
        };
        let Some(semaphore) = semaphore_of(believer.resource) else {
            return Ok(());
        };
        if !at.promises.exclusion {
            return Ok(());
        }
        let (who, from, until) = (believer.id, at.now, believer.ends);
        let others = match fact {
            Fact::Obtained { .. } => {
                self.judged += 1;
                let belief = Belief { who, from, until };
                self.believers.begins(semaphore, belief)
            }
            Fact::Extended { .. } => self.believers.moves(&semaphore, who, from, until),
            _ => {
                self.believers.ends(&semaphore, who);
                return Ok(());
            }
        };
        // The clients in `others` hold a permit at the same time as this client.
        if others.len() < self.most[semaphore] {
            return Ok(());
        }
        Err(format!(
            "{} clients hold permits of the semaphore r{semaphore}, which has only {} permits (latest: client {})",
            others.len() + 1,
            self.most[semaphore],
            believer.client
        ))
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
