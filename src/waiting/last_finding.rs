//! The last finding of one waiter: the reason why the lock is not available, as the waiter's last attempt has shown.
//! Waiters behind this waiter in the local queue may use the finding.

use std::sync::Arc;

use crate::protocol::finding::Finding;
use crate::rounds::acquire::AcquireRound;

/// Why a lock is not available, according to the last conclusive round of requests.
#[derive(Clone)]
pub(crate) struct LastFinding {
    pub(crate) finding: Finding,
    /// The round of requests that led to the finding; `None` if the lock is held in this process.
    pub(crate) round: Option<Arc<AcquireRound>>,
    /// Whether the holder that the masters named in `round` also blocks the waiter that uses this finding. False if the
    /// round was for several resources, because the resource that this waiter wants may be free.
    pub(crate) names_holder: bool,
}

impl LastFinding {
    /// The reason that waiters get while a task of this process holds the lock, or was the last to hold it.
    pub(super) const HERE: Self = Self {
        finding: Finding::Held,
        round: None,
        names_holder: false,
    };

    /// Replaces `last_finding` by the finding of a later round of requests, if [`Finding::replaces`] allows this.
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
    fn less_certain_finding_does_not_replace_an_earlier_finding() {
        let answers = AcquireAnswers::open(Quorum::of(3), Instant::from_nanos(1));
        let round = FanOut::new(Arc::new(Tokio::default()), answers);
        let mut last_finding = None;
        for (said, told) in [
            (None, None),
            (Some(Finding::Held), Some(Finding::Held)),
            (Some(Finding::Split), Some(Finding::Held)),
            (None, Some(Finding::Held)),
            (Some(Finding::Outage), Some(Finding::Outage)),
        ] {
            LastFinding::add(&mut last_finding, said, &round);
            assert_eq!(
                last_finding
                    .as_ref()
                    .map(|last_finding| last_finding.finding),
                told,
                "{said:?}"
            );
        }
    }
}
