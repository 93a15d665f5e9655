//! The facts that the checkers receive, in the order in which they happen.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Extended, Fault, Request, Token};

use crate::change_plan::Sets;
use crate::clock::Clock;
use crate::happening::Happening;
use crate::kind::{Kind, Scope, ValueStep};
use crate::locker::Hold;

/// The state of a lock on one master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The value of the lock key. The marker of a class is padded with zeros.
    pub(crate) holder: Option<[u8; 32]>,
    /// When the lock key expires, in microseconds on the master's clock; zero without a key.
    pub(crate) expires: u64,
    pub(crate) counter: u64,
    /// When the key of the counter expires, in microseconds on the master's clock; zero without a key.
    pub(crate) counter_expires: u64,
}

impl Seen {
    /// The state at a later time, if no message changed it.
    pub(crate) fn at(self, now_us: u64) -> Self {
        if self.holder.is_some() && now_us < self.expires {
            return self;
        }
        Self {
            holder: None,
            expires: 0,
            ..self
        }
    }
}

/// A hold of a class on one master. `until` is in true time, `until_ms` on the master's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) value: [u8; 32],
    pub(crate) until: u64,
    pub(crate) until_ms: u64,
}

/// Something that happened.
pub(crate) enum Fact<'a> {
    /// A task starts an acquire with this timeout; `None` waits without a limit.
    Asked {
        task: usize,
        resource: usize,
        wait: Option<u64>,
    },
    /// A client queued the first message of an attempt.
    Started {
        client: usize,
        task: usize,
        claim: &'a Arc<Claim>,
    },
    /// A master executed a message about one lock.
    Applied {
        master: usize,
        /// On the master's clock.
        now_ms: u64,
        resource: usize,
        claim: &'a Arc<Claim>,
        verb: Verb,
        /// The connection belongs to the current run of the server.
        live: bool,
        answer: &'a Result<Answer, Fault>,
        /// The result for this lock, if the message concerns several.
        extended: Option<Extended>,
        before: Seen,
        after: Seen,
        /// The true time at which the key expires if no further message changes it.
        expires: u64,
        /// The holds that share the lock there now.
        members: &'a [Member],
    },
    /// A master executed a message by which a waiter leaves the queue.
    Left {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A client believes from now on that it holds a lock.
    Obtained { believer: &'a Believer },
    /// A validity was extended. `old` is its previous end.
    Extended { believer: &'a Believer, old: u64 },
    /// The library says that the lock is no longer held. Its holder may not have been notified yet.
    Over { believer: &'a Believer },
    /// A client is done with a lock.
    Retired { believer: &'a Believer, why: Why },
    /// A call of the library has returned, or its future was dropped.
    Returned {
        client: usize,
        task: usize,
        call: Call,
        began: u64,
    },
    /// The note of the client that holds the lock with this value.
    Says {
        resource: usize,
        value: Token,
        note: &'a str,
    },
    /// A waiter received the lock value of the holder, if the master shows one, and the holder's note.
    Refused {
        resource: usize,
        holder: Option<&'a [u8]>,
        note: Option<&'a str>,
    },
    /// A task begins to observe an election.
    Observes { task: usize },
    /// An observer received the term and the note of the leader, or that there is no leader.
    Observed {
        task: usize,
        resource: usize,
        leader: Option<(u64, Option<&'a str>)>,
    },
    /// The note next to a lock on a master, with its expiry on the master's clock in microseconds. `until` is the same
    /// in true time.
    Beside {
        master: usize,
        resource: usize,
        note: Option<(&'a [u8], u64)>,
        lock: Seen,
        until: u64,
    },
    /// A client begins a call about the value under a lock.
    Asks {
        task: usize,
        resource: usize,
        verb: ValueStep,
        /// The step of the replacement of masters at which the client is.
        step: u8,
    },
    /// The result of that call.
    ValueReturned {
        client: usize,
        task: usize,
        resource: usize,
        result: ValueResult,
    },
    /// A master has read or written a value.
    Valued {
        master: usize,
        resource: usize,
        request: &'a Request,
        answer: &'a Result<Answer, Fault>,
        before: Seen,
        after: Seen,
    },
    /// A client sends the first message that writes a value.
    WriteSent {
        task: usize,
        resource: usize,
        /// The fencing token of the lock.
        token: u64,
    },
    /// A client asks a store to write a value.
    Writes {
        resource: usize,
        token: u64,
        bytes: &'a [u8],
    },
    /// A store has reported to a client that it is in the queue.
    Stood {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A store has reported to a client that a lock is not its own.
    Denied {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A store has reported to a client that its lock is released.
    Released,
    /// A store keeps a value that was reported to a client as released.
    WrittenAgain { master: usize, value: &'a [u8; 32] },
    /// A foreign client checks its value under the key of a lock.
    ForeignKey {
        master: usize,
        resource: usize,
        /// The value is still there.
        stands: bool,
    },
    /// A happening that interferes with locks and values: of one process or one resource if it is named, else of all.
    Happened {
        what: Happening,
        client: Option<usize>,
        resource: Option<usize>,
    },
    /// The clock of a master is about to jump.
    ClockJumps {
        master: usize,
        /// The last reading before the jump, in microseconds.
        shown_us: u64,
    },
    /// A master restarted.
    Restarted {
        master: usize,
        /// It lost some or all of its memory.
        forgot: bool,
    },
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire,
    Confirm,
    Release,
    Extend,
}

/// A call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// An acquire with this timeout; `None` waits without a limit.
    Acquire {
        resource: usize,
        wait: Option<u64>,
    },
    Extend,
    Downgrade,
    Release,
    /// A call about a value, which waits for its lock for at most this long.
    Value {
        wait: u64,
    },
}

impl Call {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Acquire { .. } => "an acquire",
            Self::Extend => "an extension",
            Self::Downgrade => "a downgrade",
            Self::Release => "a release",
            Self::Value { .. } => "a call about a value",
        }
    }
}

/// The result of a call about a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueResult {
    /// The value was created.
    Created,
    /// The value was removed from every master.
    Removed,
    /// Units were taken. The number is what is left.
    Taken(u64),
    /// The number of units left. None was taken.
    Left(u64),
    /// The caller must do the work of this period, under the lock with this fencing token.
    Due(u64),
    /// The work of this period was done before.
    Done,
    /// There is no value, or the masters have lost it.
    Lost,
    /// The value may have been written or not.
    Unknown,
    /// Nothing has changed.
    Nothing,
}

/// Why a client is done with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Released,
    Dropped,
    /// It was downgraded to a reader.
    Downgraded,
    /// The holder was notified that the lock is lost.
    Lost,
    /// Its process was killed.
    Killed,
}

/// A hold that a client believes in, until it is retired or its validity ends.
pub(crate) struct Believer {
    pub(crate) id: u64,
    pub(crate) client: usize,
    pub(crate) task: usize,
    /// It is renewed in the background.
    pub(crate) renewed: bool,
    pub(crate) kind: Kind,
    /// The sets of masters of which its client needs a majority.
    pub(crate) sets: Sets,
    /// The resource of its step, or the slot of the semaphore; of several resources, one.
    pub(crate) resource: usize,
    /// All its resources, and its class, which decides whose holds may share them.
    pub(crate) scope: Scope,
    pub(crate) value: Token,
    pub(crate) fencing: Option<u64>,
    /// The number of the event at which it was obtained.
    pub(crate) since: u64,
    /// The true time at which it was obtained.
    pub(crate) obtained: u64,
    /// The end of its validity on its own clock, as last seen.
    pub(crate) until: u64,
    /// The true time of that.
    pub(crate) ends: u64,
    /// The library has said that it is over.
    pub(crate) over: bool,
    pub(crate) clock: Clock,
    pub(crate) hold: Arc<dyn Hold>,
}

/// The first digits of a value, for traces.
pub(crate) fn short(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(6)]).into_owned()
}
