//! A place in line on the masters.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::hold::core::Core;
use crate::node::{Claim, Fairness, Ticket, Token};
use crate::protocol::instant::Instant;
use crate::rounds::coordinator::Coordinator;
use crate::rounds::wanted::Wanted;

/// By how much each place further back in line looks later, when only a timer wakes it.
pub(super) const STAGGER: Duration = Duration::from_millis(10);

/// Beside a holder that may wake nobody, at most this part of how long it has been watched is lost
/// before its release is noticed: so a long hold does not cost more looks than its length is worth.
const PATIENCE: u32 = 20;

/// The pauses of one waiter, once it needs one.
pub(super) type Delays = Box<dyn Iterator<Item = Duration> + Send>;

/// A place in line on the masters. Dropped, it is given up on all of them at once.
pub(super) struct InLine<'a> {
    coordinator: &'a Coordinator,
    pub(super) ticket: Ticket,
    /// Names the place in releases; it never held anything.
    claim: Arc<Claim>,
    /// The holder in front of which only we stand.
    pub(super) stranger: Option<Stranger>,
    kept: bool,
}

/// A holder without a place in line. It may be a client that knows nothing of the line and whose
/// release wakes nobody; or one of ours that did not wait, or has outlived its place.
pub(super) struct Stranger {
    value: Vec<u8>,
    since: Instant,
    delays: Delays,
}

impl<'a> InLine<'a> {
    pub(super) fn draw(core: &'a Core, wanted: &Wanted, number: u64) -> Self {
        let coordinator = &*core.coordinator;
        let id = core.waiters.fetch_add(1, Ordering::Relaxed);
        let waiter = format!("{}:{id}", core.options.process).into();
        let ticket = Ticket {
            waiter,
            number,
            heartbeat: core.options.heartbeat,
        };
        let claim = wanted
            .claim(coordinator, Token::from_bytes([0; 16]))
            .with_fairness(Fairness::Fair(Some(Box::new(ticket.clone()))));
        tracing::debug!(ticket = ticket.number, "standing in line");
        Self {
            coordinator,
            ticket,
            claim: Arc::new(claim),
            stranger: None,
            kept: false,
        }
    }

    /// In how long to look at a holder again that may wake nobody: at the pace of the retries,
    /// beginning anew with each holder, and more rarely once it has been there for long.
    pub(super) fn look_again(
        &mut self,
        value: Vec<u8>,
        now: Instant,
        delays: impl FnOnce() -> Delays,
    ) -> Duration {
        let known = self.stranger.take().filter(|known| known.value == value);
        let stranger = self.stranger.insert(known.unwrap_or_else(|| Stranger {
            value,
            since: now,
            delays: delays(),
        }));
        let watched = now.saturating_since(stranger.since);
        let pause = stranger.delays.next().unwrap_or_default();
        pause.max(STAGGER).max(watched / PATIENCE)
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    /// Leaves the line everywhere and waits for it, to come back with the same ticket later.
    pub(super) fn step_out(&self) -> impl Future<Output = ()> + Send + use<> {
        self.coordinator.leave(&self.claim).done()
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let _in_the_background = self.coordinator.leave(&self.claim);
        }
    }
}
