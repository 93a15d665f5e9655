//! What a release found.

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use crate::report::NodeReport;
use crate::rounds::fan_out::FanOut;
use crate::rounds::release::ReleaseAnswers;

/// What a release found on the masters when a majority had let go.
#[derive(Clone)]
#[non_exhaustive]
pub struct Released {
    /// Whether the lock was still validly held when the release began.
    pub was_valid: bool,
    /// Masters that held the key and deleted it.
    pub on: usize,
    /// Masters on which it was no longer ours: expired, or never granted there.
    pub expired_on: usize,
    /// Masters that failed. Their key is deleted when they answer again, or expires.
    pub unreachable: usize,
    /// Masters that had not answered yet when a majority had; their release is on its way.
    pub pending: usize,
    pub(super) round: Arc<FanOut<ReleaseAnswers>>,
    pub(super) core: Arc<Core>,
}

impl Released {
    /// What each master answered so far, how fast, and who was late.
    pub fn reports(&self) -> Vec<NodeReport> {
        self.round.answers().reports(self.core.coordinator.names())
    }
}

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released")
            .field("was_valid", &self.was_valid)
            .field("on", &self.on)
            .field("expired_on", &self.expired_on)
            .field("unreachable", &self.unreachable)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
