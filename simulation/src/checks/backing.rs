//! Checks that a majority of the masters has voted for every lock that a client obtains. A master has voted if, at some
//! moment, both conditions are true:
//!
//! - The lock key contains the lock value of the client's attempt.
//! - The fencing counter is equal to the lock's fencing token.

use super::{ByValue, Check, Moment};
use crate::change_plan::is_majority;
use crate::facts::Fact;
use crate::scenario::Scenario;

pub(crate) struct Backing {
    fencing: bool,
    /// The masters that are databases or ZooKeeper (bit n is master n). The checker does not see their votes, and
    /// assumes that all of them have voted.
    stores: u16,
    /// The votes for each lock value: (resource, fencing counter, masters). Bit n is set if master n had this fencing
    /// counter while its lock key contained the lock value.
    votes: ByValue<Vec<(usize, u64, u16)>>,
    judged: u64,
}

impl Backing {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            fencing: scenario.settings.fencing,
            stores: scenario.stores(),
            votes: ByValue::default(),
            judged: 0,
        }
    }
}

impl Check for Backing {
    const RULE: &'static str = "backing";

    fn see(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied {
                master,
                resource,
                claim,
                after,
                members,
                ..
            } => {
                let value = claim.token().to_hex();
                let joined = members.iter().any(|member| member.value == value);
                let holder = if joined { Some(value) } else { after.holder };
                if let Some(holder) = holder {
                    let seen = self.votes.entry(holder).or_default();
                    let bit = 1 << master;
                    let same =
                        |one: &&mut (usize, u64, u16)| (one.0, one.1) == (*resource, after.counter);
                    match seen.iter_mut().find(same) {
                        Some((.., masters)) => *masters |= bit,
                        None => seen.push((*resource, after.counter, bit)),
                    }
                }
                Ok(())
            }
            Fact::Obtained { believer } => {
                self.judged += u64::from(!is_majority(self.stores, believer.sets));
                let token = if self.fencing {
                    believer.fencing.unwrap_or(0)
                } else {
                    0
                };
                let seen = self.votes.get(&believer.value.to_hex());
                let of = |resource: usize| {
                    let seen = seen.into_iter().flatten();
                    let equal = seen.filter(|(of, counter, _)| {
                        *of == resource && (*counter == token || !self.fencing)
                    });
                    equal.fold(0u16, |all, (.., masters)| all | masters)
                };
                // A master's vote counts only if the master has granted every resource of the lock.
                let all = believer.scope.resources().map(of);
                let masters = all.fold(u16::MAX, |all, one| all & one) | self.stores;
                if is_majority(masters, believer.sets) {
                    return Ok(());
                }
                Err(format!(
                    "client {} holds r{} with the fencing token {:?}, but only {} masters voted for it",
                    believer.client,
                    believer.resource,
                    believer.fencing,
                    masters.count_ones()
                ))
            }
            _ => Ok(()),
        }
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
