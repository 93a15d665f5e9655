//! Checks that fencing tokens are unique, and that they rise: if an attempt starts after another lock on the resource
//! was obtained, the attempt gets a larger token than that lock.
//!
//! An attempt starts with the first message that carries the lock value of the attempt.

use quorate_promises::{Breach, Obtained, Tokens as Given};

use super::numbers::Numbers;
use super::{ByValue, Check, Moment};
use crate::facts::Fact;
use crate::scenario::Scenario;

pub(crate) struct Tokens {
    started: ByValue<u64>,
    /// The fencing tokens that clients have received, by resource. Event numbers serve as the times of attempts and
    /// grants.
    given: Given<usize, usize>,
    /// The checker of fencing tokens for locks that may be shared; `None` if the scenario has only plain exclusive
    /// locks.
    mixed: Option<Numbers>,
}

impl Tokens {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            started: ByValue::default(),
            given: Given::default(),
            mixed: scenario.is_mixed().then(Numbers::default),
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
                let value = claim.token().to_hex();
                self.started.entry(value).or_insert(at.event);
                Ok(())
            }
            Fact::Obtained { believer } => {
                let client = believer.client;
                let Some(token) = believer.fencing else {
                    return Err(format!(
                        "client {client} obtained a lock without a fencing token"
                    ));
                };
                let began = self.started.get(&believer.value.to_hex());
                if let Some(mixed) = &mut self.mixed {
                    let began = began.copied().unwrap_or(at.event);
                    return mixed.obtained(at, believer, began, token);
                }
                let obtained = Obtained {
                    who: client,
                    began: began.copied().unwrap_or(at.event),
                    at: at.event,
                    token,
                };
                match self.given.obtained(believer.resource, obtained) {
                    None => Ok(()),
                    Some(Breach::Twice(other)) => Err(format!(
                        "clients {} and {client} both got the fencing token {token}",
                        other.who
                    )),
                    Some(Breach::Smaller(other)) => Err(format!(
                        "client {client} started its attempt after client {} had the fencing token {}, but got the \
                         smaller \
                         token {token}",
                        other.who, other.token
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    fn judged(&self) -> u64 {
        self.given.judged() + self.mixed.as_ref().map_or(0, Numbers::judged)
    }
}
