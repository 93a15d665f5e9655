//! The goals of the benchmarks: bounds for measured values, and the check whether a value meets its bound.

use std::fmt;

use quorate_testbed::measure::number;

/// Prints one goal, the measured value, and whether the goal is met.
pub(crate) fn print_goal(description: &str, value: f64, bound: Bound) {
    let verdict = if bound.is_met_by(value) {
        "met"
    } else {
        "MISSED"
    };
    println!(
        "goal: {description}: {bound}; measured {}: {verdict}",
        number(value)
    );
}

/// The bound that a measured value must meet.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    /// The value must be at most this bound.
    AtMost(f64),
    /// The value must be at least this bound.
    AtLeast(f64),
}

impl Bound {
    /// Whether the value meets the goal. NaN does not meet any goal.
    pub(crate) fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
        }
    }
}

/// Divides each cost by the smallest earlier cost in the series, and returns the largest ratio. For the costs 100, 10
/// and 15 it is 1.5. NaN if there are fewer than two costs.
pub(crate) fn largest_growth(costs: impl IntoIterator<Item = f64>) -> f64 {
    let (mut smallest, mut growth) = (f64::NAN, f64::NAN);
    for cost in costs {
        growth = growth.max(cost / smallest);
        smallest = smallest.min(cost);
    }
    growth
}

#[test]
fn each_cost_is_divided_by_the_smallest_earlier_cost() {
    assert!((largest_growth([100.0, 10.0, 15.0, 12.0]) - 1.5).abs() < 1e-9);
    assert!((largest_growth([4.0, 2.0, 1.0]) - 0.5).abs() < 1e-9);
    assert!(largest_growth([4.0]).is_nan());
}
