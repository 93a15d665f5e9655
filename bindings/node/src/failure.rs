//! Errors as data. The JavaScript half makes an error object of each.

use quorate::{
    AcquireError, AtRisk, ExtendError, FailedAcquire, LossCause, NodeReport, Note, ValueError,
};
use serde_json::{Value, json};

use crate::duration::{epoch_ms, to_ms};

/// Settings, options or a name that cannot be used. Nothing was sent.
pub(crate) fn invalid(message: &dyn ToString) -> Value {
    json!({ "code": "INVALID", "message": message.to_string() })
}

/// The call ended without a result, because the home thread ended.
pub(crate) fn ended() -> Value {
    let message =
        "the call ended without a result, because its Redlock ended; treat its effect as unknown";
    json!({ "code": "ENDED", "message": message })
}

pub(crate) fn of_acquire(error: &AcquireError) -> Value {
    let (code, failed) = match error {
        AcquireError::HeldByOther(failed) => ("HELD", failed),
        AcquireError::NotJoinable(failed) => ("NOT_JOINABLE", failed),
        AcquireError::NoQuorum(failed) => ("NO_QUORUM", failed),
        AcquireError::OtherMasters(failed) => ("OTHER_MASTERS", failed),
        AcquireError::TooLate(failed) => ("TOO_LATE", failed),
        other => return invalid(other),
    };
    with_failed_acquire(code, error, failed)
}

fn with_failed_acquire(code: &str, error: &AcquireError, failed: &FailedAcquire) -> Value {
    json!({
        "code": code,
        "message": error.to_string(),
        "details": error.details(),
        "resource": failed.resource,
        "waited": to_ms(failed.waited),
        "attempts": failed.attempts,
        "heldHere": failed.held_here,
        "foreign": failed.foreign,
        "passesByItself": failed.passes_by_itself(),
        "holder": failed.note.as_deref().map(note),
        "reports": reports(&failed.reports),
    })
}

pub(crate) fn of_extend(error: &ExtendError) -> Value {
    match error {
        ExtendError::Lost(cause) => lost(*cause),
        ExtendError::NoQuorum(replies) => json!({
            "code": "NOT_EXTENDED",
            "message": error.to_string(),
            "details": error.details(),
            "reports": reports(replies),
        }),
        other => invalid(other),
    }
}

pub(crate) fn lost(cause: LossCause) -> Value {
    json!({ "code": "LOST", "message": format!("the lock is lost: {cause}"), "cause": cause.as_str() })
}

pub(crate) fn of_value(error: &ValueError) -> Value {
    let code = match error {
        ValueError::NotAcquired(error) => return of_acquire(error),
        ValueError::LockLost(_) => "VALUE_LOCK_LOST",
        ValueError::NoQuorum(_) => "VALUE_NO_QUORUM",
        ValueError::Missing(_) => "VALUE_MISSING",
        ValueError::Lost(_) => "VALUE_LOST",
        ValueError::Exists(_) => "VALUE_EXISTS",
        ValueError::Incomplete(_) => "VALUE_INCOMPLETE",
        ValueError::Unknown(_) => "VALUE_UNKNOWN",
        ValueError::OtherKind { .. } => "VALUE_OTHER_KIND",
        ValueError::Ahead { .. } => "VALUE_AHEAD",
        ValueError::ClocksDisagree { .. } => "VALUE_CLOCKS_DISAGREE",
        ValueError::Stopped { .. } => "VALUE_STOPPED",
        other => return invalid(other),
    };
    let mut failure = json!({
        "code": code,
        "message": error.to_string(),
        "details": error.details(),
        "reports": reports(error.reports()),
    });
    if let ValueError::Stopped {
        cause, recorded, ..
    } = error
    {
        failure["cause"] = cause.as_str().into();
        failure["recorded"] = (*recorded).into();
    }
    failure
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
