//! The rows of the result table. Each row is a measured figure and its goal.

use quorate_testbed::measure::{Spread, number};
use quorate_testbed::table::Table;

use crate::goal::Bound;

/// One row of the table: a figure with its values, and its goal. The goal is `None` for a figure that is only reported.
pub(super) struct Figure {
    title: String,
    goal: Option<Bound>,
    rounds: Spread,
    /// The unit that is appended to every number, for example `us` or `%`. Empty for a ratio.
    unit: &'static str,
}

impl Figure {
    /// A figure with a goal.
    pub(super) fn new(
        title: impl Into<String>,
        goal: Bound,
        rounds: impl IntoIterator<Item = f64>,
    ) -> Self {
        Self {
            title: title.into(),
            goal: Some(goal),
            rounds: Spread::of(rounds),
            unit: "",
        }
    }

    /// A figure without a goal.
    pub(super) fn without_goal(
        title: impl Into<String>,
        unit: &'static str,
        rounds: impl IntoIterator<Item = f64>,
    ) -> Self {
        Self {
            title: title.into(),
            goal: None,
            rounds: Spread::of(rounds),
            unit,
        }
    }

    /// Sets the unit of this figure, and returns the figure.
    pub(super) fn in_unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    fn verdict(&self) -> &'static str {
        match self.goal {
            None => "stated",
            Some(goal) if goal.is_met_by(self.rounds.median) => "met",
            Some(_) => "MISSED",
        }
    }

    fn row(&self) -> [String; 5] {
        let unit_suffix = if self.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", self.unit)
        };
        let Spread {
            median,
            least,
            most,
        } = self.rounds;
        [
            self.title.clone(),
            self.goal
                .map_or_else(String::new, |goal| format!("{goal}{unit_suffix}")),
            format!("{}{unit_suffix}", number(median)),
            format!("[{}-{}]", number(least), number(most)),
            self.verdict().to_owned(),
        ]
    }
}

/// Makes one table of all figures.
pub(super) fn figures_table(figures: &[Figure]) -> Table {
    let mut table = Table::new(["figure", "goal", "median", "[rounds]", ""]);
    for figure in figures {
        table.row(figure.row());
    }
    table
}

#[test]
fn median_of_the_measurements_decides_whether_a_benchmark_meets_its_goal() {
    let figure = Figure::new("cycle", Bound::AtMost(1.25), [1.0, 1.3, 1.4]);
    assert_eq!(
        figure.row(),
        ["cycle", "at most 1.25", "1.30", "[1.00-1.40]", "MISSED"]
    );
    let figure = Figure::new("rate", Bound::AtLeast(20.0), [19.0, 21.0, 30.0]).in_unit("/s");
    assert_eq!(
        figure.row(),
        ["rate", "at least 20 /s", "21.0 /s", "[19.0-30.0]", "met"]
    );
    // A figure that was not measured does not meet its goal.
    assert_eq!(Figure::new("x", Bound::AtMost(1.0), []).verdict(), "MISSED");
    assert_eq!(Figure::without_goal("x", "B", [7.0]).verdict(), "stated");
}
