//! Errors as data. The JavaScript half makes an error object of each.

use napi::bindgen_prelude::Error;
use quorate_bindings::error::{CallError, ErrorKind};
use quorate_bindings::quorate::{AtRisk, LossCause, NodeReport, Note};
use serde_json::{Value, json};

use crate::duration::{epoch_ms, to_ms};

/// The code of an error, without the part that all codes share.
fn code(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::Value(reason) => format!("VALUE_{}", reason.to_uppercase()),
        other => other.as_str().to_uppercase(),
    }
}

/// Why a call failed.
pub(crate) fn of_call(error: &CallError) -> Value {
    json!({
        "code": code(error.kind),
        "message": error.message,
        "details": error.details,
        "resource": error.resource,
        "waited": to_ms(error.waited),
        "attempts": error.attempts,
        "heldHere": error.held_here,
        "foreign": error.foreign,
        "passesByItself": error.passes_by_itself,
        "holder": error.holder.as_deref().map(note),
        "reports": reports(&error.reports),
        "cause": error.cause.map(LossCause::as_str),
        "recorded": error.recorded,
    })
}

/// The error that a native function throws.
pub(crate) fn thrown(error: CallError) -> Error {
    Error::from_reason(error.message)
}

/// The notice that a lock may be lost soon.
pub(crate) fn risk(risk: &AtRisk) -> Value {
    json!({
        "reason": risk.reason.as_str(),
        "message": risk.to_string(),
        "details": risk.details(),
        "remaining": to_ms(risk.remaining),
        "reports": reports(&risk.reports),
    })
}

/// The note of a holder.
pub(crate) fn note(note: &Note) -> Value {
    json!({
        "host": note.host,
        "pid": note.pid,
        "process": note.process,
        "since": epoch_ms(note.since),
        "text": note.text,
    })
}

fn reports(reports: &[NodeReport]) -> Vec<Value> {
    let report = |report: &NodeReport| {
        json!({
            "master": report.node.as_str(),
            "phase": report.phase.as_str(),
            "outcome": report.outcome.as_str(),
            "text": report.to_string(),
            "latency": report.latency.map(to_ms),
            "late": report.late,
        })
    };
    reports.iter().map(report).collect()
}
