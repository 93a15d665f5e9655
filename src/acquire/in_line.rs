//! A place in line on the masters.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::hold::core::Core;
use crate::node::{Claim, Fairness, Ticket};
use crate::protocol::instant::Instant;
use crate::rounds::coordinator::Coordinator;
use crate::rounds::wanted::Wanted;

/// By how much each place further back in line looks later, when only a timer wakes it.
const STAGGER: Duration = Duration::from_millis(10);

/// A sign of life goes out this often within the time that one keeps the place.
const BEATS: u32 = 3;

/// Beside a holder that may wake nobody, at most this part of how long it has been watched is lost
/// before its release is noticed: so a long hold does not cost more looks than its length is worth.
const PATIENCE: u32 = 20;

/// Where fewer than a quorum of the masters wake anybody, a waiter looks so soon, and then less and less often.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(200);

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
    /// How often it has looked because nobody wakes it.
    looks: u32,
    kept: bool,
}

/// A holder without a place in line. It may be a client that knows nothing of the line and whose
/// release wakes nobody; or one of ours that did not wait, or has outlived its place.
pub(super) struct Stranger {
    value: Vec<u8>,
    since: Instant,
    delays: Delays,
}

impl Stranger {
    /// In how long to look at a holder again that may wake nobody: at the pace of the retries,
    /// beginning anew with each holder, and more rarely once it has been there for long.
    pub(super) fn look_again(
        known: &mut Option<Self>,
        value: Vec<u8>,
        now: Instant,
        delays: impl FnOnce() -> Delays,
    ) -> Duration {
        let same = known.take().filter(|known| known.value == value);
        let stranger = known.insert(same.unwrap_or_else(|| Self {
            value,
            since: now,
            delays: delays(),
        }));
        let watched = now.saturating_since(stranger.since);
        let pause = stranger.delays.next().unwrap_or_default();
        pause.max(STAGGER).max(watched / PATIENCE)
    }
}

/// When a waiter looks again whom nobody wakes: when a majority may have become free, as it was said to be at
/// `now`, one after the other; or, at the latest, when its next sign of life is due.
pub(super) fn looks_at(
    now: Instant,
    free_in: Option<Duration>,
    ahead: u64,
    heartbeat: Duration,
) -> Instant {
    let beat = now + heartbeat / BEATS;
    let stagger = STAGGER * u32::try_from(ahead.min(100)).unwrap_or(100);
    free_in.map_or(beat, |free_in| {
        (now + free_in + STAGGER / 5 + stagger).min(beat)
    })
}

impl<'a> InLine<'a> {
    /// In how long to look where nobody wakes it.
    pub(super) fn look_again(&mut self) -> Duration {
        self.looks += 1;
        let pause = FIRST_LOOK * 2u32.pow((self.looks / 4).min(4));
        pause.min(LONGEST_LOOK)
    }

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
            .waiter(coordinator)
            .with_fairness(Fairness::Fair(Some(Box::new(ticket.clone()))));
        tracing::debug!(ticket = ticket.number, "standing in line");
        Self {
            coordinator,
            ticket,
            claim: Arc::new(claim),
            stranger: None,
            looks: 0,
            kept: false,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn waiters_ask_when_the_lock_may_be_free_in_their_order() {
        for (free_in, ahead, heartbeat, after) in [
            (Some(ms(90)), 0, ms(30_000), ms(92)),
            (Some(ms(0)), 0, ms(30_000), ms(2)),
            (Some(ms(90)), 3, ms(30_000), ms(122)),
            // Of a long line most would look too late for any use.
            (Some(ms(90)), 100, ms(30_000), ms(1_092)),
            (Some(ms(90)), 5_000, ms(30_000), ms(1_092)),
            // A sign of life is due before that, or nobody said when.
            (Some(ms(90)), 0, ms(240), ms(80)),
            (None, 0, ms(240), ms(80)),
            (None, 7, ms(240), ms(80)),
        ] {
            let at = looks_at(NOW, free_in, ahead, heartbeat);
            let case = (free_in, ahead, heartbeat);
            assert_eq!(at.saturating_since(NOW), after, "{case:?}");
        }
    }

    #[test]
    fn holder_that_may_wake_nobody_is_polled_less_often_the_longer_it_holds() {
        let mut known = None;
        let mut look = |value: &[u8], after: Duration| {
            let delays = || Box::new([ms(1), ms(50), ms(60)].into_iter()) as Delays;
            Stranger::look_again(&mut known, value.to_vec(), NOW + after, delays)
        };
        // The pace of the retries, and never faster than one place after the other.
        assert_eq!(look(b"a", ms(0)), STAGGER);
        assert_eq!(look(b"a", ms(20)), ms(50));
        assert_eq!(look(b"a", ms(2_000)), ms(100));
        // Without any pace left.
        assert_eq!(look(b"a", ms(2_100)), ms(105));
        assert_eq!(look(b"b", ms(9_000)), STAGGER, "another one");
        assert_eq!(look(b"b", ms(9_000)), ms(50));
    }
}
