//! The messages between coordinator and node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::fault::Fault;
use super::name::NodeName;
use super::note::Note;
use crate::keys;
use crate::metrics;
use crate::protocol::instant::Instant;

/// The random value of one attempt: 128 bits from the operating system's generator, written to
/// the lock key as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A token of these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Reads a value as it stands in a lock key; none where it is no token's.
    pub(crate) fn from_hex(value: &[u8]) -> Option<Self> {
        let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let fits = value.len() == 32 && value.iter().all(digits);
        let number = u128::from_str_radix(std::str::from_utf8(value).ok()?, 16);
        Some(Self(number.ok().filter(|_| fits)?.to_be_bytes()))
    }

    /// The value as it stands in the lock key.
    pub fn to_hex(self) -> [u8; 32] {
        // Computed and not looked up: so all digits are made at once.
        let digit = |nibble: u8| nibble + b'0' + u8::from(nibble > 9) * (b'a' - b'0' - 10);
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair[0] = digit(byte >> 4);
            pair[1] = digit(byte & 15);
        }
        hex
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A waiter's place in line: the same ticket on every master, for its whole wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Who waits: 16 hexadecimal digits of its process, a colon, and a number of its own.
    pub waiter: Arc<str>,
    /// Its rank; ties are broken by the waiter id.
    pub number: u64,
    /// For how long each sign of life keeps the place.
    pub heartbeat: Duration,
}

/// How a claim stands to others that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// First come, first served, with a place in line; without one, a try that takes none.
    Fair(Option<Box<Ticket>>),
    /// Whoever comes at the right moment: no queue keys are read or written.
    Unordered,
}

/// How a lock holds one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nobody beside it: the key holds the value of the attempt.
    Exclusive,
    /// Beside holds of the same class, and nobody else: the key holds the class's marker, and each hold
    /// stands by name beside it (family, section 2).
    Class(Class),
}

/// Whose holds may stand beside each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Readers.
    Shared,
    /// Everything that calls itself by this id.
    Owner(Arc<str>),
}

impl Class {
    /// What stands in the lock key. No attempt's value can be this.
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
    /// How it is held.
    pub mode: Mode,
}

/// A claim that is not one key held exclusively: several keys, or holds of a class.
#[derive(Debug)]
pub struct Group {
    parts: Box<[Part]>,
    /// The value that the lock key may hold in place of being free: a writer's that becomes a reader.
    instead: Option<Token>,
    /// The fencing token, once it is agreed.
    number: AtomicU64,
}

impl Group {
    /// These keys, all or nothing.
    pub fn new(parts: Vec<Part>) -> Self {
        Self {
            parts: parts.into(),
            instead: None,
            number: AtomicU64::new(0),
        }
    }

    /// The same, taking the place of a lock that the caller holds exclusively.
    #[must_use]
    pub fn instead_of(mut self, token: Token) -> Self {
        self.instead = Some(token);
        self
    }

    /// The keys.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether it may stand beside others under one of the keys.
    pub(crate) fn has_class(&self) -> bool {
        let class = |part: &Part| matches!(part.mode, Mode::Class(_));
        self.parts.iter().any(class)
    }

    /// Whether it is a hold of an owner.
    pub(crate) fn is_owned(&self) -> bool {
        let owned = |part: &Part| matches!(part.mode, Mode::Class(Class::Owner(_)));
        self.parts.iter().any(owned)
    }

    /// The value whose place it takes.
    pub fn instead(&self) -> Option<Token> {
        self.instead
    }

    /// The fencing token; 0 before it is agreed.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Notes the fencing token, with which the lock is put back where it is missing.
    pub fn agreed(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }
}

/// One of the named slots of a semaphore: a lock of its own, with the line of the semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    name: Arc<[u8]>,
    slot: u8,
    permits: u8,
}

impl Permit {
    /// Slot `slot` of the semaphore with so many permits, whose name as a lock key is `name`.
    pub fn new(name: Arc<[u8]>, slot: u8, permits: u8) -> Self {
        Self {
            name,
            slot,
            permits,
        }
    }

    /// Another slot of the same semaphore.
    #[must_use]
    pub fn at(&self, slot: u8) -> Self {
        Self {
            slot,
            ..self.clone()
        }
    }

    /// The lock key that the semaphore's name would have.
    pub fn name(&self) -> &Arc<[u8]> {
        &self.name
    }

    /// The slot, from 0.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// How many there are.
    pub fn permits(&self) -> u8 {
        self.permits
    }

    /// The key of the slot: what its holder's value stands under.
    pub fn key(&self) -> Arc<[u8]> {
        keys::slot(&self.name, self.slot).into()
    }

    /// Names the semaphore's line.
    pub fn line(&self) -> Arc<[u8]> {
        keys::line_of_semaphore(&self.name).into()
    }
}

/// What a claim is beside one key that is held exclusively.
#[derive(Debug)]
enum Beside {
    Group(Group),
    Permit(Permit),
}

/// One attempt on one lock: what every message about it names.
#[derive(Debug)]
pub struct Claim {
    key: Arc<[u8]>,
    prefix: u16,
    token: Token,
    fenced: bool,
    fairness: Fairness,
    withdrawn: AtomicBool,
    beside: Option<Box<Beside>>,
    noted: AtomicBool,
}

impl Claim {
    /// A claim on `prefix` + `resource`.
    pub fn new(prefix: &str, resource: &[u8], token: Token, fenced: bool) -> Self {
        let key = [prefix.as_bytes(), resource].concat().into();
        Self::on(key, prefix.len(), token, fenced)
    }

    /// A claim on a lock key whose first `prefix` bytes are not the resource's.
    pub(crate) fn on(key: Arc<[u8]>, prefix: usize, token: Token, fenced: bool) -> Self {
        Self {
            key,
            prefix: u16::try_from(prefix).unwrap_or(u16::MAX),
            token,
            fenced,
            fairness: Fairness::Unordered,
            withdrawn: AtomicBool::new(false),
            beside: None,
            noted: AtomicBool::new(false),
        }
    }

    /// The same claim on these keys, of which its own is the first.
    #[must_use]
    pub fn with_group(mut self, group: Group) -> Self {
        self.beside = Some(Box::new(Beside::Group(group)));
        self
    }

    /// The same claim on a slot of a semaphore, whose key is its own.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.beside = Some(Box::new(Beside::Permit(permit)));
        self
    }

    /// The slot, where it is one.
    pub fn permit(&self) -> Option<&Permit> {
        match self.beside.as_deref() {
            Some(Beside::Permit(permit)) => Some(permit),
            _ => None,
        }
    }

    /// Its keys, where it is not one that is held exclusively.
    pub fn group(&self) -> Option<&Group> {
        match self.beside.as_deref() {
            Some(Beside::Group(group)) => Some(group),
            _ => None,
        }
    }

    /// All its lock keys.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let parts = self.group().map_or(&[][..], Group::parts);
        let alone = self.group().is_none().then_some(&self.key);
        alone.into_iter().chain(parts.iter().map(|part| &part.key))
    }

    /// The same claim, standing to others as `fairness` says.
    #[must_use]
    pub fn with_fairness(mut self, fairness: Fairness) -> Self {
        self.fairness = fairness;
        self
    }

    /// How it stands to others that wait.
    pub fn fairness(&self) -> &Fairness {
        &self.fairness
    }

    /// Its place in line, where it has one.
    pub fn ticket(&self) -> Option<&Ticket> {
        match &self.fairness {
            Fairness::Fair(ticket) => ticket.as_deref(),
            Fairness::Unordered => None,
        }
    }

    /// The lock key on every master.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The same, to keep.
    pub(crate) fn shared_key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// The resource: the key without the prefix.
    pub fn resource(&self) -> &[u8] {
        self.key.get(usize::from(self.prefix)..).unwrap_or_default()
    }

    /// The value of this attempt.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether a fencing counter goes with the lock.
    pub fn fenced(&self) -> bool {
        self.fenced
    }

    /// Says that nothing but releases may be sent for this claim from now on. Set before the
    /// releases are queued, so that no node sends an acquire or an extension behind them.
    pub fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }

    /// Says that a note may have been written from now on, so that the release takes it along. Set
    /// before the note is queued.
    pub fn take_note(&self) {
        self.noted.store(true, Ordering::Release);
    }

    /// Whether a note may have been written.
    pub fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Acquire)
    }

    /// Whether the claim has been withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }
}

/// One lock within an extension of many.
#[derive(Clone, Debug)]
pub struct ExtendItem {
    /// The lock.
    pub claim: Arc<Claim>,
    /// The expiry it is raised to, if it is lower.
    pub ttl: Duration,
    /// Whether its note is looked after as well. Not each time: a note outlives its lock.
    pub note: bool,
}

/// Which run of a server it is: after a restart it is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRun(Arc<str>);

impl ServerRun {
    /// The run that a server names so: one word.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value that is kept under a lock, as one master has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The fencing number of the lock under which it was written.
    pub number: u64,
    /// What was written.
    pub bytes: Vec<u8>,
    /// Whether the master vouches for it: it was written in this very run of the server, or the server is
    /// said to lose nothing. Another may be older than what this master once had.
    pub vouched: bool,
}

/// What is written under a lock, on one master.
#[derive(Debug)]
pub struct NewValue {
    /// The value; without, the one that is there is removed.
    pub bytes: Option<Arc<[u8]>>,
    /// Not sent from then on: a master that restarted since would take in what later holders overwrote.
    pub until: Instant,
    /// The run of the server whose answer was read: sent to no other. Within it a late write is refused wherever a
    /// later holder has been, so it goes out even when the lock has been given back.
    pub run: Option<ServerRun>,
}

/// One lock within a message that says who holds them.
#[derive(Clone, Debug)]
pub struct NoteItem {
    /// The lock.
    pub claim: Arc<Claim>,
    /// What its holder says.
    pub says: Arc<str>,
    /// Since when it is held, in milliseconds of wall clock.
    pub since: u64,
    /// Whether to wake those who watch for a new leader.
    pub announce: bool,
}

/// Some of the keys that there are.
#[derive(Clone, Debug)]
pub struct Page {
    /// Which, as a pattern of the master's.
    pub pattern: Box<[u8]>,
    /// Where to go on; 0 to begin.
    pub cursor: u64,
    /// About how many to look at.
    pub count: u32,
}

/// What a coordinator asks of one master.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// Take the lock if it is free (protocol, section 2).
    Acquire {
        /// The attempt.
        claim: Arc<Claim>,
        /// How long the master keeps the key.
        ttl: Duration,
        /// The proposed fencing number, in microseconds of wall clock.
        proposal: u64,
    },
    /// Set the fencing counter to exactly this number, if the lock is ours and the counter is not
    /// above it.
    Confirm {
        /// The attempt.
        claim: Arc<Claim>,
        /// The number.
        token: u64,
    },
    /// Delete the lock if it is ours, and wake who is next in line.
    Release {
        /// The attempt.
        claim: Arc<Claim>,
        /// Whether to leave the line as well; an attempt that was merely lost keeps its place.
        leave: bool,
    },
    /// Raise the expiry of many locks; put a missing one back.
    Extend {
        /// The locks.
        items: Arc<[ExtendItem]>,
    },
    /// Read a lock.
    Look {
        /// The lock key.
        key: Arc<[u8]>,
    },
    /// Delete a lock whoever holds it: an operator's last resort.
    Break {
        /// The lock key.
        key: Arc<[u8]>,
    },
    /// Read the value under a lock that is ours, and set the counter as [`Confirm`](Self::Confirm) does: what
    /// was read stays the last that any smaller number wrote.
    Read {
        /// The attempt.
        claim: Arc<Claim>,
        /// The number that the counter is set to.
        token: u64,
    },
    /// Write the value under a lock, unless a larger number has been here. Never sent again on another
    /// connection.
    Write {
        /// The attempt.
        claim: Arc<Claim>,
        /// Its number.
        token: u64,
        /// What is written. Behind a pointer: every queued request has the size of the largest.
        value: Arc<NewValue>,
    },
    /// Write down who holds these locks, for those who look.
    Note {
        /// The locks.
        items: Arc<[NoteItem]>,
    },
    /// Name some of the keys of strings that there are.
    List {
        /// Which.
        page: Arc<Page>,
    },
    /// Begin to hear, or hear no more, of new leaders.
    Watch {
        /// The lock key of the election.
        key: Arc<[u8]>,
        /// Whether to hear of them.
        on: bool,
    },
}

impl Request {
    /// Whether the caller has given up on this request. Releases are never given up.
    pub fn is_withdrawn(&self) -> bool {
        match self {
            Self::Acquire { claim, .. }
            | Self::Confirm { claim, .. }
            | Self::Read { claim, .. } => claim.is_withdrawn(),
            Self::Write { claim, value, .. } => value.run.is_none() && claim.is_withdrawn(),
            Self::Extend { items } => items.iter().all(|item| item.claim.is_withdrawn()),
            Self::Note { items } => items.iter().all(|item| item.claim.is_withdrawn()),
            Self::Release { .. }
            | Self::Look { .. }
            | Self::Break { .. }
            | Self::List { .. }
            | Self::Watch { .. } => false,
        }
    }

    /// Whether it must not be sent to this run of the server, or not any more.
    pub fn is_void(&self, now: Instant, run: &ServerRun) -> bool {
        let Self::Write { value, .. } = self else {
            return false;
        };
        value.until <= now || value.run.as_ref().is_some_and(|read| read != run)
    }

    /// Whether it is a vote. A write is none by itself: it counts only where a read has been answered before.
    pub fn is_vote(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. } | Self::Confirm { .. } | Self::Extend { .. } | Self::Read { .. }
        )
    }

    /// Whether the restart guard keeps this request from a master: everything that is a vote, and every look at what is
    /// locked. A master that may have forgotten a lock cannot tell that there is none. A break is no look: it is sent
    /// wherever a key may be.
    pub fn rests_on_memory(&self) -> bool {
        self.is_vote() || matches!(self, Self::Look { .. } | Self::List { .. })
    }

    /// Whether it is for clients of the masters in force alone: every vote, every look, and every write of a value. What
    /// a client sees of masters that have been changed is not what is locked now; what it has it can give back
    /// everywhere. A value that it writes late is not what the next masters were given.
    pub(crate) fn is_for_current_masters(&self) -> bool {
        let looks = matches!(
            self,
            Self::Look { .. } | Self::List { .. } | Self::Break { .. } | Self::Write { .. }
        );
        looks || self.is_vote()
    }
}

/// A lock as one master sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The value of the lock key, where there is one.
    pub holder: Option<Vec<u8>>,
    /// How long the master will keep it; `None` for a key without expiry, or no key.
    pub ttl_left: Option<Duration>,
    /// The fencing counter, where there is one.
    pub counter: Option<u64>,
    /// The line, its head first; at most 100 waiters.
    pub queue: Vec<Waiter>,
    /// What the holder says of itself, where it did.
    pub note: Option<Note>,
    /// The term of a holder that was elected, by its own word.
    pub term: Option<u64>,
    /// Where readers hold it, or an owner does: every hold by itself; at most the 100 that live on the longest.
    pub holds: Vec<Hold>,
}

/// One hold that stands beside others of its class, as one master sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// Its value: the same on every master.
    pub value: Vec<u8>,
    /// How long it is kept without a renewal.
    pub lives: Duration,
    /// What its holder says of itself, where it did.
    pub note: Option<Note>,
}

impl Hold {
    /// A hold as a node reports it.
    pub fn new(value: Vec<u8>, lives: Duration, note: Option<Note>) -> Self {
        Self { value, lives, note }
    }
}

/// One waiter in line, as one master sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiter's id: the same on every master.
    pub id: String,
    /// How long its place is kept without another sign of life.
    pub lives: Duration,
}

impl Waiter {
    /// A waiter as a node reports it.
    pub fn new(id: String, lives: Duration) -> Self {
        Self { id, lives }
    }
}

/// What a refusing master says of the line (only to a claim in order).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// How many waiters stand before this one.
    pub ahead: u64,
    /// The largest ticket drawn.
    pub ticket: u64,
    /// The value of the lock key, where there is one.
    pub holder: Option<Vec<u8>>,
    /// The free slots of a semaphore, as bits.
    pub free: u64,
    /// What the holder says of itself, where it did.
    pub note: Option<Note>,
}

/// What happened to one lock of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended {
    /// It was ours, and its expiry is at least what was asked for.
    Kept,
    /// It was missing and has been put back.
    Restored,
    /// It is somebody else's.
    NotOurs,
    /// The claim had been withdrawn before the message was sent.
    Withdrawn,
    /// It was ours, as `Kept`, and the note that it had is gone.
    Unnoted,
    /// The master could not do it for this lock, and why: it is full, or the user lacks a right, or something that is
    /// none of ours stands beside the lock. No vote.
    Unknown(Fault),
}

/// Why a master cannot tell of a lock.
const STRANGE: &str = "what stands beside the lock is none of ours: not renewed";

impl Extended {
    /// Of a lock beside which something stands that is none of ours.
    pub(crate) fn strange() -> Self {
        Self::Unknown(Fault::Server(STRANGE.into()))
    }

    /// Whether the lease lasts as long as was asked for.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept | Self::Restored | Self::Unnoted)
    }
}

/// What a master answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The lock is ours on this master.
    Granted {
        /// The fencing counter, where one is kept.
        counter: Option<u64>,
    },
    /// Somebody else has it, or stands before us.
    Refused {
        /// How long the holder's key lives on, or the place of who is first in line; where the
        /// master says.
        ttl_left: Option<Duration>,
        /// What it says of the line.
        line: Option<Box<QueueInfo>>,
    },
    /// The counter now stands at the number asked for.
    Confirmed,
    /// The counter stands above the number asked for, here.
    CounterAbove(u64),
    /// The lock is not ours on this master.
    NotOurs,
    /// Other holds of the same owner are there: what their number is, they know.
    NotAlone,
    /// Released; `true` when the key was there and ours.
    Released(bool),
    /// What became of each lock, in the order asked.
    Extended(Vec<Extended>),
    /// The lock as it stands, or as it stood before it was broken.
    State(KeyState),
    /// The value under the lock; the counter now stands at the number asked for.
    Value {
        /// The run of the server that answered.
        run: ServerRun,
        /// The value, where there is one.
        stored: Option<StoredValue>,
    },
    /// The value has been written, or removed.
    Written {
        /// The run of the server that answered.
        run: ServerRun,
    },
    /// Which notes were written, in the order asked.
    Noted(Vec<bool>),
    /// Some keys.
    Keys {
        /// Where to go on; 0 at the end.
        cursor: u64,
        /// What was found; a key may come twice.
        keys: Vec<Vec<u8>>,
    },
    /// New leaders will be heard of, or no more.
    Watching,
}

/// Which part of a lock's life a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Taking the lock.
    Acquire,
    /// Agreeing on the fencing token.
    Confirm,
    /// Giving it back.
    Release,
    /// Prolonging it.
    Extend,
    /// Looking at it.
    Look,
    /// Reading and writing the value under it.
    Value,
}

impl Phase {
    /// One of each, for what is counted. Without a wildcard: a new one does not compile until it is here.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Phase::Acquire), |phase| match phase {
            Phase::Acquire => Some(Phase::Confirm),
            Phase::Confirm => Some(Phase::Release),
            Phase::Release => Some(Phase::Extend),
            Phase::Extend => Some(Phase::Look),
            Phase::Look => Some(Phase::Value),
            Phase::Value => None,
        })
    }

    /// A word for fields and machine-readable output; stable across versions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Confirm => "confirm",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::Look => "look",
            Self::Value => "value",
        }
    }
}

/// Takes the answers of a fan-out.
pub trait ReplySink: Send + Sync + 'static {
    /// `node`'s answer to the message of `phase`. Called once per message, from any task; must
    /// not block.
    fn answered(&self, node: usize, phase: Phase, answer: Result<Answer, Fault>);

    /// An answer that came after its timeout had been reported; for reports only.
    fn late(&self, _node: usize, _phase: Phase, _answer: &Result<Answer, Fault>) {}
}

/// Where one answer goes. Dropped unanswered, it reports [`Fault::Disconnected`], so that no
/// caller waits for a node that is gone.
pub struct Reply {
    sink: Option<Arc<dyn ReplySink>>,
    node: u16,
    phase: Phase,
    answered: bool,
    message: Option<metrics::Message>,
}

impl Reply {
    /// A reply to `sink`, for the message of `phase` to `node`.
    pub fn new(sink: Arc<dyn ReplySink>, node: usize, phase: Phase) -> Self {
        let node = u16::try_from(node).unwrap_or(u16::MAX);
        Self {
            sink: Some(sink),
            node,
            phase,
            answered: false,
            message: None,
        }
    }

    /// A reply that nobody waits for.
    pub fn ignored() -> Self {
        Self {
            sink: None,
            node: 0,
            phase: Phase::Release,
            answered: true,
            message: None,
        }
    }

    /// The same, with outcome and latency counted for the master of this name.
    pub(crate) fn counted(mut self, name: &NodeName) -> Self {
        self.message = Some(metrics::Message::to(|| name.shared()));
        self
    }

    /// Answers; after [`time_out`](Self::time_out) the answer is passed on as late.
    pub fn answer(mut self, answer: Result<Answer, Fault>) {
        let Some(sink) = self.sink.take() else { return };
        if let Some(message) = &self.message {
            if self.answered {
                message.late(self.phase.as_str());
            } else {
                count(message, self.phase, answer.as_ref().err());
            }
        }
        if self.answered {
            sink.late(self.node.into(), self.phase, &answer);
        } else {
            self.answered = true;
            sink.answered(self.node.into(), self.phase, answer);
        }
    }

    /// Reports `fault` now, and keeps the reply for the late answer.
    pub fn time_out(&mut self, fault: Fault) {
        if let (Some(sink), false) = (&self.sink, self.answered) {
            self.answered = true;
            if let Some(message) = &self.message {
                count(message, self.phase, Some(&fault));
            }
            sink.answered(self.node.into(), self.phase, Err(fault));
        }
    }
}

fn count(message: &metrics::Message, phase: Phase, fault: Option<&Fault>) {
    let phase = phase.as_str();
    match fault {
        None => message.answered(phase),
        Some(fault) => {
            let said = !matches!(fault, Fault::Timeout(_) | Fault::Stalled);
            message.failed(phase, fault.kind(), said);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let (Some(sink), false) = (self.sink.take(), self.answered) {
            let gone = Fault::Disconnected(Arc::from("the node was shut down"));
            if let Some(message) = &self.message {
                count(message, self.phase, Some(&gone));
            }
            sink.answered(self.node.into(), self.phase, Err(gone));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("node", &self.node)
            .field("phase", &self.phase)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

/// Who hears the wake-ups of one process from one master.
#[derive(Clone)]
pub struct Subscriber {
    /// The process: 16 hexadecimal digits.
    pub process: Arc<str>,
    /// Which master this subscriber is for.
    pub node: usize,
    /// Where wake-ups go.
    pub sink: Arc<dyn WakeSink>,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("process", &self.process)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Takes wake-ups. A wake-up is a hint: it may be lost, come twice, or come too late.
pub trait WakeSink: Send + Sync + 'static {
    /// `node` says that `key` may be free. Must not block.
    fn woken(&self, node: usize, key: &[u8]);

    /// `node` says that the lock on `key` has a new holder who was elected. Must not block.
    fn announced(&self, _node: usize, _key: &[u8]) {}
}
