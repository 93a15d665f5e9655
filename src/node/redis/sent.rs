//! The outstanding messages of a connection: sent to the master and not answered yet.

use super::script::Script;
use crate::node::actor::mailbox::Queued;
use crate::protocol::instant::Instant;

/// A message to the master without an answer so far.
pub(super) struct Sent {
    pub(super) what: What,
    pub(super) at: Instant,
    /// How many requests after it have their answers in the same reply.
    pub(super) along: usize,
}

impl Sent {
    pub(super) fn alone(what: What, at: Instant) -> Self {
        Self { what, at, along: 0 }
    }
}

pub(super) enum What {
    Request(Queued),
    /// A script that is being loaded again.
    Script(Script),
    Ping,
    /// The generation marker, restored on a master without one.
    Marker,
    /// The expiry of the marker after it was restored.
    MarkerLifetime,
    /// The server's command that compares and deletes.
    Trial,
}
