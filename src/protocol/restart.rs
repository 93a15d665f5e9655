//! The restart guard: how long clients ignore the votes of a restarted master, because the master may have forgotten
//! locks (docs/protocol.md, "Restart guard").

use std::time::Duration;

use super::instant::Instant;
use super::marker::RESTORED;

/// The time until which clients ignore the votes of a master; `None` if every lock that it may have forgotten has
/// expired.
///
/// `uptime` is the master's uptime in whole seconds, reported at the time `answered`. It can be one second too large:
/// the server subtracts two times that are rounded down.
pub(crate) fn quarantined_until(
    answered: Instant,
    uptime: u64,
    max_ttl: Duration,
) -> Option<Instant> {
    let up = Duration::from_secs(uptime.saturating_sub(1));
    let left = max_ttl.saturating_sub(up);
    (!left.is_zero()).then(|| answered + left)
}

/// How long clients must still ignore the votes of a master. `left_ms` is the remaining expiry (`PTTL`) of its
/// generation marker, in milliseconds. If the marker has no expiry, `left_ms` is negative and the result is zero: the
/// marker was never lost, or a client restored it after `max_ttl` had passed.
///
/// Within `max_ttl` after the loss, a client restores a lost marker with the expiry [`RESTORED`]. The master's votes
/// count again `max_ttl` after the client restored the marker. By then, every lock that the master may have forgotten
/// has expired.
pub(crate) fn guarded_for(left_ms: i64, max_ttl: Duration) -> Duration {
    let Ok(left) = u64::try_from(left_ms) else {
        return Duration::ZERO;
    };
    // `left` may be rounded down by 1 ms. Assume 1 ms more, so that the marker's age is not overestimated.
    let age = RESTORED.saturating_sub(Duration::from_millis(left.saturating_add(1)));
    max_ttl.saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_with_a_restored_generation_marker_does_not_vote_until_max_ttl_has_passed() {
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
            // The server's clock was set back, so the remaining expiry is impossibly large.
            (i64::MAX, 30_000),
        ] {
            let guarded = Duration::from_millis(guarded);
            assert_eq!(guarded_for(left, max_ttl), guarded, "{left} ms left");
        }
    }

    #[test]
    fn quarantine_of_a_restarted_master_lasts_for_max_ttl_after_its_start() {
        let answered = Instant::from_nanos(7_000_000_000);
        let max_ttl = Duration::from_secs(30);
        for (uptime, left) in [
            (0, Some(30)),
            // The server may have started a moment ago: any uptime from just above 0 s to below 2 s can be reported as
            // 1 s.
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
