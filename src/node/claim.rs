//! A claim: one attempt to take one lock. Every request of the attempt refers to the claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::shape::{Group, Mode, Permit, Shape};
use super::token::Token;

/// A waiter's place in the queue. The ticket is the same on every master and in every request of this waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The waiter's id: `PROCESS:NUMBER`, or `PROCESS:NUMBER/HOST:PID:SINCE` if the waiter publishes its host and
    /// process id.
    ///
    /// - `PROCESS` is 16 hexadecimal digits for the waiter's [`Redlock`](crate::Redlock).
    /// - `NUMBER` is the number of the waiter within that `Redlock`.
    /// - `SINCE` is the start of the wait, in milliseconds since 1970.
    pub waiter: Arc<str>,
    /// The waiter's rank in the queue: the waiter with the smallest number is first. Waiters with equal numbers are
    /// ordered by their ids.
    pub number: u64,
    /// The time for which one heartbeat keeps the waiter's place in the queue.
    pub heartbeat: Duration,
}

/// Whether a claim waits for its turn in the queue of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// First come, first served. The ticket is the claim's place in the queue. A claim without a ticket (`None`) gets
    /// no place, and is refused while other clients wait.
    Fair(Option<Box<Ticket>>),
    /// The first claim that finds the lock free gets it. The masters neither read nor write the lock's queue.
    Unordered,
}

/// One attempt to take one lock: its keys, its random value and its options. All requests of the attempt share one
/// claim.
#[derive(Debug)]
pub struct Claim {
    key: Arc<[u8]>,
    prefix: u16,
    token: Token,
    fenced: bool,
    fairness: Fairness,
    withdrawn: AtomicBool,
    /// The keys that the claim takes, and how it holds them; `None` for a plain lock.
    shape: Option<Box<Shape>>,
    noted: AtomicBool,
}

impl Claim {
    /// Creates an exclusive claim on one lock, whose key is `prefix` followed by `resource`. If `fenced` is true, the
    /// masters keep a fencing counter for the lock.
    pub fn new(prefix: &str, resource: &[u8], token: Token, fenced: bool) -> Self {
        let key = [prefix.as_bytes(), resource].concat().into();
        Self::on(key, prefix.len(), token, fenced)
    }

    /// Creates a claim on the plain lock `key`. The resource is the part of the key after the first `prefix` bytes.
    /// If `fenced` is true, the masters keep a fencing counter for the lock.
    pub(crate) fn on(key: Arc<[u8]>, prefix: usize, token: Token, fenced: bool) -> Self {
        Self {
            key,
            prefix: u16::try_from(prefix).unwrap_or(u16::MAX),
            token,
            fenced,
            fairness: Fairness::Unordered,
            withdrawn: AtomicBool::new(false),
            shape: None,
            noted: AtomicBool::new(false),
        }
    }

    /// Returns this claim with this `shape`: a plain lock, a group of keys, or a slot of a semaphore.
    #[must_use]
    pub(crate) fn with_shape(mut self, shape: &Shape) -> Self {
        self.shape = (!shape.is_plain()).then(|| Box::new(shape.clone()));
        self
    }

    /// Returns this claim, changed so that it requests all keys of `group`. The first key of the group must be the key
    /// of this claim.
    #[must_use]
    pub fn with_group(mut self, group: Group) -> Self {
        self.shape = Some(Box::new(Shape::Group(group)));
        self
    }

    /// Returns this claim as a request for `permit`, a slot of a semaphore. The claim's key must be the lock key of the
    /// slot.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.shape = Some(Box::new(Shape::Permit(permit)));
        self
    }

    /// The kind of lock that the claim requests: a plain lock, a group of keys (several keys, or a key that holders
    /// share), or a slot of a semaphore.
    pub(crate) fn shape(&self) -> &Shape {
        self.shape.as_deref().unwrap_or(Shape::plain())
    }

    /// The slot that the claim requests; `None` if it is not a claim on a semaphore.
    pub fn permit(&self) -> Option<&Permit> {
        self.shape().permit()
    }

    /// The keys that the claim requests, each with its mode (exclusive or shared). `None` if the claim requests a plain
    /// lock or a slot of a semaphore.
    pub fn group(&self) -> Option<&Group> {
        match self.shape() {
            Shape::Group(group) => Some(group),
            Shape::Plain | Shape::Permit(_) => None,
        }
    }

    /// Stores the fencing number on which the masters agreed, for a claim on a group of keys (`Shape::Group`). The
    /// renewals of a group send this number, so that a master without the hold can restore it.
    pub(crate) fn agreed(&self, number: Option<u64>) {
        if let (Shape::Group(group), Some(number)) = (self.shape(), number) {
            group.agreed(number);
        }
    }

    /// All lock keys of the claim.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let (alone, parts) = match self.shape() {
            Shape::Group(group) => (None, group.parts()),
            Shape::Plain | Shape::Permit(_) => (Some(&self.key), &[][..]),
        };
        alone.into_iter().chain(parts.iter().map(|part| &part.key))
    }

    /// The mode in which the claim holds each of its keys (exclusively or shared), in the order of
    /// [`keys`](Self::keys).
    pub(crate) fn modes(&self) -> impl Iterator<Item = &Mode> {
        let (alone, parts) = match self.shape() {
            Shape::Group(group) => (None, group.parts()),
            Shape::Plain | Shape::Permit(_) => (Some(&Mode::Exclusive), &[][..]),
        };
        alone.into_iter().chain(parts.iter().map(|part| &part.mode))
    }

    /// The fencing number on which the masters agreed; 0 if the claim's shape is not `Shape::Group`.
    pub(crate) fn number(&self) -> u64 {
        match self.shape() {
            Shape::Group(group) => group.number(),
            Shape::Plain | Shape::Permit(_) => 0,
        }
    }

    /// All resources of the claim: its lock keys without the prefix.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.shape().parts();
        let alone = parts.is_empty().then(|| self.resource());
        let prefix = usize::from(self.prefix);
        let parts = parts.iter().map(move |part| &part.key[prefix..]);
        alone.into_iter().chain(parts)
    }

    /// Returns this claim with `fairness`, which says whether the claim waits for its turn in the queue of the lock.
    #[must_use]
    pub fn with_fairness(mut self, fairness: Fairness) -> Self {
        self.fairness = fairness;
        self
    }

    /// Whether the claim waits for its turn in the queue of the lock.
    pub fn fairness(&self) -> &Fairness {
        &self.fairness
    }

    /// Whether the claim follows the queue of the lock ([`Fairness::Fair`]).
    pub(in crate::node) fn is_fair(&self) -> bool {
        matches!(self.fairness, Fairness::Fair(_))
    }

    /// The claim's ticket for the queue of the lock; `None` if the claim has no place in the queue.
    pub fn ticket(&self) -> Option<&Ticket> {
        match &self.fairness {
            Fairness::Fair(ticket) => ticket.as_deref(),
            Fairness::Unordered => None,
        }
    }

    /// The lock key, which is the same on every master. For a claim on several keys this is the first key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The lock key as a shared pointer. For a claim on several keys this is the first key.
    pub(crate) fn shared_key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// The resource: the lock key without the prefix. For a claim on several keys this is the first resource.
    pub fn resource(&self) -> &[u8] {
        self.key.get(usize::from(self.prefix)..).unwrap_or_default()
    }

    /// Whether this is a claim on the plain lock of `resource`.
    pub(crate) fn is_plain_on(&self, resource: &[u8]) -> bool {
        self.shape().is_plain() && self.resource() == resource
    }

    /// The random value of this claim. It is stored in every lock key that the claim holds exclusively.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether the masters keep a fencing counter for the lock of this claim.
    pub fn fenced(&self) -> bool {
        self.fenced
    }

    /// Withdraws the claim: from now on, the node sends only releases for it. Call this method before you queue the
    /// releases. Otherwise the node could send an acquire or an extension after a release.
    pub fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }

    /// Records that the claim's holder writes a note. The release of the claim then also deletes this note. Call this
    /// method before you queue the request that writes the note.
    pub fn take_note(&self) {
        self.noted.store(true, Ordering::Release);
    }

    /// Whether [`take_note`](Self::take_note) was called. If so, the release of the claim must also delete the holder's
    /// note.
    pub fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Acquire)
    }

    /// Whether the claim has been withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }
}
