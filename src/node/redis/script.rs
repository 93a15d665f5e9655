//! The scripts that masters run, as a table with one row for each script. All other lists of scripts are derived from
//! this table.
//!
//! - The scripts of clients are loaded in the order of the rows.
//! - The server half of the wire (`server_half/`) matches on every script, so tests with a new script do not compile
//!   until the server half parses its calls.
//! - The tests of this module compare `keys` and `args` of each row with the comment at the beginning of the Lua
//!   source.
//! - The tests of `needs.rs` compare `purposes` of each row with the calls in the Lua source.
//!
//! # Why like this
//!
//! A script decides and writes in one step, without a second round trip. The driver calls it by its digest (`EVALSHA`).
//!
//! - **Redis functions (`FCALL`)** save 5 % of the time of a cycle. They need Redis 7 and the right to load functions,
//!   so they were rejected.
//! - **Passing the names of all keys** was tried and removed: parsing the names takes longer than building them in the
//!   script.
//! - **Plain commands** cannot draw a fencing token or check the queue. Without both, the driver acquires with `SET`.
//!   Valkey 9 releases with `DELIFEQ`, after a successful trial.
//!
//! evidence/benchmarks/notes.md has the measurements ("Why some goals are missed", "What was tried and removed").
//!
//! The price is fallbacks. If a server has lost its scripts, the driver loads them and sends the request again, once.
//! If a script for many requests cannot be loaded, or the user lacks the right to one key, each request is sent
//! separately.
//!
//! Not solved: a server without Lua scripts cannot be a master. While a script runs, the master serves no other client,
//! so the batches have limits.

use std::sync::LazyLock;

use super::source::with_parts;
use crate::node::right::Purpose::{
    self, Changing, Crowds, Elections, Fencing, Groups, Locking, Masters, Notes, Operating, Order,
    Semaphores, Values, WakeUps,
};
use crate::node::{Request, Shape};

/// All properties of one script.
pub(super) struct ScriptRow {
    /// The Lua source as it is in the file. The shared parts and the names of keys are inserted into it later.
    pub(super) source: &'static str,
    pub(super) set: ScriptSet,
    /// Whether the script checks the generation marker first. True for scripts whose reply is a vote, and for
    /// [`Script::Write`], which writes the value that is stored under a lock.
    pub(super) checks_marker: bool,
    /// The purposes of the Redis commands that the script calls. To run the script, the Redis user needs the rights for
    /// all these purposes.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "only tests of access rights read this field")
    )]
    pub(super) purposes: &'static [Purpose],
    pub(super) keys: ScriptKeys,
    pub(super) args: ScriptArgs,
}

/// A set of scripts that are loaded together. Every handshake loads [`ScriptSet::Plain`]. The other sets are loaded
/// when a request first needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptSet {
    /// The scripts for locks on one key, and for reading the state of any lock.
    Plain,
    /// The scripts for locks on several keys, for readers-writer locks, and for locks that one owner can hold several
    /// times.
    Groups,
    Values,
    Semaphores,
    Notes,
    /// The script that acquires a lock without a fencing token, and checks the generation marker. Clients that do not
    /// check the marker use the command SET instead.
    Classic,
    /// The scripts that execute many requests in one call.
    Many,
    /// The script that raises the age record.
    Age,
}

/// The keys of a script (KEYS), named as in the comment at the beginning of its Lua source.
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "only tests read the names of the keys")
)]
pub(super) enum ScriptKeys {
    One(&'static str),
    /// Any number of keys. The string is the common name of these keys.
    Many(&'static str),
}

/// The arguments of a script (ARGV), named as in the comment at the beginning of its Lua source.
pub(super) struct ScriptArgs {
    /// The arguments at the beginning. A call has each of them once, for all keys together.
    pub(super) first: &'static [&'static str],
    /// The arguments that follow. They are repeated for each key, or any number of times if the script has one key.
    pub(super) each: &'static [&'static str],
    /// The optional arguments at the end. A call may omit all of them, or only the last ones.
    pub(super) last: &'static [&'static str],
}

/// Declares the enum [`Script`] and its properties from the rows.
macro_rules! scripts {
    ($($(#[$doc:meta])* $script:ident: $row:expr,)*) => {
        /// A Lua script of this library that Redis masters execute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
        pub enum Script {
            $($(#[$doc])* $script,)*
        }

        impl Script {
            /// All scripts, in the order in which they are loaded.
            #[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
            pub const ALL: [Self; ROWS.len()] = [$(Self::$script),*];
        }

        static ROWS: [ScriptRow; [$(stringify!($script)),*].len()] = [$($row),*];
    };
}

scripts! {
    /// Takes a free lock, with a fencing token.
    Acquire: ScriptRow {
        source: include_str!("../../scripts/acquire.lua"),
        set: ScriptSet::Plain,
        checks_marker: true,
        purposes: &[Locking, Fencing],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["value", "ttl ms", "proposed counter in microseconds"], each: &[], last: &[] },
    },

    /// Sets the fencing counter to the fencing token of a granted plain lock.
    Confirm: ScriptRow {
        source: include_str!("../../scripts/confirm.lua"),
        set: ScriptSet::Plain,
        checks_marker: true,
        purposes: &[Locking, Fencing],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["value", "token"], each: &[], last: &[] },
    },

    /// Deletes a lock if the caller still holds it.
    Release: ScriptRow {
        source: include_str!("../../scripts/release.lua"),
        set: ScriptSet::Plain,
        checks_marker: false,
        purposes: &[Locking, Notes],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["value"], each: &[], last: &["note"] },
    },

    /// Extends several locks, each on one key.
    Extend: ScriptRow {
        source: include_str!("../../scripts/extend.lua"),
        set: ScriptSet::Plain,
        checks_marker: true,
        purposes: &[Locking, Notes],
        keys: ScriptKeys::Many("locks"),
        args: ScriptArgs { first: &[], each: &["value", "ttl ms"], last: &[] },
    },

    /// Reads the state of a lock.
    Status: ScriptRow {
        source: include_str!("../../scripts/status.lua"),
        set: ScriptSet::Plain,
        checks_marker: false,
        purposes: &[Operating],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &[], each: &[], last: &["queue"] },
    },

    /// Adds locks to the break record of their key, and deletes the lock key if one of these locks holds it.
    Break: ScriptRow {
        source: include_str!("../../scripts/break.lua"),
        set: ScriptSet::Plain,
        checks_marker: false,
        purposes: &[Operating, WakeUps],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["queue", "1 to delete"], each: &["value", "record"], last: &[] },
    },

    /// Takes a free lock if no other waiter is ahead in its queue. Otherwise the caller joins the queue, if the request
    /// contains a ticket (the caller's place in the queue).
    AcquireFair: ScriptRow {
        source: include_str!("../../scripts/acquire_fair.lua"),
        set: ScriptSet::Plain,
        checks_marker: true,
        purposes: &[Locking, Fencing, Order, Notes],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs {
            first: &["value", "ttl ms", "proposed counter in microseconds"],
            each: &[],
            last: &["id", "ticket", "heartbeat ms"],
        },
    },

    /// Deletes a lock if the caller still holds it, and wakes the next waiter. Also removes the caller from the queue,
    /// unless the caller continues to wait.
    ReleaseFair: ScriptRow {
        source: include_str!("../../scripts/release_fair.lua"),
        set: ScriptSet::Plain,
        checks_marker: false,
        purposes: &[Locking, Order, WakeUps, Notes],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["value"], each: &[], last: &["id", "leave", "note"] },
    },

    /// Takes all keys of a group, or none. A group is the set of keys of a lock on several resources, of a
    /// readers-writer lock, or of a lock that one owner can hold several times.
    Claim: ScriptRow {
        source: include_str!("../../scripts/claim.lua"),
        set: ScriptSet::Groups,
        checks_marker: true,
        purposes: &[Locking, Fencing, Order, Groups, WakeUps, Notes],
        keys: ScriptKeys::Many("lock keys"),
        args: ScriptArgs {
            first: &["value", "ttl ms", "proposed counter in microseconds", "value of the lock to replace", "id", "ticket", "heartbeat ms"],
            each: &["marker"],
            last: &[],
        },
    },

    /// Sets the fencing counters to the fencing token of a granted group.
    ConfirmGroup: ScriptRow {
        source: include_str!("../../scripts/confirm_group.lua"),
        set: ScriptSet::Groups,
        checks_marker: true,
        purposes: &[Locking, Fencing, Groups],
        keys: ScriptKeys::Many("lock keys"),
        args: ScriptArgs { first: &["value", "number"], each: &["marker"], last: &[] },
    },

    /// Releases a group, and wakes the next waiters. Also removes the caller from the queues, unless the caller
    /// continues to wait.
    Unclaim: ScriptRow {
        source: include_str!("../../scripts/unclaim.lua"),
        set: ScriptSet::Groups,
        checks_marker: false,
        purposes: &[Locking, Order, Groups, WakeUps, Notes],
        keys: ScriptKeys::Many("lock keys"),
        args: ScriptArgs { first: &["value", "id", "leave"], each: &["marker"], last: &[] },
    },

    /// Extends locks of which at least one is a group: a lock on several keys, or on one key that readers or the holds
    /// of an owner can share.
    Keep: ScriptRow {
        source: include_str!("../../scripts/keep.lua"),
        set: ScriptSet::Groups,
        checks_marker: true,
        purposes: &[Locking, Fencing, Groups],
        keys: ScriptKeys::Many("lock keys"),
        args: ScriptArgs { first: &[], each: &["value", "ttl ms", "marker", "number"], last: &[] },
    },

    /// Reads the value that is stored under a lock.
    Read: ScriptRow {
        source: include_str!("../../scripts/read.lua"),
        set: ScriptSet::Values,
        checks_marker: false,
        purposes: &[Values],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["value", "token"], each: &[], last: &[] },
    },

    /// Writes the value that is stored under a lock.
    Write: ScriptRow {
        source: include_str!("../../scripts/write.lua"),
        set: ScriptSet::Values,
        checks_marker: true,
        purposes: &[Values],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["token", "run"], each: &[], last: &["bytes"] },
    },

    /// Takes a slot of a semaphore.
    Permit: ScriptRow {
        source: include_str!("../../scripts/permit.lua"),
        set: ScriptSet::Semaphores,
        checks_marker: true,
        purposes: &[Locking, Fencing, Order, Semaphores],
        keys: ScriptKeys::One("the key that a lock with the semaphore's name would have"),
        args: ScriptArgs {
            first: &["value", "ttl ms", "proposed counter in microseconds", "slot", "number of slots"],
            each: &[],
            last: &["id", "ticket", "heartbeat ms"],
        },
    },

    /// Releases a slot of a semaphore, and wakes the next waiter. Also removes the caller from the queue, unless the
    /// caller continues to wait.
    ReleasePermit: ScriptRow {
        source: include_str!("../../scripts/release_permit.lua"),
        set: ScriptSet::Semaphores,
        checks_marker: false,
        purposes: &[Locking, Order, WakeUps, Notes],
        keys: ScriptKeys::One("the key that a lock with the semaphore's name would have"),
        args: ScriptArgs { first: &["value", "slot"], each: &[], last: &["id", "leave", "note"] },
    },

    /// Writes the notes of the holders of several locks.
    Note: ScriptRow {
        source: include_str!("../../scripts/note.lua"),
        set: ScriptSet::Notes,
        checks_marker: false,
        purposes: &[Notes, Elections, Groups, Fencing],
        keys: ScriptKeys::Many("locks"),
        args: ScriptArgs { first: &[], each: &["value", "note", "announce"], last: &[] },
    },

    /// Takes a free lock without a fencing token, after checking the generation marker.
    Classic: ScriptRow {
        source: include_str!("../../scripts/classic.lua"),
        set: ScriptSet::Classic,
        checks_marker: true,
        purposes: &[Locking],
        keys: ScriptKeys::One("lock"),
        args: ScriptArgs { first: &["value", "ttl ms"], each: &[], last: &[] },
    },

    /// Takes several free locks in one call, each independently of the others.
    AcquireMany: ScriptRow {
        source: include_str!("../../scripts/acquire_many.lua"),
        set: ScriptSet::Many,
        checks_marker: true,
        purposes: &[Locking, Fencing, Order, Notes, Crowds],
        keys: ScriptKeys::Many("locks"),
        args: ScriptArgs {
            first: &["ttl ms", "queues"],
            each: &["value", "proposed counter in microseconds"],
            last: &[],
        },
    },

    /// Releases several locks in one call, each independently of the others.
    ReleaseMany: ScriptRow {
        source: include_str!("../../scripts/release_many.lua"),
        set: ScriptSet::Many,
        checks_marker: false,
        purposes: &[Locking, Order, WakeUps, Crowds],
        keys: ScriptKeys::Many("locks"),
        args: ScriptArgs { first: &[], each: &["value"], last: &["queues"] },
    },

    /// Raises the age record of the server, and restores a lost generation marker.
    Age: ScriptRow {
        source: include_str!("../../scripts/age.lua"),
        set: ScriptSet::Age,
        checks_marker: false,
        purposes: &[Masters],
        keys: ScriptKeys::Many("none"),
        args: ScriptArgs { first: &["run id", "life", "age ms", "new life", "marker"], each: &[], last: &[] },
    },
}

/// The properties of a script that only operators run, when they replace masters.
#[cfg_attr(not(test), allow(dead_code, reason = "tests compare these properties"))]
pub(super) struct OperatorRow {
    pub(super) source: &'static str,
    /// The purposes of the Redis commands that the script calls. To run the script, the operator's Redis user needs the
    /// rights for all these purposes.
    pub(super) purposes: &'static [Purpose],
    keys: ScriptKeys,
    args: ScriptArgs,
}

/// Raises the generation marker.
pub(super) static RAISE_MARKER: OperatorRow = OperatorRow {
    source: include_str!("../../scripts/masters/raise.lua"),
    // `KEYS[1]` is no lock key here. But the tests of `needs.rs` treat it as one, and so require `Locking`.
    purposes: &[Changing, Locking],
    keys: ScriptKeys::One("the generation marker"),
    args: ScriptArgs {
        first: &[
            "the marker's number",
            "the fingerprint of the masters",
            "the age record",
        ],
        each: &[],
        last: &[],
    },
};

/// Raises the fencing counters on a new master to the numbers of the same counters on the old masters.
pub(super) static CARRY_COUNTERS: OperatorRow = OperatorRow {
    source: include_str!("../../scripts/masters/carry.lua"),
    purposes: &[Changing, Locking, Fencing],
    keys: ScriptKeys::Many("counters"),
    args: ScriptArgs {
        first: &["the minimum expiry of a counter in ms"],
        each: &["the number for each counter"],
        last: &[],
    },
};

/// A Lua script that only operators run, when they replace masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
pub enum OperatorScript {
    /// Raises the generation marker.
    RaiseMarker,
    /// Raises fencing counters.
    CarryCounters,
}

#[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
impl OperatorScript {
    /// All scripts of operators.
    pub const ALL: [Self; 2] = [Self::RaiseMarker, Self::CarryCounters];

    pub(super) fn row(self) -> &'static OperatorRow {
        match self {
            Self::RaiseMarker => &RAISE_MARKER,
            Self::CarryCounters => &CARRY_COUNTERS,
        }
    }

    /// The Lua source of the script, as an operator loads it.
    pub fn source(self) -> &'static str {
        static SOURCES: LazyLock<[String; OperatorScript::ALL.len()]> =
            LazyLock::new(|| OperatorScript::ALL.map(|script| with_parts(script.row().source)));
        &SOURCES[self as usize]
    }

    /// The digest under which simulated servers know the script. It has a digit other than 0, because operators check
    /// their rights with a call of a script whose digest consists of zeros.
    #[cfg(any(test, feature = "testing"))]
    pub fn digest(self) -> String {
        format!("{:040}", 1 + self as usize)
    }

    /// Finds the script with this [`digest`](Self::digest); `None` if operators have no such script.
    #[cfg(any(test, feature = "testing"))]
    pub fn from_digest(digest: &[u8]) -> Option<Self> {
        let is_same = |script: &Self| script.digest().as_bytes() == digest;
        Self::ALL.into_iter().find(is_same)
    }

    /// Finds the script with this source; `None` if operators have no such script.
    #[cfg(any(test, feature = "testing"))]
    pub fn from_source(text: &[u8]) -> Option<Self> {
        let is_same = |script: &Self| script.source().as_bytes() == text;
        Self::ALL.into_iter().find(is_same)
    }
}

#[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
impl Script {
    pub(super) fn row(self) -> &'static ScriptRow {
        &ROWS[self as usize]
    }

    /// The Lua source of the script, including the parts that several scripts share. Before a client loads the source,
    /// it adds one line at the top, which defines constants.
    pub fn source(self) -> &'static str {
        static SOURCES: LazyLock<[String; ROWS.len()]> =
            LazyLock::new(|| Script::ALL.map(|script| with_parts(script.row().source)));
        &SOURCES[self as usize]
    }

    /// Finds the script with this source; `None` if the library has no such script.
    #[cfg(any(test, feature = "testing"))]
    pub fn from_source(text: &[u8]) -> Option<Self> {
        let is_same = |script: &Self| script.source().as_bytes() == text;
        Self::ALL.into_iter().find(is_same)
    }

    /// Whether the script checks the master's generation marker before it does anything else.
    pub fn checks_marker(self) -> bool {
        self.row().checks_marker
    }

    /// Whether the script can grant a lock that no client holds.
    pub(super) fn grants(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::AcquireFair
                | Self::AcquireMany
                | Self::Claim
                | Self::Classic
                | Self::Permit
        )
    }

    /// Whether the script accepts `keys` keys and `args` arguments.
    pub fn accepts(self, keys: usize, args: usize) -> bool {
        let ScriptRow {
            keys: script_keys,
            args: ScriptArgs { first, each, last },
            ..
        } = self.row();
        let repetitions = match script_keys {
            ScriptKeys::One(_) if !each.is_empty() => args.saturating_sub(first.len()) / each.len(),
            ScriptKeys::One(_) | ScriptKeys::Many(_) => keys,
        };
        let min_args = first.len() + repetitions * each.len();
        let fits_keys = keys == 1 || matches!(script_keys, ScriptKeys::Many(_));
        fits_keys && (min_args..=min_args + last.len()).contains(&args)
    }
}

impl Script {
    /// The script that executes a request. `None` for lists of keys, for subscriptions to new leaders, and for an
    /// acquire without a fencing token.
    ///
    /// For such an acquire, clients use the command SET, or [`Script::Classic`] if they check the generation marker.
    pub(super) fn for_request(request: &Request) -> Option<Self> {
        Some(match (request, request.shape()) {
            (Request::Acquire { claim, .. }, Shape::Plain) if claim.is_fair() => Self::AcquireFair,
            (Request::Acquire { claim, .. }, Shape::Plain) if claim.fenced() => Self::Acquire,
            (Request::Acquire { .. }, Shape::Group(_)) => Self::Claim,
            (Request::Acquire { .. }, Shape::Permit(_)) => Self::Permit,
            (Request::Confirm { .. }, Shape::Plain | Shape::Permit(_)) => Self::Confirm,
            (Request::Confirm { .. }, Shape::Group(_)) => Self::ConfirmGroup,
            (Request::Release { claim, .. }, Shape::Plain) if claim.is_fair() => Self::ReleaseFair,
            (Request::Release { .. }, Shape::Plain) => Self::Release,
            (Request::Release { .. }, Shape::Group(_)) => Self::Unclaim,
            (Request::Release { .. }, Shape::Permit(_)) => Self::ReleasePermit,
            (Request::Extend { .. }, Shape::Plain | Shape::Permit(_)) => Self::Extend,
            (Request::Extend { .. }, Shape::Group(_)) => Self::Keep,
            (Request::Status { .. }, _) => Self::Status,
            (Request::Break { .. }, _) => Self::Break,
            (Request::Read { .. }, _) => Self::Read,
            (Request::Write { .. }, _) => Self::Write,
            (Request::Note { .. }, _) => Self::Note,
            (Request::Acquire { .. }, Shape::Plain)
            | (Request::List { .. } | Request::Watch { .. }, _) => return None,
        })
    }
}

impl ScriptSet {
    pub(super) const ALL: [Self; 8] = [
        Self::Plain,
        Self::Groups,
        Self::Values,
        Self::Semaphores,
        Self::Notes,
        Self::Classic,
        Self::Many,
        Self::Age,
    ];

    /// The scripts of this set, in the order in which they are loaded.
    pub(super) fn scripts(self) -> impl Iterator<Item = Script> {
        let all = Script::ALL.into_iter();
        all.filter(move |script| script.row().set == self)
    }
}

#[cfg(test)]
mod tests;
