//! What is written down: one line of JSON per event, on one time base.
//!
//! All processes run on one machine and read the same monotonic clock, so a time is simply the
//! nanoseconds since the run began, and times of different processes can be compared.

use std::collections::BTreeMap;

use quorate::Instant;
use serde::{Deserialize, Serialize};

use crate::claim::Claim;

/// What a client says that was not run by the machine for a while.
pub const STALLED: &str = "stalled";

/// The time base of one run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
}

impl Clock {
    /// A run that begins now.
    pub fn start() -> Self {
        Self::at(Instant::now().as_nanos())
    }

    /// The clock of a run that began at `origin`, in nanoseconds of the machine's clock.
    pub fn at(origin: u64) -> Self {
        Self { origin }
    }

    /// Where the run began, to be handed to other processes.
    pub fn origin(self) -> u64 {
        self.origin
    }

    /// Nanoseconds since the run began.
    pub fn now(self) -> u64 {
        self.of(Instant::now())
    }

    /// A point of the library's clock on this time base.
    pub fn of(self, instant: Instant) -> u64 {
        instant.as_nanos().saturating_sub(self.origin)
    }
}

/// One line of the history: something that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When it happened, in nanoseconds since the run began.
    pub t: u64,
    /// Who saw it: `c1` a client, `c1.2` its second life, `m3` a master, `chaos`, `register`.
    pub who: String,
    /// What happened.
    #[serde(flatten)]
    pub what: Event,
}

/// What can happen. `op` numbers the attempts of one life of one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A client is up and has spoken to every master.
    Ready {
        /// Its process id.
        pid: u32,
    },
    /// An attempt began. Written before anything is sent.
    Wait {
        /// The attempt.
        op: u64,
        /// What is to be locked.
        resource: String,
        /// What is to be locked with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<String>,
        /// Beside whom.
        #[serde(default, skip_serializing_if = "Claim::is_alone")]
        claim: Claim,
        /// The attempt whose hold it goes on from, as another kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        goes_on: Option<u64>,
    },
    /// The attempt won.
    Obtained {
        /// The attempt.
        op: u64,
        /// The fencing token.
        token: Option<u64>,
        /// Until when it may be counted on; `None`: the client believes without end.
        until: Option<u64>,
        /// Which permit it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<usize>,
    },
    /// The holder saw a later end of its validity.
    Renewed {
        /// The attempt.
        op: u64,
        /// The new end.
        until: u64,
    },
    /// The holder stopped believing and gave back. Written before anything is sent.
    Release {
        /// The attempt.
        op: u64,
        /// The end of its validity as it stood.
        until: Option<u64>,
    },
    /// The release was answered.
    Released {
        /// The attempt.
        op: u64,
        /// On how many masters it deleted the key.
        on: usize,
        /// How many failed or had not answered yet.
        open: usize,
    },
    /// The holder was told that the lock is lost.
    Told {
        /// The attempt.
        op: u64,
        /// Why.
        cause: String,
        /// The end of its validity as it stood.
        until: Option<u64>,
    },
    /// The attempt ended without the lock.
    Missed {
        /// The attempt.
        op: u64,
        /// `held`, `no_quorum`, `late`, ..
        why: String,
    },
    /// The caller dropped the attempt midway.
    Dropped {
        /// The attempt.
        op: u64,
    },
    /// A step under the lock that reads, changes and writes something unprotected.
    Wrote {
        /// The attempt whose lock was believed in.
        op: u64,
        /// What was changed.
        key: String,
        /// The value it was made from. No two steps may start from the same one.
        from: String,
        /// When the write itself began.
        began: u64,
    },
    /// A holder looked at something that nobody else may change while it holds.
    Found {
        /// The attempt whose lock was believed in.
        op: u64,
        /// What was looked at.
        key: String,
        /// What must be there.
        expected: String,
        /// What was there.
        found: String,
        /// Who has written what should not be there: client and attempt.
        writer: String,
    },
    /// The question for a prize was answered.
    Answered {
        /// The attempt.
        op: u64,
        /// `taken`, `sold_out`, `lost` or `missing`.
        answer: String,
        /// How many are left.
        left: Option<u64>,
    },
    /// An operator has created a quota.
    Created {
        /// Its name.
        quota: String,
        /// Of how many pieces.
        pieces: u64,
    },
    /// A follower was told who leads.
    Followed {
        /// The term; `None`: no leader is known.
        term: Option<u64>,
        /// What the leader says of itself: client and attempt.
        leader: Option<String>,
    },
    /// The bank has moved money. Told by the bank itself.
    Moved {
        /// Who asked for it: client and attempt.
        by: String,
        /// The token that came with it.
        token: u64,
        /// What is in each of the accounts from now on.
        balances: BTreeMap<String, i64>,
    },
    /// The fenced register took a write. Told by the register itself.
    Applied {
        /// Who wrote: client and attempt.
        by: String,
        /// The register.
        key: String,
        /// The token that came with it.
        token: u64,
    },
    /// The fenced register refused a stale write. Told by the register itself.
    Refused {
        /// Who wrote.
        by: String,
        /// The register.
        key: String,
        /// The token that came with it.
        token: u64,
        /// The largest token it has seen.
        highest: u64,
    },
    /// A client blocked its own runtime, or went through dropped futures, for a while.
    Suffered {
        /// What.
        what: String,
        /// Since when.
        since: u64,
    },
    /// The machine kept a client's threads waiting for a processor, by the kernel's own account.
    Starved {
        /// From when on it was counted; until the time of this line.
        since: u64,
        /// For how long in sum, in nanoseconds.
        waited: u64,
    },
    /// A fault is to begin.
    Inject {
        /// The number of the fault in the schedule.
        fault: usize,
        /// Its kind.
        kind: String,
        /// The masters and clients it is about.
        targets: Vec<String>,
    },
    /// It was seen to have landed.
    Landed {
        /// The number.
        fault: usize,
        /// How that was seen.
        seen: String,
    },
    /// It is over, and was seen to be over.
    Healed {
        /// The number.
        fault: usize,
    },
    /// It could not be made to happen, or to end.
    Failed {
        /// The number.
        fault: usize,
        /// Why.
        why: String,
    },
    /// This machine cannot do it.
    Unavailable {
        /// The kind of fault, or the workload.
        kind: String,
        /// Why not.
        why: String,
    },
    /// A client process ended: killed by us, at the end of the run, or by accident.
    Gone {
        /// Whether that was meant.
        meant: bool,
        /// How it ended.
        how: String,
    },
    /// A step of a change of masters has ended, done or not.
    Step {
        /// Which change it is of, the first is 0.
        change: usize,
        /// What was done.
        step: String,
        /// When it was begun.
        since: u64,
        /// Whether it is done.
        done: bool,
        /// What was said about it.
        said: String,
    },
    /// A client starts that was told these masters.
    Sent {
        /// Its step: twice the number of changes that are behind it, and one more while it goes by two sets.
        step: u64,
    },
    /// A master was stopped for good.
    Retired,
    /// All faults are over; from here on everybody must get on.
    Calm,
    /// Clients were asked to finish.
    Finish,
    /// A client has finished in order; everything it sent is answered.
    Bye,
    /// The keys on a master after the clients have ended.
    Keys {
        /// `at-once`, `after-ttl`, or `after-notes`.
        when: String,
        /// Keys that are locks or waiters' entries.
        left: Vec<String>,
        /// Any keys that never expire.
        eternal: Vec<String>,
    },
    /// What a process uses.
    Gauge {
        /// Its resident memory in bytes (a master: what it says that it uses).
        memory: u64,
        /// Its open file descriptors.
        handles: u64,
        /// A master: the connections that it says that it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u64>,
    },
}

impl Event {
    /// The attempt it is about.
    pub fn op(&self) -> Option<u64> {
        match self {
            Self::Wait { op, .. }
            | Self::Obtained { op, .. }
            | Self::Renewed { op, .. }
            | Self::Release { op, .. }
            | Self::Released { op, .. }
            | Self::Told { op, .. }
            | Self::Missed { op, .. }
            | Self::Dropped { op }
            | Self::Wrote { op, .. }
            | Self::Found { op, .. }
            | Self::Answered { op, .. } => Some(*op),
            _ => None,
        }
    }
}
