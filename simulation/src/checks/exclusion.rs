//! Checks that at most one client at a time believes that it holds a lock. Holds of the same class (readers, or one
//! owner) may share the lock. A client believes that it holds a lock from the moment at which it obtains the lock until
//! it sends the release, the validity ends, or it is notified of the loss.

use quorate_promises::{Belief, Exclusion as Believers, Overlap};

use crate::check::{Check, Moment};
use crate::facts::{Believer, Fact};
use crate::kind::Scope;
use crate::scenario::Scenario;

pub(crate) struct Exclusion {
    believers: Believers<usize, HoldKey>,
}

/// A hold of a lock, with its client and its scope (resources and class).
#[derive(Clone, Copy, PartialEq, Eq)]
struct HoldKey {
    id: u64,
    client: usize,
    token: Option<u64>,
    scope: Scope,
}

fn hold_key(believer: &Believer) -> HoldKey {
    HoldKey {
        id: believer.id,
        client: believer.client,
        token: believer.fencing_token,
        scope: believer.scope,
    }
}

impl Exclusion {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            believers: Believers::default(),
        }
    }
}

impl Check for Exclusion {
    const RULE: &'static str = "exclusion";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !moment.promises.exclusion {
            return Ok(());
        }
        let (believer, is_extension) = match fact {
            Fact::LockObtained { believer } => (believer, false),
            Fact::ValidityExtended { believer, .. } => (believer, true),
            Fact::GuardEnded { believer } | Fact::BeliefEnded { believer, .. } => {
                for resource in believer.scope.resources() {
                    self.believers.ends(&resource, hold_key(believer));
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        for resource in believer.scope.resources() {
            let (key, until) = (hold_key(believer), believer.ends_at);
            let overlaps = if is_extension {
                self.believers.moves(&resource, key, moment.now, until)
            } else {
                let belief = Belief {
                    who: key,
                    from: moment.now,
                    until,
                };
                self.believers.begins(resource, belief)
            };
            // Holds of the same class (readers, or one owner) may share the resource. Report only an overlap of holds
            // that must not share it.
            let is_forbidden =
                |overlap: &&Overlap<HoldKey>| !overlap.other.scope.is_compatible_with(key.scope);
            if let Some(overlap) = overlaps.iter().find(is_forbidden) {
                return Err(format!(
                    "clients {} and {} both believe that they hold r{resource} (fencing tokens {:?} and {:?})",
                    overlap.other.client, key.client, overlap.other.token, key.token
                ));
            }
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.believers.judged()
    }
}
