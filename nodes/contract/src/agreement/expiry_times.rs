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
    ends: Vec<(Instant, Instant)>,
    /// The duration of the longest operation so far.
    longest: Duration,
}

impl ExpiryTimes {
    /// If `action` is a pause, first waits for its duration. Then, also for every other action, waits until no key is
    /// about to expire.
    pub(super) async fn before(&self, action: &Action) {
        match action {
            Action::Pause(Some(pause)) => tokio::time::sleep(*pause).await,
            Action::Pause(None) => self.all_expired().await,
            _ => {}
        }
        self.none_expires_soon().await;
    }

    /// Records that an operation ran from `began` until now. Returns false if something may have expired during the
    /// operation.
    pub(super) fn record(&mut self, began: Instant) -> bool {
        let done = Instant::now();
        self.longest = self.longest.max(done - began);
        // The effects of the operation must not expire before they are compared.
        let is_clear = done < began + BLINK.saturating_sub(GRAIN)
            && self
                .ends
                .iter()
                .all(|(from, to)| done < *from || *to < began);
        self.ends.retain(|(_, to)| began < *to);
        self.ends
            .push((began + BLINK.saturating_sub(GRAIN), done + BLINK + GRAIN));
        is_clear
    }

    /// Waits until no key can expire during the next operation.
    async fn none_expires_soon(&self) {
        let soon = self.longest + GRAIN;
        while let Some(to) = self.ends.iter().find_map(|(from, to)| {
            let now = Instant::now();
            (*from <= now + soon && now <= *to).then_some(*to)
        }) {
            tokio::time::sleep_until((to + ms(1)).into()).await;
        }
    }

    /// Waits until everything short-lived has expired.
    async fn all_expired(&self) {
        if let Some(last) = self.ends.iter().map(|(_, to)| *to).max() {
            tokio::time::sleep_until((last + ms(1)).into()).await;
        }
    }

    /// The largest allowed difference between remaining times that are read now from the two masters.
    pub(super) fn blur(&self) -> Duration {
        2 * self.longest + 2 * GRAIN
    }
}
