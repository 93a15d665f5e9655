//! Computes the pauses between connection attempts to one master.

use std::time::Duration;

use crate::node::Fault;
use crate::retry::Retry;

/// A connection is stable if it lasted at least this long (1 s). After a stable connection is lost, the next attempt to
/// connect follows without a pause.
pub(in crate::node) const STABLE_AGE: Duration = Duration::from_secs(1);

/// The first pause after a failed connection attempt, and after a connection that lasted for less than [`STABLE_AGE`].
/// The pause is short (10 ms), because a server restarts quickly.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// The first pause after the master refused the client for a reason that a person must fix: password, rights, version,
/// or too many clients. It is 50 ms, longer than [`FIRST_PAUSE`], because each refused attempt adds a line to the
/// master's log.
const FIRST_REFUSAL_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_secs(2);

type Delays = Box<dyn Iterator<Item = Duration> + Send>;

/// Computes the pause before the next attempt to connect to one master.
pub(in crate::node) struct BackOff {
    seed: u64,
    after_loss: Delays,
    after_refusal: Delays,
}

impl BackOff {
    /// Creates the back-off; `seed` determines the random part of the pauses.
    pub(in crate::node) fn new(seed: u64) -> Self {
        let delays = |first, longest| Box::new(Retry::new(first, longest).delays(seed)) as Delays;
        Self {
            seed,
            after_loss: delays(FIRST_PAUSE, LONGEST_PAUSE),
            after_refusal: delays(FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE),
        }
    }

    /// Returns the pause before the next connection attempt. `fault` is the reason why the last attempt failed, or why
    /// its connection ended. `connection_age` is the time that this connection lasted, or `None` if the attempt failed.
    pub(in crate::node) fn pause(
        &mut self,
        fault: &Fault,
        connection_age: Option<Duration>,
    ) -> Duration {
        if connection_age.is_some_and(|connection_age| connection_age >= STABLE_AGE) {
            *self = Self::new(self.seed.wrapping_add(1));
            return Duration::ZERO;
        }
        let delays = if is_refusal(fault) && connection_age.is_none() {
            &mut self.after_refusal
        } else {
            &mut self.after_loss
        };
        delays.next().unwrap_or(LONGEST_REFUSAL_PAUSE)
    }
}

/// Whether `fault` means that the master is reachable but refuses this client.
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

    /// Counts the connection attempts within four seconds to a master where every connection lasts for `connection_age`
    /// and ends with `fault`. If `connection_age` is `None`, every attempt fails with `fault`.
    fn tries(fault: &Fault, connection_age: Option<Duration>) -> u32 {
        let mut back_off = BackOff::new(7);
        let mut elapsed = Duration::ZERO;
        let mut try_count = 0;
        while elapsed < Duration::from_secs(4) {
            try_count += 1;
            elapsed += back_off.pause(fault, connection_age) + connection_age.unwrap_or_default();
        }
        try_count
    }

    #[test]
    fn reconnect_pauses_grow_if_each_connection_ends_immediately() {
        let lost_connection = Fault::Down("connection closed".into());
        assert!((20..60).contains(&tries(&lost_connection, Some(Duration::from_millis(1)))));
        assert!((20..60).contains(&tries(&lost_connection, None)));
    }

    #[test]
    fn reconnect_pauses_are_long_if_the_server_refuses_the_connection() {
        for fault in [
            Fault::Denied("WRONGPASS".into()),
            Fault::Server("ERR max number of clients reached".into()),
        ] {
            assert!(
                (4..12).contains(&tries(&fault, None)),
                "pauses must be long after the refusal {fault}"
            );
            // The same fault on an established connection does not lead to long pauses.
            let short_age = Some(Duration::from_millis(1));
            assert!(
                (20..60).contains(&tries(&fault, short_age)),
                "pauses must be short after a lost connection with {fault}"
            );
        }
    }

    #[test]
    fn stable_connection_resets_the_reconnect_pauses() {
        let lost_connection = Fault::Down("connection closed".into());
        let mut back_off = BackOff::new(7);
        for _ in 0..20 {
            back_off.pause(&lost_connection, None);
        }
        assert!(back_off.pause(&lost_connection, None) > Duration::from_millis(70));
        assert_eq!(
            back_off.pause(&lost_connection, Some(STABLE_AGE)),
            Duration::ZERO
        );
        assert!(back_off.pause(&lost_connection, None) <= FIRST_PAUSE);
    }
}
