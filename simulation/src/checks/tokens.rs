//! Rule 2: fencing tokens are unique, and obtained-before-started implies smaller.
//!
//! An attempt starts with the first message that carries its value. Two overlapping attempts may
//! end up in any order.

use super::{ByValue, Check, Moment};
use crate::facts::Fact;
use crate::locker::RESOURCES;
use crate::scenario::Scenario;

pub(crate) struct Tokens {
    started: ByValue<u64>,
    /// Per resource: event, client and token of each obtain, in order.
    obtained: [Vec<(u64, usize, u64)>; RESOURCES],
}

impl Tokens {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            started: ByValue::default(),
            obtained: Default::default(),
        }
    }
}

impl Check for Tokens {
    const RULE: &'static str = "tokens";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.tokens {
            return Ok(());
        }
        match fact {
            Fact::Started { claim, .. } => {
                self.started
                    .entry(claim.token().to_hex())
                    .or_insert(at.event);
                Ok(())
            }
            Fact::Obtained { believer } => {
                let Some(token) = believer.fencing else {
                    return Err(format!("client {} holds without a token", believer.client));
                };
                let started = self
                    .started
                    .get(&believer.value.to_hex())
                    .copied()
                    .unwrap_or(at.event);
                let before = &mut self.obtained[believer.resource];
                for &(when, client, other) in before.iter().rev() {
                    if other == token {
                        return Err(format!(
                            "clients {client} and {} were both given token {token}",
                            believer.client
                        ));
                    }
                    if when < started && other > token {
                        return Err(format!(
                            "client {} started after client {client} had token {other}, \
                             and was given the smaller {token}",
                            believer.client
                        ));
                    }
                }
                before.push((at.event, believer.client, token));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
