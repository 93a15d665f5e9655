//! Remembers when keys expire, so that two masters are not compared at these times.

use std::time::{Duration, Instant};

use super::action::Action;
use super::times::{BLINK, GRAIN};
use crate::time::ms;

/// Pauses the test while a key may have expired on only one of the two masters. The masters could not be compared then.
/// Assumes that every operation creates a key that expires after [`BLINK`].
#[derive(Default)]
pub(super) struct ExpiryTimes {
    /// For each operation, the earliest and the latest time at which its keys can expire.
    expiry_windows: Vec<(Instant, Instant)>,
    /// The duration of the longest operation so far.
    longest_operation: Duration,
}

impl ExpiryTimes {
    /// If `action` is a pause, first waits for its duration. Then, also for every other action, waits until no key is
    /// about to expire.
    pub(super) async fn wait_before(&self, action: &Action) {
        match action {
            Action::Pause(Some(pause)) => tokio::time::sleep(*pause).await,
            Action::Pause(None) => self.wait_until_all_expired().await,
            _ => {}
        }
        self.wait_until_none_expires_soon().await;
    }

    /// Records that an operation ran from `started_at` until now. Returns false if something may have expired during the
    /// operation.
    pub(super) fn record_operation(&mut self, started_at: Instant) -> bool {
        let ended_at = Instant::now();
        self.longest_operation = self.longest_operation.max(ended_at - started_at);
        // The effects of the operation must not expire before they are compared.
        let is_comparable = ended_at < started_at + BLINK.saturating_sub(GRAIN)
            && self
                .expiry_windows
                .iter()
                .all(|(from, to)| ended_at < *from || *to < started_at);
        self.expiry_windows.retain(|(_, to)| started_at < *to);
        self.expiry_windows.push((
            started_at + BLINK.saturating_sub(GRAIN),
            ended_at + BLINK + GRAIN,
        ));
        is_comparable
    }

    /// Waits until no key can expire during the next operation.
    async fn wait_until_none_expires_soon(&self) {
        let soon = self.longest_operation + GRAIN;
        while let Some(to) = self.expiry_windows.iter().find_map(|(from, to)| {
            let now = Instant::now();
            (*from <= now + soon && now <= *to).then_some(*to)
        }) {
            tokio::time::sleep_until((to + ms(1)).into()).await;
        }
    }

    /// Waits until everything short-lived has expired.
    async fn wait_until_all_expired(&self) {
        if let Some(last_expiry) = self.expiry_windows.iter().map(|(_, to)| *to).max() {
            tokio::time::sleep_until((last_expiry + ms(1)).into()).await;
        }
    }

    /// The largest allowed difference between remaining times that are read now from the two masters.
    pub(super) fn blur(&self) -> Duration {
        2 * self.longest_operation + 2 * GRAIN
    }
}
