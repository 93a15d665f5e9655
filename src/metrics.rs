//! Counters and histograms for the crate `metrics`, with the feature `metrics`.
//!
//! Install any recorder in your program, for example an exporter for Prometheus or `StatsD`. Then call [`describe`]
//! once: it registers units and help texts. Without a recorder, or without the feature, nothing is counted.
//!
//! Building a [`Redlock`](crate::Redlock) creates every time series with the value 0. So an alert rule that waits for
//! an increase also notices the first event.
//!
//! No metric has a resource name as a label, because there may be millions of names. `docs/metrics.md` describes which
//! metrics to watch, and has a dashboard and alert rules.
//!
//! Without the feature, the functions below do nothing.

#[cfg(feature = "metrics")]
pub use enabled::{ALL, Metric, describe};
#[cfg(feature = "metrics")]
pub(crate) use enabled::{
    Hold, Message, count_confirmation, count_renewal, count_round, record_acquire,
    record_waiters_ahead, register_all,
};

#[cfg(not(feature = "metrics"))]
pub(crate) use disabled::{
    Hold, Message, count_confirmation, count_renewal, count_round, record_acquire,
    record_waiters_ahead, register_all,
};

#[cfg(feature = "metrics")]
mod enabled {
    use std::iter::successors;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use ::metrics::{
        SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
        histogram,
    };

    use crate::outcome::{Failure, LossCause};
    use crate::protocol::lease::Extension;

    const ACQUIRE_SECONDS: &str = "quorate_acquire_seconds";
    const ROUNDS: &str = "quorate_rounds_total";
    const CONFIRMATIONS: &str = "quorate_confirmations_total";
    const HELD: &str = "quorate_locks_held";
    const HOLD_SECONDS: &str = "quorate_hold_seconds";
    const LOST: &str = "quorate_locks_lost_total";
    const RENEWALS: &str = "quorate_renewals_total";
    const MARGIN_SECONDS: &str = "quorate_renewal_margin_seconds";
    const QUEUE_AHEAD: &str = "quorate_queue_ahead";
    const REPLIES: &str = "quorate_node_replies_total";
    const REPLY_SECONDS: &str = "quorate_node_reply_seconds";

    /// The descriptions of all metrics.
    pub const ALL: &[Metric] = &[
        Metric::histogram(
            ACQUIRE_SECONDS,
            "Duration of each call of acquire; label outcome: acquired, held_by_other, held_by_owner, no_quorum, too_late",
        ),
        Metric::counter(
            ROUNDS,
            "Rounds of lock requests, each sent to all masters; label verdict: won, held_by_other, held_by_owner, no_quorum, too_late",
        ),
        Metric::counter(
            CONFIRMATIONS,
            "Second rounds of requests, needed to agree on a fencing token when the masters' counters differed",
        ),
        Metric::gauge(HELD, "Locks that this process holds now"),
        Metric::histogram(
            HOLD_SECONDS,
            "How long locks were held; label end: released, expired, taken_away, max_hold",
        ),
        Metric::counter(
            LOST,
            "Locks that were lost while they were held; label cause: expired, taken_away, max_hold",
        ),
        Metric::counter(
            RENEWALS,
            "Renewals, counted for each lock; label outcome: renewed, unknown (tried again), too_late, lost",
        ),
        Metric::histogram(
            MARGIN_SECONDS,
            "Remaining validity when a renewal succeeded; near zero means that the lock was nearly lost",
        ),
        Metric::histogram(
            QUEUE_AHEAD,
            "Number of waiters ahead, recorded after each attempt of a waiter",
        ),
        Metric::counter(
            REPLIES,
            "Answers of masters; labels node, phase (acquire, confirm, extend, release, look), outcome: ok, late, \
             or the kind of fault",
        ),
        Metric::histogram(
            REPLY_SECONDS,
            "How long masters took to answer, including late answers but not timeouts; labels node, phase",
        ),
    ];

    /// The description of one metric.
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Metric {
        /// The name of the metric, as Prometheus shows it.
        pub name: &'static str,
        /// The kind of metric: `counter`, `gauge` or `histogram`.
        pub kind: &'static str,
        /// The meaning of the metric, and its labels.
        pub help: &'static str,
    }

    impl Metric {
        pub(super) const fn counter(name: &'static str, help: &'static str) -> Self {
            let kind = "counter";
            Self { name, kind, help }
        }

        pub(super) const fn gauge(name: &'static str, help: &'static str) -> Self {
            let kind = "gauge";
            Self { name, kind, help }
        }

        pub(super) const fn histogram(name: &'static str, help: &'static str) -> Self {
            let kind = "histogram";
            Self { name, kind, help }
        }
    }

    /// Registers units and help texts of all metrics with the installed recorder. Also creates, with the value 0, all
    /// time series that have no label for a master.
    pub fn describe() {
        for Metric { name, kind, help } in ALL.iter().copied() {
            let unit = if name.ends_with("_seconds") {
                Unit::Seconds
            } else {
                Unit::Count
            };
            match kind {
                "counter" => describe_counter!(name, unit, help),
                "gauge" => describe_gauge!(name, unit, help),
                _ => describe_histogram!(name, unit, help),
            }
        }
        register_all([].into_iter(), &[], &[]);
    }

    /// Creates every series with the value 0 (test
    /// `lost_lock_counter_exists_with_value_zero_before_the_first_loss`).
    pub(crate) fn register_all(
        nodes: impl Iterator<Item = Arc<str>>,
        phases: &[&'static str],
        faults: &[&'static str],
    ) {
        let failures = [None].into_iter().chain(failures().map(Some));
        for failure in failures {
            let _ = histogram!(ACQUIRE_SECONDS, "outcome" => acquire_outcome(failure));
            counter!(ROUNDS, "verdict" => verdict(failure)).increment(0);
        }
        counter!(CONFIRMATIONS).increment(0);
        // Do not set this gauge to 0, because another `Redlock` of this process may hold locks.
        gauge!(HELD).increment(0.0);
        for cause in causes() {
            let _ = histogram!(HOLD_SECONDS, "end" => cause.as_str());
            if cause != LossCause::Released {
                counter!(LOST, "cause" => cause.as_str()).increment(0);
            }
        }
        for outcome in RENEWAL_OUTCOMES {
            counter!(RENEWALS, "outcome" => outcome).increment(0);
        }
        let _ = histogram!(MARGIN_SECONDS);
        let _ = histogram!(QUEUE_AHEAD);
        for node in nodes {
            let node = SharedString::from_shared(node);
            for &phase in phases {
                let _ = histogram!(REPLY_SECONDS, "node" => node.clone(), "phase" => phase);
                for &outcome in [OK, LATE].iter().chain(faults) {
                    counter!(REPLIES, "node" => node.clone(), "phase" => phase, "outcome" => outcome)
                        .increment(0);
                }
            }
        }
    }

    // `failures` and `causes` return every variant of their enums, so that a time series exists for each variant. If a
    // variant is added to an enum, the code does not compile until the variant is added here too.

    fn failures() -> impl Iterator<Item = Failure> {
        successors(Some(Failure::Contention), |failure| match failure {
            Failure::Contention => Some(Failure::NotJoinable),
            Failure::NotJoinable => Some(Failure::Outage),
            Failure::Outage => Some(Failure::Late),
            Failure::Late => None,
        })
    }

    fn causes() -> impl Iterator<Item = LossCause> {
        successors(Some(LossCause::Expired), |cause| match cause {
            LossCause::Expired => Some(LossCause::TakenAway),
            LossCause::TakenAway => Some(LossCause::MaxHold),
            LossCause::MaxHold => Some(LossCause::Released),
            LossCause::Released => Some(LossCause::Forked),
            LossCause::Forked => None,
        })
    }

    fn acquire_outcome(failure: Option<Failure>) -> &'static str {
        failure.map_or("acquired", Failure::as_str)
    }

    fn verdict(failure: Option<Failure>) -> &'static str {
        failure.map_or("won", Failure::as_str)
    }

    const RENEWED: &str = "renewed";
    const UNKNOWN: &str = "unknown";
    const TOO_LATE: &str = "too_late";
    const NOT_OURS: &str = "lost";
    const RENEWAL_OUTCOMES: [&str; 4] = [RENEWED, UNKNOWN, TOO_LATE, NOT_OURS];

    /// The label value for a master's reply that is not a fault.
    const OK: &str = "ok";
    const LATE: &str = "late";

    /// Records the end of an acquire, with its duration and, if it failed, the reason.
    pub(crate) fn record_acquire(failure: Option<Failure>, waited: impl FnOnce() -> Duration) {
        histogram!(ACQUIRE_SECONDS, "outcome" => acquire_outcome(failure)).record(waited());
    }

    /// Records the result of one round of requests to all masters in an acquire; `failure` is `None` if the round won
    /// the lock.
    pub(crate) fn count_round(failure: Option<Failure>) {
        counter!(ROUNDS, "verdict" => verdict(failure)).increment(1);
    }

    /// Records that a lock needed a second round of requests to confirm its fencing token, because the masters'
    /// counters differed.
    pub(crate) fn count_confirmation() {
        counter!(CONFIRMATIONS).increment(1);
    }

    /// Records the result of renewing one lock. `margin` is the validity that was left when the renewal's result became
    /// known.
    pub(crate) fn count_renewal(outcome: Extension, margin: Duration) {
        let outcome = match outcome {
            Extension::Pending => return,
            Extension::Renewed(_) => {
                histogram!(MARGIN_SECONDS).record(margin);
                RENEWED
            }
            Extension::Unknown => UNKNOWN,
            Extension::TooLate => TOO_LATE,
            Extension::Lost => NOT_OURS,
        };
        counter!(RENEWALS, "outcome" => outcome).increment(1);
    }

    /// Records how many waiters were ahead of one waiter in the queue. Records nothing if `waiters` returns `None`.
    pub(crate) fn record_waiters_ahead(waiters_ahead: impl FnOnce() -> Option<u64>) {
        if let Some(waiters_ahead) = waiters_ahead() {
            histogram!(QUEUE_AHEAD).record(waiters_ahead as f64);
        }
    }

    /// One lock that is counted as held. The field is the time at which this value was created.
    pub(crate) struct Hold(Instant);

    impl Hold {
        /// Counts one more lock as held, from now on.
        pub(crate) fn begin() -> Self {
            gauge!(HELD).increment(1.0);
            Self(Instant::now())
        }

        /// Records that the lock is no longer held. Must be called once per lock.
        pub(crate) fn end(&self, cause: LossCause) {
            gauge!(HELD).decrement(1.0);
            histogram!(HOLD_SECONDS, "end" => cause.as_str()).record(self.0.elapsed());
            if cause != LossCause::Released {
                counter!(LOST, "cause" => cause.as_str()).increment(1);
            }
        }
    }

    /// A request sent to a master, whose reply is measured.
    pub(crate) struct Message {
        node: SharedString,
        sent_at: Instant,
    }

    impl Message {
        /// Starts to measure a request to this master.
        pub(crate) fn to(node: impl FnOnce() -> Arc<str>) -> Self {
            Self {
                node: SharedString::from_shared(node()),
                sent_at: Instant::now(),
            }
        }

        /// Records the reply to the request.
        pub(crate) fn answered(&self, phase: &'static str) {
            self.count(phase, OK, true);
        }

        /// Records that the request failed. `fault` is the kind of fault. `has_answer` is true if the master itself
        /// reported the fault, and false if the master was silent.
        pub(crate) fn failed(&self, phase: &'static str, fault: &'static str, has_answer: bool) {
            self.count(phase, fault, has_answer);
        }

        /// Records a reply that arrived after its request had been counted as timed out.
        pub(crate) fn late(&self, phase: &'static str) {
            self.count(phase, LATE, true);
        }

        fn count(&self, phase: &'static str, outcome: &'static str, has_answer: bool) {
            let node = self.node.clone();
            if has_answer {
                histogram!(REPLY_SECONDS, "node" => node.clone(), "phase" => phase)
                    .record(self.sent_at.elapsed());
            }
            counter!(REPLIES, "node" => node, "phase" => phase, "outcome" => outcome).increment(1);
        }
    }
}

#[cfg(not(feature = "metrics"))]
#[allow(
    clippy::unused_self,
    reason = "the methods have the same signatures as with the feature `metrics`"
)]
mod disabled {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::outcome::{Failure, LossCause};
    use crate::protocol::lease::Extension;

    pub(crate) fn register_all(_: impl Iterator<Item = Arc<str>>, _: &[&str], _: &[&str]) {}
    pub(crate) fn record_acquire(_: Option<Failure>, _: impl FnOnce() -> Duration) {}
    pub(crate) fn count_round(_: Option<Failure>) {}
    pub(crate) fn count_confirmation() {}
    pub(crate) fn count_renewal(_: Extension, _: Duration) {}
    pub(crate) fn record_waiters_ahead(_: impl FnOnce() -> Option<u64>) {}

    pub(crate) struct Hold;

    impl Hold {
        pub(crate) fn begin() -> Self {
            Self
        }

        pub(crate) fn end(&self, _: LossCause) {}
    }

    pub(crate) struct Message;

    impl Message {
        pub(crate) fn to(_: impl FnOnce() -> Arc<str>) -> Self {
            Self
        }

        pub(crate) fn answered(&self, _: &'static str) {}
        pub(crate) fn failed(&self, _: &'static str, _: &'static str, _: bool) {}
        pub(crate) fn late(&self, _: &'static str) {}
    }
}
