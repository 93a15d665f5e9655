//! A waiter's entry in the queue on the masters, and the times at which a waiter polls: asks the masters again without a
//! wake-up.
//!
//! A wait ends at the first wake-up, or at the earliest of these times:
//!
//! | time | set by | if | tests |
//! |---|---|---|---|
//! | the lock may be free: its lease has ended on a majority | [`next_poll_at`], [`SPACING`], [`EXPIRY_MARGIN`] | a refusal shows the remaining ttl | below |
//! | the next heartbeat of this waiter is due | [`next_poll_at`], [`HEARTBEATS_PER_PERIOD`], the setting `heartbeat` | always | below |
//! | a pause of 20 ms to 200 ms has passed | [`PollPauses`], [`FIRST_POLL_PAUSE`], [`LONGEST_POLL_PAUSE`] | less than a majority of the masters can send wake-ups | below, and `tests/all/store.rs` |
//! | a pause of the retry settings has passed | [`UnqueuedHolder::pause_until_poll`], the setting `retry` | this waiter is the first, and the holder has no entry in the queue | below, and `tests/all/foreign.rs` |
//! | the wait of the caller ends | the setting `wait` | always | `tests/all/waiting.rs` |
//!
//! Whether a master can send wake-ups is a property of its kind. A Redis user without the right to SUBSCRIBE still
//! counts, so its waiters poll by the other times. docs/protocol.md ("Queue") and docs/nodes.md repeat these rules.
//!
//! # Why like this
//!
//! At first, waiters only retried after random pauses. [`Order::Unordered`](crate::Order::Unordered) still does. In the
//! run of 2026-11-27 without the queue, the 16 tasks of 4 processes acquired the lock between 1 and 47 times each, and
//! a hand-over took 22.1 ms. With the queue, it was 12 or 13 times, and 0.97 ms (`cargo bench -p quorate --bench
//! contention`).
//!
//! - Waiters are ordered by tickets, not by times: an order by times would need clocks that agree.
//! - The last waiter once deleted the key with the largest ticket. A waiter that had left the queue temporarily could
//!   then lose its place (`waiter_that_left_the_queue_temporarily_gets_its_old_place_back`).
//! - An open connection does not replace heartbeats, because a paused process keeps its connections.
//! - Joining the queue with the first request would save one of four script calls. The simple rules for such tickets
//!   let clients overtake, or block each other for ever (evidence/benchmarks/notes.md, "Why some goals are missed").
//!
//! Not solved: clients of other libraries overtake the queue, and a hand-over takes longer than between clients that
//! use only `SET NX PX`. In two chaos runs on an overloaded machine, clients overtook for an unknown reason
//! (docs/track-record.md, "What is open").

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::hold::core::Core;
use crate::node::waiter_id;
use crate::node::{Claim, Fairness, Ticket};
use crate::protocol::instant::Instant;
use crate::rounds::coordinator::Coordinator;
use crate::rounds::lock_target::LockTarget;

/// The time between the polls of neighbouring waiters, and the shortest pause of the retry settings. Each waiter ahead
/// in the queue delays the poll at the end of the lease by `SPACING`, so that the waiters ask one after another.
const SPACING: Duration = Duration::from_millis(10);

/// The time from the end of the lease to the poll of the first waiter. The master deletes the key a little later than
/// the remaining ttl, which it rounds down to milliseconds.
const EXPIRY_MARGIN: Duration = Duration::from_millis(2);

/// The number of heartbeats that a waiter sends per heartbeat time (the setting `heartbeat`). The masters drop a waiter
/// if they receive no heartbeat for the whole heartbeat time.
const HEARTBEATS_PER_PERIOD: u32 = 3;

/// Makes polls rarer during a long hold. If a waiter has observed the same holder for a time t, it pauses for at least
/// t / `POLLS_PER_WATCHED_TIME` between two polls.
const POLLS_PER_WATCHED_TIME: u32 = 20;

/// The first pause between two polls if less than a majority of the masters sends wake-ups. Later pauses are longer, up
/// to `LONGEST_POLL_PAUSE`.
const FIRST_POLL_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_POLL_PAUSE: Duration = Duration::from_millis(200);
/// Each pause whose number is a multiple of this is twice as long as the pause before it.
const EQUAL_POLL_PAUSES: u32 = 4;

/// The retry pauses of one waiter. The iterator is created when the first pause is needed.
pub(super) type RetryPauses = Box<dyn Iterator<Item = Duration> + Send>;

/// A waiter's entry in the queue on the masters. Dropping this value removes the entry from all masters.
pub(super) struct QueuePlace<'a> {
    coordinator: &'a Coordinator,
    pub(super) ticket: Ticket,
    /// Identifies this queue entry in the request that removes it from the masters.
    claim: Arc<Claim>,
    /// The lock's holder, if it has no entry in the queue and this waiter is the first in the queue. This waiter then
    /// polls, because the holder's release may not wake it. `None` in all other cases.
    pub(super) unqueued_holder: Option<UnqueuedHolder>,
    /// How many pauses this waiter has begun because too few masters can send wake-ups.
    pauses_without_wake_ups: PollPauses,
    stays_queued: bool,
}

/// A holder without an entry in the queue on the masters. It is one of these clients:
///
/// - a client that does not use the queue: its release wakes no waiter
/// - a client of this library that did not have to wait
/// - a client of this library whose queue entry has expired
pub(super) struct UnqueuedHolder {
    value: Vec<u8>,
    first_seen_at: Instant,
    pauses: RetryPauses,
}

impl UnqueuedHolder {
    /// Returns the pause before the waiter polls again, because this holder's release may send no wake-up.
    ///
    /// The pause follows the retry settings, but is at least [`SPACING`]. The longer this waiter has seen the same
    /// holder, the longer is the pause: at least this time divided by [`POLLS_PER_WATCHED_TIME`].
    pub(super) fn pause_until_poll(
        last_holder: &mut Option<Self>,
        value: Vec<u8>,
        now: Instant,
        pauses: impl FnOnce() -> RetryPauses,
    ) -> Duration {
        let same_holder = last_holder.take().filter(|earlier| earlier.value == value);
        let unqueued_holder = last_holder.insert(same_holder.unwrap_or_else(|| Self {
            value,
            first_seen_at: now,
            pauses: pauses(),
        }));
        let watched_for = now.saturating_since(unqueued_holder.first_seen_at);
        let pause = unqueued_holder.pauses.next().unwrap_or_default();
        pause.max(SPACING).max(watched_for / POLLS_PER_WATCHED_TIME)
    }
}

/// The time at which a waiter without a wake-up asks the masters again: `free_in` after `now`, plus a delay for each
/// waiter ahead, but not later than the next heartbeat.
///
/// `free_in` is the time until the lock may be free on a majority of the masters; `None` if it is unknown.
pub(super) fn next_poll_at(
    now: Instant,
    free_in: Option<Duration>,
    ahead: u64,
    heartbeat: Duration,
) -> Instant {
    let heartbeat_due_at = now + heartbeat / HEARTBEATS_PER_PERIOD;
    let delay_behind_others = SPACING * u32::try_from(ahead.min(100)).unwrap_or(100);
    free_in.map_or(heartbeat_due_at, |free_in| {
        (now + free_in + EXPIRY_MARGIN + delay_behind_others).min(heartbeat_due_at)
    })
}

/// The number of pauses of a waiter that polls because less than a majority of the masters can send wake-ups.
#[derive(Clone, Copy, Default)]
struct PollPauses(u32);

impl PollPauses {
    fn next(&mut self) -> Duration {
        self.0 = self.0.saturating_add(1);
        let factor = 2u32.saturating_pow(self.0 / EQUAL_POLL_PAUSES);
        FIRST_POLL_PAUSE
            .saturating_mul(factor)
            .min(LONGEST_POLL_PAUSE)
    }
}

impl<'a> QueuePlace<'a> {
    /// The pause before asking the masters again if too few masters can send wake-ups. It grows with the number of polls
    /// of this waiter, also if the lock has a new holder.
    pub(super) fn pause_without_wake_ups(&mut self) -> Duration {
        self.pauses_without_wake_ups.next()
    }

    /// Makes a queue entry with the ticket `number`. The entry shows this waiter's host, its process and
    /// `waiting_since`, the beginning of its wait. If `waiting_since` is `None`, the entry shows none of these.
    pub(super) fn with_number(
        core: &'a Core,
        target: &LockTarget,
        number: u64,
        waiting_since: Option<Instant>,
    ) -> Self {
        let coordinator = &*core.coordinator;
        let id = core.waiters.fetch_add(1, Ordering::Relaxed);
        let mut waiter = format!("{}:{id}", core.options.process);
        if let (Some(waiting_since), Some(notes)) = (waiting_since, &core.options.notes) {
            let runtime = &coordinator.runtime;
            let waited = runtime.now().saturating_since(waiting_since).as_millis() as u64;
            let since_ms = (runtime.wall_micros() / 1000).saturating_sub(waited);
            waiter = waiter_id::describe(&waiter, &notes.identity().connection_label(), since_ms);
        }
        let ticket = Ticket {
            waiter: waiter.into(),
            number,
            heartbeat: core.options.heartbeat,
        };
        let claim = target
            .waiter(coordinator)
            .with_fairness(Fairness::Fair(Some(Box::new(ticket.clone()))));
        tracing::debug!(ticket = ticket.number, "queued on the masters");
        Self {
            coordinator,
            ticket,
            claim: Arc::new(claim),
            unqueued_holder: None,
            pauses_without_wake_ups: PollPauses::default(),
            stays_queued: false,
        }
    }

    pub(super) fn stay_queued(mut self) {
        self.stays_queued = true;
    }

    /// Removes the queue entry from all masters, and waits until that is done. Afterwards, the waiter can queue again
    /// with the same ticket.
    pub(super) fn leave_remote_queue(&self) -> impl Future<Output = ()> + Send + use<> {
        self.coordinator.leave(&self.claim).completed()
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        if !self.stays_queued {
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
    fn pauses_without_wake_ups_grow_from_20_ms_to_200_ms() {
        let mut pauses = PollPauses::default();
        for (count, pause) in [
            (3, ms(20)),
            (4, ms(40)),
            (4, ms(80)),
            (4, ms(160)),
            (25, ms(200)),
        ] {
            for _ in 0..count {
                assert_eq!(pauses.next(), pause);
            }
        }
        assert_eq!(PollPauses(u32::MAX).next(), ms(200));
    }

    #[test]
    fn waiter_with_more_waiters_ahead_polls_later_unless_its_heartbeat_is_due() {
        for (free_in, ahead, heartbeat, after) in [
            (Some(ms(90)), 0, ms(30_000), ms(92)),
            (Some(ms(0)), 0, ms(30_000), ms(2)),
            (Some(ms(90)), 3, ms(30_000), ms(122)),
            // The time until the next poll grows with the number of waiters ahead, up to 100 waiters.
            (Some(ms(90)), 100, ms(30_000), ms(1_092)),
            (Some(ms(90)), 5_000, ms(30_000), ms(1_092)),
            // The waiter asks again at its next heartbeat if the heartbeat is due before the lock may be free, or if no
            // master reported when the lock may be free.
            (Some(ms(90)), 0, ms(240), ms(80)),
            (None, 0, ms(240), ms(80)),
            (None, 7, ms(240), ms(80)),
        ] {
            let poll_at = next_poll_at(NOW, free_in, ahead, heartbeat);
            let case = (free_in, ahead, heartbeat);
            assert_eq!(poll_at.saturating_since(NOW), after, "{case:?}");
        }
    }

    #[test]
    fn poll_pause_grows_until_the_holder_changes() {
        let mut last_holder = None;
        let mut pause_after = |value: &[u8], after: Duration| {
            let pauses = || Box::new([ms(1), ms(50), ms(60)].into_iter()) as RetryPauses;
            UnqueuedHolder::pause_until_poll(&mut last_holder, value.to_vec(), NOW + after, pauses)
        };
        // The pauses follow the retry settings, but are never shorter than `SPACING`.
        assert_eq!(pause_after(b"a", ms(0)), SPACING);
        assert_eq!(pause_after(b"a", ms(20)), ms(50));
        assert_eq!(pause_after(b"a", ms(2_000)), ms(100));
        // The list of pauses is used up. The pause is the time since `a` was first seen (2.1 s), divided by
        // `POLLS_PER_WATCHED_TIME`.
        assert_eq!(pause_after(b"a", ms(2_100)), ms(105));
        assert_eq!(
            pause_after(b"b", ms(9_000)),
            SPACING,
            "if the holder changes, the next pause must be the shortest again"
        );
        assert_eq!(pause_after(b"b", ms(9_000)), ms(50));
    }
}
