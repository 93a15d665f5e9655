//! The goals of the benchmarks: bounds for measured values, and the check whether a value meets its bound.

use std::fmt;

use quorate_testbed::measure::number;

/// Prints one goal, the measured value, and whether the goal is met.
pub(crate) fn goal(what: &str, value: f64, at: Bound) {
    let verdict = if at.is_met_by(value) { "met" } else { "MISSED" };
    println!("goal: {what}: {at}; measured {}: {verdict}", number(value));
}

/// The bound that a measured value must meet.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    /// The value must be at most this bound.
    Most(f64),
    /// The value must be at least this bound.
    Least(f64),
}

impl Bound {
    /// Whether the value meets the goal. NaN does not meet any goal.
    pub(crate) fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::Most(bound) => value <= bound,
            Self::Least(bound) => value >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Most(bound) => write!(f, "at most {bound}"),
            Self::Least(bound) => write!(f, "at least {bound}"),
        }
    }
}

/// Divides each cost by the smallest earlier cost in the series, and returns the largest ratio. For the costs 100, 10
/// and 15 it is 1.5. NaN if there are fewer than two costs.
pub(crate) fn climb(costs: impl IntoIterator<Item = f64>) -> f64 {
    let (mut least, mut climb) = (f64::NAN, f64::NAN);
    for cost in costs {
        climb = climb.max(cost / least);
        least = least.min(cost);
    }
    climb
}

#[test]
fn each_cost_is_divided_by_the_smallest_earlier_cost() {
    assert!((climb([100.0, 10.0, 15.0, 12.0]) - 1.5).abs() < 1e-9);
    assert!((climb([4.0, 2.0, 1.0]) - 0.5).abs() < 1e-9);
    assert!(climb([4.0]).is_nan());
}
