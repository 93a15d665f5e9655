//! A small random number generator with a fixed algorithm: a seed gives the same numbers on every machine.
//!
//! A printed seed must play the same run again, even after an update of a dependency. The algorithm is SplitMix64: one
//! addition and three mixing steps for each number.

/// A stream of random numbers from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Begins the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Begins the random stream of one part of a run. The number `part` identifies the part.
    ///
    /// The streams are independent: more draws in one part do not change the draws in other parts.
    pub fn stream(seed: u64, part: u64) -> Self {
        let mut rng = Self(seed ^ part.wrapping_mul(0xA076_1D64_78BD_642F));
        rng.draw();
        Self(rng.draw())
    }

    /// Draws the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number from 0 to `bound - 1`; zero for a bound of zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Draws a number from `-limit` to `limit`, both included.
    pub fn around(&mut self, limit: i64) -> i64 {
        self.below(2 * limit.unsigned_abs() + 1) as i64 - limit
    }

    /// Returns true with a probability of `ppm` parts per million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Draws one of the elements of `elements`.
    pub fn pick<T: Copy>(&mut self, elements: &[T]) -> T {
        elements[self.below(elements.len() as u64) as usize]
    }
}
