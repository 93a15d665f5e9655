//! Records why a waiter did not get the lock at its last attempt. Waiters behind it in the local queue share this
//! record.

use std::sync::Arc;

use crate::protocol::finding::Finding;
use crate::rounds::acquire::AcquireRound;

/// Why a lock is not available, according to the last round of requests that showed a reason.
#[derive(Clone)]
pub(crate) struct LastFinding {
    pub(crate) finding: Finding,
    /// The round of requests that led to the finding; `None` if no request was sent, because a task of this process
    /// held the lock.
    pub(crate) round: Option<Arc<AcquireRound>>,
    /// Whether the holder named in `round` blocks this waiter. False if the finding was copied from another waiter that
    /// needs several resources: the holder may hold a resource that this waiter does not need.
    pub(crate) names_holder: bool,
}

impl LastFinding {
    /// The finding while a task of this process holds the lock. After its release, the next waiter has a copy of this
    /// finding until its own first attempt ends.
    pub(super) const HELD_HERE: Self = Self {
        finding: Finding::Held,
        round: None,
        names_holder: false,
    };

    /// Records the finding of a later round of requests in `last_finding`, if [`Finding::replaces`] allows this.
    pub(crate) fn add(
        last_finding: &mut Option<Self>,
        finding: Option<Finding>,
        round: &Arc<AcquireRound>,
    ) {
        let before = last_finding
            .as_ref()
            .map(|last_finding| last_finding.finding);
        if let Some(finding) = finding.filter(|finding| finding.replaces(before)) {
            *last_finding = Some(Self {
                finding,
                round: Some(round.clone()),
                names_holder: true,
            });
        }
    }
}

#[cfg(all(test, not(quorate_loom)))]
mod tests {
    use super::*;
    use crate::protocol::instant::Instant;
    use crate::protocol::quorum::Quorum;
    use crate::rounds::acquire::AcquireAnswers;
    use crate::rounds::fan_out::FanOut;
    use crate::runtime::Tokio;

    #[test]
    fn finding_is_kept_after_a_round_with_a_split_vote_or_without_a_finding() {
        let answers = AcquireAnswers::open(Quorum::new(3), Instant::from_nanos(1));
        let round = FanOut::new(Arc::new(Tokio::default()), answers);
        let mut last_finding = None;
        for (finding, expected) in [
            (None, None),
            (Some(Finding::Held), Some(Finding::Held)),
            (Some(Finding::Split), Some(Finding::Held)),
            (None, Some(Finding::Held)),
            (Some(Finding::Outage), Some(Finding::Outage)),
        ] {
            LastFinding::add(&mut last_finding, finding, &round);
            assert_eq!(
                last_finding
                    .as_ref()
                    .map(|last_finding| last_finding.finding),
                expected,
                "{finding:?}"
            );
        }
    }
}
