//! The keys that an acquire asks for, and in which mode each.

use std::sync::Arc;

use super::coordinator::Coordinator;
use crate::node::{Claim, Class, Group, Mode, Part, Permit, Shape, Token};

/// The keys that an acquire asks for, with their modes.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The key for which waiters queue in this process: the lock key, or the first of several; for a semaphore, the
    /// name of its queue.
    key: Arc<[u8]>,
    /// The keys or the slot that are asked for in addition.
    shape: Shape,
}

impl Wanted {
    /// One key, held exclusively.
    pub(crate) fn exclusive(key: Arc<[u8]>) -> Self {
        let shape = Shape::Plain;
        Self { key, shape }
    }

    /// A slot of a semaphore.
    pub(crate) fn slot(permit: Permit) -> Self {
        Self {
            // Waiters queue for the semaphore, in this process and on the masters.
            key: permit.line(),
            shape: Shape::Permit(permit),
        }
    }

    /// Several keys, each held exclusively, all or nothing.
    pub(crate) fn several(keys: Vec<Arc<[u8]>>) -> Self {
        let mode = Mode::Exclusive;
        let part = |key| Part {
            key,
            mode: mode.clone(),
        };
        Self::group(keys.into_iter().map(part).collect())
    }

    /// One key, shared with others of this class.
    pub(crate) fn of_class(key: Arc<[u8]>, class: Class) -> Self {
        let mode = Mode::Class(class);
        Self::group(vec![Part { key, mode }])
    }

    /// These keys in these modes, all or nothing.
    pub(crate) fn group(parts: Vec<Part>) -> Self {
        let first = parts.first().map(|part| part.key.clone());
        let key = first.unwrap_or_default();
        // A single exclusive key is a plain lock, which is cheaper.
        if parts.len() < 2 && parts.iter().all(|part| part.class().is_none()) {
            return Self::exclusive(key);
        }
        let shape = Shape::Group(Group::new(parts));
        Self { key, shape }
    }

    /// The key of this claim for a reader, as a replacement for the claim. `None` if the claim is not on a plain lock: a
    /// writer alone can become a reader.
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

    /// The key for which waiters queue in this process: the lock key, or the first of several; for a semaphore, the
    /// name of its queue.
    pub(crate) fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// The keys or the slot that are asked for in addition to the key.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// All keys for which waiters queue in this process.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let parts = self.shape.parts();
        let alone = parts.is_empty().then_some(&self.key);
        alone.into_iter().chain(parts.iter().map(|part| &part.key))
    }

    /// The claim that represents the waiter in the queues on the masters. Its token never holds a lock.
    pub(crate) fn waiter(&self, coordinator: &Coordinator) -> Claim {
        let token = Token::from_bytes([0; 16]);
        let claim = coordinator.claim(&self.key, token);
        match &self.shape {
            // A semaphore's queue is left as that of a plain lock of its name.
            Shape::Plain | Shape::Permit(_) => claim,
            Shape::Group(_) => claim.with_shape(&self.shape),
        }
    }

    /// A claim with this token.
    pub(crate) fn claim(&self, coordinator: &Coordinator, token: Token) -> Claim {
        let claim = match &self.shape {
            Shape::Plain | Shape::Group(_) => coordinator.claim(&self.key, token),
            Shape::Permit(permit) => {
                let key = permit.key();
                // The resource is the semaphore's name.
                let before = key.len() - permit.name().len() + coordinator.prefix.len();
                Claim::on(key, before, token, coordinator.fencing)
            }
        };
        claim.with_shape(&self.shape)
    }
}
