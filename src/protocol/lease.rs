//! When a lease is renewed, when it ends, and what the votes of one extension mean.
//!
//! # Fractions of a TTL
//!
//! Each time that is a part of the TTL has a function in this file. For a TTL of 30 s, the life of a lock that was
//! acquired at 0 s and whose masters stop answering after the first renewal:
//!
//! ```text
//! 0 s          10 s                    20 s  22 s  24 s  ..                  39.7 s  40 s
//! |------------|-----------------------|-----|-----|-----..------------------|-------|
//! acquired     renewed                 fails, and is tried every 2 s         validity of the client ends,
//!                                                                            then the lock on the masters
//! ```
//!
//! | function | part | meaning |
//! |---|---|---|
//! | [`renew_at`] | 1/3 | time between two renewals, and between two requests of an observer ([`observe_interval`]) |
//! | [`retry_at`] | 1/15 | time until a renewal without a majority is tried again |
//! | [`late_threshold`] | 1/30 | a renewal that is overdue by more is late, and is no longer held back |
//! | [`early_window`] | 1/60 | a lock that is due within this time is renewed together with the others |
//! | [`risk_threshold`] | about 1/2 | with less validity left than this, a lock that is renewed can be at risk |
//! | [`default_heartbeat`] | 1/2 | time without a heartbeat after which the masters drop a waiter, unless one is configured; the waiter sends three in this time |
//! | [`default_node_timeout`] | 1/10 | time for the answer of a master, if 50 ms are longer |
//! | [`longest_node_timeout`] | 1/4 | longest time for the answer of a master: leaves room for both rounds of an acquire |
//!
//! The command has some of its own. For the end of the job (`cli/src/deadline.rs`): SIGTERM comes in the second half of
//! the TTL, and a twentieth of it, 200 ms at most, remains for SIGKILL. `cli/src/patience.rs` and `cli/src/watch.rs`
//! repeat the tenth and the third for calls that do not take a lock.

use std::time::Duration;

use super::instant::Instant;
use super::quorum::{Quorum, Tally, Verdict};
use super::validity::{Drift, valid_until};

/// When the next renewal is due; `started_at` is when the acquire or the last renewal was sent. After a third of the
/// ttl, two more renewals fit before the lease ends.
pub(crate) fn renew_at(started_at: Instant, ttl: Duration) -> Instant {
    started_at + ttl / 3
}

/// When to renew again after a renewal without a majority: a fifteenth of the ttl after `now`, or 5 ms if that is
/// longer.
pub(crate) fn retry_at(now: Instant, ttl: Duration) -> Instant {
    now + (ttl / 15).max(Duration::from_millis(5))
}

/// A renewal that is overdue by more than this is late.
pub(crate) fn late_threshold(ttl: Duration) -> Duration {
    ttl / 30
}

/// A renewal may be sent this much before it is due, together with other renewals.
pub(crate) fn early_window(ttl: Duration) -> Duration {
    ttl / 60
}

/// How much validity is left when a lock that is renewed begins to be at risk, for a holder that asks for `margin`.
///
/// At most three quarters of the validity that is left when the renewal is due. For the default drift, this is 49 % of
/// the ttl. Less if `node_timeout` is longer than the other quarter; at most a quarter of the ttl counts for it. So a
/// lock whose renewals are answered within `node_timeout` is never at risk, however large `margin` is.
pub(crate) fn risk_threshold(
    margin: Duration,
    ttl: Duration,
    drift: Drift,
    node_timeout: Duration,
) -> Duration {
    let left_when_due = ttl.saturating_sub(drift.of(ttl)).saturating_sub(ttl / 3);
    let counted_timeout = node_timeout.min(longest_node_timeout(ttl));
    let time_for_answer = counted_timeout.max(left_when_due / 4);
    margin.min(left_when_due.saturating_sub(time_for_answer))
}

/// The time between two requests of an observer of an election: 10 ms or more, however short the ttl is.
pub(crate) fn observe_interval(ttl: Duration) -> Duration {
    (ttl / 3).max(Duration::from_millis(10))
}

/// The default time after which the masters drop a waiter without a heartbeat. The waiter waits for `wait` at most, and
/// sends three heartbeats in this time. At least [`SHORTEST_HEARTBEAT`], however short `wait` is.
pub(crate) fn default_heartbeat(ttl: Duration, wait: Duration) -> Duration {
    (ttl / 2).min(wait).max(SHORTEST_HEARTBEAT)
}

/// The shortest time after which the masters drop a waiter without a heartbeat. With less, the masters would receive too
/// many heartbeats.
pub(crate) const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(30);

/// The default time for the answer of a master: `usual`, or a tenth of the ttl if that is shorter.
pub(crate) fn default_node_timeout(ttl: Duration, usual: Duration) -> Duration {
    usual.min(ttl / 10)
}

/// The longest time that a master may have for its answer: an acquire needs up to two answers, and half of the ttl must
/// be left.
pub(crate) fn longest_node_timeout(ttl: Duration) -> Duration {
    ttl / 4
}

/// The shortest ttl that allows masters this time for their answers: the reverse of [`longest_node_timeout`].
pub(crate) fn shortest_ttl(node_timeout: Duration) -> Duration {
    node_timeout.saturating_mul(4)
}

/// The answer of one master to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalVote {
    /// The lock is still held by this client, or was restored after its key was missing.
    Yes,
    /// The lock is held by another client, or was force-released.
    No,
    /// The master failed. This counts neither as a renewal nor as a loss.
    Unknown,
}

/// The result of an extension (docs/protocol.md, "Renewal").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// More answers are needed before the extension is decided.
    Pending,
    /// A majority extended the lock in time: valid until this instant.
    Renewed(Instant),
    /// A majority extended the lock, but only after the old validity had ended. Such an extension does not count.
    TooLate,
    /// A majority reports that this client does not hold the lock. The lock is lost immediately, even if its validity
    /// has not expired yet.
    Lost,
    /// The votes show neither an extension nor a loss. The lock stays valid until its old validity ends.
    Unknown,
}

/// The votes on one extension of one lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ballot {
    tally: Tally,
    settled: bool,
}

impl Ballot {
    pub(crate) fn new(quorum: Quorum) -> Self {
        Self {
            tally: Tally::new(quorum),
            settled: false,
        }
    }

    /// Call this when a majority of the masters answered that the client does not hold one of the lock's keys. Returns
    /// `Lost`, or `Pending` if this extension already has a result.
    pub(crate) fn settle_as_lost(&mut self) -> Extension {
        if std::mem::replace(&mut self.settled, true) {
            Extension::Pending
        } else {
            Extension::Lost
        }
    }

    /// Counts the vote of `node`, which arrived at `now`. `old_end` is the end of the previous validity. Once the
    /// result of the extension has been returned, all further calls return `Pending`.
    pub(crate) fn record(
        &mut self,
        node: usize,
        vote: RenewalVote,
        now: Instant,
        old_end: Instant,
        terms: Terms,
    ) -> Extension {
        match vote {
            RenewalVote::Yes => self.tally.add_yes(node),
            RenewalVote::No => self.tally.add_no(node),
            RenewalVote::Unknown => self.tally.add_fault(node),
        }
        if self.settled {
            return Extension::Pending;
        }
        let outcome = if self.tally.verdict() == Verdict::Won {
            let end = valid_until(terms.started_at, terms.ttl, terms.drift);
            // Count the extension only before the old validity ends. After that, another client may already hold the
            // lock.
            if now < old_end {
                Extension::Renewed(end.max(old_end))
            } else {
                Extension::TooLate
            }
        } else if self.tally.has_majority_refused() {
            Extension::Lost
        } else if self.tally.complete() {
            Extension::Unknown
        } else {
            Extension::Pending
        };
        self.settled = outcome != Extension::Pending;
        outcome
    }
}

/// The start, the ttl and the drift allowance of an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) started_at: Instant,
    pub(crate) ttl: Duration,
    pub(crate) drift: Drift,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    const TERMS: Terms = Terms {
        started_at: Instant::from_nanos(3_000_000_000),
        ttl: Duration::from_secs(10),
        drift: Drift {
            factor: 0.01,
            floor: Duration::from_millis(2),
        },
    };

    fn votes(votes: &[(RenewalVote, u64)]) -> Vec<Extension> {
        let mut ballot = Ballot::new(Quorum::new(3));
        votes
            .iter()
            .enumerate()
            .map(|(node, &(vote, ms))| ballot.record(node, vote, at_ms(ms), at_ms(9_898), TERMS))
            .collect()
    }

    #[test]
    fn renewal_and_retry_times_are_fixed_fractions_of_the_ttl() {
        for (ttl, due, retry) in [(9_000, 3_000, 600), (30_000, 10_000, 2_000), (30, 10, 5)] {
            let ttl = Duration::from_millis(ttl);
            assert_eq!(renew_at(at_ms(7), ttl), at_ms(7 + due), "{ttl:?}");
            assert_eq!(retry_at(at_ms(7), ttl), at_ms(7 + retry), "{ttl:?}");
        }
    }

    #[test]
    fn observer_of_an_election_asks_each_third_of_the_ttl_but_not_more_often_than_each_10_ms() {
        for (ttl_ms, interval_ms) in [(9_000, 3_000), (30, 10), (33, 11), (29, 10), (3, 10)] {
            let [ttl, interval] = [ttl_ms, interval_ms].map(Duration::from_millis);
            assert_eq!(observe_interval(ttl), interval);
        }
    }

    #[test]
    fn lock_is_not_at_risk_before_its_renewal_is_overdue() {
        let ms = Duration::from_millis;
        let threshold = |margin, drift| risk_threshold(margin, ms(9_000), drift, ms(900));
        assert_eq!(threshold(ms(0), Drift::default()), ms(0));
        assert_eq!(threshold(ms(1_234), Drift::default()), ms(1_234));
        // 9000 - 92 - 3000 are left when the renewal is due.
        assert_eq!(threshold(ms(9_000), Drift::default()), ms(4_431));
        let (factor, floor) = (0.9, ms(2));
        assert_eq!(threshold(ms(9_000), Drift { factor, floor }), ms(0));
        // The longest node timeout is 2250. A kind of master may have a longer timeout than a short ttl allows.
        for node_timeout in [ms(2_250), ms(9_000)] {
            let threshold = risk_threshold(ms(9_000), ms(9_000), Drift::default(), node_timeout);
            assert_eq!(threshold, ms(5_908 - 2_250), "{node_timeout:?}");
        }
    }

    #[test]
    fn extension_computes_the_validity_from_the_send_time_of_its_request() {
        let extensions = votes(&[
            (RenewalVote::Yes, 3_001),
            (RenewalVote::Yes, 3_002),
            (RenewalVote::No, 3_003),
        ]);
        assert_eq!(
            extensions,
            [
                Extension::Pending,
                Extension::Renewed(at_ms(12_898)),
                Extension::Pending
            ]
        );
    }

    #[test]
    fn extension_confirmed_only_after_the_old_validity_ended_is_too_late() {
        let extensions = votes(&[(RenewalVote::Yes, 3_001), (RenewalVote::Yes, 9_898)]);
        assert_eq!(extensions[1], Extension::TooLate);
    }

    #[test]
    fn extension_reports_a_loss_only_if_a_majority_no_longer_has_the_lock() {
        assert_eq!(
            votes(&[(RenewalVote::No, 4_000), (RenewalVote::No, 4_000)])[1],
            Extension::Lost
        );
        let extensions = votes(&[
            (RenewalVote::No, 4_000),
            (RenewalVote::Unknown, 4_000),
            (RenewalVote::Unknown, 4_000),
        ]);
        assert_eq!(
            extensions,
            [Extension::Pending, Extension::Pending, Extension::Unknown]
        );
    }

    #[test]
    fn joint_extension_needs_a_majority_of_each_set_of_masters() {
        use super::super::quorum::MasterSet;
        let last_outcome = |votes: &[(usize, RenewalVote)]| {
            let quorum = Quorum::joint(MasterSet::first(3), (3..6).collect());
            let mut ballot = Ballot::new(quorum);
            let record_vote = |(node, vote): &(usize, RenewalVote)| {
                ballot.record(*node, *vote, at_ms(3_001), at_ms(9_898), TERMS)
            };
            votes.iter().map(record_vote).last()
        };
        let confirming =
            |nodes: &[usize]| -> Vec<_> { nodes.iter().map(|n| (*n, RenewalVote::Yes)).collect() };
        assert_eq!(
            last_outcome(&confirming(&[0, 1, 2, 3])),
            Some(Extension::Pending)
        );
        assert_eq!(
            last_outcome(&confirming(&[0, 1, 3, 4])),
            Some(Extension::Renewed(at_ms(12_898)))
        );
        let mut lost_ballot = confirming(&[0, 1, 2]);
        lost_ballot.extend([(3, RenewalVote::No), (4, RenewalVote::No)]);
        assert_eq!(last_outcome(&lost_ballot), Some(Extension::Lost));
    }

    #[test]
    fn extension_never_shortens_the_validity() {
        let mut ballot = Ballot::new(Quorum::new(1));
        let terms = Terms {
            ttl: Duration::from_secs(1),
            ..TERMS
        };
        let extensions = ballot.record(0, RenewalVote::Yes, at_ms(3_001), at_ms(9_898), terms);
        assert_eq!(extensions, Extension::Renewed(at_ms(9_898)));
    }
}
