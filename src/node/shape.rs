//! The shape of a claim (a request for a lock): its keys, and whether the claim shares each key.
//!
//! Every kind of lock has one [`Shape`]. To add a kind of lock, begin in this file and in `src/acquire/kind.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::token::Token;
#[cfg(any(test, feature = "testing", feature = "node"))]
use super::waiter_id::READER_SUFFIX;
use crate::keys;

/// The kind of lock that a claim requests: a plain lock, a group (several keys, or one shared key), or a slot of a
/// semaphore.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A plain lock: only the claim's own key, held exclusively.
    Plain,
    /// Several keys, or one key that either readers or the holds of one owner can share.
    Group(Group),
    /// One slot of a semaphore.
    Permit(Permit),
}

/// How a claim waits for the claims of other tasks in this process before its request is sent to the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalTurn {
    /// The claims of this process for one lock wait in a queue. The next claim is sent only after this claim has
    /// failed, or after its lock was released.
    Queue,
    /// The claims of this process for one lock wait in a queue. The next claim is sent as soon as this claim was sent.
    /// So several readers of one process can request the lock at the same time.
    QueueAndShare,
    /// The claim does not wait for other claims of this process. Its owner may already hold the lock, and can share it
    /// with this claim.
    Pass,
}

/// How the fencing number of a lock is chosen after a majority has granted the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Numbering {
    /// The lock gets a new fencing number, larger than every earlier number.
    Raised,
    /// If other holds share the key, the lock gets their fencing number. Otherwise it gets a new number.
    Joined,
    /// All holds of one owner have the same fencing number. If the first answers disagree about this number, the client
    /// waits until a majority agrees, or all masters have answered.
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

    /// The keys of a group, each with its mode. Empty for a plain lock and for a slot of a semaphore.
    pub(crate) fn parts(&self) -> &[Part] {
        match self {
            Self::Group(group) => group.parts(),
            Self::Plain | Self::Permit(_) => &[],
        }
    }

    /// The slot that the claim requests; `None` if the claim is not on a semaphore.
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
        let numbering_of = |part: &Part| match part.class()? {
            Class::Shared => Some(Numbering::Joined),
            Class::Owner(_) => Some(Numbering::OfOwner),
        };
        let numbering = self.parts().iter().filter_map(numbering_of).max();
        numbering.unwrap_or(Numbering::Raised)
    }

    /// Whether the request that renews the lock can also renew the holder's note. If not, a separate request does so.
    pub(crate) fn renewal_keeps_note(&self) -> bool {
        !matches!(self, Self::Group(_))
    }
}

/// Whether this waiter id in the queue of a key belongs to a reader.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) fn is_reader(place: &str) -> bool {
    place.ends_with(READER_SUFFIX)
}

/// The form in which requests encode [`Mode::Exclusive`].
const EXCLUSIVE: &[u8] = b"x";

/// How a claim holds one of its keys: exclusively, or shared with other holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No other claim can hold the key at the same time. The value of the key is the random value of the claim.
    Exclusive,
    /// Either all readers or all holds of one owner can share the key. The key's value is the marker of this class
    /// ([`Class::lock_value`]). A second key lists the holds.
    Class(Class),
}

impl Mode {
    /// The class of holds that can share the key (readers, or holds of one owner); `None` for an exclusive mode.
    pub(crate) fn class(&self) -> Option<&Class> {
        match self {
            Self::Exclusive => None,
            Self::Class(class) => Some(class),
        }
    }

    /// The mode in the form in which requests encode it: `x` for exclusive, or the marker of the class of holds.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Exclusive => EXCLUSIVE.to_vec(),
            Self::Class(class) => class.lock_value(),
        }
    }

    /// Parses the form that [`encoded`](Self::encoded) returns; `None` for other text.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn read(word: &[u8]) -> Option<Self> {
        if word == EXCLUSIVE {
            return Some(Self::Exclusive);
        }
        let class = match word.strip_prefix(keys::OWNER_VALUE_PREFIX.as_bytes()) {
            Some(id) => Class::Owner(std::str::from_utf8(id).ok()?.into()),
            None if word == keys::SHARED_LOCK_VALUE.as_bytes() => Class::Shared,
            None => return None,
        };
        Some(Self::Class(class))
    }

    /// The value of the lock key while the attempt with the random value `value` holds the key in this mode.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn lock_value(&self, value: &[u8; 32]) -> Vec<u8> {
        match self {
            Self::Exclusive => value.to_vec(),
            Self::Class(class) => class.lock_value(),
        }
    }

    /// The waiter id that is queued for a key in this mode: `waiter`, with a suffix for a reader.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn place(&self, waiter: &Arc<str>) -> Arc<str> {
        match self {
            Self::Class(Class::Shared) => format!("{waiter}{READER_SUFFIX}").into(),
            Self::Exclusive | Self::Class(Class::Owner(_)) => waiter.clone(),
        }
    }
}

/// A class of holds that can share a lock key: all readers, or all holds of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Holds of readers: all readers can share the key.
    Shared,
    /// Holds of one owner: all holds with this owner id can share the key.
    Owner(Arc<str>),
}

impl Class {
    /// The value of the lock key while holds of this class share the key. An exclusive lock never has this value: its
    /// lock key contains a [`Token`].
    pub fn lock_value(&self) -> Vec<u8> {
        match self {
            Self::Shared => keys::SHARED_LOCK_VALUE.as_bytes().to_vec(),
            Self::Owner(id) => [keys::OWNER_VALUE_PREFIX, id].concat().into_bytes(),
        }
    }
}

/// One key of a [`Group`], and how it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The lock key.
    pub key: Arc<[u8]>,
    /// How the claim holds the key.
    pub mode: Mode,
}

impl Part {
    /// The class of holds that can share the key (readers, or holds of one owner); `None` if the key is held
    /// exclusively.
    pub(crate) fn class(&self) -> Option<&Class> {
        self.mode.class()
    }
}

/// The keys of a claim on several keys or on a shared key. A key can be shared by readers, or by holds of one owner.
#[derive(Debug)]
pub struct Group {
    parts: Arc<[Part]>,
    /// The random value of the exclusive lock that this claim replaces, if any. Masters treat a key with this value as
    /// free. So a writer can become a reader without releasing its lock.
    instead: Option<Token>,
    /// The fencing number of the granted lock; 0 until a majority of the masters has agreed on it.
    number: AtomicU64,
}

impl Group {
    /// Creates a group of the keys in `parts`. Each master grants either all these keys or none of them.
    pub fn new(parts: Vec<Part>) -> Self {
        Self {
            parts: parts.into(),
            instead: None,
            number: AtomicU64::new(0),
        }
    }

    /// Makes this group replace an exclusive lock that the caller holds. `token` is the random value of that lock.
    #[must_use]
    pub fn instead_of(mut self, token: Token) -> Self {
        self.instead = Some(token);
        self
    }

    /// The keys, and how the claim holds each of them.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The random value of the exclusive lock that this group replaces; `None` if the group replaces no lock.
    pub fn instead(&self) -> Option<Token> {
        self.instead
    }

    /// The fencing number on which the masters agreed; 0 before they agree.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Stores the fencing number on which the masters agreed. A renewal needs the number to restore the lock on a
    /// master that lost the lock.
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

    /// The semaphore's name with the key prefix. This is the lock key that a plain lock of the same name would have.
    pub fn name(&self) -> &Arc<[u8]> {
        &self.name
    }

    /// The number of this slot in the semaphore, beginning with 0.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The number of slots of the semaphore.
    pub fn permits(&self) -> u8 {
        self.permits
    }

    /// The lock key of the slot. While the slot is held, the value of this key is the holder's [`Token`].
    pub fn key(&self) -> Arc<[u8]> {
        keys::slot_key(&self.name, self.slot).into()
    }

    /// The name of the queue that all slots of the semaphore share.
    pub fn line(&self) -> Arc<[u8]> {
        keys::semaphore_queue_name(&self.name).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_read_only_from_the_text_in_which_scripts_receive_it() {
        let owner = Mode::Class(Class::Owner("order-7".into()));
        for mode in [Mode::Exclusive, Mode::Class(Class::Shared), owner] {
            assert_eq!(Mode::read(&mode.encoded()), Some(mode));
        }
        for other in [&b""[..], b"other", b"Shared"] {
            assert_eq!(Mode::read(other), None);
        }
    }
}
