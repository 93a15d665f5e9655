//! A held lock as guard and renewal share it: until when it is valid, and how it ended.

use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::metrics;
use crate::node::{Answer, Claim, Extended, Fault, NodeName, NoteItem, Phase};
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::report::{LateAnswers, NodeReport, OneLine, Slots};
use crate::rounds::attempt::Won;
use crate::runtime::Runtime;
use crate::waiting::local_line::{LocalLines, Place};

/// How a lock is to be held.
pub(crate) struct Holding {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// Whether it is renewed in the background.
    pub(crate) renews: bool,
    /// What its holder says to those who look.
    pub(crate) says: Option<Arc<str>>,
}

/// A note is written when its lock has been held for this long: those that are soon given back pay
/// nothing for it.
const NOTED_AFTER: Duration = Duration::from_millis(100);

/// So many renewals, of which one looks after the note: two ttls, half of how long a note is kept.
const KEPT_EVERY: u8 = 6;

/// One held lock. A process may hold very many: what stands here is kept small
/// (`a_held_lock_is_small`).
pub(crate) struct Held {
    pub(crate) claim: Arc<Claim>,
    /// The masters count from one.
    pub(crate) fencing: Option<NonZero<u64>>,
    /// Since when it is held.
    since: Instant,
    /// What its holder says to those who look; none where it says nothing.
    says: Option<Arc<str>>,
    /// When `max_hold` is over; `NEVER` without one.
    pub(crate) hold_end: Instant,
    state: Mutex<State>,
    changed: Notify,
    hold: metrics::Hold,
}

struct State {
    end: Option<LossCause>,
    renews: bool,
    valid_until: Instant,
    /// In nanoseconds.
    ttl: u64,
    /// Where this process knows that it is held, until it has ended.
    lines: Option<Arc<LocalLines>>,
    /// With the turn in the local line, which is then passed on.
    in_line: bool,
    /// What the masters said to the acquire, late answers as well; or to the renewal that failed
    /// since.
    slots: Slots,
    phase: Phase,
    /// Its note has been written once.
    noted: bool,
    /// How many renewals have left its note alone since one looked after it.
    unkept: u8,
}

impl State {
    fn take_lines(&mut self) -> Option<(Arc<LocalLines>, bool)> {
        Some((self.lines.take()?, self.in_line))
    }
}

impl Held {
    pub(crate) fn new(
        won: Won,
        holding: Holding,
        lines: &Arc<LocalLines>,
        place: Option<Place>,
    ) -> Arc<Self> {
        let place = place.filter(Place::is_in_line);
        let in_line = place.is_some();
        let lines = match place {
            Some(place) => place.hold(),
            None => lines.hold(won.claim.keys()),
        };
        let Holding {
            ttl,
            max_hold,
            renews,
            says,
        } = holding;
        // Each begins at a place of its own: locks that were taken together do not all look after their
        // notes in one renewal.
        let unkept = won.claim.token().to_bytes()[0] % KEPT_EVERY;
        let hold_end = max_hold.map_or(Instant::NEVER, |most| won.started + most);
        let held = Arc::new(Self {
            claim: won.claim,
            fencing: won.fencing.and_then(NonZero::new),
            since: won.started,
            says,
            hold_end,
            state: Mutex::new(State {
                end: None,
                renews,
                valid_until: won.valid_until.min(hold_end),
                ttl: nanos(ttl),
                lines: Some(lines),
                in_line,
                slots: Slots::default(),
                phase: Phase::Acquire,
                noted: false,
                unkept,
            }),
            changed: Notify::new(),
            hold: metrics::Hold::begin(),
        });
        won.round.answers().hand_over(&held);
        held
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the masters said to a renewal or an extension that its holder should know of.
    pub(crate) fn tell(&self, slots: Slots) {
        let mut state = self.state();
        state.slots = slots;
        state.phase = Phase::Extend;
    }

    /// Whether a renewal has failed.
    pub(crate) fn is_troubled(&self) -> bool {
        self.state().phase == Phase::Extend
    }

    /// What each master said to the acquire, or to a renewal that failed since.
    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        let state = self.state();
        state.slots.reports(names, state.phase)
    }

    /// What the masters said to a renewal that failed, on one line.
    pub(crate) fn trouble<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Option<String> {
        self.is_troubled()
            .then(|| OneLine(&self.reports(names)).to_string())
    }

    /// When its note is to be written for the first time, as long as it has not been.
    pub(crate) fn note_due(&self) -> Option<Instant> {
        (self.says.is_some() && !self.state().noted).then(|| self.since + NOTED_AFTER)
    }

    /// Its note will be written now, and from now on goes with each renewal.
    pub(crate) fn will_be_noted(&self) {
        self.state().noted = true;
    }

    /// Its note, to be sent now; none where its holder says nothing.
    pub(crate) fn note(&self, announce: bool, now: Instant, wall_micros: u64) -> Option<NoteItem> {
        let says = self.says.clone()?;
        self.will_be_noted();
        // Before it is queued: a release that comes behind it takes it along.
        self.claim.take_note();
        let held_for = now.saturating_since(self.since).as_millis() as u64;
        Some(NoteItem {
            claim: self.claim.clone(),
            says,
            since: (wall_micros / 1000).saturating_sub(held_for),
            announce,
        })
    }

    /// What its holder says to those who look, but for the time.
    pub(crate) fn says(&self) -> Option<&Arc<str>> {
        self.says.as_ref()
    }

    /// Whether its note has been sent.
    pub(crate) fn is_noted(&self) -> bool {
        self.claim.is_noted()
    }

    /// Whether this renewal looks after the note as well; counts the renewal.
    pub(crate) fn keeps_note(&self) -> bool {
        if !self.is_noted() {
            return false;
        }
        let mut state = self.state();
        state.unkept = (state.unkept + 1) % KEPT_EVERY;
        state.unkept == 0
    }

    /// Whether a master that said this of its keys lacks a note that has been sent.
    pub(crate) fn lacks_note(&self, said: &[Extended]) -> bool {
        let lacks = |said: &Extended| matches!(said, Extended::Restored | Extended::Unnoted);
        self.is_noted() && said.iter().any(lacks)
    }

    /// Since when it is held.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether it is renewed in the background.
    pub(crate) fn renews(&self) -> bool {
        self.state().renews
    }

    /// Lets this process know that it is not held any more, and passes the local turn on, if it
    /// had one: once, and never under the lock of the state.
    fn let_go(&self, ended: Option<(Arc<LocalLines>, bool)>) {
        match ended {
            Some((lines, true)) => self.claim.keys().for_each(|key| lines.pass_on(key)),
            Some((lines, false)) => {
                let permit = self.claim.permit();
                self.claim.keys().for_each(|key| lines.let_go(key, permit));
            }
            None => {}
        }
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.state().valid_until
    }

    /// Until when it is valid, if it has not ended; for those who only watch.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn look(&self) -> Option<Instant> {
        let state = self.state();
        state.end.is_none().then_some(state.valid_until)
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.state().ttl)
    }

    /// How it ended, if it has: also when the deadline has passed and nobody had looked yet.
    pub(crate) fn ended(&self, now: Instant) -> Option<LossCause> {
        let (end, lines) = {
            let mut state = self.state();
            if state.end.is_none() && now >= state.valid_until {
                let cause = self.deadline_cause(now);
                state.end = Some(cause);
                self.hold.end(cause);
            }
            let lines = if state.end.is_some() {
                state.take_lines()
            } else {
                None
            };
            (state.end, lines)
        };
        self.let_go(lines);
        end
    }

    fn deadline_cause(&self, now: Instant) -> LossCause {
        if now >= self.hold_end {
            LossCause::MaxHold
        } else {
            LossCause::Expired
        }
    }

    /// Ends it, unless it has ended already, and passes the local turn on. Releases must have
    /// been queued before: the next in line sends right behind them.
    pub(crate) fn end(&self, cause: LossCause) {
        let (first, lines) = {
            let mut state = self.state();
            let first = state.end.is_none();
            state.end.get_or_insert(cause);
            (first, state.take_lines())
        };
        self.let_go(lines);
        if first {
            self.hold.end(cause);
            self.changed.notify_waiters();
        }
    }

    /// Moves the deadline after a renewal that a majority confirmed in time; never back, never
    /// past `max_hold`, and never for a lock that has ended.
    pub(crate) fn prolong(&self, until: Instant, ttl: Duration, now: Instant) -> bool {
        let mut state = self.state();
        if state.end.is_some() || now >= state.valid_until {
            return false;
        }
        state.valid_until = state.valid_until.max(until.min(self.hold_end));
        state.ttl = nanos(ttl);
        true
    }

    /// Resolves when the lock has ended. It has a timer of its own: it fires at the deadline
    /// also when a renewal hangs.
    pub(crate) async fn lost(&self, runtime: &dyn Runtime) -> LossCause {
        loop {
            let changed = self.changed.notified();
            futures::pin_mut!(changed);
            // Registered before the look, so that an end in between is not slept through.
            changed.as_mut().enable();
            if let Some(cause) = self.ended(runtime.now()) {
                return cause;
            }
            let deadline = runtime.sleep_until(self.valid_until());
            futures::future::select(changed, deadline).await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let lines = self.state().take_lines();
        self.let_go(lines);
    }
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

// With the metrics a lock also keeps since when it is held.
impl LateAnswers for Held {
    fn take_over(&self, slots: Slots) {
        self.state().slots = slots;
    }

    fn note(
        &self,
        node: usize,
        answer: &Result<Answer, Fault>,
        started: Instant,
        now: Instant,
        late: bool,
    ) {
        let mut state = self.state();
        if state.phase == Phase::Acquire {
            state.slots.note(node, answer, started, now, late);
        }
    }
}

#[cfg(all(test, target_pointer_width = "64", not(feature = "metrics")))]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_small() {
        // Ten thousand held locks are ten thousand of each, and of the masters' slots and the
        // key's line: together at most 600 bytes a lock, with what the allocator adds.
        assert_eq!(size_of::<Held>(), 144);
        assert_eq!(size_of::<Claim>(), 64);
        assert_eq!(size_of::<crate::LockGuard>(), 32);
    }
}
