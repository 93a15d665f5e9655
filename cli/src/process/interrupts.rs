//! Decides which signal the command gets when the user presses Ctrl-C repeatedly.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

/// If two SIGINT signals arrive within this time (200 ms), they count as one Ctrl-C. For example, the terminal and the
/// parent process may both send a SIGINT for the same Ctrl-C.
const SAME_PRESS: Duration = Duration::from_millis(200);

/// A second Ctrl-C within this time (5 s) after the first one stops the command.
const SECOND_PRESS_WITHIN: Duration = Duration::from_secs(5);

/// The times at which the user pressed Ctrl-C while the command ran.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    last_press_at: Option<Instant>,
    /// When the command got SIGTERM because of a second Ctrl-C; `None` if there was no second Ctrl-C.
    terminated_at: Option<Instant>,
}

impl Interrupts {
    /// The signal to forward to the command for a SIGINT that arrives at `now`: SIGINT for the first Ctrl-C, SIGTERM
    /// for the second one, and SIGKILL for the third one.
    pub(super) fn signal_to_forward(&mut self, now: Instant) -> Signal {
        let since_last = self
            .last_press_at
            .map(|last_press_at| now.saturating_duration_since(last_press_at));
        if since_last.is_some_and(|since_last| since_last < SAME_PRESS) {
            return Signal::SIGINT;
        }
        self.last_press_at = Some(now);
        if self.terminated_at.is_some() {
            return Signal::SIGKILL;
        }
        if since_last.is_some_and(|since_last| since_last <= SECOND_PRESS_WITHIN) {
            self.terminated_at = Some(now);
            return Signal::SIGTERM;
        }
        Signal::SIGINT
    }

    /// Whether the command got SIGTERM because of a second Ctrl-C.
    pub(super) fn has_terminated(&self) -> bool {
        self.terminated_at.is_some()
    }

    /// Whether the command must be killed: the second Ctrl-C sent SIGTERM to it, and the time `grace` has passed since
    /// then.
    pub(super) fn must_kill(&self, grace: Duration, now: Instant) -> bool {
        let elapsed_since = |terminated_at| now.saturating_duration_since(terminated_at);
        self.terminated_at
            .is_some_and(|terminated_at| elapsed_since(terminated_at) >= grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal_to_forward(presses: &[u64]) -> Vec<Signal> {
        let (mut interrupts, begin) = (Interrupts::default(), Instant::now());
        let mut signal_after =
            |millis: &u64| interrupts.signal_to_forward(begin + Duration::from_millis(*millis));
        presses.iter().map(&mut signal_after).collect()
    }

    #[test]
    fn second_ctrl_c_sends_sigterm_and_the_third_one_sends_sigkill() {
        use Signal::{SIGINT, SIGKILL, SIGTERM};
        for (presses, expected) in [
            (&[0][..], &[SIGINT][..]),
            (&[0, 1_000], &[SIGINT, SIGTERM]),
            (&[0, 1_000, 2_000], &[SIGINT, SIGTERM, SIGKILL]),
            // One Ctrl-C that arrives as two signals.
            (&[0, 100], &[SIGINT, SIGINT]),
            (&[0, 100, 1_000, 1_100], &[SIGINT, SIGINT, SIGTERM, SIGINT]),
            (&[0, 6_000], &[SIGINT, SIGINT]),
        ] {
            assert_eq!(signal_to_forward(presses), expected, "{presses:?}");
        }
    }

    #[test]
    fn command_gets_sigkill_one_grace_period_after_the_second_ctrl_c() {
        let (mut interrupts, begin) = (Interrupts::default(), Instant::now());
        let grace = Duration::from_secs(2);
        for (millis, kills) in [(0, false), (1_000, false), (2_999, false), (3_000, true)] {
            let now = begin + Duration::from_millis(millis);
            if millis <= 1_000 {
                interrupts.signal_to_forward(now);
            }
            assert_eq!(interrupts.must_kill(grace, now), kills, "{millis}");
        }
    }
}
