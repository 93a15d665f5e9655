//! The restart guard: how long clients ignore the votes of a restarted master, because the master may have forgotten
//! locks (docs/protocol.md, "Restart guard").

use std::time::Duration;

use super::instant::Instant;

/// The time until which clients ignore the votes of a master; `None` if every lock that it may have forgotten has
/// expired.
///
/// `uptime` is the master's uptime in whole seconds, reported at the time `answered_at`. It can be one second too
/// large: the server subtracts two times that are rounded down.
pub(crate) fn quarantined_until(
    answered_at: Instant,
    uptime: u64,
    max_ttl: Duration,
) -> Option<Instant> {
    let uptime_at_least = Duration::from_secs(uptime.saturating_sub(1));
    let remaining = max_ttl.saturating_sub(uptime_at_least);
    (!remaining.is_zero()).then(|| answered_at + remaining)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarantine_of_a_restarted_master_lasts_for_max_ttl_after_its_start() {
        let answered_at = Instant::from_nanos(7_000_000_000);
        let max_ttl = Duration::from_secs(30);
        for (uptime, remaining) in [
            (0, Some(30)),
            // The server may have started a moment ago: any uptime from just above 0 s to below 2 s can be reported as
            // 1 s.
            (1, Some(30)),
            (2, Some(29)),
            (30, Some(1)),
            (31, None),
            (u64::MAX, None),
        ] {
            let until = quarantined_until(answered_at, uptime, max_ttl);
            let remaining = remaining.map(|secs| answered_at + Duration::from_secs(secs));
            assert_eq!(until, remaining, "up for {uptime} s");
        }
    }
}
