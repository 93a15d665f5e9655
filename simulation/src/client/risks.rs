//! The watch of a holder for the notice that its lock may be lost soon.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use quorate::Instant;

use super::Client;
use crate::locker::Hold;

impl Client {
    /// Reports to the checkers each notice that the lock with the id `id` may be lost soon. Never resolves.
    pub(super) async fn report_risks(&self, id: u64, hold: &Arc<Hold>) -> Infallible {
        let ttl = self.process.shared.world().scenario.settings.ttl();
        let margin = risk_margin(id, ttl);
        let mut risks = hold.guard().at_risk(margin);
        self.begin_risk_watch(id, margin.as_nanos() as u64);
        while let Ok(risk) = risks.next().await {
            self.report_risk(id, risk.valid_until);
        }
        std::future::pending().await
    }

    fn begin_risk_watch(&self, id: u64, margin: u64) {
        let mut world = self.process.shared.world();
        world.observer.begin_risk_watch(id, margin);
    }

    fn report_risk(&self, id: u64, valid_until: Instant) {
        let mut world = self.process.shared.world();
        let now = world.now;
        world.observer.report_risk(now, id, valid_until);
    }
}

/// The margin with which the holder of the lock with the id `id` watches for the notice. Each third lock has a margin
/// that is longer than its TTL.
fn risk_margin(id: u64, ttl: Duration) -> Duration {
    match id % 3 {
        0 => ttl / 8,
        1 => ttl / 4,
        _ => 2 * ttl,
    }
}
