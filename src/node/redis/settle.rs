//! Passes the answer of a master to the caller, and keeps a release that must be sent again.

use super::refusal::admission_fault;
use super::shared::Shared;
use super::votes::Votes;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::{Answer, Fault};
use crate::protocol::instant::Instant;
use crate::protocol::marker::Marker;

/// Passes `answer` to the caller of the request `queued`. If the master temporarily cannot execute a release, the
/// release is sent again later. `has_no_script` is true if the master did not have the script of the request.
pub(super) fn settle(
    shared: &Shared,
    votes: &mut Votes,
    pending_releases: &mut PendingReleases,
    queued: Queued,
    answer: Result<Answer, Fault>,
    has_no_script: bool,
    now: Instant,
) {
    let answer = match answer {
        Err(Fault::OtherMasters(marker)) => {
            let marker = Marker::read(marker.as_bytes());
            let fault = admission_fault(shared.options.configuration, marker);
            Err(fault.unwrap_or(Fault::Server(
                "the master refused this client, but sent a generation marker that admits this client"
                    .into(),
            )))
        }
        answer => answer,
    };
    match &answer {
        Err(Fault::Quarantined(remaining)) => votes.handle_young_record(*remaining, now),
        Err(fault) if has_no_script || is_temporary(fault) => {
            pending_releases.postpone(&queued, shared.options.max_ttl, now);
        }
        Ok(Answer::Released(_)) => pending_releases.reset_pause(),
        _ => {}
    }
    queued.answer(answer);
}

/// Whether the fault is temporary, so that the same request can succeed later.
fn is_temporary(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Loading | Fault::ReadOnly | Fault::OutOfMemory | Fault::Misconf | Fault::Busy
    )
}
