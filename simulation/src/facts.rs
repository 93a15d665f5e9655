//! What the checkers are told, as it happens.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Extended, Fault, Request, Token};

use crate::change_plan::Sets;
use crate::clock::Clock;
use crate::happening::Happening;
use crate::kind::{Kind, Scope, ValueStep};
use crate::locker::Hold;

/// A lock as it stands on one master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The value of the lock key, the marker of a class filled up with zeros.
    pub(crate) holder: Option<[u8; 32]>,
    /// Microseconds on the master's clock; zero without a key.
    pub(crate) expires: u64,
    pub(crate) counter: u64,
    /// When the key of the counter expires, in microseconds on the master's clock; zero without a key.
    pub(crate) counter_expires: u64,
}

impl Seen {
    /// How it stands later, if nothing was said about it.
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

/// A hold of a class on one master, by its value: until when on the true time, and on the master's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) value: [u8; 32],
    pub(crate) until: u64,
    pub(crate) until_ms: u64,
}

/// Something that happened.
pub(crate) enum Fact<'a> {
    /// A task asks for a lock, for so long; none for as long as it takes.
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
        /// It came over a connection that was made to this very run of the server.
        live: bool,
        answer: &'a Result<Answer, Fault>,
        /// What it says of this lock, where it was asked about several.
        extended: Option<Extended>,
        before: Seen,
        after: Seen,
        /// The true time at which the key expires if nothing more is said about it.
        expires: u64,
        /// The holds that stand beside each other there now, and the true time until which each does.
        members: &'a [Member],
    },
    /// A master executed a message by which a waiter leaves the line.
    Left {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A client believes to hold a lock from now on.
    Obtained { believer: &'a Believer },
    /// A validity moved. `old` is where it stood.
    Prolonged { believer: &'a Believer, old: u64 },
    /// The library says that it is held no longer; its holder may not have been told yet.
    Over { believer: &'a Believer },
    /// A client is done with a lock.
    Retired { believer: &'a Believer, why: Why },
    /// A call of the library has returned, or was dropped.
    Returned {
        client: usize,
        task: usize,
        call: Call,
        began: u64,
    },
    /// What who holds by this value says of itself.
    Says {
        resource: usize,
        value: Token,
        note: &'a str,
    },
    /// A waiter is told who stands in its way, by the value that a master shows where it is named, and what that says
    /// of itself.
    Refused {
        resource: usize,
        holder: Option<&'a [u8]>,
        note: Option<&'a str>,
    },
    /// A task begins to observe an election.
    Observes { task: usize },
    /// It was told of a term and its leader's note, or of nobody.
    Observed {
        task: usize,
        resource: usize,
        leader: Option<(u64, Option<&'a str>)>,
    },
    /// What stands beside a lock on a master, until when on its clock in microseconds, and on the true time.
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
        /// The step of the masters that it goes by.
        step: u8,
    },
    /// It was told this.
    Told {
        client: usize,
        task: usize,
        resource: usize,
        told: Told,
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
    /// A client has heard that it stands in line at a store.
    Stood {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A client has heard from a store that a lock is not its own.
    Denied {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A client has heard from a store that its lock is given back.
    GivenBack,
    /// A store keeps a value of which somebody was told that it is given back.
    StandsAgain { master: usize, value: &'a [u8; 32] },
    /// A stranger looks after its value under the key of a lock.
    Strange {
        master: usize,
        resource: usize,
        /// It is still there.
        stands: bool,
    },
    /// Something that crosses the use of locks and values: of one process, or of one resource, where it is named.
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
    /// A master came back.
    Restarted {
        master: usize,
        /// Without all that it knew.
        forgot: bool,
    },
}

/// What a message asks for.
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
    /// An acquire that waits for so long; none for as long as it takes.
    Acquire {
        resource: usize,
        wait: Option<u64>,
    },
    Extend,
    Downgrade,
    Release,
    /// One about a value, which waits for its lock for so long.
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

/// What a client was told of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is there from now on.
    Created,
    /// It is nowhere any more.
    Removed,
    /// Pieces are its own; so many are left.
    Taken(u64),
    /// So many are left, and none was taken.
    Left(u64),
    /// What is done once a period is its own to do, under the lock of this number.
    Due(u64),
    /// It has been done before.
    Done,
    /// There is none, or the masters have lost it.
    Lost,
    /// It may have been written or not.
    Unknown,
    /// Nothing has changed.
    Nothing,
}

/// Why a client is done with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Released,
    Dropped,
    /// It goes on as a reader.
    Downgraded,
    /// It was told that the lock is lost.
    Lost,
    /// Its process was killed.
    Killed,
}

/// Somebody who believes to hold a lock, until it is retired or its time is over.
pub(crate) struct Believer {
    pub(crate) id: u64,
    pub(crate) client: usize,
    pub(crate) task: usize,
    /// It is renewed in the background.
    pub(crate) renewed: bool,
    pub(crate) kind: Kind,
    /// Which masters make a majority for its client.
    pub(crate) sets: Sets,
    /// The resource of its step, or the slot that it has; of several, one.
    pub(crate) resource: usize,
    /// All of them, and who may stand beside it.
    pub(crate) scope: Scope,
    pub(crate) value: Token,
    pub(crate) fencing: Option<u64>,
    /// The number of the event with which it began.
    pub(crate) since: u64,
    /// The true time at which it began.
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
