//! The events of a history: one line of JSON each, on one time base.
//!
//! All processes run on one machine and read the same monotonic clock. So a time is the number of nanoseconds since the
//! run began, and times of different processes can be compared.

use std::collections::BTreeMap;

use quorate::Instant;
use serde::{Deserialize, Serialize};

use crate::claim::Claim;

/// The description of a pause in which the machine did not run a client.
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

    /// The start of the run, to be passed to other processes.
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

/// One line of the history: an observed event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When it happened, in nanoseconds since the run began.
    pub t: u64,
    /// The observer: `c1` a client, `c1.2` its second process, `m3` a master, `chaos`, `register`.
    pub who: String,
    /// The event.
    #[serde(flatten)]
    pub what: Event,
}

/// The kinds of events. `op` numbers the attempts of one client process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A client has started and has contacted every master.
    Ready {
        /// Its process id.
        pid: u32,
    },
    /// An attempt began. Recorded before anything is sent.
    Wait {
        /// The attempt.
        op: u64,
        /// The resource to be locked.
        resource: String,
        /// Further resources, locked together with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<String>,
        /// The mode.
        #[serde(default, skip_serializing_if = "Claim::is_alone")]
        claim: Claim,
        /// The attempt whose hold it continues, as another kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        goes_on: Option<u64>,
    },
    /// The attempt won.
    Obtained {
        /// The attempt.
        op: u64,
        /// The fencing token.
        token: Option<u64>,
        /// The end of the validity; `None` if the client believes without end.
        until: Option<u64>,
        /// The slot of a permit.
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
    /// The holder stopped believing and released. Recorded before anything is sent.
    Release {
        /// The attempt.
        op: u64,
        /// The end of its validity at that time.
        until: Option<u64>,
    },
    /// The release was answered.
    Released {
        /// The attempt.
        op: u64,
        /// The number of masters that deleted the key.
        on: usize,
        /// The number of masters that failed or had not answered yet.
        open: usize,
    },
    /// The holder was notified that the lock is lost.
    Notified {
        /// The attempt.
        op: u64,
        /// The cause.
        cause: String,
        /// The end of its validity at that time.
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
    /// A step under the lock that reads, changes and writes unprotected data.
    Wrote {
        /// The attempt whose lock the client believed to hold.
        op: u64,
        /// The changed item.
        key: String,
        /// The value it was made from. No two steps may start from the same value.
        from: String,
        /// When the write itself began.
        began: u64,
    },
    /// A holder read data that no other client may change while it holds the lock.
    Found {
        /// The attempt whose lock the client believed to hold.
        op: u64,
        /// The item.
        key: String,
        /// The content that must be there.
        expected: String,
        /// The content that was there.
        found: String,
        /// The writer of unexpected content: client and attempt.
        writer: String,
    },
    /// The request for a prize was answered.
    Answered {
        /// The attempt.
        op: u64,
        /// `taken`, `sold_out`, `lost` or `missing`.
        answer: String,
        /// The number of units left.
        left: Option<u64>,
    },
    /// An operator has created a quota.
    Created {
        /// Its name.
        quota: String,
        /// The number of units.
        pieces: u64,
    },
    /// A follower was notified of the leader.
    Followed {
        /// The term; `None`: no leader is known.
        term: Option<u64>,
        /// The leader's value: client and attempt.
        leader: Option<String>,
    },
    /// The bank has moved money. Recorded by the bank itself.
    Moved {
        /// The requester: client and attempt.
        by: String,
        /// The token of the request.
        token: u64,
        /// The new balances.
        balances: BTreeMap<String, i64>,
    },
    /// The fenced register accepted a write. Recorded by the register itself.
    Applied {
        /// The writer: client and attempt.
        by: String,
        /// The register.
        key: String,
        /// The token of the write.
        token: u64,
    },
    /// The fenced register refused a stale write. Recorded by the register itself.
    Refused {
        /// The writer.
        by: String,
        /// The register.
        key: String,
        /// The token of the write.
        token: u64,
        /// The largest token the register has seen.
        highest: u64,
    },
    /// A client blocked its own runtime, or dropped futures, for a while.
    Suffered {
        /// Which of the two.
        what: String,
        /// The start.
        since: u64,
    },
    /// The machine kept a client's threads waiting for a processor, by the kernel's count.
    Starved {
        /// The start of the interval; it ends at the time of this line.
        since: u64,
        /// The sum, in nanoseconds.
        waited: u64,
    },
    /// A fault is about to be injected.
    Inject {
        /// The number of the fault in the schedule.
        fault: usize,
        /// Its kind.
        kind: String,
        /// The masters and clients it affects.
        targets: Vec<String>,
    },
    /// The fault was observed to have its effect.
    Landed {
        /// The number.
        fault: usize,
        /// The observation.
        seen: String,
    },
    /// The fault is over, and was observed to be over.
    Healed {
        /// The number.
        fault: usize,
    },
    /// The fault could not be injected or ended.
    Failed {
        /// The number.
        fault: usize,
        /// The reason.
        why: String,
    },
    /// This machine does not support it.
    Unavailable {
        /// The kind of fault, or the workload.
        kind: String,
        /// The reason.
        why: String,
    },
    /// A client process ended: killed by the run, at the end of the run, or by accident.
    Gone {
        /// Whether that was intended.
        meant: bool,
        /// How it ended.
        how: String,
    },
    /// A step of a change of masters has ended, successfully or not.
    Step {
        /// The number of the change, from 0.
        change: usize,
        /// The step.
        step: String,
        /// Its start.
        since: u64,
        /// Whether it succeeded.
        done: bool,
        /// The output of the step.
        said: String,
    },
    /// A client starts with these masters.
    Sent {
        /// Its step: twice the number of completed changes, plus one while it uses two sets of masters.
        step: u64,
    },
    /// A master was stopped for good.
    Retired,
    /// All faults are over; from here on every client must make progress.
    Calm,
    /// Clients were asked to finish.
    Finish,
    /// A client has finished in order; everything it sent was answered.
    Bye,
    /// The keys on a master after the clients have ended.
    Keys {
        /// `at-once`, `after-ttl`, or `after-notes`.
        when: String,
        /// Keys of locks and queues.
        left: Vec<String>,
        /// Keys without an expiry.
        eternal: Vec<String>,
    },
    /// The resources that a process uses.
    Gauge {
        /// Its resident memory in bytes (of a master: as it reports itself).
        memory: u64,
        /// Its open file descriptors.
        handles: u64,
        /// Of a master: its connections, as it reports them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u64>,
    },
}

impl Event {
    /// The attempt that the event belongs to.
    pub fn op(&self) -> Option<u64> {
        match self {
            Self::Wait { op, .. }
            | Self::Obtained { op, .. }
            | Self::Renewed { op, .. }
            | Self::Release { op, .. }
            | Self::Released { op, .. }
            | Self::Notified { op, .. }
            | Self::Missed { op, .. }
            | Self::Dropped { op }
            | Self::Wrote { op, .. }
            | Self::Found { op, .. }
            | Self::Answered { op, .. } => Some(*op),
            _ => None,
        }
    }
}
