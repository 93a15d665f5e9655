//! Checks that at most one client at a time believes that it holds a lock. Holds of the same class (readers, or one
//! owner) may share the lock. A client believes that it holds a lock from the moment at which it obtains the lock until
//! it sends the release, the validity ends, or it is notified of the loss.

use quorate_promises::{Belief, Exclusion as Believers, Overlap};

use super::{Check, Moment};
use crate::facts::{Believer, Fact};
use crate::kind::Scope;
use crate::scenario::Scenario;

pub(crate) struct Exclusion {
    believers: Believers<usize, Who>,
}

/// A hold of a lock, with its client and its scope (resources and class).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Who {
    id: u64,
    client: usize,
    token: Option<u64>,
    scope: Scope,
}

fn who(believer: &Believer) -> Who {
    Who {
        id: believer.id,
        client: believer.client,
        token: believer.fencing,
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

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.exclusion {
            return Ok(());
        }
        let (believer, moves) = match fact {
            Fact::Obtained { believer } => (believer, false),
            Fact::Extended { believer, .. } => (believer, true),
            Fact::Over { believer } | Fact::Retired { believer, .. } => {
                for resource in believer.scope.resources() {
                    self.believers.ends(&resource, who(believer));
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        for resource in believer.scope.resources() {
            let (who, until) = (who(believer), believer.ends);
            let overlaps = if moves {
                self.believers.moves(&resource, who, at.now, until)
            } else {
                let from = at.now;
                self.believers.begins(resource, Belief { who, from, until })
            };
            // Holds of the same class (readers, or one owner) may share the resource. Report only an overlap of holds
            // that must not share it.
            let apart =
                |overlap: &&Overlap<Who>| !overlap.other.scope.is_compatible_with(who.scope);
            if let Some(overlap) = overlaps.iter().find(apart) {
                return Err(format!(
                    "clients {} and {} both believe that they hold r{resource} (fencing tokens {:?} and {:?})",
                    overlap.other.client, who.client, overlap.other.token, who.token
                ));
            }
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.believers.judged()
    }
}
