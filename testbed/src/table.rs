//! Tables of benchmark figures, and the text form of ratios.

use std::fmt::{self, Write};

use crate::measure::{Spread, number};

/// A table as rows of cells. Each column is as wide as its widest cell, and numbers are right-aligned.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with this heading and no rows.
    pub fn new<S: Into<String>>(heading: impl IntoIterator<Item = S>) -> Self {
        Self(vec![heading.into_iter().map(Into::into).collect()])
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width_of).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column == 0 {
                    write!(line, "{cell:<width$}")?;
                } else {
                    write!(line, "  {cell:>width$}")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a benchmark ratio: its median over all rounds, and its minimum and maximum in brackets.
pub fn ratio(spread: Spread) -> String {
    format!(
        "{} [{}-{}]",
        number(spread.median),
        number(spread.least),
        number(spread.most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_names_left_and_numbers_right() {
        let mut table = Table::new(["who", "us"]);
        table.row(["longest".to_owned(), "1.00".to_owned()]);
        table.row(["b".to_owned(), "100".to_owned()]);
        let text = "who        us\nlongest  1.00\nb         100\n";
        assert_eq!(table.to_string(), text);
        let spread = Spread::of([1.0, 2.0, 3.0]);
        assert_eq!(ratio(spread), "2.00 [1.00-3.00]");
    }
}
