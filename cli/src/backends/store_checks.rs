//! The checks of `doctor` that are the same for all masters that are stores. The checks do no I/O.

use quorate::{Fault, Inspection};

use crate::finding::{Add, FaultAdvice, Severity};
use crate::output::human;

/// The advice for a fault of a store. `None` if the advice does not depend on the kind of the master. `why` is the text
/// of the fault.
pub(super) fn explain<'a>(fault: &Fault, why: &str) -> Option<FaultAdvice<'a>> {
    let advice = "find out what keeps this server busy, or raise ?timeout= in its URL";
    let late = matches!(fault, Fault::Timeout(_));
    late.then(|| ("reachable", format!("cannot be used: {why}"), advice))
}

/// Runs the checks that all stores share.
pub(super) fn judge(master: &Inspection, add: &mut dyn Add) {
    pace(master, add);
    for unseen in &master.unseen {
        let (what, advice) = unseen
            .split_once(": ")
            .unwrap_or((unseen, "check it on the server"));
        let what = format!("does not report {what}");
        add(Severity::Note, "unseen", what, advice);
    }
}

/// Warns if a reply of the master takes more than half of the time that a request to this master may take.
fn pace(master: &Inspection, add: &mut dyn Add) {
    let (Some(trip), Some(timeout)) = (master.round_trip, master.timeout) else {
        return;
    };
    if trip * 2 > timeout {
        add(
            Severity::Warning,
            "latency",
            format!(
                "takes {} to reply, and the timeout is {}: the votes of this master will often come too late",
                human(trip),
                human(timeout)
            ),
            "find out what keeps this server or its disk busy, or raise ?timeout= in its URL",
        );
    }
}
