//! Checks that fencing tokens are unique, and that they rise: if an attempt starts after another lock on the resource
//! was obtained, the attempt gets a larger token than that lock.
//!
//! An attempt starts with the first message that carries the lock value of the attempt.

use quorate_promises::{Breach, Obtained, Tokens as TokenOrder};

use super::shared_tokens::SharedTokens;
use crate::check::{ByValue, Check, Moment};
use crate::facts::Fact;
use crate::scenario::Scenario;

pub(crate) struct TokenCheck {
    attempt_events: ByValue<u64>,
    /// The fencing tokens that clients have received, by resource. Event numbers serve as the times of attempts and
    /// grants.
    token_order: TokenOrder<usize, usize>,
    /// The checker of fencing tokens for locks that may be shared; `None` if the scenario has only plain exclusive
    /// locks.
    shared_tokens: Option<SharedTokens>,
}

impl TokenCheck {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            attempt_events: ByValue::default(),
            token_order: TokenOrder::default(),
            shared_tokens: scenario.is_mixed().then(SharedTokens::default),
        }
    }
}

impl Check for TokenCheck {
    const RULE: &'static str = "tokens";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !moment.promises.tokens {
            return Ok(());
        }
        match fact {
            Fact::AttemptStarted { claim, .. } => {
                let value = claim.token().to_hex();
                self.attempt_events.entry(value).or_insert(moment.event);
                Ok(())
            }
            Fact::LockObtained { believer } => {
                let client = believer.client;
                let Some(token) = believer.fencing_token else {
                    return Err(format!(
                        "client {client} obtained a lock without a fencing token"
                    ));
                };
                let started_event = self.attempt_events.get(&believer.value.to_hex());
                if let Some(shared_tokens) = &mut self.shared_tokens {
                    let began_event = started_event.copied().unwrap_or(moment.event);
                    return shared_tokens.check_obtained(moment, believer, began_event, token);
                }
                let obtained = Obtained {
                    who: client,
                    began: started_event.copied().unwrap_or(moment.event),
                    at: moment.event,
                    token,
                };
                match self.token_order.obtained(believer.resource, obtained) {
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

    fn judged_cases(&self) -> u64 {
        self.token_order.judged()
            + self
                .shared_tokens
                .as_ref()
                .map_or(0, SharedTokens::judged_cases)
    }
}
