//! Finds the record of a store that contains the data of a lock.

use std::sync::Arc;

use crate::keys;
use crate::node::{Claim, Request};

/// The name of a record.
pub(super) type Name = Arc<[u8]>;

/// The name of the record for a lock key. All slots of a semaphore share one record; each other lock key has its own.
pub(super) fn record_of_lock(key: &[u8]) -> Name {
    keys::queue_name_of(key).into()
}

/// The record that contains this key. The key can be a lock key, or another key that belongs to a lock.
pub(super) fn record_of_key(key: &[u8]) -> Name {
    record_of_lock(keys::lock_of(key))
}

/// The records of a claim in sorted order, each listed once: a claim on several keys has no slots of semaphores, so each
/// of its keys has a record of its own.
pub(super) fn records_of_claim(claim: &Claim) -> Vec<Name> {
    let mut names: Vec<Name> = claim.keys().map(|key| record_of_lock(key)).collect();
    names.sort_unstable();
    names
}

/// The records of a request, each listed once. Empty for [`Request::List`].
pub(super) fn records_of_request(request: &Request) -> Vec<Name> {
    let mut names = match request {
        Request::Acquire { claim, .. }
        | Request::Confirm { claim, .. }
        | Request::Release { claim, .. }
        | Request::Read { claim, .. }
        | Request::Write { claim, .. } => records_of_claim(claim),
        Request::Status { key } | Request::Break { key, .. } | Request::Watch { key, .. } => {
            vec![record_of_lock(key)]
        }
        Request::Extend { items } => records_of_claims(items.iter().map(|item| &*item.claim)),
        Request::Note { items } => records_of_claims(items.iter().map(|item| &*item.claim)),
        Request::List { .. } => Vec::new(),
    };
    names.sort_unstable();
    names.dedup();
    names
}

fn records_of_claims<'a>(claims: impl Iterator<Item = &'a Claim>) -> Vec<Name> {
    claims.flat_map(records_of_claim).collect()
}
