//! When a child must be told to stop, and when it must be stopped: a pure decision.
//!
//! The promise of `quorate run` is that the command runs only while the lock is valid. So the last
//! `SIGKILL` has to land before the validity ends, and the `SIGTERM` that asks politely has to come a
//! grace period earlier. Nothing here reads a clock or sends a signal; the times are passed in.

use std::time::Duration;

/// What the supervisor should do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The lock is safe; look again no later than after this long.
    KeepRunning(Duration),
    /// Too little validity is left: ask the command to end, and look again after this long.
    Terminate(Duration),
    /// The validity is used up, or the grace is over: end the command by force.
    Kill,
}

/// The plan for one lock: how long before the end of its validity the signals are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    grace: Duration,
    margin: Duration,
}

impl Deadline {
    /// A plan for a lock of this `ttl` (or `max_hold`, if that is shorter) whose holder wants `grace` between `SIGTERM` and `SIGKILL`.
    ///
    /// Renewals are due at a third of the ttl, so a healthy lock falls to two thirds of it and rises
    /// again. Grace and margin together therefore take at most half of the ttl: one failed renewal and
    /// its retries fit in before anything is given up. A larger wish is cut to what fits.
    pub(crate) fn new(ttl: Duration, grace: Duration) -> Self {
        let margin = (ttl / 20).clamp(Duration::from_millis(5), Duration::from_millis(200));
        let fits = (ttl / 2).saturating_sub(margin);
        Self {
            grace: grace.min(fits),
            margin,
        }
    }

    /// The grace that fits, possibly less than was asked for.
    pub(crate) fn grace(self) -> Duration {
        self.grace
    }

    /// How long before the end of the validity `SIGTERM` and `SIGKILL` are due at the helper process
    /// that stands behind the supervisor: a little later than the supervisor's own, so that it acts
    /// only when the supervisor could not.
    pub(crate) fn backstop(self) -> (Duration, Duration) {
        (self.grace + self.margin / 2, self.margin / 2)
    }

    /// Decides for `remaining` validity; `terminated_for` says how long ago `SIGTERM` was sent, if it was.
    ///
    /// Once terminated there is no way back: a renewal that succeeds late gives the command the rest of
    /// its grace, not its life.
    pub(crate) fn decide(self, remaining: Duration, terminated_for: Option<Duration>) -> Action {
        let Some(to_kill) = remaining
            .checked_sub(self.margin)
            .filter(|left| !left.is_zero())
        else {
            return Action::Kill;
        };
        match terminated_for {
            Some(since) if since >= self.grace => Action::Kill,
            Some(since) => Action::Terminate(to_kill.min(self.grace.saturating_sub(since))),
            None if to_kill <= self.grace => Action::Terminate(to_kill),
            None => Action::KeepRunning(to_kill.saturating_sub(self.grace)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn grace_and_margin_never_take_more_than_half_of_the_ttl() {
        for (ttl, wish, grace, margin) in [
            (10_000, 5_000, 4_800, 200),
            (60_000, 5_000, 5_000, 200),
            (10_000, 1_000, 1_000, 200),
            (3_000, 5_000, 1_350, 150),
            (1_000, 5_000, 450, 50),
            (100, 5_000, 45, 5),
            (10_000, 0, 0, 200),
            (8, 5_000, 0, 5),
        ] {
            let plan = Deadline::new(ms(ttl), ms(wish));
            assert_eq!(
                (plan.grace, plan.margin),
                (ms(grace), ms(margin)),
                "ttl {ttl} grace {wish}"
            );
        }
    }

    #[test]
    fn the_signals_come_in_time_for_every_remaining_validity() {
        use Action::{KeepRunning, Kill, Terminate};
        let plan = Deadline::new(ms(10_000), ms(5_000)); // grace 4.8 s, margin 200 ms
        for (remaining, terminated_for, expected) in [
            (9_900, None, KeepRunning(ms(4_900))),
            (6_600, None, KeepRunning(ms(1_600))), // an ordinary renewal is due here
            (5_001, None, KeepRunning(ms(1))),
            (5_000, None, Terminate(ms(4_800))),
            (4_000, None, Terminate(ms(3_800))),
            (201, None, Terminate(ms(1))),
            (200, None, Kill),
            (0, None, Kill),
            (4_000, Some(1_000), Terminate(ms(3_800))),
            (4_000, Some(4_700), Terminate(ms(100))),
            (9_900, Some(1_000), Terminate(ms(3_800))), // renewed too late to be spared
            (9_900, Some(4_800), Kill),
            (150, Some(10), Kill),
        ] {
            assert_eq!(
                plan.decide(ms(remaining), terminated_for.map(ms)),
                expected,
                "remaining {remaining} terminated {terminated_for:?}"
            );
        }
    }

    #[test]
    fn without_grace_the_command_is_killed_and_never_asked() {
        let plan = Deadline::new(ms(10_000), ms(0));
        assert_eq!(
            plan.decide(ms(201), None),
            Action::KeepRunning(ms(1)),
            "still inside"
        );
        assert_eq!(plan.decide(ms(200), None), Action::Kill);
    }

    #[test]
    fn the_backstop_is_later_than_the_supervisor_and_still_inside_the_validity() {
        for ttl in [50, 100, 1_000, 10_000, 60_000] {
            let plan = Deadline::new(ms(ttl), ms(5_000));
            let (term, kill) = plan.backstop();
            assert!(term < plan.grace + plan.margin);
            assert!(kill < plan.margin && !kill.is_zero());
        }
    }
}
