//! What the requests for one master do while there is no connection to it: they wait for a short time, and are then
//! refused with the reason.
//!
//! The link to a Redis master and the session of a store use the same rules.

use std::time::Duration;

use super::back_off::{BackOff, STABLE_AGE};
use crate::node::{Fault, NodeName};
use crate::protocol::instant::Instant;
use crate::repeats::{Repeats, warn_seldom};

/// The state of a master's missing connection.
pub(in crate::node) struct Outage {
    back_off: BackOff,
    /// The time until which requests wait for a connection; `None` if requests are refused immediately.
    waits_until: Option<Instant>,
    /// The time at which requests last began to wait for a new connection. If a connection is lost within
    /// [`STABLE_AGE`] of this time, requests do not wait again: they are refused.
    wait_began_at: Instant,
    /// The fault with which requests are refused.
    fault: Fault,
}

impl Outage {
    /// The state before the first connection: requests wait until `until`. `seed` determines the random part of the
    /// pauses between connection attempts.
    pub(in crate::node) fn before_first_connection(
        seed: u64,
        now: Instant,
        until: Instant,
    ) -> Self {
        Self {
            back_off: BackOff::new(seed),
            waits_until: Some(until),
            wait_began_at: now,
            fault: Fault::Down("connecting".into()),
        }
    }

    /// The fault with which requests are refused while there is no connection.
    pub(in crate::node) fn fault(&self) -> &Fault {
        &self.fault
    }

    /// The time until which requests wait for a connection; `None` if requests are refused immediately.
    pub(in crate::node) fn waits_until(&self) -> Option<Instant> {
        self.waits_until
    }

    /// Lets requests wait for a connection until `until`.
    pub(in crate::node) fn wait_until(&mut self, until: Instant) {
        self.waits_until = Some(until);
    }

    /// Ends the wait: there is a connection, or requests are refused from now on.
    pub(in crate::node) fn end_wait(&mut self) {
        self.waits_until = None;
    }

    /// Whether requests are refused at the time `now`. If their wait has just ended, it does not begin again before the
    /// next lost connection.
    pub(in crate::node) fn is_refusing(&mut self, now: Instant) -> bool {
        let is_refusing = self.waits_until.is_none_or(|until| until <= now);
        if is_refusing {
            self.end_wait();
        }
        is_refusing
    }

    /// Handles the loss of a connection that lasted for `connection_age`, or the failure to open one (`None`). Logs the
    /// loss, and returns the pause before the next connection attempt.
    ///
    /// A master often restarts quickly, so requests wait for `wait_time` for the next connection. They are refused at
    /// once if no connection existed, if an answer was overdue, or if requests already began to wait less than
    /// [`STABLE_AGE`] ago.
    pub(in crate::node) fn handle_failure(
        &mut self,
        fault: Fault,
        connection_age: Option<Duration>,
        wait_time: Duration,
        now: Instant,
        (node, repeats): (&NodeName, &Repeats),
    ) -> Duration {
        if connection_age.is_some() {
            let text = format!("connection lost: {fault}");
            warn_seldom!((repeats, &text, now), %node, %fault, "connection lost");
        } else if fault != self.fault {
            let text = format!("no connection: {fault}");
            warn_seldom!((repeats, &text, now), %node, %fault, "no connection");
        }
        let pause = self.back_off.pause(&fault, connection_age);
        let is_overdue = matches!(fault, Fault::Stalled);
        let has_waited = now.saturating_since(self.wait_began_at) < STABLE_AGE;
        if connection_age.is_some() {
            self.end_wait();
            if !is_overdue && !has_waited {
                self.wait_until(now + wait_time);
                self.wait_began_at = now;
            }
        }
        self.fault = fault_of_later_requests(fault, connection_age.is_some());
        pause
    }
}

/// The fault of requests that are refused after `fault` ended a connection, or prevented one. Such requests are not
/// sent. A fault such as `Disconnected` would mean that they were sent, so it becomes `Down`.
fn fault_of_later_requests(fault: Fault, was_connected: bool) -> Fault {
    match fault {
        fault if !was_connected => fault,
        fault @ (Fault::Stalled | Fault::Down(_) | Fault::NoConnection(_)) => fault,
        fault if !fault.passes_by_itself() => fault,
        fault => Fault::Down(fault.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(300);
    const STABLE: Option<Duration> = Some(Duration::from_secs(5));

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// An outage that begins 10 s after the client started, with this fault and this age of the connection.
    fn outage_after(fault: Fault, connection_age: Option<Duration>) -> Outage {
        let mut outage = Outage::before_first_connection(7, at(0), at(1_000));
        outage.end_wait();
        handle_failure(&mut outage, fault, connection_age, 10_000);
        outage
    }

    fn handle_failure(
        outage: &mut Outage,
        fault: Fault,
        connection_age: Option<Duration>,
        now_ms: u64,
    ) {
        let node = NodeName::new("m1");
        outage.handle_failure(
            fault,
            connection_age,
            WAIT,
            at(now_ms),
            (&node, &Repeats::default()),
        );
    }

    #[test]
    fn requests_wait_for_the_first_connection_until_the_given_time() {
        let mut outage = Outage::before_first_connection(7, at(0), at(1_000));
        assert!(!outage.is_refusing(at(999)));
        assert!(outage.is_refusing(at(1_000)));
        assert!(outage.is_refusing(at(999)), "the wait must not begin again");
    }

    #[test]
    fn requests_wait_for_a_new_connection_after_a_connection_was_lost() {
        let mut outage = outage_after(Fault::Disconnected("reset".into()), STABLE);
        assert_eq!(outage.waits_until(), Some(at(10_300)));
        assert!(!outage.is_refusing(at(10_299)) && outage.is_refusing(at(10_300)));
    }

    #[test]
    fn requests_are_refused_at_once_if_no_connection_existed_or_an_answer_was_overdue() {
        assert!(outage_after(Fault::Down("refused".into()), None).is_refusing(at(10_000)));
        assert!(outage_after(Fault::Stalled, STABLE).is_refusing(at(10_000)));
    }

    #[test]
    fn requests_do_not_wait_again_if_the_next_connection_is_lost_soon() {
        let lost_connection = || Fault::Disconnected("reset".into());
        let mut outage = outage_after(lost_connection(), STABLE);
        handle_failure(
            &mut outage,
            lost_connection(),
            Some(Duration::from_millis(10)),
            10_999,
        );
        assert!(outage.is_refusing(at(10_999)));
        handle_failure(
            &mut outage,
            lost_connection(),
            Some(Duration::from_millis(10)),
            11_001,
        );
        assert_eq!(outage.waits_until(), Some(at(11_301)));
    }

    #[test]
    fn fault_of_refused_requests_never_means_that_they_were_sent() {
        let outage_after_loss = outage_after(Fault::Disconnected("reset".into()), STABLE);
        assert!(matches!(outage_after_loss.fault(), Fault::Down(_)));
        for fault in [Fault::Stalled, Fault::Denied("WRONGPASS".into())] {
            assert_eq!(*outage_after(fault.clone(), STABLE).fault(), fault);
        }
    }
}
