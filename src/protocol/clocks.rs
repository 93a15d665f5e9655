//! Compares a time with the clocks of the masters (docs/protocol.md, "Periods and clocks").

use super::quorum::{MasterSet, Quorum};

/// One master's answer to the question for its clock. Times are in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterClock {
    Shows(u64),
    /// The master has no clock, or its clock shows an impossible time.
    Unknown,
}

/// The result of a comparison of a time with the masters' clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeVerdict {
    /// The time has come.
    Past,
    /// The time is at least this number of microseconds in the future.
    Future(u64),
    /// No majority says the same.
    Unclear,
}

/// Asks the masters' clocks whether `time` has come. The clocks are listed by the master's index; `None` for a master
/// that has not answered.
///
/// - A single clock decides nothing: it may be wrong. If fewer than a majority of the clocks are wrong, every majority
///   contains a right one.
/// - A master without a clock cannot say that a time is in the future, so it counts among those that say that the time
///   has come.
pub(crate) fn judge_time(quorum: Quorum, clocks: &[Option<MasterClock>], time: u64) -> TimeVerdict {
    let numbered_clocks = clocks.iter().enumerate();
    let known_clocks = numbered_clocks.filter_map(|(node, clock)| clock.map(|clock| (node, clock)));
    let (mut past_masters, mut future_clocks) = (MasterSet::default(), Vec::new());
    for (node, clock) in known_clocks {
        match clock {
            MasterClock::Shows(shown) if shown < time => future_clocks.push((shown, node)),
            MasterClock::Shows(_) | MasterClock::Unknown => past_masters.add(node),
        }
    }
    if quorum.is_met_by(past_masters) {
        return TimeVerdict::Past;
    }
    // The clocks from the slowest to the fastest: at the first majority, report the distance to its fastest clock.
    future_clocks.sort_unstable();
    let mut counted = MasterSet::default();
    for (shown, node) in future_clocks {
        counted.add(node);
        if quorum.is_met_by(counted) {
            return TimeVerdict::Future(time - shown);
        }
    }
    TimeVerdict::Unclear
}

#[cfg(test)]
mod tests {
    use MasterClock::{Shows, Unknown};

    use super::*;

    #[test]
    fn only_a_majority_of_the_clocks_decides_whether_a_time_has_come() {
        let (past, unclear) = (TimeVerdict::Past, TimeVerdict::Unclear);
        for (clocks, verdict) in [
            (&[Some(100), Some(100), Some(100)][..], past),
            (&[Some(99), Some(99), Some(100)], TimeVerdict::Future(1)),
            // One clock is wrong.
            (&[Some(9_000), Some(40), Some(50)], TimeVerdict::Future(50)),
            (&[Some(1), Some(100), Some(101)], past),
            // One clock is wrong, and one master does not answer: which clock is wrong is not known.
            (&[Some(9_000), Some(40), None], unclear),
            (&[Some(9_000), None, None], unclear),
            (&[Some(40), None, None], unclear),
            (&[None, None, None], unclear),
            (&[Some(40), None, Some(90)], TimeVerdict::Future(10)),
            (&[Some(9), Some(9), Some(100), Some(100)], unclear),
            (
                &[Some(u64::MAX), Some(0), Some(0)],
                TimeVerdict::Future(100),
            ),
        ] {
            let answers: Vec<_> = clocks.iter().map(|clock| clock.map(Shows)).collect();
            let quorum = Quorum::new(clocks.len());
            assert_eq!(judge_time(quorum, &answers, 100), verdict, "{clocks:?}");
        }
    }

    #[test]
    fn master_without_a_clock_does_not_contradict_a_time() {
        let three = Quorum::new(3);
        let none = Some(Unknown);
        assert_eq!(
            judge_time(three, &[none, none, None], 100),
            TimeVerdict::Past
        );
        let one_behind = [none, none, Some(Shows(1))];
        assert_eq!(judge_time(three, &one_behind, 100), TimeVerdict::Past);
        let two_behind = [none, Some(Shows(1)), Some(Shows(2))];
        assert_eq!(judge_time(three, &two_behind, 100), TimeVerdict::Future(98));
        assert_eq!(
            judge_time(three, &[none, Some(Shows(1)), None], 100),
            TimeVerdict::Unclear
        );
    }

    #[test]
    fn clocks_decide_only_with_a_majority_of_each_set_of_masters() {
        let joint = Quorum::joint(MasterSet::first(3), (3..6).collect());
        let clocks_showing = |shown: [u64; 6]| shown.map(|shown| Some(Shows(shown)));
        assert_eq!(
            judge_time(joint, &clocks_showing([100, 100, 1, 100, 100, 1]), 100),
            TimeVerdict::Past
        );
        assert_eq!(
            judge_time(joint, &clocks_showing([100, 100, 100, 100, 1, 1]), 100),
            TimeVerdict::Unclear
        );
        assert_eq!(
            judge_time(joint, &clocks_showing([2, 3, 100, 5, 4, 100]), 100),
            TimeVerdict::Future(95)
        );
    }
}
