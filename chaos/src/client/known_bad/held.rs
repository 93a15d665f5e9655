//! The lock that a known-bad client believes to hold.

use super::masters::{self, Command};
use crate::client::context::Ctx;

/// The lock that a known-bad client believes to hold.
pub(crate) struct KnownBadHold {
    /// The end of the belief.
    pub(crate) until: u64,
    /// Its fencing token.
    pub(crate) token: Option<u64>,
    /// The slot of a permit.
    pub(crate) slot: Option<usize>,
    /// The commands that release it, on every master.
    pub(super) undo: Vec<Command>,
}

impl KnownBadHold {
    /// A hold without token and permit.
    pub(super) fn new(until: u64, undo: Command) -> Self {
        Self {
            until,
            token: None,
            slot: None,
            undo: vec![undo],
        }
    }

    /// Releases it on every master, whether or not it was granted there.
    pub(super) fn give_back(&self, ctx: &Ctx) {
        for command in &self.undo {
            masters::on_each(ctx, command);
        }
    }

    /// The hold itself if it was won; otherwise it is released.
    pub(super) fn if_won(self, ctx: &Ctx, won: bool) -> Option<Self> {
        if won && ctx.clock.now() < self.until {
            return Some(self);
        }
        self.give_back(ctx);
        None
    }
}
