//! The shape of a claim: its keys, how it holds each of them, and how acquire, confirm, extend and release treat the
//! claim.
//!
//! Every kind of lock is one [`Shape`]. The code of acquire, confirm, extend and release matches on the shape once, or
//! asks for one of the facts in this file. So a new kind of lock is described in this file and in
//! `src/acquire/kind.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::token::Token;
use crate::keys;

/// The keys or the slot that a claim asks for in addition to its own key.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A plain lock: only the claim's own key, held exclusively.
    Plain,
    /// Several keys, or one key that can be shared with other readers or with other holds of the same owner.
    Group(Group),
    /// One slot of a semaphore.
    Permit(Permit),
}

/// How a claim waits for the claims of other tasks in this process before it asks the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalTurn {
    /// The claim waits in a queue of this process. It keeps its turn until its release, because the lock has a single
    /// holder.
    Queue,
    /// The claim waits in a queue of this process, and ends its turn as soon as it asks the masters. So readers of one
    /// process can ask at the same time.
    QueueAndShare,
    /// The claim does not wait for other claims of this process: its owner may hold the lock already, and then shares
    /// it.
    Pass,
}

/// How the fencing number of a claim is chosen once a majority has granted the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Numbering {
    /// The claim gets a new fencing number, larger than every earlier one, because each grant raises the counter.
    Raised,
    /// The claim may get the fencing number of other holds that share its key.
    Joined,
    /// The claim must get the fencing number of its owner's other holds. It waits for the answers of all masters,
    /// because this number must be known before any number is written.
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

    /// The keys and modes of a group. Empty for a plain lock and for a slot, which have one exclusive key.
    pub(crate) fn parts(&self) -> &[Part] {
        match self {
            Self::Group(group) => group.parts(),
            Self::Plain | Self::Permit(_) => &[],
        }
    }

    /// The slot that the claim asks for, if the claim is on a semaphore.
    pub(crate) fn permit(&self) -> Option<&Permit> {
        match self {
            Self::Permit(permit) => Some(permit),
            Self::Plain | Self::Group(_) => None,
        }
    }

    /// How a claim of this shape waits for the claims of other tasks in this process.
    pub(crate) fn local_turn(&self) -> LocalTurn {
        match self.parts().first().and_then(Part::class) {
            None => LocalTurn::Queue,
            Some(Class::Shared) => LocalTurn::QueueAndShare,
            Some(Class::Owner(_)) => LocalTurn::Pass,
        }
    }

    /// How the fencing number of a claim of this shape is chosen.
    pub(crate) fn numbering(&self) -> Numbering {
        let number = |part: &Part| match part.class()? {
            Class::Shared => Some(Numbering::Joined),
            Class::Owner(_) => Some(Numbering::OfOwner),
        };
        let most = self.parts().iter().filter_map(number).max();
        most.unwrap_or(Numbering::Raised)
    }

    /// Whether at least one key of the claim can be shared with other holds.
    #[cfg(any(test, feature = "node"))]
    pub(crate) fn shares_keys(&self) -> bool {
        self.parts().iter().any(|part| part.class().is_some())
    }

    /// Whether the request that renews this lock can also renew the holder's note. If not, a separate request renews
    /// the note.
    pub(crate) fn renewal_keeps_note(&self) -> bool {
        !matches!(self, Self::Group(_))
    }
}

/// The suffix of a waiter's id in the queue of a key if the waiter is a reader.
#[cfg(any(test, feature = "testing", feature = "node"))]
const READER: &str = ":r";

/// Whether a waiter's id in the queue of a key is a reader's.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) fn is_reader(place: &str) -> bool {
    place.ends_with(READER)
}

/// How a lock holds one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No other lock can hold the key at the same time. The value of the key is the random value of the attempt.
    Exclusive,
    /// Holds of the same class (all readers, or all holds of one owner) can share the key. The value of the key is the
    /// marker of the class, and a second key lists each hold.
    Class(Class),
}

impl Mode {
    /// Which holds can share the key (readers, or holds of one owner); `None` for an exclusive mode.
    pub(crate) fn class(&self) -> Option<&Class> {
        match self {
            Self::Exclusive => None,
            Self::Class(class) => Some(class),
        }
    }

    /// The mode as requests encode it: `x` for exclusive, or the marker of the class of holds.
    pub(crate) fn word(&self) -> Vec<u8> {
        match self {
            Self::Exclusive => b"x".to_vec(),
            Self::Class(class) => class.marker(),
        }
    }

    /// The value that the lock key has while the attempt with the random value `value` holds it in this mode.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn holder(&self, value: &[u8; 32]) -> Vec<u8> {
        match self {
            Self::Exclusive => value.to_vec(),
            Self::Class(class) => class.marker(),
        }
    }

    /// The id under which a waiter is queued for a key in this mode. The id of a reader has a suffix.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn place(&self, waiter: &Arc<str>) -> Arc<str> {
        match self {
            Self::Class(Class::Shared) => format!("{waiter}{READER}").into(),
            Self::Exclusive | Self::Class(Class::Owner(_)) => waiter.clone(),
        }
    }
}

/// Which holds can share a lock key: all readers, or all holds of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// All readers can share the key.
    Shared,
    /// All holds with this owner id can share the key.
    Owner(Arc<str>),
}

impl Class {
    /// The value that the lock key has while holds of this class share it. No random value of an attempt is equal to
    /// it.
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
    /// How the claim holds the key.
    pub mode: Mode,
}

impl Part {
    /// Which holds can share the key (readers, or holds of one owner); `None` if the key is held exclusively.
    pub(crate) fn class(&self) -> Option<&Class> {
        self.mode.class()
    }
}

/// The keys of a claim that takes several keys, or that shares a key with other readers or with holds of its owner.
#[derive(Debug)]
pub struct Group {
    parts: Arc<[Part]>,
    /// The random value of the lock that this claim replaces. A lock key with this value counts as free for the claim.
    /// A writer that becomes a reader gives its own value here.
    instead: Option<Token>,
    /// The fencing token on which the masters agreed; 0 until then.
    number: AtomicU64,
}

impl Group {
    /// Creates a group of these keys: a master grants all of them or none.
    pub fn new(parts: Vec<Part>) -> Self {
        Self {
            parts: parts.into(),
            instead: None,
            number: AtomicU64::new(0),
        }
    }

    /// Returns this group as the replacement of the lock `token`, which the caller holds exclusively.
    #[must_use]
    pub fn instead_of(mut self, token: Token) -> Self {
        self.instead = Some(token);
        self
    }

    /// The keys, and how the claim holds each of them.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The value of the lock that this claim replaces, if it replaces one.
    pub fn instead(&self) -> Option<Token> {
        self.instead
    }

    /// The fencing token on which the masters agreed; 0 until then.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Stores the fencing token on which the masters agreed. A renewal needs the token to restore the lock on a master
    /// that lost it.
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
    /// Creates the slot with the number `slot` (from 0) of a semaphore with `permits` slots. `name` is the semaphore's
    /// name with the key prefix.
    pub fn new(name: Arc<[u8]>, slot: u8, permits: u8) -> Self {
        Self {
            name,
            slot,
            permits,
        }
    }

    /// Returns the slot with the number `slot` (from 0) of the same semaphore.
    #[must_use]
    pub fn at(&self, slot: u8) -> Self {
        Self {
            slot,
            ..self.clone()
        }
    }

    /// The semaphore's name with the key prefix. A plain lock of this name would have this lock key.
    pub fn name(&self) -> &Arc<[u8]> {
        &self.name
    }

    /// The number of the slot, from 0.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// How many slots the semaphore has.
    pub fn permits(&self) -> u8 {
        self.permits
    }

    /// The lock key of the slot. While the slot is held, its value is the random value of the holder's attempt.
    pub fn key(&self) -> Arc<[u8]> {
        keys::slot(&self.name, self.slot).into()
    }

    /// The name of the queue that all slots of the semaphore share.
    pub fn line(&self) -> Arc<[u8]> {
        keys::line_of_semaphore(&self.name).into()
    }
}
