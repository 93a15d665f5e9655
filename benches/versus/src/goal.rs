//! What is aimed at, and whether it was reached.

use quorate_testbed::measure::number;

/// One goal, what came of it, and whether that is good enough.
pub(crate) fn goal(what: &str, value: f64, at: Bound) {
    let (sign, bound, met) = match at {
        Bound::Most(bound) => ("at most", bound, value <= bound),
        Bound::Least(bound) => ("at least", bound, value >= bound),
    };
    let verdict = if met { "met" } else { "MISSED" };
    println!(
        "goal: {what}: {sign} {bound}; measured {}: {verdict}",
        number(value)
    );
}

/// How a goal is bounded.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    /// No more than this.
    Most(f64),
    /// No less than this.
    Least(f64),
}

/// The most by which a cost rises over the least before it: one that falls and then rises has risen.
pub(crate) fn climb(costs: impl IntoIterator<Item = f64>) -> f64 {
    let (mut least, mut climb) = (f64::NAN, f64::NAN);
    for cost in costs {
        climb = climb.max(cost / least);
        least = least.min(cost);
    }
    climb
}

#[test]
fn a_cost_that_falls_and_then_rises_has_risen() {
    assert!((climb([100.0, 10.0, 15.0, 12.0]) - 1.5).abs() < 1e-9);
    assert!((climb([4.0, 2.0, 1.0]) - 0.5).abs() < 1e-9);
    assert!(climb([4.0]).is_nan());
}
