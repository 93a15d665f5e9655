//! The state of locks as data.

use quorate_bindings::quorate::{
    Fault, Hold, KeyState, Listed, NodeStatus, SemaphoreStatus, Status, StatusVerdict, Waiter,
};
use serde_json::{Value, json};

use crate::duration::{epoch_ms, to_ms};
use crate::failure::note;

/// The state of one lock.
pub(crate) fn of_lock(status: &Status) -> Value {
    let verdict = match status.verdict() {
        StatusVerdict::Held(_) => "held",
        StatusVerdict::Free => "free",
        StatusVerdict::Split => "split",
        _ => "unknown",
    };
    json!({
        "verdict": verdict,
        "holder": status.note().map(note),
        "holds": status.holds().iter().map(hold).collect::<Vec<_>>(),
        "quorum": status.quorum,
        "deletionWasSent": status.deletion_was_sent(),
        "masters": status.nodes.iter().map(master).collect::<Vec<_>>(),
    })
}

/// One lock of a list.
pub(crate) fn of_listed(listed: &Listed) -> Value {
    let mut value = of_lock(&listed.status);
    value["name"] = String::from_utf8_lossy(&listed.resource).into();
    value["slot"] = listed.slot.into();
    value
}

/// The state of a semaphore: its held permits and its queue.
pub(crate) fn of_semaphore(status: &SemaphoreStatus) -> Value {
    json!({
        "permits": status.permits.iter().map(of_listed).collect::<Vec<_>>(),
        "queue": status.line.nodes.iter().map(master).collect::<Vec<_>>(),
    })
}

/// A fault of a master.
pub(crate) fn fault(fault: &Fault) -> Value {
    json!({ "kind": fault.kind(), "message": fault.to_string() })
}

/// The state of the lock on one master.
fn master(status: &NodeStatus) -> Value {
    let state = status.state.as_ref().ok();
    let waiters = state.map(|state| state.queue.iter().map(waiter).collect::<Vec<_>>());
    json!({
        "master": status.node.as_str(),
        "fault": status.state.as_ref().err().map(fault),
        "latency": to_ms(status.latency),
        "isHeld": state.map(|state| state.holder.is_some()),
        "isForeign": state.map(KeyState::is_foreign),
        "ttlLeft": state.and_then(|state| state.ttl_left).map(to_ms),
        "fencingToken": state.and_then(|state| state.counter).map(|counter| counter.to_string()),
        "holder": state.and_then(|state| state.note.as_ref()).map(note),
        "waiters": waiters.unwrap_or_default(),
    })
}

fn hold(hold: &Hold) -> Value {
    json!({ "ttlLeft": to_ms(hold.lives), "holder": hold.note.as_ref().map(note) })
}

fn waiter(waiter: &Waiter) -> Value {
    json!({
        "id": waiter.id,
        "host": waiter.host,
        "pid": waiter.pid,
        "since": waiter.since.map(epoch_ms),
        "ttlLeft": to_ms(waiter.lives),
    })
}
