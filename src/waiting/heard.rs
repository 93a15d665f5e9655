//! What one waiter leaves to those behind it.

use std::sync::Arc;

use crate::protocol::finding::Finding;
use crate::rounds::acquire::AcquireRound;
use crate::rounds::wanted::Wanted;

/// What is known of why a lock is not to be had: by the last round that proved something.
#[derive(Clone)]
pub(crate) struct Heard {
    pub(crate) finding: Finding,
    /// No round where this process itself was in the way.
    pub(crate) round: Option<Arc<AcquireRound>>,
    /// Whether the holder that the round names stands in our way: not where another waiter asked for several resources,
    /// of which ours may be free.
    pub(crate) names_holder: bool,
}

impl Heard {
    /// That somebody in this process holds it, or did so last.
    pub(super) const HERE: Self = Self {
        finding: Finding::Held,
        round: None,
        names_holder: false,
    };

    /// The same for those behind a waiter for these keys.
    pub(crate) fn left_by(self, wanted: &Wanted) -> Self {
        let names_holder = self.names_holder && wanted.keys().count() == 1;
        Self {
            names_holder,
            ..self
        }
    }

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
