//! What one waiter leaves to those behind it.

use std::sync::Arc;

use crate::protocol::finding::Finding;
use crate::rounds::acquire::AcquireRound;

/// What is known of why a lock is not to be had: by the last round that proved something.
#[derive(Clone)]
pub(crate) struct Heard {
    pub(crate) finding: Finding,
    /// No round where this process itself was in the way.
    pub(crate) round: Option<Arc<AcquireRound>>,
}

impl Heard {
    /// That somebody in this process holds it, or did so last.
    pub(super) const HERE: Self = Self {
        finding: Finding::Held,
        round: None,
    };

    /// Adds what another round proved.
    pub(crate) fn add(
        heard: &mut Option<Self>,
        finding: Option<Finding>,
        round: &Arc<AcquireRound>,
    ) {
        let before = heard.as_ref().map(|heard| heard.finding);
        if let Some(finding) = finding.filter(|finding| finding.replaces(before)) {
            *heard = Some(Self {
                finding,
                round: Some(round.clone()),
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
    fn what_proves_less_than_what_was_heard_before_is_not_told() {
        let answers = AcquireAnswers::open(Quorum::of(3), Instant::from_nanos(1));
        let round = FanOut::new(Arc::new(Tokio::default()), answers);
        let mut heard = None;
        for (said, told) in [
            (None, None),
            (Some(Finding::Held), Some(Finding::Held)),
            (Some(Finding::Split), Some(Finding::Held)),
            (None, Some(Finding::Held)),
            (Some(Finding::Outage), Some(Finding::Outage)),
        ] {
            Heard::add(&mut heard, said, &round);
            assert_eq!(heard.as_ref().map(|heard| heard.finding), told, "{said:?}");
        }
    }
}
