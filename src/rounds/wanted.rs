//! The keys that an acquire asks for, and in which mode each.

use std::sync::Arc;

use super::coordinator::Coordinator;
use crate::node::{Claim, Class, Group, Mode, Part, Permit, Token};

/// The keys that an acquire asks for, with their modes.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The lock key, or the first of several.
    key: Arc<[u8]>,
    /// All keys with their modes; empty for a single exclusive key.
    parts: Box<[Part]>,
    /// The value of the lock that this one replaces.
    instead: Option<Token>,
    /// The slot, for a semaphore.
    permit: Option<Permit>,
}

impl Wanted {
    /// One key, held exclusively.
    pub(crate) fn exclusive(key: Arc<[u8]>) -> Self {
        Self {
            key,
            parts: Box::default(),
            instead: None,
            permit: None,
        }
    }

    /// A slot of a semaphore.
    pub(crate) fn slot(permit: Permit) -> Self {
        Self {
            // Waiters queue for the semaphore, in this process and on the masters.
            key: permit.line(),
            parts: Box::default(),
            instead: None,
            permit: Some(permit),
        }
    }

    /// The slot, for a semaphore.
    pub(crate) fn permit(&self) -> Option<&Permit> {
        self.permit.as_ref()
    }

    /// Several keys, each held exclusively, all or nothing.
    pub(crate) fn several(keys: Vec<Arc<[u8]>>) -> Self {
        let part = |key: &Arc<[u8]>| Part {
            key: key.clone(),
            mode: Mode::Exclusive,
        };
        let parts: Box<[Part]> = keys.iter().map(part).collect();
        let key = keys.into_iter().next().unwrap_or_default();
        // A single key is a plain lock, which is cheaper.
        match parts.len() {
            0 | 1 => Self::exclusive(key),
            _ => Self {
                key,
                parts,
                instead: None,
                permit: None,
            },
        }
    }

    /// One key, shared with others of this class.
    pub(crate) fn of_class(key: Arc<[u8]>, class: Class) -> Self {
        let part = Part {
            key: key.clone(),
            mode: Mode::Class(class),
        };
        Self {
            key,
            parts: [part].into(),
            instead: None,
            permit: None,
        }
    }

    /// The same, as a replacement for a lock that the caller holds.
    pub(crate) fn instead_of(mut self, token: Token) -> Self {
        self.instead = Some(token);
        self
    }

    /// The lock key, or the first of several.
    pub(crate) fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// All lock keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let alone = self.parts.is_empty().then_some(&self.key);
        alone
            .into_iter()
            .chain(self.parts.iter().map(|part| &part.key))
    }

    /// The class, if the key is shared.
    pub(crate) fn class(&self) -> Option<&Class> {
        match self.parts.first().map(|part| &part.mode) {
            Some(Mode::Class(class)) => Some(class),
            _ => None,
        }
    }

    /// The claim that represents the waiter in the queues on the masters. Its token never holds a lock.
    pub(crate) fn waiter(&self, coordinator: &Coordinator) -> Claim {
        let token = Token::from_bytes([0; 16]);
        match &self.permit {
            None => self.claim(coordinator, token),
            Some(_) => coordinator.claim(&self.key, token),
        }
    }

    /// A claim with this token.
    pub(crate) fn claim(&self, coordinator: &Coordinator, token: Token) -> Claim {
        if let Some(permit) = &self.permit {
            let key = permit.key();
            // The resource is the semaphore's name.
            let before = key.len() - permit.name().len() + coordinator.prefix.len();
            return Claim::on(key, before, token, coordinator.fencing).with_permit(permit.clone());
        }
        let claim = coordinator.claim(&self.key, token);
        if self.parts.is_empty() {
            return claim;
        }
        let group = Group::new(self.parts.to_vec());
        claim.with_group(match self.instead {
            Some(instead) => group.instead_of(instead),
            None => group,
        })
    }
}
