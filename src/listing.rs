//! What is locked now, by whom, and who waits.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::node::{Fault, NodeName, Request};
use crate::redlock::{Redlock, Status, StatusVerdict};
use crate::resource::check_resource;

/// The most locks that are listed.
const MOST: usize = 1000;

/// The longest time for which masters are asked for names.
const LONGEST: Duration = Duration::from_secs(5);

/// So many locks are looked at together.
const TOGETHER: usize = 64;

/// What [`Redlock::list`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The locks, by name.
    pub locks: Vec<Listed>,
    /// Whether these are all: false when there were more than 1000, or it would have taken longer than
    /// 5 s.
    pub complete: bool,
    /// The masters that could not be asked for names, and why. A lock that only they know of is not
    /// listed; where they are a minority, none that is held can be.
    pub faults: Vec<(NodeName, Fault)>,
}

/// One lock of a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// What is locked, without the key prefix.
    pub resource: Vec<u8>,
    /// What each master knows of it: the holder, its note, and who waits.
    pub status: Status,
}

impl Redlock {
    /// What is locked now, of all that begins with `prefix` (empty for everything): at most 1000 locks,
    /// within about 5 s. Whatever is a string under the builder's key prefix counts as a lock: on masters
    /// that keep other data as well, give the locks a prefix of their own.
    ///
    /// The masters go through all their keys for it, a thousand at a time, and other requests come in
    /// between. It is a look, made while locks come and go.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) {
    /// let listing = redlock.list("deploy:").await;
    /// for lock in &listing.locks {
    ///     let holder = lock.status.note().map_or("unknown".to_owned(), ToString::to_string);
    ///     println!("{}: {holder}", String::from_utf8_lossy(&lock.resource));
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    pub async fn list(&self, prefix: impl AsRef<[u8]>) -> Listing {
        let coordinator = &self.core.coordinator;
        let before = coordinator.key(prefix.as_ref());
        let until = coordinator.now() + LONGEST;
        let named = coordinator.list(&before, MOST, until).await;
        let mut faults = Vec::new();
        let mut complete = true;
        let mut keys = BTreeSet::new();
        for (name, named) in coordinator.names().zip(named) {
            match named {
                Ok(named) => {
                    complete &= named.complete;
                    keys.extend(named.keys);
                }
                Err(fault) => faults.push((name.clone(), fault)),
            }
        }
        complete &= keys.len() <= MOST;
        let keys: Vec<_> = keys.into_iter().take(MOST).collect();
        let mut locks = Vec::new();
        for keys in keys.chunks(TOGETHER) {
            let looks = keys.iter().map(|key| self.listed(key));
            locks.extend(futures::future::join_all(looks).await.into_iter().flatten());
        }
        Listing {
            locks,
            complete,
            faults,
        }
    }

    /// The lock of a key, if it still is one.
    async fn listed(&self, key: &[u8]) -> Option<Listed> {
        let prefix = &self.core.coordinator.prefix;
        let resource = key.strip_prefix(prefix.as_bytes())?;
        check_resource(prefix, resource).ok()?;
        let status = self.look(Request::Look { key: key.into() }).await;
        let resource = resource.to_vec();
        (status.verdict() != StatusVerdict::Free).then_some(Listed { resource, status })
    }
}
