//! How long a holder may rely on its lock.

use std::time::Duration;

use super::instant::Instant;

/// The allowance for clocks that run at different speeds during a lease: a share of the ttl, plus a fixed part for
/// timer granularity.
///
/// Default: 1 % of the ttl plus 2 ms, as in the description of Redlock. Raise the share only for machines whose clocks
/// are known to be inaccurate.
///
/// ```
/// use std::time::Duration;
///
/// let drift = quorate::Drift::default();
/// assert_eq!(drift.of(Duration::from_secs(10)), Duration::from_millis(102));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// The part of the allowance that grows with the ttl, as a share of the ttl: at least 0 and below 1. Default: 0.01,
    /// which means 1 %.
    pub factor: f64,
    /// The fixed part of the allowance, independent of the ttl. Default: 2 ms.
    pub floor: Duration,
}

impl Default for Drift {
    fn default() -> Self {
        Self {
            factor: 0.01,
            floor: Duration::from_millis(2),
        }
    }
}

impl Drift {
    /// The clock drift allowance for a lease of `ttl`.
    pub fn of(self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.factor.clamp(0.0, 1.0))
            .saturating_add(self.floor)
    }
}

/// The end of a lease: `started_at + ttl - drift`. The caller must read `started_at` before it sends the first request,
/// because a master can start the ttl at any time after that.
pub(crate) fn valid_until(started_at: Instant, ttl: Duration, drift: Drift) -> Instant {
    started_at + ttl.saturating_sub(drift.of(ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_lasts_from_the_start_of_sending_for_the_ttl_minus_the_drift() {
        let started_at = Instant::from_nanos(1_000_000_000);
        let until = valid_until(started_at, Duration::from_secs(10), Drift::default());
        assert_eq!(
            until.saturating_since(started_at),
            Duration::from_millis(9_898)
        );
    }

    #[test]
    fn drift_is_at_most_the_ttl_and_the_fixed_part() {
        let (ttl, floor) = (Duration::from_secs(10), Duration::from_millis(2));
        for (factor, expected) in [
            (0.5, Duration::from_millis(5_002)),
            (1.0, ttl + floor),
            (1.5, ttl + floor),
            (-0.5, floor),
        ] {
            assert_eq!(Drift { factor, floor }.of(ttl), expected, "{factor}");
        }
    }

    #[test]
    fn ttl_below_the_drift_gives_no_validity() {
        let started_at = Instant::from_nanos(5);
        assert_eq!(
            valid_until(started_at, Duration::from_millis(1), Drift::default()),
            started_at
        );
    }
}
