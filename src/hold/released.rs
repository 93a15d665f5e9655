//! The result of releasing a lock.

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use super::held::Held;
use crate::limit::Limit;
use crate::report::NodeReport;
use crate::rounds::fan_out::FanOut;
use crate::rounds::release::ReleaseAnswers;

/// The result of a release. The fields do not change after the release has returned, even if more masters answer.
#[derive(Clone)]
#[non_exhaustive]
pub struct Released {
    /// Whether the lock was still valid when the release began. If false, another client may already have acquired the
    /// lock.
    pub was_valid: bool,
    /// How many masters had the lock key and deleted it.
    pub on: usize,
    /// How many masters no longer had the lock key: it had expired, or had never been set there.
    pub expired_on: usize,
    /// How many masters failed to release the lock. The client deletes the key on such a master when it can reach the
    /// master again, unless the key has expired by then.
    pub unreachable: usize,
    /// How many masters had not answered when the release returned. Their releases have been queued or sent.
    pub pending: usize,
    round: Arc<FanOut<ReleaseAnswers>>,
    core: Arc<Core>,
}

impl Released {
    /// Waits until a majority has confirmed the release `round`, or all masters have answered or failed.
    pub(super) async fn after(
        round: Arc<FanOut<ReleaseAnswers>>,
        held: Arc<Held>,
        core: Arc<Core>,
        was_valid: bool,
    ) -> Self {
        // Wait for at most the ttl. After this time, the keys have expired even if no majority has answered.
        let runtime = &*core.coordinator.runtime;
        let mut limit = Limit::new(runtime, runtime.now() + held.ttl());
        limit
            .wait(round.wait_until(|answers| answers.is_settled().then_some(())))
            .await;
        let (on, expired_on, unreachable) = round.answers().counts();
        let pending = core.coordinator.quorum.nodes() - (on + expired_on + unreachable);
        tracing::debug!(
            resource = %String::from_utf8_lossy(held.claim.resource()),
            on,
            expired_on,
            unreachable,
            "lock released"
        );
        Self {
            was_valid,
            on,
            expired_on,
            unreachable,
            pending,
            round,
            core,
        }
    }

    /// The reply of each master to the release, with its latency. Includes replies that arrived after the release had
    /// returned.
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
