//! The pauses between two attempts of an acquire: an iterator of delays with seeded jitter.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The pauses between the attempts of one acquire. A waiter pauses in the following cases:
///
/// - The waiter is unordered ([`Order::Unordered`](crate::Order::Unordered)).
/// - No majority of the masters answers.
/// - The waiter is the first in the queue, and the lock's holder has no entry in the queue. When such a holder releases
///   the lock, the waiter might not be notified.
///
/// The pauses grow from `first` by `factor` up to `longest`. Each pause is then shortened at random, by at most half,
/// so two clients that collided once are unlikely to collide again.
///
/// Defaults: `first` 10 ms, `factor` 1.6, `longest` 250 ms. Lower `first` and `longest` for locks that are held for a
/// few milliseconds. Raise them if many clients wait for a long time for a few locks.
///
/// ```
/// use std::time::Duration;
///
/// let retry = quorate::Retry::new(Duration::from_millis(10), Duration::from_millis(80)).seed(7);
/// let delays: Vec<Duration> = retry.delays(0).take(6).collect();
/// assert_eq!(delays, retry.delays(0).take(6).collect::<Vec<_>>(), "the same seed must give the same delays");
/// assert!(delays.iter().all(|delay| *delay <= Duration::from_millis(80)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    factor: f64,
    seed: Option<u64>,
}

impl Default for Retry {
    fn default() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_millis(250))
    }
}

impl Retry {
    /// Creates pauses that grow from `first` to `longest`, by a factor of 1.6. If `longest` is smaller than `first`,
    /// `first` is used for both.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest: longest.max(first),
            factor: 1.6,
            seed: None,
        }
    }

    /// Sets the factor by which each pause is longer than the previous one. Default: 1.6. NaN, infinity and values
    /// below 1 are replaced by 1.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = if factor.is_finite() {
            factor.max(1.0)
        } else {
            1.0
        };
        self
    }

    /// Seeds the jitter, for tests that must be repeatable. By default each acquire has its own random seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The pauses of one waiter, as an iterator without end. `fallback` seeds the jitter if no seed was set.
    pub fn delays(&self, fallback: u64) -> impl Iterator<Item = Duration> + Send + use<> {
        let mut rng = StdRng::seed_from_u64(self.seed.unwrap_or(fallback));
        let (mut step, longest, factor) = (self.first, self.longest, self.factor);
        std::iter::from_fn(move || {
            let delay = scaled(step, rng.random_range(0.5..=1.0));
            step = scaled(step, factor).min(longest);
            Some(delay)
        })
    }
}

/// The product of `step` and `factor`, or `Duration::MAX` if it overflows. `mul_f64` would panic on an overflow.
fn scaled(step: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(step.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_DELAY: Duration = Duration::from_millis(10);
    const LONGEST_DELAY: Duration = Duration::from_millis(80);

    fn delays(factor: f64) -> Vec<Duration> {
        let retry = Retry::new(FIRST_DELAY, LONGEST_DELAY)
            .factor(factor)
            .seed(7);
        retry.delays(0).take(50).collect()
    }

    #[test]
    fn retry_delays_grow_by_the_factor_up_to_the_maximum() {
        let steps = [10.0, 20.0, 40.0, 80.0, 80.0];
        for (delay, step) in delays(2.0).iter().zip(steps) {
            let whole = Duration::from_secs_f64(step / 1000.0);
            assert!(
                *delay >= whole / 2 && *delay <= whole,
                "the delay {delay:?} must be from half of {whole:?} to {whole:?}"
            );
        }
        assert!(delays(2.0).iter().all(|delay| *delay <= LONGEST_DELAY));
        let swapped = Retry::new(LONGEST_DELAY, FIRST_DELAY);
        assert_eq!(
            (swapped.first, swapped.longest),
            (LONGEST_DELAY, LONGEST_DELAY)
        );
    }

    #[test]
    fn seed_of_the_settings_takes_precedence_over_the_seed_of_the_acquire() {
        let delays = |retry: &Retry, fallback| -> Vec<Duration> {
            retry.delays(fallback).take(10).collect()
        };
        let unseeded = Retry::new(FIRST_DELAY, LONGEST_DELAY);
        assert_ne!(delays(&unseeded, 1), delays(&unseeded, 2));
        let seeded = unseeded.clone().seed(1);
        assert_eq!(delays(&seeded, 2), delays(&unseeded, 1));
    }

    #[test]
    fn retry_factor_below_one_or_not_finite_keeps_delays_constant() {
        for factor in [0.1, -3.0, f64::NAN, f64::INFINITY] {
            let even = |delay: &Duration| *delay >= FIRST_DELAY / 2 && *delay <= FIRST_DELAY;
            assert!(delays(factor).iter().all(even), "{factor}");
        }
    }
}
