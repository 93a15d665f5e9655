//! The notice that a held lock may be lost soon, because its validity has not been extended in time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::held::Held;
use crate::node::Phase;
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::protocol::lease::risk_threshold;
use crate::protocol::quorum::Quorum;
use crate::report::{NodeOutcome, NodeReport, OneLine};
use crate::rounds::coordinator::Coordinator;

/// A held lock whose validity ends soon. See [`LockGuard::at_risk`](crate::LockGuard::at_risk).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AtRisk {
    /// Why the validity was not extended in time.
    pub reason: RiskReason,
    /// The end of the validity. If nothing extends the validity before, the lock is lost at this time.
    pub valid_until: Instant,
    /// The time from the notice to [`valid_until`](Self::valid_until).
    pub remaining: Duration,
    /// The reply of each master to the last renewal or extension that failed. Empty unless
    /// [`reason`](Self::reason) is [`RiskReason::RenewalFailed`].
    pub reports: Vec<NodeReport>,
}

/// Why the validity of a held lock was not extended in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RiskReason {
    /// The last renewal or extension got no majority. The library tries again until the validity ends.
    RenewalFailed,
    /// A renewal is late: the masters have not answered it yet, or this process was too busy to send it.
    RenewalLate,
    /// The lock is not renewed, because it was requested with `renewal(false)`.
    NotRenewed,
    /// The lock ends at [`max_hold`](crate::RedlockBuilder::max_hold), and no renewal extends it beyond this time.
    MaxHold,
}

impl RiskReason {
    /// The reason as one word, for log fields and machine-readable output; stable across versions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RenewalFailed => "renewal_failed",
            Self::RenewalLate => "renewal_late",
            Self::NotRenewed => "not_renewed",
            Self::MaxHold => "max_hold",
        }
    }
}

impl AtRisk {
    /// The full text for operators: the text of this value and the reply of each master with its address.
    pub fn details(&self) -> String {
        let replies = OneLine(&self.reports).to_string();
        if replies.is_empty() {
            return self.to_string();
        }
        format!("{self} [{replies}]")
    }
}

impl fmt::Display for AtRisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remaining = Duration::from_millis(self.remaining.as_millis() as u64);
        let remaining = humantime::format_duration(remaining);
        let reason = match self.reason {
            RiskReason::RenewalFailed => "the last renewal got no majority, and is repeated",
            RiskReason::RenewalLate => "a renewal is late",
            RiskReason::NotRenewed => "the lock is not renewed",
            RiskReason::MaxHold => "the lock ends at max_hold",
        };
        write!(
            f,
            "the lock is lost in {remaining} unless it is extended: {reason}"
        )
    }
}

/// Watches a held lock for the notice that it may be lost soon. Made by
/// [`LockGuard::at_risk`](crate::LockGuard::at_risk), whose documentation says when the notice comes.
///
/// A watch does not borrow the guard, and does not keep the lock held. Several watches of one lock, also with different
/// margins, are independent of each other.
pub struct RiskWatch {
    held: Arc<Held>,
    coordinator: Arc<Coordinator>,
    margin: Duration,
    /// The end of the validity that the last notice reported. A notice with another end belongs to a new episode.
    reported_end: Option<Instant>,
}

impl RiskWatch {
    pub(super) fn new(held: Arc<Held>, coordinator: Arc<Coordinator>, margin: Duration) -> Self {
        Self {
            held,
            coordinator,
            margin,
            reported_end: None,
        }
    }

    /// Resolves when the lock is at risk, at most once per episode. If the lock is at risk already, resolves at once.
    ///
    /// An episode begins when no more than the margin is left. It ends when a renewal or an extension extends the
    /// validity. After that, the next episode gives another notice.
    ///
    /// # Errors
    ///
    /// The cause if the lock has ended: a lost lock is not at risk any more. If the process was paused beyond the end
    /// of the validity, the loss comes without a notice before it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing; call `next` again.
    pub async fn next(&mut self) -> Result<AtRisk, LossCause> {
        let runtime = self.coordinator.runtime.clone();
        if self.coordinator.process.is_not_current() {
            return Err(LossCause::Forked);
        }
        loop {
            // Register for the notification before the checks below. Otherwise, an extension between a check and the
            // wait would be missed.
            let validity_change = self.held.validity_change();
            futures::pin_mut!(validity_change);
            let now = runtime.now();
            let risk = risk_of(&self.held, &self.coordinator, self.margin, now)?;
            let next_check_at = match risk {
                Some(risk) if self.reported_end != Some(risk.valid_until) => {
                    self.reported_end = Some(risk.valid_until);
                    return Ok(risk);
                }
                Some(risk) => risk.valid_until,
                None => {
                    let remaining = self.held.valid_until().saturating_since(now);
                    let threshold = threshold_of(&self.held, &self.coordinator, self.margin);
                    now + remaining.saturating_sub(threshold)
                }
            };
            let timer = runtime.sleep_until(next_check_at);
            futures::future::select(validity_change, timer).await;
        }
    }
}

impl fmt::Debug for RiskWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RiskWatch")
            .field("margin", &self.margin)
            .finish_non_exhaustive()
    }
}

/// The notice if the lock is at risk at `now`; `None` if more than the margin is left.
///
/// # Errors
///
/// The cause if the lock has ended.
pub(super) fn risk_of(
    held: &Held,
    coordinator: &Coordinator,
    margin: Duration,
    now: Instant,
) -> Result<Option<AtRisk>, LossCause> {
    if let Some(cause) = held.end_cause(now) {
        return Err(cause);
    }
    let valid_until = held.valid_until();
    let remaining = valid_until.saturating_since(now);
    if remaining > threshold_of(held, coordinator, margin) {
        return Ok(None);
    }
    let (reason, reports) = reason_of(held, coordinator, valid_until);
    Ok(Some(AtRisk {
        reason,
        valid_until,
        remaining,
        reports,
    }))
}

/// How much validity is left when the lock begins to be at risk.
fn threshold_of(held: &Held, coordinator: &Coordinator, margin: Duration) -> Duration {
    if held.renews() {
        let node_timeout = coordinator.patience.answer;
        risk_threshold(margin, held.ttl(), coordinator.drift, node_timeout)
    } else {
        margin
    }
}

fn reason_of(
    held: &Held,
    coordinator: &Coordinator,
    valid_until: Instant,
) -> (RiskReason, Vec<NodeReport>) {
    if valid_until >= held.hold_end {
        return (RiskReason::MaxHold, Vec::new());
    }
    let reports = held.reports(coordinator.names());
    match reason_of_renewal(&reports, coordinator.quorum, held.renews()) {
        RiskReason::RenewalFailed => (RiskReason::RenewalFailed, reports),
        reason => (reason, Vec::new()),
    }
}

/// Why the last renewal or extension did not extend the validity in time. `reports` has the last reply of each master,
/// and `renews` is whether the library renews the lock.
fn reason_of_renewal(reports: &[NodeReport], quorum: Quorum, renews: bool) -> RiskReason {
    let numbered_reports = reports.iter().enumerate();
    let extending = numbered_reports.filter(|(_, report)| report.outcome == NodeOutcome::Yes);
    let has_majority = quorum.is_met_by(extending.map(|(node, _)| node).collect());
    let is_of_extension = reports.iter().all(|report| report.phase == Phase::Extend);
    if is_of_extension && !has_majority {
        RiskReason::RenewalFailed
    } else if renews {
        RiskReason::RenewalLate
    } else {
        RiskReason::NotRenewed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeName;

    #[test]
    fn renewal_that_a_majority_answered_or_that_was_not_sent_is_late() {
        use NodeOutcome::{Silent, Yes};
        let reason = |phase, outcomes: [NodeOutcome; 3], renews| {
            let report = |outcome| NodeReport {
                node: NodeName::new("m"),
                phase,
                outcome,
                latency: None,
                late: false,
            };
            reason_of_renewal(&outcomes.map(report), Quorum::new(3), renews)
        };
        for renews in [true, false] {
            let without_majority = reason(Phase::Extend, [Yes, Silent, Silent], renews);
            assert_eq!(without_majority, RiskReason::RenewalFailed);
        }
        let two = [Yes, Silent, Yes];
        assert_eq!(
            reason(Phase::Extend, two.clone(), true),
            RiskReason::RenewalLate
        );
        assert_eq!(reason(Phase::Extend, two, false), RiskReason::NotRenewed);
        // The last replies are those of the acquire, so no renewal was sent.
        let one = [Yes, Silent, Silent];
        assert_eq!(
            reason(Phase::Acquire, one.clone(), true),
            RiskReason::RenewalLate
        );
        assert_eq!(reason(Phase::Acquire, one, false), RiskReason::NotRenewed);
    }

    #[test]
    fn details_of_a_notice_show_the_replies_of_the_masters_if_there_are_any() {
        let mut notice = AtRisk {
            reason: RiskReason::NotRenewed,
            valid_until: Instant::from_nanos(0),
            remaining: Duration::from_secs(2),
            reports: Vec::new(),
        };
        assert_eq!(notice.details(), notice.to_string());
        notice.reports.push(NodeReport {
            node: NodeName::new("m"),
            phase: Phase::Extend,
            outcome: NodeOutcome::Silent,
            latency: None,
            late: false,
        });
        let reply_texts = OneLine(&notice.reports);
        let details = format!("{notice} [{reply_texts}]");
        assert_eq!(notice.details(), details);
    }
}
