//! Checks that at most n clients at a time believe that they hold a permit of a semaphore with n permits
//! (docs/protocol.md, "Several resources, readers, owners, semaphores"). Other rules check that each slot has only one
//! holder, and that fencing tokens are unique, as for any lock.
//!
//! If clients configure different numbers of permits, the largest number is the limit.

use quorate_promises::{Belief, Exclusion};

use crate::check::{Check, Moment};
use crate::facts::Fact;
use crate::kind::Kind;
use crate::locker::{SEMAPHORES, semaphore_of_place};
use crate::scenario::Scenario;

pub(crate) struct Permits {
    /// The largest configured number of permits, by semaphore.
    permit_limits: [usize; SEMAPHORES],
    /// The clients that believe that they hold a permit, by semaphore.
    believers: Exclusion<usize, u64>,
    judged_cases: u64,
}

impl Permits {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            permit_limits: configured_permits(scenario).map(|(_, largest)| largest),
            believers: Exclusion::default(),
            judged_cases: 0,
        }
    }
}

/// The smallest and the largest configured number of permits, by semaphore.
pub(super) fn configured_permits(scenario: &Scenario) -> [(usize, usize); SEMAPHORES] {
    let mut configured = [(usize::MAX, 0); SEMAPHORES];
    for client in &scenario.clients {
        for step in &client.steps {
            let Kind::Permit(permits) = step.kind else {
                continue;
            };
            let place = usize::from(step.kind.place(step.resource));
            record_permits(&mut configured, place, permits.into());
        }
        // If a client's last step takes a permit, the client takes one more permit at the end, for the first resource.
        if let Some(Kind::Permit(permits)) = client.steps.last().map(|step| step.kind) {
            let place = Kind::Permit(permits).place(0);
            record_permits(&mut configured, place.into(), permits.into());
        }
    }
    configured
}

fn record_permits(configured: &mut [(usize, usize); SEMAPHORES], place: usize, permits: usize) {
    if let Some(semaphore) = semaphore_of_place(place) {
        let (smallest, largest) = &mut configured[semaphore];
        (*smallest, *largest) = ((*smallest).min(permits), (*largest).max(permits));
    }
}

impl Check for Permits {
    const RULE: &'static str = "permits";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let (Fact::LockObtained { believer }
        | Fact::ValidityExtended { believer, .. }
        | Fact::GuardEnded { believer }
        | Fact::BeliefEnded { believer, .. }) = fact
        else {
            return Ok(());
        };
        let Some(semaphore) = semaphore_of_place(believer.resource) else {
            return Ok(());
        };
        if !moment.promises.exclusion {
            return Ok(());
        }
        let (hold_id, from, until) = (believer.id, moment.now, believer.ends_at);
        let others = match fact {
            Fact::LockObtained { .. } => {
                self.judged_cases += 1;
                let belief = Belief {
                    who: hold_id,
                    from,
                    until,
                };
                self.believers.begins(semaphore, belief)
            }
            Fact::ValidityExtended { .. } => self.believers.moves(&semaphore, hold_id, from, until),
            _ => {
                self.believers.ends(&semaphore, hold_id);
                return Ok(());
            }
        };
        // The clients in `others` hold a permit at the same time as this client.
        if others.len() < self.permit_limits[semaphore] {
            return Ok(());
        }
        Err(format!(
            "{} clients hold permits of the semaphore r{semaphore}, which has only {} permits (latest: client {})",
            others.len() + 1,
            self.permit_limits[semaphore],
            believer.client
        ))
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
