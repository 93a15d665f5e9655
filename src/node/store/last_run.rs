//! The last run of a server that this process saw: for how long clients have watched it, and how far its history was.
//!
//! A store uses it if no monotonic clock of its server can be read. The age of a run is then what clients have counted
//! on their own monotonic clocks, and the server keeps the largest age next to the id of the run:
//!
//! - A client that has watched a run for some time writes this age to the server.
//! - A client that meets the run for the first time begins to count at the age that the server shows.
//!
//! An age that nobody counted, for example while no client ran, is lost: the guard then waits longer than necessary.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::protocol::instant::Instant;

/// An age above this limit (100 years) is not credible and counts as zero.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// An age below this limit (10 min) is written again when it has grown by a 32nd part of itself, but at least by 100 ms
/// and at most by 1 s. A command that tries once stays connected for a 32nd part of `max_ttl`, but at most for about
/// 1 s. So each such process adds to the age while the votes of the server do not count.
const YOUNG: Duration = Duration::from_secs(600);
/// A larger age is written again when it has grown by a tenth. So a new process believes at least 10/11 of the true age.
const OLD_GROWTH: u32 = 10;

/// The last run of one server that this process saw.
#[derive(Debug, Default)]
pub struct LastRun(Mutex<Option<Seen>>);

#[derive(Debug)]
struct Seen {
    run: String,
    at: Instant,
    /// The age of the run at the time `at`.
    base: Duration,
    /// The largest age that the server is known to have.
    written: Duration,
    /// The highest position in the server's history that this process has seen in this run.
    position: u64,
}

impl Seen {
    fn age(&self, now: Instant) -> Duration {
        self.base + now.saturating_since(self.at)
    }
}

/// The highest position in the history of a run that a process has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPosition {
    run: String,
    position: u64,
}

impl SeenPosition {
    /// Whether a server that shows this run and this position was set back to an earlier state, for example to a
    /// snapshot of its machine. The position must have been shown after this `SeenPosition` was read.
    pub fn is_after(&self, run: &str, position: u64) -> bool {
        self.run == run && position < self.position
    }
}

impl LastRun {
    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest position that this process has seen in the last run; `None` if it has seen no run. Read it before the
    /// server is asked for its position: another session may note a higher position meanwhile.
    pub fn position(&self) -> Option<SeenPosition> {
        let seen = self.seen();
        seen.as_ref().map(|seen| SeenPosition {
            run: seen.run.clone(),
            position: seen.position,
        })
    }

    /// Whether no session of this process has met another run since it met `run`.
    pub fn is_current(&self, run: &str) -> bool {
        self.seen().as_ref().is_none_or(|seen| seen.run == run)
    }

    /// Notes that the server shows the run `run`, the age `aged` of this run, and `position` in its history. `None` if
    /// the position cannot be read. Returns the age of the run at `now`.
    pub fn meet(&self, now: Instant, run: &str, aged: Duration, position: Option<u64>) -> Duration {
        let aged = Some(aged)
            .filter(|aged| *aged < LONGEST)
            .unwrap_or_default();
        let mut seen = self.seen();
        let known = seen.as_ref().filter(|seen| seen.run == run);
        let age = known.map_or(Duration::ZERO, |seen| seen.age(now)).max(aged);
        let written = known.map_or(Duration::ZERO, |seen| seen.written).max(aged);
        let known_position = known.map_or(0, |seen| seen.position);
        *seen = Some(Seen {
            run: run.to_owned(),
            at: now,
            base: age,
            written,
            position: known_position.max(position.unwrap_or(0)),
        });
        age
    }

    /// The age to write to the server for the run `run`; `None` if the server shows nearly this age.
    pub fn due(&self, now: Instant, run: &str) -> Option<Duration> {
        let mut seen = self.seen();
        let seen = seen.as_mut().filter(|seen| seen.run == run)?;
        let age = seen.age(now);
        if age < seen.written + growth(seen.written) {
            return None;
        }
        seen.written = age;
        Some(age)
    }
}

/// How much an age must have grown before it is written again.
fn growth(written: Duration) -> Duration {
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(1));
    if written < YOUNG {
        (written / 32).clamp(least, most)
    } else {
        written / OLD_GROWTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Instant = Instant::from_nanos(7_000_000_000);

    #[test]
    fn age_of_a_run_begins_at_the_age_that_the_server_shows_and_grows() {
        let last = LastRun::default();
        let meet = |after: u32, run: &str, aged: Duration| {
            last.meet(START + after * SECOND, run, aged, None)
        };
        assert!(last.is_current("a"), "no session has begun");
        assert_eq!(meet(0, "a", Duration::ZERO), Duration::ZERO);
        assert!(last.is_current("a") && !last.is_current("b"));
        assert_eq!(meet(5, "a", Duration::ZERO), 5 * SECOND);
        let later = meet(6, "a", 60 * SECOND);
        assert_eq!(later, 60 * SECOND, "another client has counted longer");
        assert_eq!(meet(7, "a", Duration::ZERO), 61 * SECOND);
        assert_eq!(meet(8, "b", Duration::ZERO), Duration::ZERO);
        assert_eq!(
            meet(9, "a", 3 * SECOND),
            3 * SECOND,
            "after the run b, only the age that the server shows counts"
        );
        assert_eq!(
            LastRun::default().meet(START, "a", LONGEST, None),
            Duration::ZERO
        );
    }

    #[test]
    fn age_is_written_when_it_has_grown_by_a_second_and_later_by_a_tenth() {
        let last = LastRun::default();
        let due = |after: Duration| last.due(START + after, "a");
        assert_eq!(due(Duration::ZERO), None);
        last.meet(START, "a", Duration::ZERO, None);
        assert_eq!(due(SECOND / 20), None);
        assert_eq!(last.due(START + SECOND, "b"), None);
        assert_eq!(due(SECOND), Some(SECOND));
        assert_eq!(due(SECOND), None);
        assert_eq!(due(100 * SECOND), Some(100 * SECOND));
        assert_eq!(due(100 * SECOND + SECOND / 2), None);
        assert_eq!(due(101 * SECOND), Some(101 * SECOND));
        assert_eq!(due(900 * SECOND), Some(900 * SECOND));
        assert_eq!(due(989 * SECOND), None);
        assert_eq!(due(990 * SECOND), Some(990 * SECOND));
        let times = (991..86_400).filter(|second| due(*second * SECOND).is_some());
        assert!(times.count() < 100);
    }

    #[test]
    fn age_that_the_server_already_shows_is_not_written_again() {
        let last = LastRun::default();
        last.meet(START, "a", 60 * SECOND, None);
        assert_eq!(last.due(START, "a"), None);
        for (written, growth_until_due) in [
            (Duration::ZERO, SECOND / 10),
            (16 * SECOND, SECOND / 2),
            (599 * SECOND, SECOND),
            (YOUNG, YOUNG / OLD_GROWTH),
        ] {
            assert_eq!(growth(written), growth_until_due, "{written:?}");
        }
    }

    #[test]
    fn unknown_position_is_the_lowest_one() {
        let last = LastRun::default();
        last.meet(START, "a", Duration::ZERO, None);
        let position = last.position().expect("a run was met");
        assert!(!position.is_after("a", 0));
    }

    #[test]
    fn lower_position_in_the_same_run_shows_that_the_server_was_set_back() {
        let last = LastRun::default();
        assert_eq!(last.position(), None);
        last.meet(START, "a", Duration::ZERO, Some(7));
        last.meet(START, "a", Duration::ZERO, Some(5));
        let position = last.position().expect("a run was met");
        assert!(position.is_after("a", 6));
        assert!(!position.is_after("a", 7) && !position.is_after("b", 6));
        last.meet(START, "b", Duration::ZERO, Some(2));
        let position = last.position().expect("a run was met");
        assert!(!position.is_after("b", 2) && position.is_after("b", 1));
    }
}
