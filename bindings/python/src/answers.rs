//! Replies as objects of Python: numbers, texts and tuples, which `quorate/_data.py` gives names.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use quorate_bindings::call::{Answer, Reply};
use quorate_bindings::quorate::{
    AtRisk, Inspection, Leader, Listed, Listing, LossCause, Note, SemaphoreStatus, Status,
    StatusVerdict, Take,
};

use crate::errors::{self, ReportTuple, exception};
use crate::guard::Guard;
use crate::times::timestamp;

/// A note as a tuple: host, process id, process, start of the hold, text.
type NoteTuple = (String, u32, String, f64, Option<String>);

pub(crate) fn note(note: &Note) -> NoteTuple {
    (
        note.host.clone(),
        note.pid,
        note.process.clone(),
        timestamp(note.since),
        note.text.clone(),
    )
}

/// One master of a status as a tuple: master, fault, whether it shows a holder, seconds until its key expires, number
/// of waiters.
type MasterTuple = (String, Option<String>, bool, Option<f64>, usize);

/// A status as a tuple: verdict, note of the holder, fencing counter, masters.
type StatusTuple = (
    &'static str,
    Option<NoteTuple>,
    Option<u64>,
    Vec<MasterTuple>,
);

fn status(status: &Status) -> StatusTuple {
    let verdict = match status.verdict() {
        StatusVerdict::Held(_) => "held",
        StatusVerdict::Free => "free",
        StatusVerdict::Split => "split",
        _ => "unknown",
    };
    let masters = status.nodes.iter().map(|node| {
        let name = node.node.to_string();
        match &node.state {
            Ok(state) => {
                let expires_in = state.ttl_left.map(|left| left.as_secs_f64());
                (
                    name,
                    None,
                    state.holder.is_some(),
                    expires_in,
                    state.queue.len(),
                )
            }
            Err(fault) => (name, Some(fault.to_string()), false, None, 0),
        }
    });
    let counters = status
        .nodes
        .iter()
        .filter_map(|node| node.state.as_ref().ok()?.counter);
    (
        verdict,
        status.note().map(note),
        counters.max(),
        masters.collect(),
    )
}

/// A held lock as a tuple: name, slot, status.
type ListedTuple = (Vec<u8>, Option<usize>, StatusTuple);

/// A listing as a tuple: the locks, whether it is complete, faults (master, text), whether a
/// majority answered.
type ListingTuple = (Vec<ListedTuple>, bool, Vec<(String, String)>, bool);

fn listed(lock: &Listed) -> ListedTuple {
    (lock.resource.clone(), lock.slot, status(&lock.status))
}

/// The state of a semaphore as a tuple: its held permits, and the status of its queue.
fn semaphore(found: &SemaphoreStatus) -> (Vec<ListedTuple>, StatusTuple) {
    let permits = found.permits.iter().map(listed);
    (permits.collect(), status(&found.line))
}

fn listing(listing: &Listing) -> ListingTuple {
    let locks = listing.locks.iter().map(listed);
    let faults = listing.faults.iter();
    let faults = faults.map(|(master, fault)| (master.to_string(), fault.to_string()));
    (
        locks.collect(),
        listing.complete,
        faults.collect(),
        listing.majority_answered,
    )
}

/// One master as a tuple: name, fault, server, version, role, seconds of a round trip, uptime, clock offset, seconds
/// for which its votes do not count, missing rights, whether it can wake waiters.
type InspectionTuple = (
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Vec<String>,
    bool,
);

fn inspection(inspection: &Inspection) -> InspectionTuple {
    let missing = inspection.missing.iter();
    (
        inspection.node.to_string(),
        inspection.fault.as_ref().map(ToString::to_string),
        inspection.server.clone(),
        inspection.version.clone(),
        inspection.role.clone(),
        inspection.round_trip.map(|time| time.as_secs_f64()),
        inspection.uptime.map(|time| time.as_secs_f64()),
        inspection.clock_offset_ms.map(|ms| ms as f64 / 1000.0),
        inspection.quarantined.map(|time| time.as_secs_f64()),
        missing.map(|right| right.rule().to_owned()).collect(),
        inspection.wake_ups,
    )
}

/// A risk as a tuple: reason, seconds until the lock is lost, text, reports.
type RiskTuple = (&'static str, f64, String, Vec<ReportTuple>);

fn risk(risk: &AtRisk) -> RiskTuple {
    let remaining = risk.remaining.as_secs_f64();
    (
        risk.reason.as_str(),
        remaining,
        risk.details(),
        errors::reports(&risk.reports),
    )
}

fn leader(leader: &Leader) -> (u64, Option<NoteTuple>) {
    (leader.term, leader.note.as_ref().map(note))
}

fn answer(py: Python<'_>, answer: Answer) -> PyResult<Py<PyAny>> {
    match answer {
        Answer::Done | Answer::NotAcquired => Ok(py.None()),
        Answer::Guard(guard) => Guard::new(guard).into_py_any(py),
        Answer::AlreadyDone(next) => next.as_secs_f64().into_py_any(py),
        Answer::Flag(flag) => flag.into_py_any(py),
        Answer::Units(units) => units.into_py_any(py),
        Answer::Take(Take::Taken { left }) => (true, left).into_py_any(py),
        Answer::Take(Take::SoldOut { left }) => (false, left).into_py_any(py),
        Answer::Loss(cause) => cause.map(LossCause::as_str).into_py_any(py),
        Answer::Risk(found) => risk(&found).into_py_any(py),
        Answer::Leader(found) => found.as_ref().map(leader).into_py_any(py),
        Answer::Status(found) => status(&found).into_py_any(py),
        Answer::Semaphore(found) => semaphore(&found).into_py_any(py),
        Answer::Listing(found) => listing(&found).into_py_any(py),
        Answer::Inspections(found) => found
            .iter()
            .map(inspection)
            .collect::<Vec<_>>()
            .into_py_any(py),
        Answer::Record(last, note) => (last.map(timestamp), note).into_py_any(py),
    }
}

/// The object for an answer, or the exception for an error.
pub(crate) fn reply(py: Python<'_>, reply: Reply) -> PyResult<Py<PyAny>> {
    match reply {
        Ok(found) => answer(py, found),
        Err(error) => Err(exception(py, &error)),
    }
}
