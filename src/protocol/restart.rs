//! The restart guard (protocol, section 5): until when the votes of a master do not count.

use std::time::Duration;

use super::instant::Instant;
use super::mark::RESTORED;

/// Until when a master that has been up for `uptime` whole seconds may have forgotten a lock; none
/// when every lock that it can have forgotten is over.
///
/// Counted from the answer and not from the question: the master read its uptime after it was asked,
/// and a slow handshake may take longer than what a ttl allows for drift. Both ends of the uptime are
/// cut to whole seconds, so it can be one too high.
pub(crate) fn quarantined_until(
    answered: Instant,
    uptime: u64,
    max_ttl: Duration,
) -> Option<Instant> {
    let up = Duration::from_secs(uptime.saturating_sub(1));
    let left = max_ttl.saturating_sub(up);
    (!left.is_zero()).then(|| answered + left)
}

/// For how long the votes of a master do not count whose mark has `left_ms` milliseconds to live, as `PTTL` says: a mark
/// that was lost was restored with the lifetime [`RESTORED`], and every lock that the master can have forgotten, or that
/// another server granted in its place, is over `max_ttl` after that. A negative number is a mark that was never lost.
pub(crate) fn guarded_for(left_ms: i64, max_ttl: Duration) -> Duration {
    let Ok(left) = u64::try_from(left_ms) else {
        return Duration::ZERO;
    };
    // Both ends of the age are cut to whole milliseconds.
    let age = RESTORED.saturating_sub(Duration::from_millis(left.saturating_add(1)));
    max_ttl.saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_mark_guards_its_master_for_the_longest_ttl() {
        let max_ttl = Duration::from_secs(30);
        let lifetime = i64::try_from(RESTORED.as_millis()).expect("a number");
        for (left, guarded) in [
            (-1, 0),
            (-2, 0),
            (lifetime, 30_000),
            (lifetime - 1, 30_000),
            (lifetime - 10_001, 20_000),
            (lifetime - 30_001, 0),
            (5, 0),
            // The clock of the master was set back.
            (i64::MAX, 30_000),
        ] {
            let guarded = Duration::from_millis(guarded);
            assert_eq!(guarded_for(left, max_ttl), guarded, "{left} ms left");
        }
    }

    #[test]
    fn a_master_votes_once_all_that_it_can_have_forgotten_is_over() {
        let answered = Instant::from_nanos(7_000_000_000);
        let max_ttl = Duration::from_secs(30);
        for (uptime, left) in [
            (0, Some(30)),
            // It may have started a moment ago: 1 is what is left of 0.999 and 2.001.
            (1, Some(30)),
            (2, Some(29)),
            (30, Some(1)),
            (31, None),
            (u64::MAX, None),
        ] {
            let until = quarantined_until(answered, uptime, max_ttl);
            let left = left.map(|secs| answered + Duration::from_secs(secs));
            assert_eq!(until, left, "up for {uptime} s");
        }
    }
}
