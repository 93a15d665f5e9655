//! The events that a chaos run records. Each event is one line of JSON in the history file.
//!
//! All processes of a run are on one machine and read the same monotonic clock. So the times that different processes
//! record can be compared. A time is in nanoseconds since the run began.
//!
//! # The history file
//!
//! A run writes its history to `history.jsonl` in the folder of its report (`quorate-chaos run --out DIR`).
//! `scenario.json` in the same folder has the options of the run. `quorate-chaos recheck DIR` checks the two files
//! again. The format of the history:
//!
//! - The file is UTF-8. Each line is one JSON object, which is one [`Entry`].
//! - Every object has the fields `t` (the time), `who` (the process) and `event` (the kind of event). The other fields
//!   depend on the kind: they are the fields of [`Event`]. A field that may be omitted has the value `null`, `[]` or,
//!   for `claim`, `"alone"`.
//! - The name of an event is the name of its variant in lower case, with hyphens: `wait`, `obtained`. Some fields have
//!   a shorter name in the file, which the attribute `rename` of the field gives: `also` is `further_resources`.
//! - `claim` is `"alone"`, `"reader"`, `{"permit":5}` (the number of permits) or `{"owner":"order-1"}`.
//! - The lines are sorted by `t`. Lines with the same `t` have no order.
//!
//! A client that takes a lock, renews it and releases it, and a client that is refused:
//!
//! ```json
//! {"t":1041200,"who":"c1","event":"wait","op":7,"resource":"file"}
//! {"t":3310900,"who":"c1","event":"obtained","op":7,"token":1764441612000007,"until":1003310900}
//! {"t":3400100,"who":"c2.2","event":"wait","op":1,"resource":"file"}
//! {"t":5100300,"who":"c2.2","event":"missed","op":1,"why":"held"}
//! {"t":402118000,"who":"c1","event":"renewed","op":7,"until":1401020000}
//! {"t":450118000,"who":"c1","event":"release","op":7,"until":1401020000}
//! {"t":452007000,"who":"c1","event":"released","op":7,"on":5,"open":0}
//! ```
//!
//! The pair of `who` and `op` names one attempt, and the hold that the attempt obtained. The events of an attempt come
//! in this order:
//!
//! 1. `wait`: before the client sends its first request. The attempt takes effect at some time after this event.
//! 2. One of these events, after the call of the library has returned. The attempt took effect before this event. If
//!    all four are missing, the client process ended (`gone`) or the run ended, and the attempt may have taken effect
//!    or not:
//!    - `obtained`: the attempt has the lock.
//!    - `answered`: the attempt asked for a unit of a quota, and has an answer. Such an attempt obtains no lock.
//!    - `missed`: the attempt has failed. Masters may have granted it before it failed, and keep such a grant until its
//!      release arrives or its TTL ends.
//!    - `dropped`: the client dropped the future of the attempt. The attempt may have taken effect, as for `missed`.
//! 3. Any number of `renewed`, only after `obtained`. The library extends the validity before the client records the
//!    event, so a `renewed` may be late.
//! 4. `release` or `notified`, only after `obtained`: the end of the hold from the view of the client. `release` is
//!    recorded before the first request of the release is sent. The hold ends earlier if `until` passes or the client
//!    process ends ([`Attempt::belief`](crate::history::Attempt::belief) computes the end).
//! 5. `released`: the call of the release has returned.
//!
//! A `wait` with the field `goes_on` is no new lock: a writer becomes a reader of the same lock without a gap. The
//! `release` of the writer's attempt comes before this `wait`.

use std::collections::BTreeMap;

use quorate::Instant;
use serde::{Deserialize, Serialize};

use crate::claim::Claim;

/// A kind of disturbance in [`Event::Suffered`]: the busy machine gave the client process no CPU time for a while.
pub const STALLED: &str = "stalled";

/// The clock of one chaos run, which counts nanoseconds from the start of the run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
}

impl Clock {
    /// Creates the clock of a run that begins now.
    pub fn start() -> Self {
        Self::with_origin(Instant::now().as_nanos())
    }

    /// Creates the clock of a run that began at `origin`, in nanoseconds of the machine's monotonic clock.
    pub fn with_origin(origin: u64) -> Self {
        Self { origin }
    }

    /// The start of the run, in nanoseconds of the machine's monotonic clock. With this value, other processes create
    /// the same clock.
    pub fn origin(self) -> u64 {
        self.origin
    }

    /// Nanoseconds since the run began.
    pub fn now(self) -> u64 {
        self.nanos_at(Instant::now())
    }

    /// Converts an [`Instant`] to nanoseconds since the run began.
    pub fn nanos_at(self, instant: Instant) -> u64 {
        instant.as_nanos().saturating_sub(self.origin)
    }
}

/// One line of the history: an event, its time, and the name of the process that observed the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The time of the event, in nanoseconds since the run began.
    pub t: u64,
    /// The name of the process that observed the event:
    ///
    /// - `c1`: the first process of the first client
    /// - `c1.2`: the second process of the first client
    /// - `m3`: the third master
    /// - `chaos`: the main process of the run
    /// - `register` and `bank`: the services that check fencing tokens
    #[serde(rename = "who")]
    pub process: String,
    /// The observed event.
    #[serde(flatten)]
    pub event: Event,
}

/// The kinds of events.
///
/// An attempt is one try of a client to acquire a lock or to take a prize (a unit of a quota). All times are in
/// nanoseconds since the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A client has started and begins its work.
    Ready {
        /// The process id of the client.
        pid: u32,
    },
    /// An attempt began. The event is recorded before the client sends a request.
    Wait {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The resource to be locked.
        resource: String,
        /// The resources that are locked together with `resource`.
        #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "also")]
        further_resources: Vec<String>,
        /// The lock mode: exclusive, reader, semaphore permit, or owner (only holds of the same owner may overlap).
        #[serde(default, skip_serializing_if = "Claim::is_alone")]
        claim: Claim,
        /// If this attempt only changes the mode of an existing hold (e.g. from writer to reader): the number of the
        /// attempt that acquired this hold. Otherwise `None`.
        #[serde(default, skip_serializing_if = "Option::is_none", rename = "goes_on")]
        continued_hold: Option<u64>,
    },
    /// The attempt obtained the lock.
    Obtained {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The fencing token; `None` if the lock has none.
        token: Option<u64>,
        /// The end of the lock's validity. `None` if the holder is a child process of `quorate run`: only `quorate run`
        /// itself knows the validity.
        until: Option<u64>,
        /// The number that identifies the semaphore permit; `None` if the lock is not a permit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<usize>,
    },
    /// The holder noticed that the lock's validity was extended.
    Renewed {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The new end of the validity.
        until: u64,
    },
    /// The holder stopped using the lock and begins to release it. The event is recorded before the first release
    /// request.
    Release {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The end of the lock's validity, as the holder knew it at this time. `None` if the holder did not know it.
        until: Option<u64>,
    },
    /// The release ended.
    Released {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The number of masters that confirmed the deletion of the lock key.
        on: usize,
        /// The number of masters for which the release failed or the reply was still outstanding.
        open: usize,
    },
    /// The holder was notified that the lock is lost.
    Notified {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The cause of the loss.
        cause: String,
        /// The end of the lock's validity, as the holder knew it at this time. `None` if the holder did not know it.
        until: Option<u64>,
    },
    /// The attempt ended without obtaining the lock.
    Missed {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The reason as one word, for example:
        ///
        /// - `held`: another client holds the lock
        /// - `no_quorum`: too few masters gave a usable answer for a majority
        /// - `late`: a majority granted the lock, but too late: the validity of the lock had already ended
        why: String,
    },
    /// The client dropped the future of the attempt before the attempt succeeded or failed.
    Dropped {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
    },
    /// A holder changed a file. It computed the new content from the old content.
    Wrote {
        /// The number of the attempt that acquired the lock.
        op: u64,
        /// The name of the file.
        key: String,
        /// The old content. Two writes to a file with the same old content show that two holders wrote at the same
        /// time.
        from: String,
        /// The new content; `None` in histories of older versions, which did not record it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// The time at which the holder began to write the new content.
        began: u64,
    },
    /// A holder read data that no other client may change while the holder has the lock.
    Found {
        /// The number of the attempt that acquired the lock.
        op: u64,
        /// The name of the file, or of the pair of files, that the holder read.
        key: String,
        /// The content that the holder must find.
        expected: String,
        /// The content that the holder found.
        found: String,
        /// The client and attempt that wrote the newer one of the contents `expected` and `found`, e.g. `c1#7`. Empty
        /// if the writer is unknown.
        writer: String,
    },
    /// A client's request for a unit of a quota (a prize) was answered.
    Answered {
        /// The attempt's number. Each client process numbers its attempts from 1.
        op: u64,
        /// The answer:
        ///
        /// - `taken`: the client got a unit
        /// - `sold_out`: no unit was left
        /// - `lost`: too many masters have lost the quota, so the number of units left is uncertain
        /// - `missing`: no master has the quota
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
    /// The bank, a service that checks fencing tokens, made a transfer. The bank itself records this event.
    Moved {
        /// The client and attempt that requested the transfer.
        by: String,
        /// The fencing token of the request.
        token: u64,
        /// The balances after the transfer.
        balances: BTreeMap<String, i64>,
    },
    /// The register, a service that checks fencing tokens, accepted a write. The register itself records this event.
    Applied {
        /// The client and attempt that wrote.
        by: String,
        /// The name of the register.
        key: String,
        /// The fencing token of the write.
        token: u64,
    },
    /// The register or the bank refused a request, because it had seen a larger fencing token. The service itself
    /// records this event.
    Refused {
        /// The client and attempt that sent the request.
        by: String,
        /// The name of the register or of the bank account.
        key: String,
        /// The fencing token of the refused request.
        token: u64,
        /// The largest token that this register or account has seen.
        highest: u64,
    },
    /// A client was disturbed: it blocked its runtime, dropped futures, or was stalled by the machine. The event is
    /// recorded at the end of the disturbance.
    Suffered {
        /// The kind of disturbance, e.g. [`STALLED`].
        #[serde(rename = "what")]
        disturbance: String,
        /// The start of the disturbance, in nanoseconds since the run began.
        since: u64,
    },
    /// Threads of a client were ready to run, but waited for a CPU. The kernel measures these waiting times.
    Starved {
        /// The start of the interval in which threads waited. The interval ends at the time of this history line.
        since: u64,
        /// The sum of the waiting times of all threads, in nanoseconds.
        waited: u64,
    },
    /// A fault is about to be injected.
    Inject {
        /// The fault's number. A run numbers its faults from 0.
        fault: usize,
        /// The kind of the fault.
        kind: String,
        /// The masters and clients that the fault affects.
        targets: Vec<String>,
    },
    /// The chaos run observed the effect of the fault.
    Landed {
        /// The fault's number. A run numbers its faults from 0.
        fault: usize,
        /// The observed effect of the fault.
        #[serde(rename = "seen")]
        effect: String,
    },
    /// The chaos run ended the fault, and observed that its effect was over.
    Healed {
        /// The fault's number. A run numbers its faults from 0.
        fault: usize,
    },
    /// The fault could not be injected, or could not be ended.
    Failed {
        /// The fault's number. A run numbers its faults from 0.
        fault: usize,
        /// The reason for the failure.
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
        /// Whether the end was expected: the chaos run killed the process, or the process finished in time with exit
        /// status 0.
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
        #[serde(rename = "done")]
        succeeded: bool,
        /// The text that the command of this step printed.
        #[serde(rename = "said")]
        output: String,
    },
    /// A client was restarted, and now sends its requests to a different set of masters.
    Sent {
        /// The number of the client's configuration. In change `n` of the masters, counted from 0, it is `2 * n` with
        /// the old set of masters, and `2 * n + 1` with the old and the new set. With the new set, it is `2 * n + 2`.
        step: u64,
    },
    /// A master was stopped for good, because a change of masters has removed it.
    Retired,
    /// All faults have been healed. From this time on, every client must get the locks that it asks for.
    Calm,
    /// Clients were asked to finish.
    Finish,
    /// A client has finished its work and ends, because it was asked to finish.
    Bye,
    /// The keys on a master after the clients have ended.
    Keys {
        /// When the keys were read:
        ///
        /// - `at-once`: right after the clients had ended
        /// - `after-ttl`: one TTL later
        /// - `after-notes`: when all notes about holders (for `quorate status`) must have expired
        when: String,
        /// The keys of locks and queues that still existed.
        left: Vec<String>,
        /// The keys on this master that have no expiry.
        eternal: Vec<String>,
    },
    /// A reading of the memory, file descriptors and connections of a client or a master.
    Gauge {
        /// The memory in bytes. For a client, its resident memory; for a Redis master, its `used_memory`; 0 for other
        /// masters.
        memory: u64,
        /// The number of open file descriptors; 0 for a ZooKeeper or etcd master.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_example_in_the_documentation_of_the_format_are_entries_of_a_history() {
        let lines = include_str!("event.rs").lines();
        let examples: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("//! "))
            .filter(|line| line.starts_with('{'))
            .collect();
        assert!(examples.len() > 5, "{examples:?}");
        for example in examples {
            let entry: Entry = serde_json::from_str(example).expect(example);
            let written = serde_json::to_string(&entry).expect("an entry must be writable");
            assert_eq!(written, example);
        }
    }
}
