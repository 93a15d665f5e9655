//! What kind of lock is asked for: which keys it takes and how, and whether it can be had at all.
//!
//! All kinds go the same way through attempts, renewal and release; a kind only says what is claimed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{AcquireError, BuildError};
use crate::node::Class;
use crate::resource::{InvalidResource, MAX_RESOURCES, check_resource};
use crate::rounds::coordinator::Coordinator;
use crate::rounds::wanted::Wanted;

/// What kind of lock is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One resource, alone.
    Exclusive,
    /// Several, each alone, all or nothing.
    Several(Box<[Box<[u8]>]>),
    /// One, beside other readers.
    Shared,
    /// One, beside other holds of this owner.
    Owner(Arc<str>),
}

impl Kind {
    /// Whether it can be had at all.
    pub(crate) fn check(&self, coordinator: &Coordinator) -> Result<(), AcquireError> {
        let what = match self {
            Self::Exclusive => return Ok(()),
            Self::Several(all) => {
                check_several(&coordinator.prefix, all)?;
                "several resources in one lock"
            }
            Self::Shared => "readers",
            Self::Owner(_) => "the holds of an owner",
        };
        if coordinator.fencing {
            Ok(())
        } else {
            Err(BuildError::NeedsFencing(what).into())
        }
    }

    /// What an acquire is to get.
    pub(crate) fn wanted(&self, coordinator: &Coordinator, resource: &[u8]) -> Wanted {
        let key = || coordinator.key(resource);
        match self {
            Self::Exclusive => Wanted::exclusive(key()),
            Self::Several(all) => {
                let keys = all.iter().map(|resource| coordinator.key(resource));
                Wanted::several(keys.collect())
            }
            Self::Shared => Wanted::of_class(key(), Class::Shared),
            Self::Owner(id) => Wanted::of_class(key(), Class::Owner(id.clone())),
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
