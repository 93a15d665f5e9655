//! The outstanding messages of a connection, which were sent to the master and are not answered yet.

use super::script::Script;
use crate::node::actor::mailbox::Queued;
use crate::protocol::instant::Instant;

/// A message that was sent to the master and is not answered yet.
pub(super) struct Sent {
    pub(super) what: What,
    pub(super) at: Instant,
    /// How many of the messages sent directly after this one are answered by the same reply.
    pub(super) along: usize,
}

impl Sent {
    pub(super) fn alone(what: What, at: Instant) -> Self {
        Self { what, at, along: 0 }
    }
}

pub(super) enum What {
    Request(Queued),
    /// The command `SCRIPT LOAD` for this script.
    Script(Script),
    Ping,
    /// The script that raises the age record, and restores a lost generation marker.
    Age,
    /// The command that tests whether the server's built-in delete command works. If it works, releases use it.
    Trial,
}
