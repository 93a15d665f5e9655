//! The kinds of locks: which keys a lock of each kind claims, in which mode, and whether the request is valid.
//!
//! All kinds use the same code for attempts, renewal and release. The kind only determines what is claimed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{AcquireError, BuildError};
use crate::node::{Class, Permit};
use crate::resource::{InvalidResource, MAX_PERMITS, MAX_RESOURCES, check_resource};
use crate::rounds::coordinator::Coordinator;
use crate::rounds::wanted::Wanted;

/// The kind of lock that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One resource, held exclusively.
    Exclusive,
    /// Several resources, each held exclusively. The lock gets all of them or none.
    Several(Box<[Box<[u8]>]>),
    /// One resource, shared with other readers.
    Shared,
    /// One resource, shared with other holds of this owner.
    Owner(Arc<str>),
    /// One permit of a semaphore that has this number of permits.
    Permit(usize),
    /// One lock key, given in full without adding the key prefix, held exclusively.
    Key,
    /// An invalid request: `shared()` was called on a kind of lock that has no readers. The text completes the error
    /// message "shared() is not supported ..", for example "with an owner".
    NoReaders(&'static str),
}

impl Kind {
    /// Makes this a lock of readers. Only a plain lock on a single resource can have readers.
    pub(crate) fn shared(self) -> Self {
        match self {
            Self::Exclusive | Self::Shared => Self::Shared,
            Self::Several(all) if all.len() < 2 => Self::Shared,
            Self::Several(_) => Self::NoReaders("with several resources in one lock"),
            Self::Owner(_) => Self::NoReaders("with an owner"),
            Self::Key => Self::NoReaders("with a lock on a raw key"),
            Self::Permit(_) => Self::NoReaders("with a semaphore"),
            Self::NoReaders(what) => Self::NoReaders(what),
        }
    }

    /// Checks that the request for this kind of lock is valid.
    pub(crate) fn check(&self, coordinator: &Coordinator) -> Result<(), AcquireError> {
        let what = match self {
            Self::Exclusive | Self::Key => return Ok(()),
            Self::Several(all) => {
                check_several(&coordinator.prefix, all)?;
                "several resources in one lock"
            }
            Self::Shared => "readers",
            Self::Owner(_) => "the holds of an owner",
            Self::Permit(permits) if !(1..=MAX_PERMITS).contains(permits) => {
                return Err(InvalidResource::Permits(*permits).into());
            }
            Self::Permit(_) => "semaphores",
            Self::NoReaders(what) => return Err(InvalidResource::NoReaders(what).into()),
        };
        if coordinator.fencing {
            Ok(())
        } else {
            Err(BuildError::NeedsFencing(what).into())
        }
    }

    /// The lock keys and modes that the acquire asks for.
    pub(crate) fn wanted(&self, coordinator: &Coordinator, resource: &[u8]) -> Wanted {
        let key = || coordinator.key(resource);
        match self {
            Self::Exclusive => Wanted::exclusive(key()),
            Self::Key => Wanted::exclusive(resource.into()),
            Self::Several(all) => {
                let keys = all.iter().map(|resource| coordinator.key(resource));
                Wanted::several(keys.collect())
            }
            Self::Shared | Self::NoReaders(_) => Wanted::of_class(key(), Class::Shared),
            Self::Owner(id) => Wanted::of_class(key(), Class::Owner(id.clone())),
            Self::Permit(permits) => {
                let permits = u8::try_from(*permits).unwrap_or(u8::MAX);
                let mut start = [0; 8];
                coordinator.runtime.random(&mut start);
                // Start at a random slot. Otherwise all clients would ask for slot 0 first.
                let start = u64::from_le_bytes(start) % u64::from(permits.max(1));
                let start = u8::try_from(start).unwrap_or(0);
                Wanted::slot(Permit::new(key(), start, permits))
            }
        }
    }
}

fn check_several(prefix: &str, all: &[Box<[u8]>]) -> Result<(), InvalidResource> {
    if all.len() > MAX_RESOURCES {
        return Err(InvalidResource::TooMany(all.len()));
    }
    let mut seen = BTreeSet::new();
    for resource in all {
        check_resource(prefix, resource)?;
        if !seen.insert(resource) {
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
        let names = |count: usize| -> Vec<Box<[u8]>> {
            let name = |number: usize| format!("r{number}").into_bytes().into();
            (0..count).map(name).collect()
        };
        assert_eq!(check_several("", &names(MAX_RESOURCES)), Ok(()));
        let more = MAX_RESOURCES + 1;
        let too_many = Err(InvalidResource::TooMany(more));
        assert_eq!(check_several("", &names(more)), too_many);
        let twice = [names(1), names(1)].concat();
        assert!(matches!(
            check_several("", &twice),
            Err(InvalidResource::Twice(_))
        ));
    }
}
