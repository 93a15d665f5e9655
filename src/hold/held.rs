//! The state of a held lock, shared by its guard and its renewals: the validity, and how the lock ended.

use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::metrics;
use crate::node::{Answer, Claim, Extended, Fault, NodeName, NoteItem, Phase};
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::report::{LateAnswers, NodeReport, OneLine, Replies};
use crate::rounds::attempt::WonAttempt;
use crate::runtime::Runtime;
use crate::waiting::local_queue::LocalQueues;
use crate::waiting::local_queue::place::LocalPlace;

/// The properties of a held lock that the caller requested.
pub(crate) struct HoldOptions {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// Whether the lock is renewed in the background.
    pub(crate) renews: bool,
    /// The text of the lock's note, which other clients can read; `None` if the lock has no note.
    pub(crate) note_text: Option<Arc<str>>,
}

/// How long a lock must be held before its note is written, so that short holds cost no additional message.
const NOTE_AFTER: Duration = Duration::from_millis(100);

/// Every sixth renewal of a lock also renews the lock's note. A lock is renewed every third of its ttl.
const RENEWALS_PER_NOTE: u8 = 6;

/// One held lock. A process may hold very many locks, so keep this struct small.
pub(crate) struct Held {
    pub(crate) claim: Arc<Claim>,
    /// The fencing token; `None` without fencing. Never 0, because fencing counters start at 1.
    pub(crate) fencing: Option<NonZero<u64>>,
    /// When the successful attempt sent its first request.
    acquired_at: Instant,
    /// The text of the lock's note, which other clients can read; `None` if the lock has no note.
    note_text: Option<Arc<str>>,
    /// When `max_hold` ends the lock; `NEVER` without a limit.
    pub(crate) hold_end: Instant,
    state: Mutex<State>,
    validity_changed: Notify,
    hold_metric: metrics::Hold,
}

struct State {
    end: Option<LossCause>,
    renews: bool,
    valid_until: Instant,
    /// The TTL of the lock, in nanoseconds.
    ttl: u64,
    /// The local queues of this process, in which an entry shows that this lock is held. `None` after the lock has
    /// ended and the entry was removed.
    local_queues: Option<Arc<LocalQueues>>,
    /// Whether the lock was acquired through a local queue. If so, the end of this lock lets the next waiter of that
    /// queue request the lock from the masters.
    is_queued: bool,
    /// The masters' replies about this lock; see [`Held::reports`].
    replies: Replies,
    phase: Phase,
    /// Whether the lock's note has been written, or is being written now.
    is_note_sent: bool,
    /// The number of renewals since the note was last renewed.
    renewals_without_note: u8,
}

impl State {
    fn take_local_queues(&mut self) -> Option<(Arc<LocalQueues>, bool)> {
        Some((self.local_queues.take()?, self.is_queued))
    }
}

impl Held {
    pub(crate) fn new(
        won: WonAttempt,
        hold_options: HoldOptions,
        local_queues: &Arc<LocalQueues>,
        place: Option<LocalPlace>,
    ) -> Arc<Self> {
        let place = place.filter(LocalPlace::is_queued);
        let is_queued = place.is_some();
        let local_queues = match place {
            Some(place) => place.hold(),
            None => local_queues.hold(won.claim.keys()),
        };
        let HoldOptions {
            ttl,
            max_hold,
            renews,
            note_text,
        } = hold_options;
        // Start the count of renewals at a random value. Otherwise, locks that were acquired together would renew their
        // notes at the same time.
        let renewals_without_note = won.claim.token().to_bytes()[0] % RENEWALS_PER_NOTE;
        let hold_end = max_hold.map_or(Instant::NEVER, |max_hold| won.started_at + max_hold);
        let held = Arc::new(Self {
            claim: won.claim,
            fencing: won.fencing.and_then(NonZero::new),
            acquired_at: won.started_at,
            note_text,
            hold_end,
            state: Mutex::new(State {
                end: None,
                renews,
                valid_until: won.valid_until.min(hold_end),
                ttl: nanos(ttl),
                local_queues: Some(local_queues),
                is_queued,
                replies: Replies::default(),
                phase: Phase::Acquire,
                is_note_sent: false,
                renewals_without_note,
            }),
            validity_changed: Notify::new(),
            hold_metric: metrics::Hold::begin(),
        });
        won.round.answers().hand_over(&held);
        held
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the masters' replies to a renewal or an extension, for [`Self::reports`].
    pub(crate) fn record_replies(&self, replies: Replies) {
        let mut state = self.state();
        state.replies = replies;
        state.phase = Phase::Extend;
    }

    /// Whether a renewal or an extension has failed. If so, [`reports`](Self::reports) returns the replies to the
    /// latest renewal or extension.
    pub(crate) fn is_troubled(&self) -> bool {
        self.state().phase == Phase::Extend
    }

    /// The masters' replies that the holder's report shows:
    ///
    /// - the replies to the acquire, if no renewal or extension has failed;
    /// - otherwise, the replies to the latest renewal or extension.
    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        let state = self.state();
        state.replies.reports(names, state.phase)
    }

    /// The masters' replies to the latest renewal or extension, in one line. `None` if no renewal or extension has
    /// failed.
    pub(crate) fn trouble<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Option<String> {
        self.is_troubled()
            .then(|| OneLine(&self.reports(names)).to_string())
    }

    /// When the note is to be written for the first time; `None` if it has been written, or if the lock has no note.
    pub(crate) fn note_due_at(&self) -> Option<Instant> {
        (self.note_text.is_some() && !self.state().is_note_sent)
            .then(|| self.acquired_at + NOTE_AFTER)
    }

    /// Records that the lock's note has been written, or is being written now. From now on the note is renewed together
    /// with the lock.
    pub(crate) fn mark_note_sent(&self) {
        self.state().is_note_sent = true;
    }

    /// The note to send to the masters now; `None` if the lock has no note.
    pub(crate) fn note(&self, announce: bool, now: Instant, wall_micros: u64) -> Option<NoteItem> {
        let note_text = self.note_text.clone()?;
        self.mark_note_sent();
        // Mark the claim as having a note before the note is queued, so that a later release also deletes the note.
        self.claim.take_note();
        let held_for = now.saturating_since(self.acquired_at).as_millis() as u64;
        Some(NoteItem {
            claim: self.claim.clone(),
            says: note_text,
            since: (wall_micros / 1000).saturating_sub(held_for),
            announce,
        })
    }

    /// The text of the lock's note, without the time of the acquire; `None` if the lock has no note.
    pub(crate) fn note_text(&self) -> Option<&Arc<str>> {
        self.note_text.as_ref()
    }

    /// Whether the note has been sent to the masters.
    pub(crate) fn is_noted(&self) -> bool {
        self.claim.is_noted()
    }

    /// Counts a renewal of the lock. Returns whether the lock's note must be renewed together with this renewal.
    pub(crate) fn next_renewal_keeps_note(&self) -> bool {
        if !self.is_noted() {
            return false;
        }
        let mut state = self.state();
        state.renewals_without_note = (state.renewals_without_note + 1) % RENEWALS_PER_NOTE;
        state.renewals_without_note == 0
    }

    /// Whether a master has lost the note that describes the lock's holder. `extended` is this master's reply to an
    /// extension or renewal: one result for each key of the lock. Returns false if the note has not been sent yet.
    pub(crate) fn lacks_note(&self, extended: &[Extended]) -> bool {
        let lacks_note = |key: &Extended| matches!(key, Extended::Restored | Extended::Unnoted);
        self.is_noted() && extended.iter().any(lacks_note)
    }

    /// When the successful attempt sent its first request.
    pub(crate) fn acquired_at(&self) -> Instant {
        self.acquired_at
    }

    /// Whether the lock is renewed in the background.
    pub(crate) fn renews(&self) -> bool {
        self.state().renews
    }

    /// Removes an ended lock from the local queues. `local_queues` contains these queues, and true if the next local
    /// waiter may now request the lock from the masters. If `local_queues` is `None`, does nothing, because the lock
    /// has already been removed.
    ///
    /// Never call this while the mutex of the lock's state is held.
    fn leave_local_queues(&self, local_queues: Option<(Arc<LocalQueues>, bool)>) {
        match local_queues {
            Some((local_queues, true)) => {
                self.claim.keys().for_each(|key| local_queues.pass_on(key));
            }
            Some((local_queues, false)) => {
                let permit = self.claim.permit();
                self.claim
                    .keys()
                    .for_each(|key| local_queues.lock_ended(key, permit));
            }
            None => {}
        }
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.state().valid_until
    }

    /// The time until which the lock is valid; `None` once it has ended. Reads no clock and changes nothing.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn end_of_validity(&self) -> Option<Instant> {
        let state = self.state();
        state.end.is_none().then_some(state.valid_until)
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.state().ttl)
    }

    /// Why the lock ended; `None` while it is held. If the validity has expired at `now`, this call ends the lock.
    pub(crate) fn end_cause(&self, now: Instant) -> Option<LossCause> {
        let (end, local_queues) = {
            let mut state = self.state();
            if state.end.is_none() && now >= state.valid_until {
                let cause = self.deadline_cause(now);
                state.end = Some(cause);
                self.hold_metric.end(cause);
            }
            let local_queues = if state.end.is_some() {
                state.take_local_queues()
            } else {
                None
            };
            (state.end, local_queues)
        };
        self.leave_local_queues(local_queues);
        end
    }

    fn deadline_cause(&self, now: Instant) -> LossCause {
        if now >= self.hold_end {
            LossCause::MaxHold
        } else {
            LossCause::Expired
        }
    }

    /// Ends the lock unless it has ended already. Then lets the next local waiter request the lock from the masters.
    /// Queue the lock's releases before this call, so that they are sent before the waiter's requests.
    pub(crate) fn end(&self, cause: LossCause) {
        let (is_first_end, local_queues) = {
            let mut state = self.state();
            let is_first_end = state.end.is_none();
            state.end.get_or_insert(cause);
            (is_first_end, state.take_local_queues())
        };
        self.leave_local_queues(local_queues);
        if is_first_end {
            self.hold_metric.end(cause);
            self.validity_changed.notify_waiters();
        }
    }

    /// Extends the validity to `until`, but not beyond `max_hold`. Call this after a majority has confirmed an
    /// extension in time. An earlier `until` does not shorten the validity. Returns `false` if the lock has ended.
    pub(crate) fn extend_lease(&self, until: Instant, ttl: Duration, now: Instant) -> bool {
        {
            let mut state = self.state();
            if state.end.is_some() || now >= state.valid_until {
                return false;
            }
            state.valid_until = state.valid_until.max(until.min(self.hold_end));
            state.ttl = nanos(ttl);
        }
        self.validity_changed.notify_waiters();
        true
    }

    /// Resolves at the first extension of the validity after this call. May also resolve when the lock ends.
    pub(crate) fn validity_change(&self) -> impl Future<Output = ()> + Send {
        self.validity_changed.notified()
    }

    /// Resolves when the lock has ended. This future has its own timer, which fires at the end of the validity even if
    /// a renewal hangs.
    pub(crate) async fn lost(&self, runtime: &dyn Runtime) -> LossCause {
        loop {
            let validity_change = self.validity_changed.notified();
            futures::pin_mut!(validity_change);
            // If the lock ends right after the call of `end_cause` below, the notification wakes this future: it was
            // created before.
            if let Some(cause) = self.end_cause(runtime.now()) {
                return cause;
            }
            let deadline = runtime.sleep_until(self.valid_until());
            futures::future::select(validity_change, deadline).await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let local_queues = self.state().take_local_queues();
        self.leave_local_queues(local_queues);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl LateAnswers for Held {
    fn take_over(&self, replies: Replies) {
        self.state().replies = replies;
    }

    fn record(
        &self,
        node: usize,
        answer: &Result<Answer, Fault>,
        started_at: Instant,
        now: Instant,
        late: bool,
    ) {
        let mut state = self.state();
        if state.phase == Phase::Acquire {
            state.replies.record(node, answer, started_at, now, late);
        }
    }
}

// With the feature `metrics`, `Held` is larger than this test allows.
#[cfg(all(test, target_pointer_width = "64", not(feature = "metrics")))]
mod tests {
    use super::*;

    #[test]
    fn held_lock_fits_its_memory_budget() {
        // A held lock may use 600 bytes of memory. These three types are a part of it. The rest is for the stored
        // replies and the lock's entry in the local queue.
        assert_eq!(size_of::<Held>(), 144);
        assert_eq!(size_of::<Claim>(), 64);
        assert_eq!(size_of::<crate::LockGuard>(), 32);
    }
}
