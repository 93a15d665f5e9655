//! What a wrong locker believes to hold.

use super::masters::{self, Command};
use crate::client::context::Ctx;

/// What a wrong locker believes to hold.
pub(crate) struct CanaryHold {
    /// Until when.
    pub(crate) until: u64,
    /// The number that goes with it.
    pub(crate) token: Option<u64>,
    /// Which permit it is.
    pub(crate) slot: Option<usize>,
    /// What gives it back, on every master.
    pub(super) undo: Vec<Command>,
}

impl CanaryHold {
    /// Without number and permit.
    pub(super) fn new(until: u64, undo: Command) -> Self {
        Self {
            until,
            token: None,
            slot: None,
            undo: vec![undo],
        }
    }

    /// Gives it back on every master, granted there or not.
    pub(super) fn give_back(&self, ctx: &Ctx) {
        for command in &self.undo {
            masters::on_each(ctx, command);
        }
    }

    /// Itself if it is to be had, and else given back.
    pub(super) fn if_won(self, ctx: &Ctx, won: bool) -> Option<Self> {
        if won && ctx.clock.now() < self.until {
            return Some(self);
        }
        self.give_back(ctx);
        None
    }
}
