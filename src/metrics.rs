//! Counters and histograms over the `metrics` facade, with the feature `metrics`.
//!
//! Install any recorder (an exporter for Prometheus, `StatsD`, ..) in your program; without one,
//! and without the feature, nothing is counted. Call [`describe`] once after the recorder is
//! installed to give it units and help texts. Recorders are looked up at every event, so one that
//! is installed late misses only what was before.
//!
//! No metric carries a resource name: there may be millions of them. `docs/metrics.md` says what
//! to watch, with a dashboard and alert rules.
//!
//! This file is all there is to it: the rest of the library calls the functions below, which are
//! empty without the feature.

#[cfg(feature = "metrics")]
pub use enabled::{ALL, Metric, describe};
#[cfg(feature = "metrics")]
pub(crate) use enabled::{Hold, Message, acquired, ahead, confirmation, renewal, round};

#[cfg(not(feature = "metrics"))]
pub(crate) use disabled::{Hold, Message, acquired, ahead, confirmation, renewal, round};

#[cfg(feature = "metrics")]
mod enabled {
    use std::time::{Duration, Instant};

    use ::metrics::{
        SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
        histogram,
    };

    use crate::coordinator::Failure;
    use crate::held::LossCause;
    use crate::node::{Answer, Fault, NodeName, Phase};
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

    /// The metrics' names, units and help texts in one table.
    pub const ALL: &[Metric] = &[
        Metric::histogram(
            ACQUIRE_SECONDS,
            "From the call of acquire to its end; label outcome: acquired, held_by_other, no_quorum, too_late",
        ),
        Metric::counter(
            ROUNDS,
            "Rounds over all masters to take a lock; label verdict: won, held_by_other, no_quorum, too_late",
        ),
        Metric::counter(
            CONFIRMATIONS,
            "Second rounds, which settle a fencing token on which the masters differed",
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
            "Renewals, lock by lock; label outcome: renewed, unknown (tried again), too_late, lost",
        ),
        Metric::histogram(
            MARGIN_SECONDS,
            "What was left of the validity when a renewal succeeded: near zero is nearly lost",
        ),
        Metric::histogram(QUEUE_AHEAD, "How many stood ahead whenever a waiter looked"),
        Metric::counter(
            REPLIES,
            "Answers of masters; labels node, phase (acquire, confirm, extend, release, look), outcome: ok, late, \
             or the kind of fault",
        ),
        Metric::histogram(
            REPLY_SECONDS,
            "How long masters took to answer; labels node, phase. Timeouts are not in it, late answers are",
        ),
    ];

    /// One metric as it is described to a recorder.
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Metric {
        /// Its name, as Prometheus shows it.
        pub name: &'static str,
        /// `counter`, `gauge` or `histogram`.
        pub kind: &'static str,
        /// What it says, and its labels.
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

    /// Tells the installed recorder units and help texts of all metrics.
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
    }

    /// An acquire has ended.
    pub(crate) fn acquired(failure: Option<Failure>, waited: impl FnOnce() -> Duration) {
        let outcome = failure.map_or("acquired", Failure::as_str);
        histogram!(ACQUIRE_SECONDS, "outcome" => outcome).record(waited());
    }

    /// A round has its verdict.
    pub(crate) fn round(failure: Option<Failure>) {
        let verdict = failure.map_or("won", Failure::as_str);
        counter!(ROUNDS, "verdict" => verdict).increment(1);
    }

    /// The masters' counters differed.
    pub(crate) fn confirmation() {
        counter!(CONFIRMATIONS).increment(1);
    }

    /// A renewal of one lock has come to something, with so much of its validity left.
    pub(crate) fn renewal(outcome: Extension, margin: Duration) {
        let outcome = match outcome {
            Extension::Pending => return,
            Extension::Renewed(_) => {
                histogram!(MARGIN_SECONDS).record(margin);
                "renewed"
            }
            Extension::Unknown => "unknown",
            Extension::TooLate => "too_late",
            Extension::Lost => "lost",
        };
        counter!(RENEWALS, "outcome" => outcome).increment(1);
    }

    /// A waiter has looked at the line.
    pub(crate) fn ahead(waiters: impl FnOnce() -> Option<u64>) {
        if let Some(waiters) = waiters() {
            histogram!(QUEUE_AHEAD).record(waiters as f64);
        }
    }

    /// Since when a lock is held.
    pub(crate) struct Hold(Instant);

    impl Hold {
        /// From now on.
        pub(crate) fn begin() -> Self {
            gauge!(HELD).increment(1.0);
            Self(Instant::now())
        }

        /// It has ended; to be called once.
        pub(crate) fn end(&self, cause: LossCause) {
            gauge!(HELD).decrement(1.0);
            histogram!(HOLD_SECONDS, "end" => cause.as_str()).record(self.0.elapsed());
            if cause != LossCause::Released {
                counter!(LOST, "cause" => cause.as_str()).increment(1);
            }
        }
    }

    /// One message to one master, on its way.
    pub(crate) struct Message {
        node: SharedString,
        sent: Instant,
    }

    impl Message {
        /// Sent now.
        pub(crate) fn to(node: &NodeName) -> Self {
            Self {
                node: SharedString::from_shared(node.shared()),
                sent: Instant::now(),
            }
        }

        /// Answered, or reported as a fault.
        pub(crate) fn answered(&self, phase: Phase, answer: Result<&Answer, &Fault>) {
            match answer {
                Ok(_) => self.count(phase, "ok", true),
                Err(fault) => {
                    let said = !matches!(fault, Fault::Timeout(_) | Fault::Stalled);
                    self.count(phase, fault.kind(), said);
                }
            }
        }

        /// Answered after its timeout had been reported.
        pub(crate) fn late(&self, phase: Phase) {
            self.count(phase, "late", true);
        }

        fn count(&self, phase: Phase, outcome: &'static str, said: bool) {
            let (node, phase) = (self.node.clone(), phase.as_str());
            if said {
                histogram!(REPLY_SECONDS, "node" => node.clone(), "phase" => phase)
                    .record(self.sent.elapsed());
            }
            counter!(REPLIES, "node" => node, "phase" => phase, "outcome" => outcome).increment(1);
        }
    }
}

#[cfg(not(feature = "metrics"))]
#[allow(clippy::unused_self, reason = "the same calls as with the feature")]
mod disabled {
    use std::time::Duration;

    use crate::coordinator::Failure;
    use crate::held::LossCause;
    use crate::node::{Answer, Fault, NodeName, Phase};
    use crate::protocol::lease::Extension;

    pub(crate) fn acquired(_: Option<Failure>, _: impl FnOnce() -> Duration) {}
    pub(crate) fn round(_: Option<Failure>) {}
    pub(crate) fn confirmation() {}
    pub(crate) fn renewal(_: Extension, _: Duration) {}
    pub(crate) fn ahead(_: impl FnOnce() -> Option<u64>) {}

    pub(crate) struct Hold;

    impl Hold {
        pub(crate) fn begin() -> Self {
            Self
        }

        pub(crate) fn end(&self, _: LossCause) {}
    }

    pub(crate) struct Message;

    impl Message {
        pub(crate) fn to(_: &NodeName) -> Self {
            Self
        }

        pub(crate) fn answered(&self, _: Phase, _: Result<&Answer, &Fault>) {}
        pub(crate) fn late(&self, _: Phase) {}
    }
}
