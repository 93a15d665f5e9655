//! Tables on stdout, and ratios as people read them.

use std::fmt::Write;

use crate::measure::Spread;

/// Rows of cells; columns as wide as their widest cell, numbers to the right.
#[derive(Default)]
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with its heading.
    pub(crate) fn new<S: Into<String>>(heading: impl IntoIterator<Item = S>) -> Self {
        Self(vec![heading.into_iter().map(Into::into).collect()])
    }

    /// One more row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Prints it under a title.
    pub(crate) fn print(&self, title: &str) {
        println!("\n{title}");
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column == 0 {
                    let _ = write!(line, "{cell:<width$}");
                } else {
                    let _ = write!(line, "  {cell:>width$}");
                }
            }
            println!("{}", line.trim_end());
        }
    }
}

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

/// A ratio with the spread of its rounds.
pub(crate) fn ratio(spread: Spread) -> String {
    format!(
        "{} [{}-{}]",
        number(spread.median),
        number(spread.least),
        number(spread.most)
    )
}

/// Three digits that count.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        "-".to_owned()
    } else if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}
