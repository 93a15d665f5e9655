//! What the pages say is so: their code is compiled and run here, word for word, and their figures are computed.

use std::path::Path;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The rows of the first table of a page, cell by cell, without its head.
fn table(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
    .collect()
}

mod quorum_size {
    use super::{page, table};

    /// How long in a year fewer than a majority of `n` masters are up, each of which is up for this share of the time.
    fn without_quorum(n: u32, up: f64) -> f64 {
        let majority = n / 2 + 1;
        let ways = |k: u32| (0..k).fold(1.0, |ways, i| ways * f64::from(n - i) / f64::from(i + 1));
        let of = |k: u32| ways(k) * up.powi(k as i32) * (1.0 - up).powi((n - k) as i32);
        (0..majority).map(of).sum::<f64>() * 365.0 * 24.0 * 3600.0
    }

    /// Three digits and a unit.
    fn text(seconds: f64) -> String {
        let units = [
            (3600.0, "h"),
            (60.0, "min"),
            (1.0, "s"),
            (1e-3, "ms"),
            (1e-6, "us"),
        ];
        let (size, unit) = units
            .into_iter()
            .find(|(size, _)| seconds >= *size)
            .expect("long");
        let value = seconds / size;
        let digits = if value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        };
        format!("{value:.digits$} {unit}")
    }

    /// A row of the measured table that stands behind this heading, as the page of benchmarks has it.
    fn measured(masters: u32, table: &str, cell: usize) -> String {
        let text = page("docs/benchmarks.md");
        let head = match masters {
            1 => "\n1 master, ".to_owned(),
            n => format!("\n{n} masters, "),
        };
        let part = text.split(&head).nth(1).expect("measured");
        let part = part.split(table).nth(1).expect("the table");
        let row = part
            .lines()
            .find(|line| line.starts_with("quorate default"));
        let row = row.expect("a row").split_whitespace();
        row.filter(|word| !word.contains('-'))
            .nth(cell)
            .expect("a cell")
            .to_owned()
    }

    #[test]
    fn the_page_on_quorum_sizes_prints_what_is_computed_and_what_was_measured() {
        let rows = table(&page("docs/quorum-size.md"));
        assert_eq!(rows.len(), 9);
        for (row, n) in rows.iter().zip(1..) {
            let majority = n / 2 + 1;
            let numbers = [n, majority, n - majority].map(|number| number.to_string());
            assert_eq!(row[..3], numbers, "{row:?}");
            let down = [0.99, 0.999].map(|up| text(without_quorum(n, up)));
            assert_eq!(row[3..5], down, "{n} masters");
            if n % 2 == 0 {
                assert!(row[5..].iter().all(String::is_empty), "{row:?}");
                continue;
            }
            let together = "One client, all rounds together";
            let times = [
                measured(n, together, 2),
                measured(n, together, 8),
                measured(n, "64 tasks on distinct resources", 7),
            ];
            assert_eq!(
                row[5..],
                times.map(|time| format!("{time} us")),
                "{n} masters"
            );
        }
    }

    #[test]
    fn a_majority_of_one_is_as_good_as_its_only_master() {
        assert_eq!(text(without_quorum(1, 0.99)), "87.6 h");
        assert_eq!(text(without_quorum(3, 0.5)), text(365.0 * 12.0 * 3600.0));
    }
}
