//! Decides whether the votes that a master gives on one connection count. They do not count in three cases:
//!
//! - The master may have restarted within the last `max_ttl` (restart guard).
//! - The master may have lost its generation marker within the last `max_ttl`.
//! - The generation marker does not accept this client.

use std::time::Duration;

use super::ages::Ages;
use super::handshake::Negotiated;
use super::resp::Value;
use super::shared::Shared;
use crate::node::actor::markers::LostMarker;
use crate::node::{Fault, Request};
use crate::protocol::instant::Instant;
use crate::protocol::marker::{Admission, Marker};
use crate::repeats::warn_seldom;
use crate::settings::RestartGuard;

pub(super) struct Votes {
    /// The time until which the votes do not count because the master may have restarted.
    quarantined_until: Instant,
    /// Why this master gives this client no votes on this connection; `None` if it gives votes.
    refusal: Option<Fault>,
    /// The time at which the handshake found no generation marker on the master. `None` if the client need not look for
    /// a lost marker: it found a marker, the user has no right to read it, or the lost marker was learned from other
    /// masters.
    unmarked_since: Option<Instant>,
    /// Whether the loss of the master's generation marker was already detected on this connection.
    is_loss_handled: bool,
    /// The time until which the master's votes do not count, because it shows no generation marker, or because its age
    /// record is too young. `None` if they count.
    doubted_until: Option<Instant>,
    pub(super) ages: Ages,
}

impl Votes {
    /// Creates the state of a new connection from the results of its handshake.
    pub(super) fn new(negotiated: &Negotiated, seed: u64) -> Self {
        Self {
            quarantined_until: negotiated.quarantined_until,
            refusal: negotiated.refusal.clone(),
            unmarked_since: negotiated.unmarked_since,
            is_loss_handled: false,
            doubted_until: None,
            ages: Ages::new(
                negotiated.memory.run.clone(),
                seed,
                negotiated.watch.clone(),
            ),
        }
    }

    /// Why a request must not be sent to this master now; `None` if it may be sent. `quarantine` is the result of
    /// [`quarantine`](Self::quarantine).
    pub(super) fn withholding_fault(
        &self,
        request: &Request,
        quarantine: Duration,
    ) -> Option<Fault> {
        match &self.refusal {
            Some(fault) if request.is_for_current_masters() => Some(fault.clone()),
            _ if quarantine.is_zero() || !request.rests_on_memory() => None,
            _ => Some(Fault::Quarantined(quarantine)),
        }
    }

    /// Handles a missing generation marker, if other masters have one: this master has lost its data, or a different
    /// server now has its address.
    ///
    /// - If the restart guard is on, the votes of the master do not count for `max_ttl`.
    /// - If the client knows the lost marker, it restores the marker.
    pub(super) fn handle_missing_marker(&mut self, shared: &Shared) {
        let options = &shared.options;
        let Some(since) = self.unmarked_since else {
            return;
        };
        let marker = match options.markers.lost_marker() {
            LostMarker::Nothing => return,
            // Too few masters have shown markers to know the lost one. A later call of this function restores it.
            LostMarker::Unknown => None,
            LostMarker::Known(marker) => Some(marker),
        };
        if marker.is_some() {
            self.unmarked_since = None;
        }
        // Only an operator writes the first marker of new masters. A client with a wrong address in its settings could
        // write it to an unrelated server. For the same reason, a client with a name restores no marker, and a client
        // without a name restores a marker without a name.
        let may_restore = |marker: &Marker| {
            let has_begun = marker.number > options.configuration.first_marker()
                || !options.configuration.has_next()
                || options.markers.is_old(shared.address.name());
            has_begun
                && options.configuration.name().is_none()
                && options.configuration.admission(Some(*marker)) == Admission::Admitted
        };
        let marker = marker.filter(may_restore).map(|marker| {
            let name = None;
            Marker { name, ..marker }
        });
        if marker.is_some() {
            self.ages.request_restore(marker);
        }
        if options.restart_guard != RestartGuard::Off && !self.is_loss_handled {
            self.is_loss_handled = true;
            self.doubted_until = Some(since + options.max_ttl);
            // An operator may have written the marker after the handshake. Then the age record shows that the votes
            // count.
            self.ages.request_restore(marker);
        }
    }

    /// Handles the reply of the script that raises the age record.
    pub(super) fn handle_age(&mut self, shared: &Shared, value: &Value<'_>, now: Instant) {
        if let Some(watch) = self.ages.handle_reply(shared, value, now) {
            let remaining = shared.guarded_by_age(&watch, now);
            if remaining.is_zero() {
                self.trust_again(shared);
            } else {
                self.doubted_until = Some(now + remaining);
            }
        }
        if self.is_loss_handled && self.doubted_until.is_some_and(|until| until > now) {
            warn_seldom!(
                (shared.repeats, "marker", now),
                node = %shared.address.name(),
                "master has lost its generation marker, so its votes are ignored until max_ttl has passed"
            );
        }
    }

    /// Handles the answer of a script that the age record of the server is too young: another client has restored the
    /// lost generation marker, since this connection was opened. The votes do not count for the time `remaining`.
    pub(super) fn handle_young_record(&mut self, remaining: Duration, now: Instant) {
        self.doubted_until = self.doubted_until.max(Some(now + remaining));
        // This connection may have counted the age of the earlier memory.
        self.ages.request_call();
    }

    /// The remaining time in which the master's votes do not count; zero if they count.
    pub(super) fn quarantine(&mut self, shared: &Shared, now: Instant) -> Duration {
        if self.doubted_until.is_some_and(|until| until <= now) {
            self.trust_again(shared);
        }
        let until = self.doubted_until.max(Some(self.quarantined_until));
        until.map_or(Duration::ZERO, |until| until.saturating_since(now))
    }

    /// Records that the votes of the master count again.
    fn trust_again(&mut self, shared: &Shared) {
        self.doubted_until = None;
        shared.options.markers.trust(shared.address.name());
    }
}
