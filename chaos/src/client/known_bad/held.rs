//! The hold of a known-bad client.

use super::masters::{self, Command};
use crate::client::context::Ctx;

/// A lock that a known-bad client believes it holds.
pub(crate) struct KnownBadHold {
    /// The time until which the client believes that it holds the lock, in nanoseconds since the start of the run.
    pub(crate) until: u64,
    /// The fencing token; `None` if the implementation has none.
    pub(crate) token: Option<u64>,
    /// The number that identifies the semaphore permit; `None` if the hold is not a permit.
    pub(crate) slot: Option<usize>,
    /// The commands that release the lock; each is sent to every master.
    pub(super) release_commands: Vec<Command>,
}

impl KnownBadHold {
    /// A hold without a fencing token and without a semaphore slot.
    pub(super) fn new(until: u64, release_command: Command) -> Self {
        Self {
            until,
            token: None,
            slot: None,
            release_commands: vec![release_command],
        }
    }

    /// Sends the release to every master, even to those that have not granted the lock.
    pub(super) fn release(&self, ctx: &Ctx) {
        for command in &self.release_commands {
            masters::replies_of_all(ctx, command);
        }
    }

    /// Returns the hold if the attempt has won the lock and the lock has not expired yet. Otherwise releases the grants
    /// of the attempt, and returns `None`.
    pub(super) fn confirmed_if(self, ctx: &Ctx, has_won: bool) -> Option<Self> {
        if has_won && ctx.clock.now() < self.until {
            return Some(self);
        }
        self.release(ctx);
        None
    }
}
