//! The list of held locks, and the reports on the masters, as data.

use quorate_bindings::quorate::{Inspection, Listing, MissingRight};
use serde_json::{Value, json};

use crate::duration::to_ms;
use crate::status;

/// The list of held locks.
pub(crate) fn of_listing(listing: &Listing) -> Value {
    let faults = listing.faults.iter();
    let faults = faults
        .map(|(node, fault)| json!({ "master": node.as_str(), "fault": status::fault(fault) }));
    json!({
        "locks": listing.locks.iter().map(status::of_listed).collect::<Vec<_>>(),
        "complete": listing.complete,
        "majorityAnswered": listing.majority_answered,
        "faults": faults.collect::<Vec<_>>(),
    })
}

/// The report on one master.
pub(crate) fn of_inspection(inspection: &Inspection) -> Value {
    json!({
        "master": inspection.node.as_str(),
        "fault": inspection.fault.as_ref().map(status::fault),
        "connecting": inspection.connecting.map(to_ms),
        "roundTrip": inspection.round_trip.map(to_ms),
        "server": inspection.server,
        "version": inspection.version,
        "role": inspection.role,
        "cluster": inspection.cluster,
        "uptime": inspection.uptime.map(to_ms),
        "maxmemoryPolicy": inspection.maxmemory_policy,
        "appendOnly": inspection.append_only,
        "appendFsync": inspection.append_fsync,
        "clockOffset": inspection.clock_offset_ms,
        "missingRights": inspection.missing.iter().map(right).collect::<Vec<_>>(),
        "wakeUps": inspection.wake_ups,
        "quarantined": inspection.quarantined.map(to_ms),
        "isMarked": inspection.marked,
    })
}

fn right(right: &MissingRight) -> Value {
    json!({ "right": right.to_string(), "rule": right.rule() })
}
