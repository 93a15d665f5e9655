//! Decides when the command gets `SIGTERM` and when it gets `SIGKILL`.
//!
//! `quorate run` guarantees that the command runs only while the lock is valid. Therefore `SIGKILL` must be sent before
//! the validity ends, and `SIGTERM` one grace period earlier. This module reads no clock and sends no signal: the
//! caller passes the times in, and sends the signals.

use std::time::Duration;

/// The next action that the supervisor must take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Let the command run, because the lock is valid for long enough. The caller must decide again after at most this
    /// time.
    KeepRunning(Duration),
    /// Send `SIGTERM` if it was not sent yet, because the lock's validity ends soon. The caller must decide again after
    /// at most this time.
    Terminate(Duration),
    /// Send `SIGKILL`, because the grace period has ended, or because the lock's remaining validity is at most the
    /// safety margin.
    Kill,
}

/// How long before the end of a lock's validity the command gets `SIGTERM` and `SIGKILL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    grace: Duration,
    margin: Duration,
}

impl Deadline {
    /// Computes when the command gets its signals. `ttl` is the ttl of the lock, or its `max_hold` if that is shorter.
    /// `grace` is the time between `SIGTERM` and `SIGKILL`.
    ///
    /// If necessary, shortens the grace period to slightly less than half of `ttl`. So the command never gets `SIGTERM`
    /// in the first half of `ttl`, in which `quorate` can retry a failed renewal.
    pub(crate) fn new(ttl: Duration, grace: Duration) -> Self {
        let margin = (ttl / 20).clamp(Duration::from_millis(5), Duration::from_millis(200));
        let max_grace = (ttl / 2).saturating_sub(margin);
        Self {
            grace: grace.min(max_grace),
            margin,
        }
    }

    /// The grace period in use: the configured grace period, or slightly less than half of the ttl if that is shorter.
    pub(crate) fn grace(self) -> Duration {
        self.grace
    }

    /// Returns how long before the end of the lock's validity the guard process sends `SIGTERM` and `SIGKILL`.
    ///
    /// `quorate` itself sends both signals slightly earlier. The guard process (see [`process`](crate::process)) sends
    /// them only if the `quorate` process is dead or suspended.
    pub(crate) fn guard_process_times(self) -> (Duration, Duration) {
        (self.grace + self.margin / 2, self.margin / 2)
    }

    /// Decides on the next action. `remaining` is the remaining validity of the lock. `terminated_for` is the time
    /// since `SIGTERM` was sent; `None` if it was not sent.
    ///
    /// A renewal after `SIGTERM` does not save the command: it is killed at the latest when its grace period ends.
    pub(crate) fn decide(self, remaining: Duration, terminated_for: Option<Duration>) -> Action {
        let Some(until_kill) = remaining
            .checked_sub(self.margin)
            .filter(|left| !left.is_zero())
        else {
            return Action::Kill;
        };
        match terminated_for {
            Some(elapsed) if elapsed >= self.grace => Action::Kill,
            Some(elapsed) => Action::Terminate(until_kill.min(self.grace.saturating_sub(elapsed))),
            None if until_kill <= self.grace => Action::Terminate(until_kill),
            None => Action::KeepRunning(until_kill.saturating_sub(self.grace)),
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
    fn grace_period_and_safety_margin_together_use_at_most_half_of_the_ttl() {
        for (ttl, given_grace, grace, margin) in [
            (10_000, 5_000, 4_800, 200),
            (60_000, 5_000, 5_000, 200),
            (10_000, 1_000, 1_000, 200),
            (3_000, 5_000, 1_350, 150),
            (1_000, 5_000, 450, 50),
            (100, 5_000, 45, 5),
            (10_000, 0, 0, 200),
            (8, 5_000, 0, 5),
        ] {
            let deadline = Deadline::new(ms(ttl), ms(given_grace));
            assert_eq!(
                (deadline.grace, deadline.margin),
                (ms(grace), ms(margin)),
                "ttl {ttl} grace {given_grace}"
            );
        }
    }

    #[test]
    fn remaining_validity_decides_when_sigterm_and_sigkill_are_sent() {
        use Action::{KeepRunning, Kill, Terminate};
        let deadline = Deadline::new(ms(10_000), ms(5_000)); // grace is shortened to 4.8 s, margin is 200 ms
        for (remaining, terminated_for, expected) in [
            (9_900, None, KeepRunning(ms(4_900))),
            (6_600, None, KeepRunning(ms(1_600))), // two thirds of the ttl are left: a renewal is due
            (5_001, None, KeepRunning(ms(1))),
            (5_000, None, Terminate(ms(4_800))),
            (4_000, None, Terminate(ms(3_800))),
            (201, None, Terminate(ms(1))),
            (200, None, Kill),
            (0, None, Kill),
            (4_000, Some(1_000), Terminate(ms(3_800))),
            (4_000, Some(4_700), Terminate(ms(100))),
            (9_900, Some(1_000), Terminate(ms(3_800))), // renewed only after SIGTERM
            (9_900, Some(4_800), Kill),
            (150, Some(10), Kill),
        ] {
            assert_eq!(
                deadline.decide(ms(remaining), terminated_for.map(ms)),
                expected,
                "remaining {remaining} terminated {terminated_for:?}"
            );
        }
    }

    /// The table in `docs/operations.md` shows how long the masters may be silent.
    #[test]
    fn page_shows_the_longest_silence_that_a_command_survives() {
        let page = include_str!("../../docs/operations.md");
        for (ttl, grace, row) in [
            (
                10,
                5,
                "| 10s (default) | 5s (default; shortened to 4.8 s) |",
            ),
            (10, 1, "| 10s (default) | 1s |"),
            (30, 5, "| 30s | 5s (default) |"),
            (60, 5, "| 60s | 5s (default) |"),
        ] {
            let ttl = Duration::from_secs(ttl);
            let deadline = Deadline::new(ttl, Duration::from_secs(grace));
            // The validity is the TTL minus the allowance for clock drift.
            let validity = ttl.saturating_sub(ttl / 100 + ms(2));
            let silence = validity.saturating_sub(deadline.grace + deadline.margin + ttl / 3);
            let tenths = silence.as_millis() / 100;
            let row = format!("{row} {}.{} s |", tenths / 10, tenths % 10);
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn command_without_a_grace_period_gets_sigkill_only() {
        let deadline = Deadline::new(ms(10_000), ms(0));
        assert_eq!(
            deadline.decide(ms(201), None),
            Action::KeepRunning(ms(1)),
            "1 ms before the margin begins, the command must keep running"
        );
        assert_eq!(deadline.decide(ms(200), None), Action::Kill);
    }

    #[test]
    fn guard_process_signals_later_than_the_supervisor_but_before_the_lock_expires() {
        for ttl in [50, 100, 1_000, 10_000, 60_000] {
            let deadline = Deadline::new(ms(ttl), ms(5_000));
            let (term, kill) = deadline.guard_process_times();
            assert!(term < deadline.grace + deadline.margin);
            assert!(kill < deadline.margin && !kill.is_zero());
        }
    }
}
