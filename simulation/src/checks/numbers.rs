//! Checks fencing tokens of locks that may be shared (docs/protocol.md, "Several resources, readers, owners,
//! semaphores"):
//!
//! - If two holds exclude each other, the later hold has the larger token.
//! - Among holds of the same class (readers, or one owner) tokens do not fall.
//! - All live holds of an owner have the same token.

use super::Moment;
use crate::facts::Believer;
use crate::kind::{Class, Scope};

#[derive(Default)]
pub(super) struct Numbers {
    given: Vec<Given>,
    judged: u64,
}

struct Given {
    client: usize,
    scope: Scope,
    /// The number of the event at which the lock was obtained.
    at: u64,
    number: u64,
}

impl Numbers {
    pub(super) fn judged(&self) -> u64 {
        self.judged
    }

    pub(super) fn obtained(
        &mut self,
        at: &Moment<'_>,
        believer: &Believer,
        began: u64,
        number: u64,
    ) -> Result<(), String> {
        self.judged += 1;
        let (client, scope) = (believer.client, believer.scope);
        let touching = self.given.iter().filter(|one| one.scope.meets(scope));
        for other in touching {
            let before = other.at < began;
            let what = if scope.is_compatible_with(other.scope) {
                (before && number < other.number).then_some("the smaller")
            } else if number == other.number {
                Some("the same")
            } else {
                (before && number < other.number).then_some("the smaller")
            };
            if let Some(what) = what {
                return Err(format!(
                    "client {client} got {what} fencing token {number} on r{} after client {} had got the token {}",
                    believer.resource, other.client, other.number
                ));
            }
        }
        let at_once = |one: &&Believer| {
            one.scope.meets(scope)
                && one.scope.is_compatible_with(scope)
                && !one.over
                && one.ends > at.now
        };
        let owned = matches!(scope.class, Some(Class::Owner(_))) && at.promises.exclusion;
        let another = at.believers.iter().filter(at_once);
        let another = another
            .filter(|_| owned)
            .find(|one| one.fencing != Some(number));
        self.given.push(Given {
            client,
            scope,
            at: at.event,
            number,
        });
        match another {
            None => Ok(()),
            Some(other) => Err(format!(
                "clients {} and {client} hold r{} for the same owner, but with different fencing tokens: {:?} and \
                 {number}",
                other.client, believer.resource, other.fencing
            )),
        }
    }
}
