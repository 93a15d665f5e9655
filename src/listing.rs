//! Lists the locks that are held now, their holders and their waiters.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::keys::{self, Family};
use crate::node::{Fault, NodeName, Request, is_of_quorate};
use crate::redlock::Redlock;
use crate::redlock::status::{NodeStatus, Status, StatusVerdict};
use crate::resource::check_resource;

/// The largest number of locks in one listing. If there are more, the listing is not `complete`.
const MAX_KEYS: usize = 1000;

/// The time limit for asking the masters for the names of their locks.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// How many locks the client reads from the masters at the same time.
const STATUSES_AT_A_TIME: usize = 64;

/// The result of [`Redlock::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The locks, sorted by name.
    pub locks: Vec<Listed>,
    /// Whether the list contains every held lock. False if no majority of the masters returned names, if there were
    /// more than 1000 locks, or if listing would have taken longer than 5 s.
    pub complete: bool,
    /// The masters that could not be asked for names, and why. This includes masters that restarted and may have
    /// forgotten locks ([`Fault::Quarantined`]). A lock that only these masters know is not listed.
    pub faults: Vec<(NodeName, Fault)>,
    /// Whether a majority of the masters returned names. If not, held locks may be missing.
    pub majority_answered: bool,
}

/// One lock of a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The resource name without the key prefix; for a permit, the name of its semaphore.
    pub resource: Vec<u8>,
    /// The slot's number if the lock is a permit of a semaphore; `None` for all other locks.
    pub slot: Option<usize>,
    /// The state of the lock on each master: the holder, the holder's note, and the waiters. If another program has
    /// written the lock key, the holder is shown as `not a lock of ours`, because the real value may be private.
    pub status: Status,
}

/// The name of a lock that masters store: an element of [`NameList::names`], and the argument of
/// [`Redlock::statuses`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName {
    /// The resource name without the key prefix; for a permit, the name of its semaphore.
    pub resource: Vec<u8>,
    /// The slot's number if the lock is a permit of a semaphore; `None` for all other locks.
    pub slot: Option<usize>,
}

/// The result of [`Redlock::list_names`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameList {
    /// The names, sorted.
    pub names: Vec<LockName>,
    /// Whether the list contains every name. False if no majority of the masters returned names, if there were more
    /// names than the caller allowed, or if listing would have taken longer than 5 s.
    pub complete: bool,
    /// The masters that could not be asked for names, and why; as in [`Listing::faults`].
    pub faults: Vec<(NodeName, Fault)>,
    /// Whether a majority of the masters returned names.
    pub majority_answered: bool,
    /// How long the answers of the fastest master took: an upper bound of the time that this master worked. Zero if no
    /// master returned names.
    pub fastest: Duration,
}

/// A stored value in the result of [`Redlock::list_values`]: a quota, or the record of a job that runs once per period.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedValue {
    /// The resource name of the lock that protects the value, without the key prefix.
    pub name: Vec<u8>,
    /// The masters that have the value.
    pub on: Vec<NodeName>,
    /// The masters that returned all names of their values, but not this one. They have lost the value.
    pub missing_on: Vec<NodeName>,
}

/// Shown instead of a value that quorate did not write.
const FOREIGN_HOLDER_TEXT: &[u8] = b"not a lock of ours";

/// Replaces each value that quorate did not write by the text [`FOREIGN_HOLDER_TEXT`]. If there are several such
/// values, appends a number to the text for the second value and for each later one.
fn hide_foreign_holders(nodes: &mut [NodeStatus]) {
    let mut foreign_values: Vec<Vec<u8>> = Vec::new();
    for node in nodes {
        let Ok(state) = &mut node.state else { continue };
        let Some(holder) = state
            .holder
            .as_mut()
            .filter(|holder| !is_of_quorate(holder))
        else {
            continue;
        };
        let known_index = foreign_values
            .iter()
            .position(|foreign_value| foreign_value == holder);
        let number = known_index.unwrap_or(foreign_values.len());
        let hidden_text = match number {
            0 => FOREIGN_HOLDER_TEXT.to_vec(),
            _ => [FOREIGN_HOLDER_TEXT, format!(" ({})", number + 1).as_bytes()].concat(),
        };
        let foreign_value = std::mem::replace(holder, hidden_text);
        if known_index.is_none() {
            foreign_values.push(foreign_value);
        }
    }
}

impl Redlock {
    /// Lists the locks that are held now and whose names begin with `prefix`; an empty `prefix` lists all locks. The
    /// list has at most 1000 locks, and the search for their names takes at most 5 s.
    ///
    /// - Each held permit of a semaphore counts as one lock.
    /// - Every key of type string that begins with the builder's key prefix counts as a lock. If the masters also store
    ///   other data, give the locks a prefix of their own.
    /// - The list is not a snapshot: locks may come and go during the scan.
    ///
    /// Each master scans all its keys twice, about a thousand keys at a time. After each thousand, the master can serve
    /// other requests.
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
    /// Safe to drop at any point: nothing is changed.
    pub async fn list(&self, prefix: impl AsRef<[u8]>) -> Listing {
        let (keys, list) = self.lock_keys(prefix.as_ref(), MAX_KEYS).await;
        // Ask for the state of each key. A lock that was released in the meantime is left out.
        let mut locks = self.statuses_of_keys(&keys).await;
        locks.retain(|lock| lock.status.verdict() != StatusVerdict::Free);
        locks.sort_by(|a, b| (&a.resource, a.slot).cmp(&(&b.resource, b.slot)));
        Listing {
            locks,
            complete: list.complete,
            faults: list.faults,
            majority_answered: list.majority_answered,
        }
    }

    /// Lists the names of the locks whose names begin with `prefix`, without the state of the locks: at most `max`
    /// names. The search takes at most 5 s. Otherwise as [`list`](Self::list).
    ///
    /// A lock whose key only a minority of the masters stores is in the list as well.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop at any point: nothing is changed.
    pub async fn list_names(&self, prefix: impl AsRef<[u8]>, max: usize) -> NameList {
        let (keys, mut list) = self.lock_keys(prefix.as_ref(), max).await;
        list.names = keys
            .iter()
            .filter_map(|key| self.name_of_key(key))
            .collect();
        list.names.sort();
        list
    }

    /// Reads the state of these locks from the masters, as [`list`](Self::list) does: a lock that is free has the
    /// verdict [`Free`](StatusVerdict::Free). Names that cannot be names of locks are left out.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop at any point: nothing is changed.
    pub async fn statuses(&self, locks: &[LockName]) -> Vec<Listed> {
        let key_of = |lock: &LockName| {
            let key = self.core.coordinator.key(&lock.resource);
            Some(match lock.slot {
                None => key.to_vec(),
                Some(slot) => keys::slot_key(&key, u8::try_from(slot).ok()?),
            })
        };
        let keys: Vec<Vec<u8>> = locks.iter().filter_map(key_of).collect();
        self.statuses_of_keys(&keys).await
    }

    /// Asks the masters for the keys of the locks whose names begin with `prefix`. The names in the result are empty.
    async fn lock_keys(&self, prefix: &[u8], max: usize) -> (Vec<Vec<u8>>, NameList) {
        let coordinator = &self.core.coordinator;
        let key_prefix = coordinator.key(prefix);
        let deadline = coordinator.now() + LIST_TIMEOUT;
        let is_lock = |key: &[u8]| !keys::is_reserved(key);
        let is_slot = |key: &[u8]| {
            let slot = keys::parse_slot_key(key);
            slot.is_some_and(|(_, name)| name.starts_with(&key_prefix))
        };
        // Slots of semaphores have another form of key, so they need a second list.
        let (pattern, slot_pattern) = (
            keys::pattern_of_prefix(&key_prefix),
            keys::pattern_of_all_slots(),
        );
        let (lock_lists, slot_lists) = futures::future::join(
            coordinator.list(&pattern, &is_lock, max, deadline),
            coordinator.list(&slot_pattern, &is_slot, max, deadline),
        )
        .await;
        // Merge the keys of all masters. A master with two faults is listed once.
        let mut faults: Vec<(NodeName, Fault)> = Vec::new();
        let mut complete = true;
        let mut keys = BTreeSet::new();
        let both_lists = lock_lists.iter().zip(&slot_lists);
        let times = both_lists.filter_map(|(locks, slots)| {
            Some(locks.as_ref().ok()?.answer_time + slots.as_ref().ok()?.answer_time)
        });
        let fastest = times.min().unwrap_or_default();
        let lock_lists = coordinator.names().zip(lock_lists);
        for (name, list) in lock_lists.chain(coordinator.names().zip(slot_lists)) {
            match list {
                Ok(list) => {
                    complete &= list.complete;
                    keys.extend(list.keys);
                }
                Err(_) if faults.iter().any(|(faulty, _)| faulty == name) => {}
                Err(fault) => faults.push((name.clone(), fault)),
            }
        }
        let numbered_names = coordinator.names().enumerate();
        let answering =
            numbered_names.filter(|(_, name)| faults.iter().all(|(faulty, _)| faulty != *name));
        let majority_answered = coordinator
            .quorum
            .is_met_by(answering.map(|(node, _)| node).collect());
        complete &= keys.len() <= max && majority_answered;
        let list = NameList {
            names: Vec::new(),
            complete,
            faults,
            majority_answered,
            fastest,
        };
        (keys.into_iter().take(max).collect(), list)
    }

    /// The name of the lock with this key; `None` if the key is not a lock key.
    fn name_of_key(&self, key: &[u8]) -> Option<LockName> {
        let prefix = &self.core.coordinator.prefix;
        let (slot, name) = match keys::parse_slot_key(key) {
            Some((slot, name)) => (Some(slot.into()), name),
            None => (None, key),
        };
        let resource = name.strip_prefix(prefix.as_bytes())?;
        check_resource(prefix, resource).ok()?;
        Some(LockName {
            resource: resource.to_vec(),
            slot,
        })
    }

    /// Lists the quotas and the records of jobs ([`once`](Self::once)) with the builder's key prefix, sorted by name,
    /// to find masters that have lost a value. Supported if all masters are Redis or Valkey servers.
    ///
    /// A master is in neither list of a [`ListedValue`] if it could not be asked (for example, because the user has no
    /// right to `SCAN`), or if it has more than 1000 values or returned not all names within 5 s.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop at any point: nothing is changed.
    pub async fn list_values(&self) -> Vec<ListedValue> {
        let coordinator = &self.core.coordinator;
        let key_prefix = [
            Family::Value.key_prefix().as_bytes(),
            coordinator.prefix.as_bytes(),
        ]
        .concat();
        let (pattern, deadline) = (
            keys::pattern_of_prefix(&key_prefix),
            coordinator.now() + LIST_TIMEOUT,
        );
        let key_lists = coordinator
            .list(&pattern, &|_: &[u8]| true, MAX_KEYS, deadline)
            .await;
        let lists = coordinator
            .names()
            .zip(key_lists)
            .filter_map(|(name, list)| {
                let list = list.ok().filter(|list| list.complete)?;
                Some((name, list.keys))
            });
        let complete_lists: Vec<(&NodeName, BTreeSet<Vec<u8>>)> = lists.collect();
        let all_keys: BTreeSet<&Vec<u8>> =
            complete_lists.iter().flat_map(|(_, keys)| keys).collect();
        let listed_value = |key: &Vec<u8>| {
            let masters_with = |has: bool| {
                let selected = complete_lists
                    .iter()
                    .filter(|(_, keys)| keys.contains(key) == has);
                selected.map(|(name, _)| (*name).clone()).collect()
            };
            Some(ListedValue {
                name: key.strip_prefix(&key_prefix[..])?.to_vec(),
                on: masters_with(true),
                missing_on: masters_with(false),
            })
        };
        all_keys.into_iter().filter_map(listed_value).collect()
    }

    /// Reads the state of the locks with these keys from the masters.
    pub(crate) async fn statuses_of_keys(&self, keys: &[Vec<u8>]) -> Vec<Listed> {
        let mut locks = Vec::new();
        for keys in keys.chunks(STATUSES_AT_A_TIME) {
            let statuses = keys.iter().map(|key| self.status_of_key(key));
            locks.extend(
                futures::future::join_all(statuses)
                    .await
                    .into_iter()
                    .flatten(),
            );
        }
        locks
    }

    /// Reads the state of the lock with this key from the masters; `None` if the key is not a lock key.
    async fn status_of_key(&self, key: &[u8]) -> Option<Listed> {
        let LockName { resource, slot } = self.name_of_key(key)?;
        let mut status = self.key_status(Request::Status { key: key.into() }).await;
        hide_foreign_holders(&mut status.nodes);
        Some(Listed {
            resource,
            slot,
            status,
        })
    }
}
