//! The request of an acquire: its keys, and the mode of each key.

use std::sync::Arc;

use super::coordinator::Coordinator;
use crate::node::{Claim, Class, Group, Mode, Part, Permit, Shape, Token};

/// The keys that an acquire asks for, and the mode of each key: exclusive or shared.
#[derive(Clone, Debug)]
pub(crate) struct LockTarget {
    /// For a slot of a semaphore: the key of the semaphore's queue. For any other request: the first lock key.
    key: Arc<[u8]>,
    /// Whether the request is for one plain lock, for a group of keys with their modes, or for a slot of a semaphore.
    shape: Shape,
}

impl LockTarget {
    /// A request for one key, held exclusively.
    pub(crate) fn exclusive(key: Arc<[u8]>) -> Self {
        let shape = Shape::Plain;
        Self { key, shape }
    }

    /// A request for one slot of a semaphore.
    pub(crate) fn slot(permit: Permit) -> Self {
        Self {
            // All slots of a semaphore share one queue, both in this process and on the masters.
            key: permit.line(),
            shape: Shape::Permit(permit),
        }
    }

    /// A request for several keys, each held exclusively. A master grants all of them or none.
    pub(crate) fn several(keys: Vec<Arc<[u8]>>) -> Self {
        let mode = Mode::Exclusive;
        let exclusive_part = |key| Part {
            key,
            mode: mode.clone(),
        };
        Self::group(keys.into_iter().map(exclusive_part).collect())
    }

    /// A request for one key that is shared: by readers, or by the holds of one owner (a client that may hold the lock
    /// several times). `class` selects one of these two.
    pub(crate) fn with_class(key: Arc<[u8]>, class: Class) -> Self {
        let mode = Mode::Class(class);
        Self::group(vec![Part { key, mode }])
    }

    /// A request for these keys, each in its mode. A master grants all of them or none.
    pub(crate) fn group(parts: Vec<Part>) -> Self {
        let first = parts.first().map(|part| part.key.clone());
        let key = first.unwrap_or_default();
        // Request a single exclusive key as a plain lock, which is cheaper than a group.
        if parts.len() < 2 && parts.iter().all(|part| part.class().is_none()) {
            return Self::exclusive(key);
        }
        let shape = Shape::Group(Group::new(parts));
        Self { key, shape }
    }

    /// A request that replaces the lock of `claim`, which is exclusive, by a reader's hold on the same key. `None` if
    /// the claim is not a plain lock on a single key.
    pub(crate) fn readers_instead_of(claim: &Claim) -> Option<Self> {
        let key = claim
            .shape()
            .is_plain()
            .then(|| claim.shared_key().clone())?;
        let mode = Mode::Class(Class::Shared);
        let group = Group::new(vec![Part {
            key: key.clone(),
            mode,
        }]);
        let shape = Shape::Group(group.instead_of(claim.token()));
        Some(Self { key, shape })
    }

    /// For a slot of a semaphore: the key of the semaphore's queue. For any other request: the first lock key.
    pub(crate) fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// Whether the request is for one plain lock, for a group of keys with their modes, or for a slot of a semaphore.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// All keys for which the waiter queues in this process.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let parts = self.shape.parts();
        let single_key = parts.is_empty().then_some(&self.key);
        single_key
            .into_iter()
            .chain(parts.iter().map(|part| &part.key))
    }

    /// A claim with a placeholder token. It holds no lock, and only serves to remove the waiter's queue entries from
    /// the masters.
    pub(crate) fn waiter(&self, coordinator: &Coordinator) -> Claim {
        let token = Token::from_bytes([0; 16]);
        let claim = coordinator.claim(&self.key, token);
        match &self.shape {
            // The queue of a semaphore is stored under `self.key`, like the queue of a plain lock.
            Shape::Plain | Shape::Permit(_) => claim,
            Shape::Group(_) => claim.with_shape(&self.shape),
        }
    }

    /// The claim for this request, with this token as the lock's value.
    pub(crate) fn claim(&self, coordinator: &Coordinator, token: Token) -> Claim {
        let claim = match &self.shape {
            Shape::Plain | Shape::Group(_) => coordinator.claim(&self.key, token),
            Shape::Permit(permit) => {
                let key = permit.key();
                // The number of bytes of `key` before the semaphore's resource name.
                let prefix_len = key.len() - permit.name().len() + coordinator.prefix.len();
                Claim::on(key, prefix_len, token, coordinator.fencing)
            }
        };
        claim.with_shape(&self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_exclusive_lock_on_a_single_key_is_a_plain_lock() {
        let part = |key: &[u8], mode| Part {
            key: key.into(),
            mode,
        };
        let single = LockTarget::group(vec![part(b"a", Mode::Exclusive)]);
        assert!(single.shape.is_plain());
        let two_parts = [b"a", b"b"].map(|key| part(key, Mode::Exclusive));
        assert!(!LockTarget::group(two_parts.into()).shape.is_plain());
        let shared = LockTarget::group(vec![part(b"a", Mode::Class(Class::Shared))]);
        assert!(!shared.shape.is_plain());
    }

    #[test]
    fn first_of_several_keys_is_the_key_of_the_request() {
        let keys = ["b", "a", "c"].map(|key| Arc::from(key.as_bytes()));
        let several = LockTarget::several(keys.to_vec());
        assert_eq!(*several.key(), keys[0]);
        assert!(several.keys().eq(&keys));
    }
}
