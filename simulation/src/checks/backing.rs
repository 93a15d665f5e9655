//! Rule 3: every token is backed by q votes: on q masters of those configured the lock had the
//! attempt's value and the counter was the token, at one moment.

use super::{ByValue, Check, Moment};
use crate::facts::Fact;
use crate::scenario::Scenario;

pub(crate) struct Backing {
    quorum: u32,
    fencing: bool,
    /// Per value: counters seen together with it, and on which masters.
    votes: ByValue<Vec<(u64, u16)>>,
    judged: u64,
}

impl Backing {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            quorum: scenario.masters.len() as u32 / 2 + 1,
            fencing: scenario.settings.fencing,
            votes: ByValue::default(),
            judged: 0,
        }
    }
}

impl Check for Backing {
    const RULE: &'static str = "backing";

    fn see(&mut self, _: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied { master, after, .. } => {
                if let Some(holder) = after.holder {
                    let seen = self.votes.entry(holder).or_default();
                    let bit = 1 << master;
                    match seen
                        .iter_mut()
                        .find(|(counter, _)| *counter == after.counter)
                    {
                        Some((_, masters)) => *masters |= bit,
                        None => seen.push((after.counter, bit)),
                    }
                }
                Ok(())
            }
            Fact::Obtained { believer } => {
                self.judged += 1;
                let token = if self.fencing {
                    believer.fencing.unwrap_or(0)
                } else {
                    0
                };
                let seen = self.votes.get(&believer.value.to_hex());
                let masters = seen.map_or(0, |seen| {
                    let equal = seen
                        .iter()
                        .filter(|(counter, _)| *counter == token || !self.fencing);
                    equal
                        .fold(0u16, |all, (_, masters)| all | masters)
                        .count_ones()
                });
                if masters >= self.quorum {
                    return Ok(());
                }
                Err(format!(
                    "client {} holds r{} with token {:?} on {masters} votes, {} are needed",
                    believer.client, believer.resource, believer.fencing, self.quorum
                ))
            }
            _ => Ok(()),
        }
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
