//! The JSON form of results and errors (feature `serde`). `docs/library.md`, section "JSON", describes it for users.
//!
//! The form is stable: later versions may add fields, but do not rename or remove them. It is the same as in the JSON
//! output of the command `quorate`. Times are in milliseconds, points in time in RFC 3339. Names and lock values are
//! text: control characters of a lock value are escaped, and bytes that are not UTF-8 become `\xNN`. No text contains a
//! password.

use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use crate::error::{AcquireError, ExtendError, FailedAcquire};
use crate::hold::released::Released;
use crate::hold::risk::AtRisk;
use crate::kinds::semaphore::SemaphoreStatus;
use crate::listing::{Listed, ListedValue, Listing, LockName, NameList};
use crate::node::{Fault, Hold, NodeName, Note, Waiter};
use crate::outcome::LossCause;
use crate::printable::{hex, json_name, printable};
use crate::redact::redact;
use crate::redlock::status::{NodeStatus, Status, StatusVerdict};
use crate::redlock::try_acquire::Refusal;
use crate::report::{NodeOutcome, NodeReport};

/// Whole milliseconds.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds with three decimal places.
fn precise_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

fn error_text(fault: &Fault) -> String {
    redact(&fault.to_string()).into_owned()
}

/// The name of a resource: the fields `resource`, `resource_hex` and `slot`.
#[derive(Serialize)]
struct NameForm {
    /// The name. If it is not UTF-8, it is escaped: `\xNN` for an invalid byte.
    resource: String,
    /// The name in hexadecimal; left out if the name is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_hex: Option<String>,
    /// The slot of a permit; left out for other locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<usize>,
}

impl NameForm {
    fn new(name: &[u8], slot: Option<usize>) -> Self {
        Self {
            resource_hex: std::str::from_utf8(name).is_err().then(|| hex(name)),
            resource: json_name(name),
            slot,
        }
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        NameForm::new(&self.resource, self.slot).serialize(serializer)
    }
}

impl Serialize for NodeName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Serialize for LossCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[derive(Serialize)]
struct NoteForm<'a> {
    host: &'a str,
    pid: u32,
    process: &'a str,
    since: String,
    text: Option<&'a str>,
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = NoteForm {
            host: &self.host,
            pid: self.pid,
            process: &self.process,
            since: rfc3339(self.since),
            text: self.text.as_deref(),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct WaiterForm<'a> {
    id: String,
    lives_ms: u64,
    host: Option<&'a str>,
    pid: Option<u32>,
    since: Option<String>,
}

impl Serialize for Waiter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = WaiterForm {
            id: printable(self.id.as_bytes()),
            lives_ms: ms(self.lives),
            host: self.host.as_deref(),
            pid: self.pid,
            since: self.since.map(rfc3339),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct HoldForm<'a> {
    token: String,
    ttl_left_ms: u64,
    note: Option<&'a Note>,
}

impl Serialize for Hold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = HoldForm {
            token: printable(&self.value),
            ttl_left_ms: ms(self.lives),
            note: self.note.as_ref(),
        };
        form.serialize(serializer)
    }
}

/// The reply of one master to one request.
#[derive(Serialize)]
struct ReportForm<'a> {
    master: &'a NodeName,
    /// `acquire`, `extend`, `release`, ..
    phase: &'static str,
    /// `yes`, `no`, `silent`, `no_value`, `old_value`, or the kind of the fault.
    outcome: &'static str,
    /// The text of the fault; null if there is none.
    error: Option<String>,
    latency_ms: Option<f64>,
    late: bool,
}

impl Serialize for NodeReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let error = match &self.outcome {
            NodeOutcome::Fault(fault) => Some(error_text(fault)),
            _ => None,
        };
        let form = ReportForm {
            master: &self.node,
            phase: self.phase.as_str(),
            outcome: self.outcome.as_str(),
            error,
            latency_ms: self.latency.map(precise_ms),
            late: self.late,
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct FailedForm<'a> {
    resource: &'a str,
    waited_ms: u64,
    attempts: u32,
    held_here: bool,
    foreign: bool,
    passes_by_itself: bool,
    note: Option<&'a Note>,
    reports: &'a [NodeReport],
}

impl Serialize for FailedAcquire {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = FailedForm {
            resource: &self.resource,
            waited_ms: ms(self.waited),
            attempts: self.attempts,
            held_here: self.held_here,
            foreign: self.foreign,
            passes_by_itself: self.passes_by_itself(),
            note: self.note.as_deref(),
            reports: &self.reports,
        };
        form.serialize(serializer)
    }
}

/// An error: its kind, its text for users, and its details.
#[derive(Serialize)]
struct ErrorForm<'a, D: Serialize> {
    kind: &'static str,
    message: String,
    #[serde(flatten)]
    details: &'a D,
}

/// The details of an [`AcquireError`].
#[derive(Serialize)]
struct AcquireDetails<'a> {
    /// Null if no master was asked, because the call was refused.
    failed: Option<&'a FailedAcquire>,
}

impl Serialize for AcquireError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let failed = self.failed();
        let form = ErrorForm {
            kind: self.kind(),
            message: self.to_string(),
            details: &AcquireDetails { failed },
        };
        form.serialize(serializer)
    }
}

/// The details of an [`ExtendError`].
#[derive(Serialize)]
struct ExtendDetails<'a> {
    /// The cause of the loss; null if the lock is still held.
    cause: Option<LossCause>,
    reports: &'a [NodeReport],
}

impl Serialize for ExtendError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let no_reports: &[NodeReport] = &[];
        let (kind, cause, reports) = match self {
            Self::Lost(cause) => ("lost", Some(*cause), no_reports),
            Self::NoQuorum(reports) => ("no_quorum", None, &reports[..]),
            Self::InvalidTtl(_) => ("invalid_ttl", None, no_reports),
            #[cfg(feature = "blocking")]
            Self::CannotBlock(_) => ("cannot_block", None, no_reports),
        };
        let form = ErrorForm {
            kind,
            message: self.to_string(),
            details: &ExtendDetails { cause, reports },
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct RefusalForm<'a> {
    ttl_left_ms: Option<u64>,
    held_here: bool,
    foreign: bool,
    note: Option<&'a Note>,
    reports: &'a [NodeReport],
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = RefusalForm {
            ttl_left_ms: self.ttl_left.map(ms),
            held_here: self.held_here,
            foreign: self.foreign,
            note: self.note.as_deref(),
            reports: &self.reports,
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct ReleasedForm {
    was_valid: bool,
    on: usize,
    expired_on: usize,
    unreachable: usize,
    pending: usize,
    reports: Vec<NodeReport>,
}

impl Serialize for Released {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = ReleasedForm {
            was_valid: self.was_valid,
            on: self.on,
            expired_on: self.expired_on,
            unreachable: self.unreachable,
            pending: self.pending,
            reports: self.reports(),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct RiskForm<'a> {
    reason: &'static str,
    message: String,
    remaining_ms: u64,
    reports: &'a [NodeReport],
}

impl Serialize for AtRisk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = RiskForm {
            reason: self.reason.as_str(),
            message: self.to_string(),
            remaining_ms: ms(self.remaining),
            reports: &self.reports,
        };
        form.serialize(serializer)
    }
}

/// The state of a lock on one master.
#[derive(Serialize)]
struct MasterForm<'a> {
    master: &'a NodeName,
    /// `held`, `free` or `error`.
    state: &'static str,
    token: Option<String>,
    ttl_left_ms: Option<u64>,
    fencing_counter: Option<u64>,
    waiting: &'a [Waiter],
    latency_ms: f64,
    error: Option<String>,
    error_kind: Option<&'static str>,
}

impl Serialize for NodeStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state = self.state.as_ref();
        let holder = state.map(|state| state.holder.as_deref());
        let fault = state.err();
        let state = state.ok();
        let form = MasterForm {
            master: &self.node,
            state: match holder {
                Ok(Some(_)) => "held",
                Ok(None) => "free",
                Err(_) => "error",
            },
            token: holder.ok().flatten().map(printable),
            ttl_left_ms: state.and_then(|state| state.ttl_left).map(ms),
            fencing_counter: state.and_then(|state| state.counter),
            waiting: state.map_or(&[], |state| &state.queue),
            latency_ms: precise_ms(self.latency),
            error: fault.map(error_text),
            error_kind: fault.map(Fault::kind),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct StatusForm<'a> {
    /// `held`, `free`, `split` or `unknown`.
    verdict: &'static str,
    /// The value of the lock key that a majority of the masters reports; null if the verdict is not `held`.
    holder: Option<String>,
    note: Option<&'a Note>,
    /// The clients that share the lock as readers or as one owner; left out for other locks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holds: Vec<Hold>,
    quorum: usize,
    answered: usize,
    masters: &'a [NodeStatus],
}

impl<'a> StatusForm<'a> {
    fn new(status: &'a Status) -> Self {
        let (verdict, holder) = match status.verdict() {
            StatusVerdict::Held(holder) => ("held", Some(printable(&holder))),
            StatusVerdict::Free => ("free", None),
            StatusVerdict::Split => ("split", None),
            StatusVerdict::Unknown => ("unknown", None),
        };
        let answered_masters = status.nodes.iter().filter(|node| node.state.is_ok());
        Self {
            verdict,
            holder,
            note: status.note(),
            holds: status.holds(),
            quorum: status.quorum,
            answered: answered_masters.count(),
            masters: &status.nodes,
        }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        StatusForm::new(self).serialize(serializer)
    }
}

#[derive(Serialize)]
struct ListedForm<'a> {
    #[serde(flatten)]
    name: NameForm,
    #[serde(flatten)]
    status: StatusForm<'a>,
}

impl Serialize for Listed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = ListedForm {
            name: NameForm::new(&self.resource, self.slot),
            status: StatusForm::new(&self.status),
        };
        form.serialize(serializer)
    }
}

/// A master that could not be asked for names.
#[derive(Serialize)]
struct NotAskedForm<'a> {
    master: &'a NodeName,
    error: String,
    error_kind: &'static str,
}

fn not_asked(faults: &[(NodeName, Fault)]) -> Vec<NotAskedForm<'_>> {
    faults
        .iter()
        .map(|(master, fault)| NotAskedForm {
            master,
            error: error_text(fault),
            error_kind: fault.kind(),
        })
        .collect()
}

#[derive(Serialize)]
struct ListingForm<'a> {
    resources: &'a [Listed],
    complete: bool,
    majority_answered: bool,
    not_asked: Vec<NotAskedForm<'a>>,
}

impl Serialize for Listing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = ListingForm {
            resources: &self.locks,
            complete: self.complete,
            majority_answered: self.majority_answered,
            not_asked: not_asked(&self.faults),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct NameListForm<'a> {
    names: &'a [LockName],
    complete: bool,
    majority_answered: bool,
    not_asked: Vec<NotAskedForm<'a>>,
}

impl Serialize for NameList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = NameListForm {
            names: &self.names,
            complete: self.complete,
            majority_answered: self.majority_answered,
            not_asked: not_asked(&self.faults),
        };
        form.serialize(serializer)
    }
}

#[derive(Serialize)]
struct ListedValueForm<'a> {
    #[serde(flatten)]
    name: NameForm,
    on: &'a [NodeName],
    missing_on: &'a [NodeName],
}

impl Serialize for ListedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = ListedValueForm {
            name: NameForm::new(&self.name, None),
            on: &self.on,
            missing_on: &self.missing_on,
        };
        form.serialize(serializer)
    }
}

/// The queue of a semaphore on one master.
#[derive(Serialize)]
struct QueueForm<'a> {
    master: &'a NodeName,
    waiting: &'a [Waiter],
}

#[derive(Serialize)]
struct SemaphoreForm<'a> {
    permits: &'a [Listed],
    /// Only masters that answered.
    permit_line: Vec<QueueForm<'a>>,
}

impl Serialize for SemaphoreStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let queues = self.line.nodes.iter().filter_map(|node| {
            Some(QueueForm {
                master: &node.node,
                waiting: &node.state.as_ref().ok()?.queue,
            })
        });
        let form = SemaphoreForm {
            permits: &self.permits,
            permit_line: queues.collect(),
        };
        form.serialize(serializer)
    }
}
