//! Rule 1: at most one believer in `[obtained, min(release sent, validity end, loss told)]`.

use quorate_promises::{Belief, Exclusion as Believers};

use super::{Check, Moment};
use crate::facts::{Believer, Fact};
use crate::scenario::Scenario;

pub(crate) struct Exclusion {
    believers: Believers<usize, Who>,
}

/// A hold, and what is said of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Who {
    id: u64,
    client: usize,
    token: Option<u64>,
}

fn who(believer: &Believer) -> Who {
    Who {
        id: believer.id,
        client: believer.client,
        token: believer.fencing,
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
        let (one, overlaps) = match fact {
            Fact::Obtained { believer } => {
                let belief = Belief {
                    who: who(believer),
                    from: at.now,
                    until: believer.ends,
                };
                let overlaps = self.believers.begins(believer.resource, belief);
                (believer, overlaps)
            }
            Fact::Prolonged { believer, .. } => {
                let (resource, until) = (&believer.resource, believer.ends);
                let overlaps = self.believers.moves(resource, who(believer), at.now, until);
                (believer, overlaps)
            }
            Fact::Over { believer } | Fact::Retired { believer, .. } => {
                self.believers.ends(&believer.resource, who(believer));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let Some(overlap) = overlaps.first() else {
            return Ok(());
        };
        Err(format!(
            "clients {} and {} both believe to hold r{} (tokens {:?} and {:?})",
            overlap.other.client, one.client, one.resource, overlap.other.token, one.fencing
        ))
    }

    fn judged(&self) -> u64 {
        self.believers.judged()
    }
}
