//! Checks fencing tokens of locks that may be shared (docs/protocol.md, "Several resources, readers, owners,
//! semaphores"):
//!
//! - If two holds exclude each other, the later hold has the larger token.
//! - Among holds of the same class (readers, or one owner) tokens do not fall.
//! - All live holds of an owner have the same token.

use crate::check::Moment;
use crate::facts::Believer;
use crate::kind::{Class, Scope};

#[derive(Default)]
pub(super) struct SharedTokens {
    obtained_tokens: Vec<ObtainedToken>,
    judged_cases: u64,
}

struct ObtainedToken {
    client: usize,
    scope: Scope,
    /// The number of the event at which the lock was obtained.
    event: u64,
    token: u64,
}

impl SharedTokens {
    pub(super) fn judged_cases(&self) -> u64 {
        self.judged_cases
    }

    pub(super) fn check_obtained(
        &mut self,
        moment: &Moment<'_>,
        believer: &Believer,
        began_event: u64,
        token: u64,
    ) -> Result<(), String> {
        self.judged_cases += 1;
        let (client, scope) = (believer.client, believer.scope);
        let overlapping = self
            .obtained_tokens
            .iter()
            .filter(|earlier| earlier.scope.overlaps(scope));
        for other in overlapping {
            let is_earlier = other.event < began_event;
            let wrong_relation = if scope.is_compatible_with(other.scope) {
                (is_earlier && token < other.token).then_some("the smaller")
            } else if token == other.token {
                Some("the same")
            } else {
                (is_earlier && token < other.token).then_some("the smaller")
            };
            if let Some(relation) = wrong_relation {
                return Err(format!(
                    "client {client} got {relation} fencing token {token} on r{} after client {} had got the token {}",
                    believer.resource, other.client, other.token
                ));
            }
        }
        let shares_lock = |other: &&Believer| {
            other.scope.overlaps(scope)
                && other.scope.is_compatible_with(scope)
                && !other.is_over
                && other.ends_at > moment.now
        };
        let is_owned = matches!(scope.class, Some(Class::Owner(_))) && moment.promises.exclusion;
        let sharing_holds = moment.believers.iter().filter(shares_lock);
        let mismatch = sharing_holds
            .filter(|_| is_owned)
            .find(|hold| hold.fencing_token != Some(token));
        self.obtained_tokens.push(ObtainedToken {
            client,
            scope,
            event: moment.event,
            token,
        });
        match mismatch {
            None => Ok(()),
            Some(other) => Err(format!(
                "clients {} and {client} hold r{} for the same owner, but with different fencing tokens: {:?} and \
                 {token}",
                other.client, believer.resource, other.fencing_token
            )),
        }
    }
}
