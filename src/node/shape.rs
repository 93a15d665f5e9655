//! What a claim asks for: which keys, and how each of them is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::token::Token;
use crate::keys;

/// How a lock holds one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No other lock can hold the key at the same time: the key holds the value of the attempt.
    Exclusive,
    /// Only holds of the same class can hold the key at the same time. The key holds the marker of the class,
    /// and a second key lists each hold.
    Class(Class),
}

/// Which holds can share a lock key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Readers.
    Shared,
    /// All holds that give this owner id.
    Owner(Arc<str>),
}

impl Class {
    /// The value of the lock key while holds of this class share it. No token has this value.
    pub fn marker(&self) -> Vec<u8> {
        match self {
            Self::Shared => keys::SHARED.as_bytes().to_vec(),
            Self::Owner(id) => [keys::OWNER, id].concat().into_bytes(),
        }
    }
}

/// One key of a [`Group`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The lock key.
    pub key: Arc<[u8]>,
    /// How the key is held.
    pub mode: Mode,
}

/// The keys of a claim that takes several keys, or shares one key with other holds of a class.
#[derive(Debug)]
pub struct Group {
    parts: Box<[Part]>,
    /// The lock to be replaced: the lock key may hold this value instead of being free. A writer that becomes a
    /// reader gives its own value here.
    instead: Option<Token>,
    /// The fencing token; 0 before it is agreed.
    number: AtomicU64,
}

impl Group {
    /// A group of these keys: a master grants all of them or none.
    pub fn new(parts: Vec<Part>) -> Self {
        Self {
            parts: parts.into(),
            instead: None,
            number: AtomicU64::new(0),
        }
    }

    /// The same group, which replaces a lock that the caller holds exclusively.
    #[must_use]
    pub fn instead_of(mut self, token: Token) -> Self {
        self.instead = Some(token);
        self
    }

    /// The keys, and how each is held.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether one of the keys can be shared with other holds.
    pub(crate) fn has_class(&self) -> bool {
        let class = |part: &Part| matches!(part.mode, Mode::Class(_));
        self.parts.iter().any(class)
    }

    /// Whether one of the keys can be shared with other holds of an owner.
    pub(crate) fn is_owned(&self) -> bool {
        let owned = |part: &Part| matches!(part.mode, Mode::Class(Class::Owner(_)));
        self.parts.iter().any(owned)
    }

    /// The value of the lock to be replaced.
    pub fn instead(&self) -> Option<Token> {
        self.instead
    }

    /// The agreed fencing token; 0 before that.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Remembers the agreed fencing token. A renewal needs it to restore the lock on a master that lost it.
    pub fn agreed(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }
}

/// One slot of a semaphore. Each slot has its own lock key, and all slots share one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    name: Arc<[u8]>,
    slot: u8,
    permits: u8,
}

impl Permit {
    /// Slot `slot` of a semaphore with `permits` slots. `name` is the semaphore's name with the key prefix.
    pub fn new(name: Arc<[u8]>, slot: u8, permits: u8) -> Self {
        Self {
            name,
            slot,
            permits,
        }
    }

    /// Slot `slot` of the same semaphore.
    #[must_use]
    pub fn at(&self, slot: u8) -> Self {
        Self {
            slot,
            ..self.clone()
        }
    }

    /// The semaphore's name with the key prefix: the lock key of a plain lock of this name.
    pub fn name(&self) -> &Arc<[u8]> {
        &self.name
    }

    /// The number of the slot; the first is 0.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// How many slots the semaphore has.
    pub fn permits(&self) -> u8 {
        self.permits
    }

    /// The lock key of the slot, which holds its holder's value.
    pub fn key(&self) -> Arc<[u8]> {
        keys::slot(&self.name, self.slot).into()
    }

    /// The name of the semaphore's queue.
    pub fn line(&self) -> Arc<[u8]> {
        keys::line_of_semaphore(&self.name).into()
    }
}
