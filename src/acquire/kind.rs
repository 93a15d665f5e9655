//! The kinds of locks: which keys a lock of each kind claims, in which mode, and whether the request is valid.
//!
//! All kinds use the same code for attempts, renewal and release. The kind only determines what is claimed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{AcquireError, BuildError};
use crate::node::{Class, Permit};
use crate::resource::{InvalidResource, MAX_PERMITS, MAX_RESOURCES, check_resource};
use crate::rounds::coordinator::Coordinator;
use crate::rounds::lock_target::LockTarget;
use crate::runtime::random_number;

/// The kind of lock that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One resource, held exclusively.
    Exclusive,
    /// Several resources, each held exclusively. The lock gets all of them or none.
    SeveralResources(Box<[Box<[u8]>]>),
    /// One resource, shared with other readers.
    Shared,
    /// One resource, shared with other holds of this owner.
    Owner(Arc<str>),
    /// One permit of a semaphore that has this number of permits.
    Semaphore(usize),
    /// One lock key, given in full without adding the key prefix, held exclusively.
    RawKey,
    /// An invalid request: `shared()` was called on a kind of lock that has no readers. The text completes the error
    /// message "shared() is not supported ..", for example "with an owner".
    InvalidShared(&'static str),
}

impl Kind {
    /// Makes this a lock of readers. Only a plain lock on a single resource can have readers.
    pub(crate) fn shared(self) -> Self {
        match self {
            Self::Exclusive | Self::Shared => Self::Shared,
            Self::SeveralResources(resources) if resources.len() < 2 => Self::Shared,
            Self::SeveralResources(_) => Self::InvalidShared("with several resources in one lock"),
            Self::Owner(_) => Self::InvalidShared("with an owner"),
            Self::RawKey => Self::InvalidShared("with a lock on a raw key"),
            Self::Semaphore(_) => Self::InvalidShared("with a semaphore"),
            Self::InvalidShared(feature) => Self::InvalidShared(feature),
        }
    }

    /// Checks that the request for this kind of lock is valid.
    pub(crate) fn check(&self, coordinator: &Coordinator) -> Result<(), AcquireError> {
        let feature = match self {
            Self::Exclusive | Self::RawKey => return Ok(()),
            Self::SeveralResources(resources) => {
                check_resources(&coordinator.prefix, resources)?;
                "several resources in one lock"
            }
            Self::Shared => "readers",
            Self::Owner(_) => "the holds of an owner",
            Self::Semaphore(permits) if !(1..=MAX_PERMITS).contains(permits) => {
                return Err(InvalidResource::Permits(*permits).into());
            }
            Self::Semaphore(_) => "semaphores",
            Self::InvalidShared(feature) => return Err(InvalidResource::NoReaders(feature).into()),
        };
        if coordinator.fencing {
            Ok(())
        } else {
            Err(BuildError::NeedsFencing(feature).into())
        }
    }

    /// The lock keys and modes that the acquire asks for.
    pub(crate) fn target(&self, coordinator: &Coordinator, resource: &[u8]) -> LockTarget {
        let key = || coordinator.key(resource);
        match self {
            Self::Exclusive => LockTarget::exclusive(key()),
            Self::RawKey => LockTarget::exclusive(resource.into()),
            Self::SeveralResources(resources) => {
                let keys = resources.iter().map(|resource| coordinator.key(resource));
                LockTarget::several(keys.collect())
            }
            Self::Shared | Self::InvalidShared(_) => LockTarget::with_class(key(), Class::Shared),
            Self::Owner(id) => LockTarget::with_class(key(), Class::Owner(id.clone())),
            Self::Semaphore(permits) => {
                let permits = u8::try_from(*permits).unwrap_or(u8::MAX);
                // Start at a random slot. Otherwise all clients would ask for slot 0 first.
                let random = random_number(&*coordinator.runtime);
                let start_slot = random % u64::from(permits.max(1));
                let first_slot = u8::try_from(start_slot).unwrap_or(0);
                LockTarget::slot(Permit::new(key(), first_slot, permits))
            }
        }
    }
}

fn check_resources(prefix: &str, resources: &[Box<[u8]>]) -> Result<(), InvalidResource> {
    if resources.len() > MAX_RESOURCES {
        return Err(InvalidResource::TooMany(resources.len()));
    }
    let mut distinct = BTreeSet::new();
    for resource in resources {
        check_resource(prefix, resource)?;
        if !distinct.insert(resource) {
            let name = String::from_utf8_lossy(resource).into_owned();
            return Err(InvalidResource::Twice(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_more_than_sixteen_resources_is_refused() {
        let numbered_names = |count: usize| -> Vec<Box<[u8]>> {
            let numbered_name = |number: usize| format!("r{number}").into_bytes().into();
            (0..count).map(numbered_name).collect()
        };
        assert_eq!(check_resources("", &numbered_names(MAX_RESOURCES)), Ok(()));
        let more = MAX_RESOURCES + 1;
        let too_many = Err(InvalidResource::TooMany(more));
        assert_eq!(check_resources("", &numbered_names(more)), too_many);
        let twice = [numbered_names(1), numbered_names(1)].concat();
        assert!(matches!(
            check_resources("", &twice),
            Err(InvalidResource::Twice(_))
        ));
    }
}
