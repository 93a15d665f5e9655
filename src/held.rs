//! A held lock as guard and renewal share it: until when it is valid, and how it ended.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::coordinator::{AcquireRound, Won};
use crate::metrics;
use crate::node::{Claim, NodeName, Phase};
use crate::protocol::instant::Instant;
use crate::report::{NodeReport, Slot, reports};
use crate::runtime::Runtime;
use crate::waiting::Place;

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The validity ended before a majority of masters had prolonged it.
    Expired,
    /// A majority of masters says that the lock is not ours.
    TakenAway,
    /// `max_hold` has passed.
    MaxHold,
    /// The guard was released or dropped.
    Released,
}

impl LossCause {
    /// A word for fields and machine-readable output; stable across versions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TakenAway => "taken_away",
            Self::MaxHold => "max_hold",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its validity ended before a majority of masters prolonged it",
            Self::TakenAway => "a majority of masters says that it is not ours",
            Self::MaxHold => "the longest allowed hold time has passed",
            Self::Released => "it was released",
        })
    }
}

/// One held lock.
pub(crate) struct Held {
    pub(crate) claim: Arc<Claim>,
    pub(crate) fencing: Option<u64>,
    /// When `max_hold` is over; `NEVER` without one.
    pub(crate) hold_end: Instant,
    /// Whether it is renewed in the background.
    pub(crate) renews: bool,
    state: Mutex<State>,
    changed: Notify,
    hold: metrics::Hold,
}

struct State {
    valid_until: Instant,
    ttl: Duration,
    end: Option<LossCause>,
    /// The turn in the local line, passed on when the lock has ended.
    place: Option<Place>,
    told: Told,
}

/// What the masters said to the acquire.
enum Told {
    /// Late answers are still noted here.
    Live(Arc<AcquireRound>),
    /// All that is kept for a lock that is held for long.
    Settled(Box<[Slot]>),
}

impl Held {
    pub(crate) fn new(
        won: Won,
        ttl: Duration,
        max_hold: Option<Duration>,
        renews: bool,
        place: Option<Place>,
    ) -> Self {
        let hold_end = max_hold.map_or(Instant::NEVER, |most| won.started + most);
        Self {
            claim: won.claim,
            fencing: won.fencing,
            hold_end,
            renews,
            state: Mutex::new(State {
                valid_until: won.valid_until.min(hold_end),
                ttl,
                end: None,
                place,
                told: Told::Live(won.round),
            }),
            changed: Notify::new(),
            hold: metrics::Hold::begin(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each master said to the acquire.
    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        match &self.state().told {
            Told::Live(round) => round.board().reports(names),
            Told::Settled(slots) => reports(names, slots, Phase::Acquire),
        }
    }

    /// Lets go of the round: by the first renewal every master has answered or timed out.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        if let Told::Live(round) = &state.told {
            let slots = round.board().slots();
            state.told = Told::Settled(slots);
        }
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.state().valid_until
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.state().ttl
    }

    /// How it ended, if it has: also when the deadline has passed and nobody had looked yet.
    pub(crate) fn ended(&self, now: Instant) -> Option<LossCause> {
        let (end, _passed_on) = {
            let mut state = self.state();
            if state.end.is_none() && now >= state.valid_until {
                let cause = self.deadline_cause(now);
                state.end = Some(cause);
                self.hold.end(cause);
            }
            let place = if state.end.is_some() {
                state.place.take()
            } else {
                None
            };
            (state.end, place)
        };
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
        let (first, _passed_on) = {
            let mut state = self.state();
            let first = state.end.is_none();
            state.end.get_or_insert(cause);
            (first, state.place.take())
        };
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
        state.ttl = ttl;
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
