//! The pauses between connection attempts to one master.

use std::time::Duration;

use crate::node::Fault;
use crate::retry::Retry;

/// A connection that lasted this long was good: the next connection is made without a pause.
pub(in crate::node) const STEADY: Duration = Duration::from_secs(1);

/// The first pause after a connection that failed or was lost soon. The pause is short, because a restart takes only a
/// moment.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// The first pause after a refusal that a person must fix: password, rights, version, or too many clients. It is
/// longer, because each attempt costs the master a line in its log.
const FIRST_REFUSED: Duration = Duration::from_millis(50);
const LONGEST_REFUSED: Duration = Duration::from_secs(2);

type Delays = Box<dyn Iterator<Item = Duration> + Send>;

/// Computes the pause before the next connection attempt.
pub(in crate::node) struct BackOff {
    seed: u64,
    lost: Delays,
    refused: Delays,
}

impl BackOff {
    /// Creates pauses with a jitter that depends on `seed`.
    pub(in crate::node) fn new(seed: u64) -> Self {
        let delays = |first, most| Box::new(Retry::new(first, most).delays(seed)) as Delays;
        Self {
            seed,
            lost: delays(FIRST_PAUSE, LONGEST_PAUSE),
            refused: delays(FIRST_REFUSED, LONGEST_REFUSED),
        }
    }

    /// The pause after a connection that ended with `fault`. `lived` is how long the connection lasted; `None` if it
    /// was never established.
    pub(in crate::node) fn pause(&mut self, fault: &Fault, lived: Option<Duration>) -> Duration {
        if lived.is_some_and(|lived| lived >= STEADY) {
            *self = Self::new(self.seed.wrapping_add(1));
            return Duration::ZERO;
        }
        let delays = if is_refusal(fault) && lived.is_none() {
            &mut self.refused
        } else {
            &mut self.lost
        };
        delays.next().unwrap_or(LONGEST_REFUSED)
    }
}

/// Whether the master is reachable but refuses this client.
fn is_refusal(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Denied(_)
            | Fault::Unsupported(_)
            | Fault::Unprepared(_)
            | Fault::SameServer(_)
            | Fault::Server(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many connections are attempted within four seconds if each of them lasts for `lived`.
    fn tries(fault: &Fault, lived: Option<Duration>) -> u32 {
        let mut back_off = BackOff::new(7);
        let mut passed = Duration::ZERO;
        let mut tries = 0;
        while passed < Duration::from_secs(4) {
            tries += 1;
            passed += back_off.pause(fault, lived) + lived.unwrap_or_default();
        }
        tries
    }

    #[test]
    fn pauses_grow_if_the_master_ends_connections_at_once() {
        let lost = Fault::Down("connection closed".into());
        assert!((20..60).contains(&tries(&lost, Some(Duration::from_millis(1)))));
        assert!((20..60).contains(&tries(&lost, None)));
    }

    #[test]
    fn pauses_are_long_after_a_refusal_that_a_person_must_fix() {
        for fault in [
            Fault::Denied("WRONGPASS".into()),
            Fault::Server("ERR max number of clients reached".into()),
        ] {
            assert!((4..12).contains(&tries(&fault, None)), "{fault}");
            // After the connection is established, this error does not mean that the server refuses the connection.
            let stood = Some(Duration::from_millis(1));
            assert!((20..60).contains(&tries(&fault, stood)), "{fault}");
        }
    }

    #[test]
    fn good_connection_resets_the_pauses() {
        let lost = Fault::Down("connection closed".into());
        let mut back_off = BackOff::new(7);
        for _ in 0..20 {
            back_off.pause(&lost, None);
        }
        assert!(back_off.pause(&lost, None) > Duration::from_millis(70));
        assert_eq!(back_off.pause(&lost, Some(STEADY)), Duration::ZERO);
        assert!(back_off.pause(&lost, None) <= FIRST_PAUSE);
    }
}
