//! Checks that a majority of the masters has voted for every lock that a client obtains. A master has voted if, at some
//! moment, both conditions are true:
//!
//! - The lock key contains the lock value of the client's attempt.
//! - The fencing counter is equal to the lock's fencing token.

use crate::change_plan::is_majority;
use crate::check::{ByValue, Check, Moment};
use crate::facts::Fact;
use crate::scenario::Scenario;

pub(crate) struct Backing {
    has_fencing: bool,
    /// The masters that are databases or ZooKeeper (bit n is master n). The checker does not see their votes, and
    /// assumes that all of them have voted.
    store_masters: u16,
    /// The votes for each lock value: (resource, fencing counter, masters). Bit n is set if master n had this fencing
    /// counter while its lock key contained the lock value.
    votes: ByValue<Vec<(usize, u64, u16)>>,
    judged_cases: u64,
}

impl Backing {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            has_fencing: scenario.settings.fencing,
            store_masters: scenario.store_masters(),
            votes: ByValue::default(),
            judged_cases: 0,
        }
    }
}

impl Check for Backing {
    fn check_fact(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::RequestExecuted {
                master,
                resource,
                claim,
                after,
                members,
                ..
            } => {
                let value = claim.token().to_hex();
                let is_member = members.iter().any(|member| member.value == value);
                let holder = if is_member { Some(value) } else { after.holder };
                if let Some(holder) = holder {
                    let votes = self.votes.entry(holder).or_default();
                    let bit = 1 << master;
                    let is_same_counter = |(voted, counter, _): &&mut (usize, u64, u16)| {
                        (*voted, *counter) == (*resource, after.counter)
                    };
                    match votes.iter_mut().find(is_same_counter) {
                        Some((.., masters)) => *masters |= bit,
                        None => votes.push((*resource, after.counter, bit)),
                    }
                }
                Ok(())
            }
            Fact::LockObtained { believer } => {
                self.judged_cases += u64::from(!is_majority(self.store_masters, believer.sets));
                let token = if self.has_fencing {
                    believer.fencing_token.unwrap_or(0)
                } else {
                    0
                };
                let votes = self.votes.get(&believer.value.to_hex());
                let voters_on = |resource: usize| {
                    let all_votes = votes.into_iter().flatten();
                    let matching_votes = all_votes.filter(|(voted, counter, _)| {
                        *voted == resource && (*counter == token || !self.has_fencing)
                    });
                    matching_votes.fold(0u16, |voters, (.., masters)| voters | masters)
                };
                // A master's vote counts only if the master has granted every resource of the lock.
                let voters = believer.scope.resources().map(voters_on);
                let masters = voters.fold(u16::MAX, |common, on_resource| common & on_resource)
                    | self.store_masters;
                if is_majority(masters, believer.sets) {
                    return Ok(());
                }
                Err(format!(
                    "client {} holds r{} with the fencing token {:?}, but only {} masters voted for it",
                    believer.client,
                    believer.resource,
                    believer.fencing_token,
                    masters.count_ones()
                ))
            }
            _ => Ok(()),
        }
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
