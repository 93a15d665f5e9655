//! The results of calls as data.

use quorate_bindings::call::Answer;
use quorate_bindings::quorate::{Leader, LossCause, Take};
use serde_json::{Value, json};

use crate::duration::{epoch_ms, to_ms};
use crate::{failure, status, survey};

/// The result of a call that did not acquire a lock.
pub(crate) fn value(answer: &Answer) -> Value {
    match answer {
        Answer::Done | Answer::NotAcquired | Answer::Guard(_) => Value::Null,
        Answer::AlreadyDone(next) => json!({ "next": to_ms(*next) }),
        Answer::Flag(flag) => json!(flag),
        Answer::Units(units) => json!(units),
        Answer::Take(Take::Taken { left }) => json!({ "taken": true, "left": left }),
        Answer::Take(Take::SoldOut { left }) => json!({ "taken": false, "left": left }),
        Answer::Loss(cause) => json!({ "lost": cause.map(LossCause::as_str) }),
        Answer::Risk(risk) => json!({ "atRisk": failure::risk(risk) }),
        Answer::Leader(found) => found.as_ref().map_or(Value::Null, leader),
        Answer::Status(found) => status::of_lock(found),
        Answer::Semaphore(found) => status::of_semaphore(found),
        Answer::Listing(found) => survey::of_listing(found),
        Answer::Inspections(found) => found.iter().map(survey::of_inspection).collect(),
        Answer::Record(last, note) => json!({ "last": last.map(epoch_ms), "note": note }),
    }
}

fn leader(leader: &Leader) -> Value {
    json!({ "term": leader.term.to_string(), "note": leader.note.as_ref().map(failure::note) })
}
