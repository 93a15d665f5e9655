//! The outstanding messages of a connection, which were sent to the master and are not answered yet.

use super::script::Script;
use crate::node::actor::mailbox::Queued;
use crate::protocol::instant::Instant;

/// A message that was sent to the master and is not answered yet.
pub(super) struct SentMessage {
    pub(super) command: SentCommand,
    pub(super) sent_at: Instant,
    /// How many of the messages sent directly after this one are answered by the same reply.
    pub(super) followers: usize,
}

impl SentMessage {
    pub(super) fn alone(command: SentCommand, sent_at: Instant) -> Self {
        Self {
            command,
            sent_at,
            followers: 0,
        }
    }
}

pub(super) enum SentCommand {
    Request(Queued),
    /// The command `SCRIPT LOAD` for this script.
    LoadScript(Script),
    Ping,
    /// The script that raises the age record, and restores a lost generation marker.
    RaiseAge,
    /// The command that tests whether the server's built-in delete command works. If it works, releases use it.
    DeletionTrial,
}
