//! The shape of a claim: its keys, how each of them is held, and what follows from that for the verbs.
//!
//! Every kind of lock is one [`Shape`]. A verb (acquire, confirm, extend, release) matches on the shape once, or asks
//! for one of the facts in this file. So a new kind is described here and in `src/acquire/kind.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::token::Token;
use crate::keys;

/// The keys or the slot that a claim asks for in addition to its own key.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Nothing: one key, held exclusively. This is the plain lock.
    Plain,
    /// Several keys, or a key that is shared with other holds of a class.
    Group(Group),
    /// One slot of a semaphore.
    Permit(Permit),
}

/// How a task of this process takes its turn among the other tasks of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalTurn {
    /// It queues. A lock with a single holder keeps the turn until its release.
    Queue,
    /// It queues, and passes the turn on as soon as it asks the masters: readers ask together.
    QueueAndShare,
    /// It passes every waiter, because another hold of the same owner may be held.
    Pass,
}

/// How the fencing number of a claim is found once a majority has granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Numbering {
    /// The claim raises the counters: its number is larger than every earlier one.
    Raised,
    /// The claim may be given the number of holds that share its key.
    Joined,
    /// The claim must have the number of the other holds of its owner. All answers are awaited, because the number
    /// must be known before any other number is written.
    OfOwner,
}

static PLAIN: Shape = Shape::Plain;

impl Shape {
    /// The shape of a plain lock.
    pub(crate) fn plain() -> &'static Self {
        &PLAIN
    }

    /// Whether this is a plain lock.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// The keys and modes, if they are not one key held exclusively.
    pub(crate) fn parts(&self) -> &[Part] {
        match self {
            Self::Group(group) => group.parts(),
            Self::Plain | Self::Permit(_) => &[],
        }
    }

    /// The slot, if this is one of a semaphore.
    pub(crate) fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Permit(permit) => Some(permit),
            Self::Plain | Self::Group(_) => None,
        }
    }

    /// How a task takes its turn within this process.
    pub(crate) fn local_turn(&self) -> LocalTurn {
        match self.parts().first().and_then(Part::class) {
            None => LocalTurn::Queue,
            Some(Class::Shared) => LocalTurn::QueueAndShare,
            Some(Class::Owner(_)) => LocalTurn::Pass,
        }
    }

    /// How the fencing number is found.
    pub(crate) fn numbering(&self) -> Numbering {
        let number = |part: &Part| match part.class()? {
            Class::Shared => Some(Numbering::Joined),
            Class::Owner(_) => Some(Numbering::OfOwner),
        };
        let most = self.parts().iter().filter_map(number).max();
        most.unwrap_or(Numbering::Raised)
    }

    /// Whether one of the keys can be shared with other holds.
    pub(crate) fn shares_keys(&self) -> bool {
        self.parts().iter().any(|part| part.class().is_some())
    }

    /// Whether the message that renews this lock also keeps its note. If not, the note needs a message of its own.
    pub(crate) fn renewal_keeps_note(&self) -> bool {
        !matches!(self, Self::Group(_))
    }
}

/// The suffix of a reader's id in the queue of a key.
#[cfg(any(test, feature = "testing", feature = "node"))]
const READER: &str = ":r";

/// Whether this id in the queue of a key is a reader's.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) fn is_reader(place: &str) -> bool {
    place.ends_with(READER)
}

/// How a lock holds one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No other lock can hold the key at the same time: the key holds the value of the attempt.
    Exclusive,
    /// Only holds of the same class can hold the key at the same time. The key holds the marker of the class,
    /// and a second key lists each hold.
    Class(Class),
}

impl Mode {
    /// The class, if the key can be shared.
    pub(crate) fn class(&self) -> Option<&Class> {
        match self {
            Self::Exclusive => None,
            Self::Class(class) => Some(class),
        }
    }

    /// The mode as messages write it: `x`, or the marker of the class.
    pub(crate) fn word(&self) -> Vec<u8> {
        match self {
            Self::Exclusive => b"x".to_vec(),
            Self::Class(class) => class.marker(),
        }
    }

    /// The value of the lock key while the attempt with this value holds it in this mode.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn holder(&self, value: &[u8; 32]) -> Vec<u8> {
        match self {
            Self::Exclusive => value.to_vec(),
            Self::Class(class) => class.marker(),
        }
    }

    /// The id under which a waiter is queued for a key in this mode: the id of a reader has a suffix.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn place(&self, waiter: &Arc<str>) -> Arc<str> {
        match self {
            Self::Class(Class::Shared) => format!("{waiter}{READER}").into(),
            Self::Exclusive | Self::Class(Class::Owner(_)) => waiter.clone(),
        }
    }
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

impl Part {
    /// The class, if the key can be shared.
    pub(crate) fn class(&self) -> Option<&Class> {
        self.mode.class()
    }
}

/// The keys of a claim that takes several keys, or shares one key with other holds of a class.
#[derive(Debug)]
pub struct Group {
    parts: Arc<[Part]>,
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

impl Clone for Group {
    fn clone(&self) -> Self {
        Self {
            parts: self.parts.clone(),
            instead: self.instead,
            number: AtomicU64::new(self.number()),
        }
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
