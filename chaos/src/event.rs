//! The events of a history: one line of JSON each, all on one time base.
//!
//! All processes run on one machine and read the same monotonic clock. So a time is the number of nanoseconds since the
//! run began, and times of different processes can be compared.

use std::collections::BTreeMap;

use quorate::Instant;
use serde::{Deserialize, Serialize};

use crate::claim::Claim;

/// The value of `what` in [`Event::Suffered`] for a pause in which the busy machine did not run the client.
pub const STALLED: &str = "stalled";

/// The clock of one chaos run, which counts nanoseconds from the start of the run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
}

impl Clock {
    /// The clock of a run that begins now.
    pub fn start() -> Self {
        Self::at(Instant::now().as_nanos())
    }

    /// The clock of a run that began at `origin`, in nanoseconds of the machine's clock.
    pub fn at(origin: u64) -> Self {
        Self { origin }
    }

    /// The start of the run in nanoseconds of the machine's clock, to be passed to other processes.
    pub fn origin(self) -> u64 {
        self.origin
    }

    /// Nanoseconds since the run began.
    pub fn now(self) -> u64 {
        self.of(Instant::now())
    }

    /// Converts an instant of the library's clock to nanoseconds since the run began.
    pub fn of(self, instant: Instant) -> u64 {
        instant.as_nanos().saturating_sub(self.origin)
    }
}

/// One line of the history: an event, with the time and the process that observed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The time of the event, in nanoseconds since the run began.
    pub t: u64,
    /// The name of the process that observed the event: `c1` is the first process of a client, `c1.2` its second
    /// process, `m3` a master. `chaos` (the driver), `register` and `bank` record events as well.
    pub who: String,
    /// The observed event.
    #[serde(flatten)]
    pub what: Event,
}

/// The kinds of events. In each event, `op` is the number of an attempt within its client process, and times are in
/// nanoseconds since the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A client has started and has contacted every master.
    Ready {
        /// The process id of the client.
        pid: u32,
    },
    /// An attempt began. The event is recorded before the client sends a request.
    Wait {
        /// The number of the attempt within its client process.
        op: u64,
        /// The resource to be locked.
        resource: String,
        /// Further resources that are locked together with the first one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<String>,
        /// The mode of the attempt: exclusive, or shared with certain other holds.
        #[serde(default, skip_serializing_if = "Claim::is_alone")]
        claim: Claim,
        /// The number of the attempt whose hold this attempt continues in another mode, e.g. a writer that continues as
        /// a reader. `None` if the attempt continues no hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        goes_on: Option<u64>,
    },
    /// The attempt obtained the lock.
    Obtained {
        /// The number of the attempt within its client process.
        op: u64,
        /// The fencing token; `None` if the lock implementation gives none.
        token: Option<u64>,
        /// The end of the lock's validity. `None` if the client ignores losses, and so believes in the lock without
        /// end, or if the holder is a child process under `quorate run`.
        until: Option<u64>,
        /// The slot of the semaphore; `None` if the lock is not a permit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<usize>,
    },
    /// The holder saw that its lock is valid for longer than before.
    Renewed {
        /// The number of the attempt within its client process.
        op: u64,
        /// The new end of the validity.
        until: u64,
    },
    /// The holder stopped believing in its lock and released it. The event is recorded before the release is sent.
    Release {
        /// The number of the attempt within its client process.
        op: u64,
        /// The end of the lock's validity, as the holder knew it at the time of this event. `None` if it knew no end.
        until: Option<u64>,
    },
    /// The client has the result of the release, as counts of masters.
    Released {
        /// The number of the attempt within its client process.
        op: u64,
        /// The number of masters that answered that they deleted the lock key.
        on: usize,
        /// The number of masters for which the release failed or the reply was still outstanding.
        open: usize,
    },
    /// The holder was notified that the lock is lost.
    Notified {
        /// The number of the attempt within its client process.
        op: u64,
        /// The cause of the loss.
        cause: String,
        /// The end of the lock's validity, as the holder knew it at the time of this event. `None` if it knew no end.
        until: Option<u64>,
    },
    /// The attempt ended without obtaining the lock.
    Missed {
        /// The number of the attempt within its client process.
        op: u64,
        /// The reason as one word: `held` (by another client), `no_quorum`, `late` (granted after its validity), and
        /// others.
        why: String,
    },
    /// The client dropped the attempt before it had an outcome.
    Dropped {
        /// The number of the attempt within its client process.
        op: u64,
    },
    /// A holder changed unprotected data: it read the old content, and wrote new content made from it.
    Wrote {
        /// The attempt whose lock the client believed to hold.
        op: u64,
        /// The name of the changed data.
        key: String,
        /// The old content. No two writes may start from the same old content.
        from: String,
        /// The time at which the holder began to write the new content.
        began: u64,
    },
    /// A holder read data that no other client may change while the holder has the lock.
    Found {
        /// The attempt whose lock the client believed to hold while it read.
        op: u64,
        /// The name of the data that was read.
        key: String,
        /// The content that the holder must find.
        expected: String,
        /// The content that the holder found.
        found: String,
        /// The client and attempt that wrote the found content, or the expected content if that is newer. Empty if
        /// neither content names its writer.
        writer: String,
    },
    /// A client's request for a prize was answered.
    Answered {
        /// The number of the attempt within its client process.
        op: u64,
        /// The answer: `taken`, `sold_out`, `lost` or `missing`.
        answer: String,
        /// The number of units left after the answer; `None` if the answer is `lost` or `missing`.
        left: Option<u64>,
    },
    /// The operator created a quota.
    Created {
        /// The name of the quota.
        quota: String,
        /// The number of units that the quota was created with.
        pieces: u64,
    },
    /// A follower was notified of the leader, or that there is no leader.
    Followed {
        /// The leader's term; `None` if no leader is known.
        term: Option<u64>,
        /// The leader's name: its client and attempt. `None` if no leader is known.
        leader: Option<String>,
    },
    /// The bank has moved money. Recorded by the bank itself.
    Moved {
        /// The client and attempt that requested the transfer.
        by: String,
        /// The fencing token of the request.
        token: u64,
        /// The balances after the transfer.
        balances: BTreeMap<String, i64>,
    },
    /// The fenced register accepted a write. Recorded by the register itself.
    Applied {
        /// The client and attempt that wrote.
        by: String,
        /// The name of the register.
        key: String,
        /// The fencing token of the write.
        token: u64,
    },
    /// The fenced register refused a write, because it had seen a larger token. Recorded by the register itself.
    Refused {
        /// The client and attempt that tried to write.
        by: String,
        /// The name of the register.
        key: String,
        /// The fencing token of the refused write.
        token: u64,
        /// The largest token that the register has seen.
        highest: u64,
    },
    /// A client was disturbed: it blocked its runtime, dropped futures, or was stalled by the machine. The event is
    /// recorded at the end of the disturbance.
    Suffered {
        /// The kind of disturbance, e.g. [`STALLED`].
        what: String,
        /// The start of the disturbance, in nanoseconds since the run began.
        since: u64,
    },
    /// Threads of a client waited for a CPU, by the kernel's count.
    Starved {
        /// The start of the interval in which threads waited. The interval ends at the time of this history line.
        since: u64,
        /// The sum of the waiting times of all threads, in nanoseconds.
        waited: u64,
    },
    /// A fault is about to be injected.
    Inject {
        /// The number of the fault in the schedule.
        fault: usize,
        /// The kind of the fault.
        kind: String,
        /// The masters and clients that the fault affects.
        targets: Vec<String>,
    },
    /// The fault had its effect, and the effect was observed.
    Landed {
        /// The number of the fault in the schedule.
        fault: usize,
        /// The observed effect of the fault.
        seen: String,
    },
    /// The fault was ended, and its end was observed.
    Healed {
        /// The number of the fault in the schedule.
        fault: usize,
    },
    /// The fault could not be injected, or could not be ended.
    Failed {
        /// The number of the fault in the schedule.
        fault: usize,
        /// The reason of the failure.
        why: String,
    },
    /// This machine does not support a kind of fault or a workload.
    Unavailable {
        /// The kind of fault, or the workload.
        kind: String,
        /// The reason why it is not supported.
        why: String,
    },
    /// A client process ended: it was killed by the run, it finished at the end of the run, or it ended unexpectedly.
    Gone {
        /// Whether the chaos run itself ended the process on purpose.
        meant: bool,
        /// How the process ended, e.g. its exit status.
        how: String,
    },
    /// A step of a change of masters (e.g. `close`) has ended, successfully or not.
    Step {
        /// The number of the change of masters, counted from 0.
        change: usize,
        /// The name of the operator's step.
        step: String,
        /// The start of the step, in nanoseconds since the run began.
        since: u64,
        /// Whether the operator's step succeeded.
        done: bool,
        /// The text that the command of this step printed.
        said: String,
    },
    /// A client was restarted with a set of masters that differs from its previous one.
    Sent {
        /// The step of the changes of masters that the client's new configuration belongs to. It is twice the number of
        /// completed changes, plus one while the client uses two sets of masters.
        step: u64,
    },
    /// A master was stopped for good, because a change of masters has removed it.
    Retired,
    /// All faults have been healed. From this time on, every client must get the locks that it asks for.
    Calm,
    /// Clients were asked to finish.
    Finish,
    /// A client has finished its work and ends, as the driver asked it to do.
    Bye,
    /// The keys on a master after the clients have ended.
    Keys {
        /// When the keys were read: `at-once` (right after the clients had ended), `after-ttl` (one TTL later), or
        /// `after-notes` (when every holder's note must have expired).
        when: String,
        /// The keys of locks and queues that are left.
        left: Vec<String>,
        /// The keys that have no expiry.
        eternal: Vec<String>,
    },
    /// A reading of the memory, file descriptors and connections of a client or a master.
    Gauge {
        /// The resident memory in bytes. For a master: the memory that its server reports, or 0 if it is not a Redis.
        memory: u64,
        /// The number of open file descriptors.
        handles: u64,
        /// The number of connections that a master reports; `None` for a client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u64>,
    },
}

impl Event {
    /// The number of the attempt that the event belongs to, or `None` if it belongs to no attempt.
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
