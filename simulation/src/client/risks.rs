//! The watch of a holder for the notice that its lock may be lost soon.
//!
//! The functions contain three seeded bugs: with `NoRiskNotice`, the notice is missing. With `RiskNoticeAtLoss`, it comes
//! too late. With `RiskMarginUncapped`, it comes too early.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use quorate::runtime::Runtime;
use quorate::{Instant, RiskWatch};

use super::Client;
use crate::flaw::Flaw;
use crate::locker::Hold;

impl Client {
    /// Reports to the checkers each notice that the lock with the id `id` may be lost soon. Never resolves.
    pub(super) async fn report_risks(&self, id: u64, hold: &Arc<dyn Hold>) -> Infallible {
        let (ttl, flaw) = {
            let world = self.process.shared.world();
            (world.scenario.settings.ttl(), world.flaw)
        };
        let margin = risk_margin(id, ttl);
        if let Some(mut risks) = hold.at_risk(margin) {
            let margin_nanos = margin.as_nanos() as u64;
            self.begin_risk_watch(id, margin_nanos);
            if flaw == Some(Flaw::RiskMarginUncapped) {
                self.report_uncapped_risk(id, &**hold, margin);
            }
            while let Some(valid_until) = self.next_risk(flaw, &mut risks).await {
                self.report_risk(id, valid_until);
            }
        }
        std::future::pending().await
    }

    fn begin_risk_watch(&self, id: u64, margin: u64) {
        let mut world = self.process.shared.world();
        world.observer.begin_risk_watch(id, margin);
    }

    /// Waits for the next notice, and returns the end of the validity that it reports; `None` if the lock has ended.
    async fn next_risk(&self, flaw: Option<Flaw>, risks: &mut RiskWatch) -> Option<Instant> {
        loop {
            let valid_until = risks.next().await.ok()?.valid_until;
            match flaw {
                Some(Flaw::NoRiskNotice) => {}
                Some(Flaw::RiskNoticeAtLoss) => {
                    self.process.sleep_until(valid_until).await;
                    return Some(valid_until);
                }
                _ => return Some(valid_until),
            }
        }
    }

    /// For the seeded bug `RiskMarginUncapped`: reports a notice if no more than the margin is left, even if the lock is
    /// renewed and the margin is longer than its TTL.
    fn report_uncapped_risk(&self, id: u64, hold: &dyn Hold, margin: Duration) {
        let now = self.process.now();
        let valid_until = hold.end_of_validity();
        if let Some(valid_until) = valid_until.filter(|end| end.saturating_since(now) <= margin) {
            self.report_risk(id, valid_until);
        }
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
