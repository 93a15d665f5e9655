//! Tests that the statements on the pages are true. The code on the pages is compiled and run here, word for word, and
//! the figures on the pages are compared with computed or measured figures.

use std::path::Path;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The rows of the first table of a page, without the header. Each row is split into its cells.
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

    /// The number of seconds per year in which fewer than a majority of `n` masters are up. `uptime_share` is the probability
    /// that a master is up (0 to 1), independently of the other masters.
    fn unavailability(n: u32, uptime_share: f64) -> f64 {
        let majority = n / 2 + 1;
        let combinations = |k: u32| {
            (0..k).fold(1.0, |combinations, i| {
                combinations * f64::from(n - i) / f64::from(i + 1)
            })
        };
        let probability = |k: u32| {
            combinations(k)
                * uptime_share.powi(k as i32)
                * (1.0 - uptime_share).powi((n - k) as i32)
        };
        (0..majority).map(probability).sum::<f64>() * 365.0 * 24.0 * 3600.0
    }

    /// A duration in seconds as text, with three significant digits and a unit, such as `87.6 h`.
    fn duration_text(seconds: f64) -> String {
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

    /// One cell of a table in evidence/benchmarks/measurements.md: the table below the heading `table`, its row `quorate
    /// default`, and the column with the index `cell`.
    fn measured_latency(masters: u32, table: &str, cell: usize) -> String {
        let duration_text = page("evidence/benchmarks/measurements.md");
        let head = match masters {
            1 => "\n1 master, ".to_owned(),
            n => format!("\n{n} masters, "),
        };
        let section_text = duration_text.split(&head).nth(1).expect("measured");
        let section = section_text.split(table).nth(1).expect("the table");
        let row = section
            .lines()
            .find(|line| line.starts_with("quorate default"));
        let row = row.expect("a row").split_whitespace();
        row.filter(|word| !word.contains('-'))
            .nth(cell)
            .expect("a cell")
            .to_owned()
    }

    #[test]
    fn quorum_size_page_matches_computed_and_measured_figures() {
        let rows = table(&page("docs/quorum-size.md"));
        assert_eq!(rows.len(), 9);
        for (row, n) in rows.iter().zip(1..) {
            let majority = n / 2 + 1;
            let number_texts = [n, majority, n - majority].map(|number| number.to_string());
            assert_eq!(row[..3], number_texts, "{row:?}");
            let unavailabilities =
                [0.99, 0.999].map(|uptime_share| duration_text(unavailability(n, uptime_share)));
            assert_eq!(row[3..5], unavailabilities, "{n} masters");
            if n % 2 == 0 {
                assert!(row[5..].iter().all(String::is_empty), "{row:?}");
                continue;
            }
            let table_name = "One client, all rounds together";
            let latencies = [
                measured_latency(n, table_name, 2),
                measured_latency(n, table_name, 8),
                measured_latency(n, "64 tasks on distinct resources", 7),
            ];
            assert_eq!(
                row[5..],
                latencies.map(|time| format!("{time} us")),
                "{n} masters"
            );
        }
    }

    #[test]
    fn computed_yearly_downtime_equals_values_calculated_by_hand() {
        assert_eq!(duration_text(unavailability(1, 0.99)), "87.6 h");
        assert_eq!(
            duration_text(unavailability(3, 0.5)),
            duration_text(365.0 * 12.0 * 3600.0)
        );
    }
}

mod benchmarks {
    use super::{page, table};

    /// The cells of the row for the implementation `contender`, in the table below this heading. Ranges in square
    /// brackets are left out.
    fn cells<'a>(text: &'a str, heading: &str, contender: &str) -> Vec<&'a str> {
        let section = text.split(heading).nth(1).expect("a heading");
        let row = section
            .lines()
            .find_map(|line| line.strip_prefix(contender));
        let row = row.expect("a row").split_whitespace();
        row.filter(|word| !word.starts_with('[')).collect()
    }

    #[test]
    fn benchmark_page_matches_the_measurements() {
        let measurements = page("evidence/benchmarks/measurements.md");
        let five_masters = measurements.split("\n5 masters, ").nth(1).expect("a run");
        let text = page("docs/benchmarks.md");
        let results = text.split("\n## Results on five masters\n").nth(1);
        let rows = table(results.expect("a heading"));
        assert_eq!(rows.len(), 7);
        for row in rows {
            let contender = row[0].trim_matches('`');
            let one_client = cells(five_masters, "Latency of one client", contender);
            let few_tasks = cells(five_masters, "64 tasks on distinct resources", contender);
            let many_tasks = cells(five_masters, "512 tasks on distinct resources", contender);
            let expected = [
                one_client[0],
                few_tasks[0],
                many_tasks[0],
                many_tasks[2],
                many_tasks[4],
            ];
            assert_eq!(row[1..], expected, "{contender}");
        }
    }

    /// A whole number with commas: `24562` becomes `24,562`.
    fn with_commas(number: &str) -> String {
        let (head, tail) = number.split_at(number.len().saturating_sub(3));
        if head.is_empty() {
            tail.to_owned()
        } else {
            format!("{head},{tail}")
        }
    }

    #[test]
    fn readme_states_the_measured_times_and_throughputs() {
        let measurements = page("evidence/benchmarks/measurements.md");
        let five_masters = measurements.split("\n5 masters, ").nth(1).expect("a run");
        let text = page("README.md");
        let speed_section = text.split("\n## Speed").nth(1).expect("a heading");
        let rows = table(speed_section);
        let contenders = ["floor (redis-rs)", "quorate default", "rslock"];
        assert_eq!(rows.len(), contenders.len());
        for (row, contender) in rows.iter().zip(contenders) {
            let one_client = cells(five_masters, "Latency of one client", contender);
            let few_tasks = cells(five_masters, "64 tasks on distinct resources", contender);
            let many_tasks = cells(five_masters, "512 tasks on distinct resources", contender);
            let expected = [
                format!("{} us", one_client[1]),
                with_commas(few_tasks[1]),
                with_commas(many_tasks[1]),
            ];
            assert_eq!(row[1..], expected, "{contender}");
        }
    }

    #[test]
    fn benchmark_page_states_the_measured_number_of_met_and_missed_goals() {
        let measurements = page("evidence/benchmarks/measurements.md");
        let kinds = measurements.split("\nCost of each kind of lock\n").nth(1);
        let kinds = kinds.expect("a table").split("```").next();
        let lines: Vec<_> = kinds.expect("its end").lines().skip(1).collect();
        let count_ending = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
        let row = format!(
            "| kinds of locks, {} figures | | {} met, {} missed, {} without a goal |",
            lines.len(),
            count_ending(" met"),
            count_ending(" MISSED"),
            count_ending(" stated"),
        );
        assert!(page("docs/benchmarks.md").contains(&row), "{row}");
    }
}

mod track_record {
    use super::page;

    /// The rows of all tables with this number of columns, split into cells. Headers are left out.
    fn rows(text: &str, columns: usize) -> Vec<Vec<&str>> {
        let rows = text.lines().filter(|line| line.starts_with('|'));
        let rows = rows.map(|row| {
            let cells = row.trim_matches('|').split('|');
            cells.map(str::trim).collect::<Vec<_>>()
        });
        let has_numbers = |row: &Vec<&str>| row.len() == columns && row[2].parse::<u32>().is_ok();
        rows.filter(has_numbers).collect()
    }

    fn sum_column(rows: &[Vec<&str>], column: usize) -> u32 {
        let numbers = rows.iter().map(|row| row[column].parse::<u32>());
        numbers.map(|number| number.expect("a number")).sum()
    }

    fn with_commas(number: u32) -> String {
        match number / 1000 {
            0 => number.to_string(),
            thousands => format!("{},{:03}", with_commas(thousands), number % 1000),
        }
    }

    #[test]
    fn summary_of_the_chaos_matrix_page_matches_the_sums_of_its_tables() {
        let matrix = page("evidence/track-record/matrix.md");
        let (_, matrix) = matrix.split_once("<!-- matrix: ").expect("its beginning");
        let (matrix, _) = matrix.split_once("<!-- end of matrix").expect("its end");
        let (workloads, faults) = (rows(matrix, 7), rows(matrix, 12));
        let (landed_faults, acquisitions) = (sum_column(&faults, 2), sum_column(&workloads, 4));
        let (violations, allowed_violations) = (sum_column(&faults, 10), sum_column(&faults, 11));
        let [invalid, unavailable] = ["| INVALID |", "| unavailable: "].map(|verdict| {
            let lines = matrix.lines().filter(|line| line.contains(verdict));
            u32::try_from(lines.count()).expect("a few")
        });
        let runs = sum_column(&faults, 1) + unavailable;
        let valid = runs - invalid - unavailable;
        let head = format!(
            "{runs} runs: {valid} valid, {invalid} not valid, {unavailable} unavailable.\n{landed_faults} faults took effect, \
             {acquisitions} acquisitions, {violations} violations, {allowed_violations} overlaps"
        );
        assert!(matrix.contains(&head), "{head}");
        let row = format!(
            "| {runs} runs, {} faults, {} acquisitions | {valid} valid, {unavailable} unavailable, \
             {invalid} INVALID; {} allowed overlaps |",
            with_commas(landed_faults),
            with_commas(acquisitions),
            with_commas(allowed_violations),
        );
        assert!(page("docs/track-record.md").contains(&row), "{row}");
        let readme = page("README.md");
        let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
        for figure in [
            format!("{} faults", with_commas(landed_faults)),
            format!("{runs} runs"),
            format!("{} acquisitions", with_commas(acquisitions)),
        ] {
            assert!(readme.contains(&figure), "README.md must state: {figure}");
        }
        assert_eq!(invalid, 0, "README.md says that no promise was broken");
    }

    /// The number of seeds in README.md is the sum of the runs on the summary page, in millions with one digit.
    #[test]
    fn readme_states_the_number_of_simulated_seeds() {
        let summary = page("docs/track-record.md");
        let rows = summary
            .lines()
            .filter(|line| line.starts_with("| simulation,"));
        let seeds = rows.flat_map(|row| {
            let amount = row.split('|').nth(2).expect("a cell").replace(',', "");
            let words: Vec<String> = amount.split_whitespace().map(str::to_owned).collect();
            words
                .into_iter()
                .filter_map(|word| word.parse::<u64>().ok())
        });
        let seeds: u64 = seeds.filter(|seeds| *seeds > 1_000).sum();
        let millions = format!(
            "{}.{} million random schedules",
            seeds / 1_000_000,
            seeds / 100_000 % 10
        );
        assert!(page("README.md").contains(&millions), "{millions}");
    }
}

mod comparison {
    use std::collections::BTreeMap;

    use super::page;

    /// The text of one cell, from what happened in the runs and the milliseconds of each: the most frequent first.
    /// `cell` in `benches/tools/compare.py` does the same.
    fn cell(runs: &[(&str, Option<u64>)]) -> String {
        let mut runs_by_outcome: BTreeMap<&str, Vec<Option<u64>>> = BTreeMap::new();
        for &(outcome, millis) in runs {
            runs_by_outcome.entry(outcome).or_default().push(millis);
        }
        let mut runs_by_outcome: Vec<_> = runs_by_outcome.into_iter().collect();
        runs_by_outcome.sort_by_key(|(_, times)| std::cmp::Reverse(times.len()));
        let parts = runs_by_outcome.into_iter().map(|(outcome, times)| {
            let all_times = || times.iter().copied().flatten();
            let range = match (all_times().min(), all_times().max()) {
                (Some(low), Some(high)) if low == high => format!(" {low} ms"),
                (Some(low), Some(high)) => format!(" {low}-{high} ms"),
                _ => String::new(),
            };
            let count = match times.len() {
                all if all == runs.len() => String::new(),
                some => format!(" ({some} of {})", runs.len()),
            };
            format!("{outcome}{range}{count}")
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    /// The result of one run, and after how many milliseconds it came.
    type Run<'a> = (&'a str, Option<u64>);

    /// The table on the page equals the table that follows from the raw results, and each cell has five runs.
    #[test]
    fn table_of_the_comparison_page_equals_the_recorded_runs() {
        let log = page("evidence/comparison/runs.tsv");
        let versions = log.lines().next().and_then(|line| line.strip_prefix("# "));
        let mut cells: BTreeMap<(&str, &str), Vec<Run<'_>>> = BTreeMap::new();
        let (mut rows, mut tools) = (Vec::new(), Vec::new());
        for line in log.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let (row, tool, outcome) = (fields[0], fields[1], fields[3]);
            let millis_text = fields.get(4).filter(|millis| !millis.is_empty());
            let millis = millis_text.map(|text| text.parse().expect("milliseconds"));
            cells
                .entry((row, tool))
                .or_default()
                .push((outcome, millis));
            for (list, name) in [(&mut rows, row), (&mut tools, tool)] {
                if !list.contains(&name) {
                    list.push(name);
                }
            }
        }
        let mut table = vec![format!("| | {} |", tools.join(" | "))];
        table.push(format!("|{}", "---|".repeat(tools.len() + 1)));
        for &row in &rows {
            let texts = tools.iter().map(|&tool| {
                let runs = cells.get(&(row, tool)).map_or(&[][..], Vec::as_slice);
                assert!(runs.len() >= 5, "{row}, {tool}: {} runs", runs.len());
                cell(runs)
            });
            table.push(format!(
                "| {row} | {} |",
                texts.collect::<Vec<_>>().join(" | ")
            ));
        }
        let table = table.join("\n");
        let page = page("docs/comparison.md");
        assert!(page.contains(&table), "the page must contain:\n{table}");
        let versions = versions.expect("the first line names the versions");
        assert!(page.contains(versions), "the page must name {versions}");
        assert!(rows.len() >= 14 && tools.len() >= 8, "{rows:?} {tools:?}");
    }

    #[test]
    fn cell_of_different_results_names_the_most_frequent_first() {
        let runs = [
            ("no", None),
            ("yes", Some(7)),
            ("yes", Some(5)),
            ("late", Some(9)),
        ];
        let text = cell(&runs);
        assert_eq!(text, "yes 5-7 ms (2 of 4), late 9 ms (1 of 4), no (1 of 4)");
        assert_eq!(cell(&[("yes", Some(3)), ("yes", Some(3))]), "yes 3 ms");
    }
}

/// The code of `docs/testing.md`.
mod testing {
    use std::error::Error;
    use std::sync::LazyLock;
    use std::time::Duration;

    use quorate::testing::{Condition, Masters};
    use quorate::{AcquireError, LossCause, Redlock};

    async fn nightly_report(redlock: &Redlock) -> Result<bool, AcquireError> {
        let Some(guard) = redlock.try_acquire("nightly-report").await?.acquired() else {
            return Ok(false); // another machine is doing it
        };
        // .. the work ..
        guard.release().await;
        Ok(true)
    }

    #[tokio::test]
    async fn nightly_report_is_not_written_while_its_lock_is_held() -> Result<(), Box<dyn Error>> {
        let redlock = Redlock::in_memory(3);
        assert!(nightly_report(&redlock).await?);
        let elsewhere = redlock.acquire("nightly-report").await?;
        assert!(!nightly_report(&redlock).await?);
        drop(elsewhere);
        Ok(())
    }

    #[tokio::test]
    async fn each_new_holder_gets_a_larger_fencing_token() -> Result<(), Box<dyn Error>> {
        let masters = Masters::new(3);
        let here = Redlock::builder().in_memory_on(&masters).build()?;
        let there = Redlock::builder().in_memory_on(&masters).build()?;

        let first = here.acquire("stock").await?;
        assert!(there.try_acquire("stock").await?.acquired().is_none());
        let number = first.fencing_token();
        first.release().await;

        let second = there.acquire("stock").await?;
        assert!(second.fencing_token() > number);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn lock_of_a_crashed_machine_is_free_again_after_its_ttl() -> Result<(), Box<dyn Error>> {
        let masters = Masters::new(3);
        let here = Redlock::builder().in_memory_on(&masters).build()?;
        let there = Redlock::builder().in_memory_on(&masters).build()?;

        // Simulate a crash: nobody renews or releases this lock.
        let crashed = here.lock("stock").renewal(false).acquire().await?;
        std::mem::forget(crashed);

        let started_at = tokio::time::Instant::now();
        let next = there.acquire("stock").await?; // waits, as in production
        assert!(started_at.elapsed() >= Duration::from_secs(9));
        assert!(next.is_valid());

        // The lock is renewed for as long as the guard lives.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(next.is_valid());
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn holder_is_notified_when_its_lock_is_lost() -> Result<(), Box<dyn Error>> {
        let masters = Masters::new(3);
        let redlock = Redlock::builder().in_memory_on(&masters).build()?;
        let guard = redlock.acquire("stock").await?;

        // One of three masters is down: the holder notices nothing.
        masters[0].set_condition(Condition::Down);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(guard.is_valid());

        // A majority executes requests, but never answers. The holder learns of the loss before the keys expire.
        masters[1].set_condition(Condition::Mute);
        assert_eq!(guard.lost().await, LossCause::Expired);

        // Without a majority, `try_acquire` reports an outage, not "held by another".
        let refused = redlock.try_acquire("other").await;
        assert!(matches!(refused, Err(AcquireError::NoQuorum(_))));

        // Both failed masters can be reached again. The first of them has lost its data.
        masters[0].set_condition(Condition::Up);
        masters[0].forget();
        masters[1].set_condition(Condition::Up);
        assert!(redlock.acquire("other").await?.is_valid());
        Ok(())
    }

    static REDLOCK: LazyLock<Redlock> = LazyLock::new(|| Redlock::in_memory(3));

    #[tokio::test]
    async fn test_acquires_a_lock_that_no_other_test_uses() -> Result<(), Box<dyn Error>> {
        let guard = REDLOCK.acquire("first").await?;
        assert!(guard.is_valid());
        Ok(())
    }

    #[tokio::test]
    async fn tests_with_different_lock_names_can_run_at_the_same_time() -> Result<(), Box<dyn Error>>
    {
        let guard = REDLOCK.acquire("second").await?;
        assert!(guard.is_valid());
        Ok(())
    }
}

/// The texts between single backticks.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| !line.starts_with("```"));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// An operator searches the page for the text of a message, so the page must quote the texts that the code prints.
#[test]
fn symptoms_page_quotes_only_texts_that_the_code_prints() {
    let sources = crate::repository::files();
    let sources = sources.iter().filter(|file| {
        let is_source = ["src", "cli/src", "nodes"]
            .iter()
            .any(|path| file.path.starts_with(path));
        is_source && file.is_rust()
    });
    // Join the parts of string literals that are broken over several lines.
    let code: String = sources.map(|file| file.text.replace("\\\n", "")).collect();
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = page("docs/symptoms.md");
    let cells = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let mut count = 0;
    for phrase in cells.flat_map(code_spans) {
        if phrase.starts_with("quorate ") || phrase.starts_with("--") {
            continue;
        }
        assert!(code.contains(phrase), "no message contains: {phrase}");
        count += 1;
    }
    assert!(
        count >= 20,
        "the page must quote at least 20 texts, but quotes {count}"
    );
}

#[test]
fn contributor_pages_name_only_existing_paths_and_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = std::fs::read_dir(root.join("tests/all")).expect("a folder");
    let read_result = tests.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
    let tests: String = read_result.collect();
    for (name, minimum) in [("ARCHITECTURE.md", 70), ("CONTRIBUTING.md", 100)] {
        let text = page(name);
        let mut count = 0;
        for word in code_spans(&text) {
            let is_name = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            if !word.chars().all(is_name) {
                continue;
            }
            let endings = [".rs", ".lua", ".md", ".toml", ".txt", "/"];
            if endings.iter().any(|end| word.ends_with(end)) {
                let exists = root.join(word).exists() || root.join("src").join(word).exists();
                assert!(exists, "{name} names the path {word}, which does not exist");
                count += 1;
            } else if word.matches('_').count() > 3 {
                let test = format!("fn {word}(");
                assert!(
                    tests.contains(&test),
                    "{name} names the test {word}, which does not exist"
                );
                count += 1;
            }
        }
        assert!(
            count >= minimum,
            "{name} must name at least {minimum} paths and tests, but names {count}"
        );
    }
}

/// The text without white space. A page and this file are compared in this form, because they indent code differently.
fn without_whitespace(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

#[test]
fn rust_code_on_the_pages_equals_compiled_code_in_this_file() {
    let own_source = without_whitespace(include_str!("pages.rs"));
    for (name, minimum) in [
        ("README.md", 2),
        ("docs/testing.md", 6),
        ("docs/library.md", 2),
        ("docs/fencing.md", 3),
        ("docs/kinds.md", 7),
    ] {
        let text = page(name);
        let blocks: Vec<_> = text.split("```rust\n").skip(1).collect();
        assert!(
            blocks.len() >= minimum,
            "{name} must have at least {minimum} blocks of Rust code, but has {}",
            blocks.len()
        );
        for block in blocks {
            let code = block.split("```").next().unwrap_or_default();
            assert!(
                own_source.contains(&without_whitespace(code)),
                "{name} has code that is not compiled: copy it into tests/all/pages.rs:\n{code}"
            );
        }
    }
}

/// The code of `README.md`. It is compiled, but does not run.
#[allow(unused, clippy::pedantic)]
#[rustfmt::skip]
mod readme {
    use std::error::Error;

    use quorate::{Redlock, TryAcquire};

    async fn close_books(fence: Option<u64>) -> u64 { 0 }
    async fn send_invoice(fence: Option<u64>) {}

    async fn snippet_0() -> Result<(), Box<dyn Error>> {
        use quorate::Redlock;

        let redlock = Redlock::builder()
            .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
            .build()?;                                         // does not connect, so masters may be down when a service starts
        let sum = redlock.scope("month-end", async |guard| {   // renews the lock; if it is lost, drops this future
            close_books(guard.fencing_token()).await           // your own function; your database checks the token
        }).await?;
        Ok(())
    }

    async fn snippet_1(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        match redlock.try_acquire("invoice-42").await? {       // after an error, act as if you do not hold the lock
            TryAcquire::Acquired(guard) => { send_invoice(guard.fencing_token()).await; guard.release().await; }
            TryAcquire::Held(refusal) => println!("held: expires in {:?} unless renewed", refusal.ttl_left),
        }
        Ok(())
    }
}

/// The code of `docs/library.md`. It is compiled, but does not run.
#[allow(unused, clippy::pedantic)]
#[rustfmt::skip]
mod library {
    async fn refresh_rates(fence: Option<u64>) {}

    struct Books;

    impl Books {
        fn close(&mut self) {}
    }

    use quorate::{AcquireError, Redlock, ScopeError, Wait};

    /// One tick of a periodic task. Returns whether this machine has run it.
    async fn tick(redlock: &Redlock) -> Result<bool, ScopeError> {
        let lock = redlock.lock("rates").wait(Wait::None);
        match lock.scope(async |guard| refresh_rates(guard.fencing_token()).await).await {
            Ok(()) => Ok(true),
            Err(ScopeError::NotAcquired(AcquireError::HeldByOther(_))) => Ok(false), // another machine runs it
            Err(error) => Err(error),
        }
    }

    use quorate::{Fence, StaleToken};

    #[derive(Debug, thiserror::Error)]
    enum JobError {
        #[error(transparent)]
        Lock(#[from] ScopeError),
        #[error(transparent)]
        Stale(#[from] StaleToken),
        #[error("fencing is off")]
        NoToken,
    }

    async fn close_month(redlock: &Redlock, books: &Fence<Books>) -> Result<(), JobError> {
        redlock
            .try_scope("month-end", async |guard| {
                let token = guard.fencing_token().ok_or(JobError::NoToken)?;
                books.write(token).await?.close(); // refused if a later holder has written
                Ok(())
            })
            .await
    }

    /// The HTTP status for an error of `close_month`.
    fn status(error: &JobError) -> u16 {
        match error {
            JobError::Lock(ScopeError::NotAcquired(AcquireError::HeldByOther(_))) => 409, // try again later
            JobError::Lock(ScopeError::NotAcquired(_)) => 503, // nothing was done
            _ => 500,                                          // the work may be half done
        }
    }

    /// A service runs these functions in tasks of its own, so their futures must be `Send`.
    fn spawned(redlock: Redlock, books: std::sync::Arc<Fence<Books>>) {
        let other = redlock.clone();
        tokio::spawn(async move { tick(&other).await });
        tokio::spawn(async move { close_month(&redlock, &books).await });
    }
}

/// The code of `docs/kinds.md`. It is compiled, but does not run.
#[allow(unused, clippy::pedantic)]
#[rustfmt::skip]
mod kinds {
    use std::error::Error;
    use std::time::Duration;

    use quorate::{LossCause, Redlock, Take};

    async fn transfer(fence: Option<u64>) {}
    async fn call(slot: Option<usize>, fence: Option<u64>) {}
    fn hand_out(left: u64) {}
    fn sorry(left: u64) {}
    async fn report() {}
    async fn schedule_until(lost: impl Future<Output = LossCause>, term: u64) {}

    async fn snippet_0(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        let both = redlock.lock_all(["account:1", "account:2"]).acquire().await?;
        transfer(both.fencing_token()).await;
        Ok(())
    }

    async fn snippet_1(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        let reading = redlock.lock("doc").shared().acquire().await?;
        // A writer can become a reader, with a new fencing token. A reader cannot become a writer.
        let reading = redlock.acquire("doc").await?.downgrade().await?;
        Ok(())
    }

    async fn snippet_2(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        let permit = redlock.semaphore("api", 5).acquire().await?;
        call(permit.slot(), permit.fencing_token()).await;
        Ok(())
    }

    async fn snippet_3(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        let order = redlock.owner("order-4711")?;
        let outer = order.acquire("stock").await?;
        let inner = order.acquire("stock").await?;   // granted at once; in another process as well
        Ok(())
    }

    async fn snippet_4(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        let prizes = redlock.quota("prizes");
        prizes.create(10).await?;              // an operator does this once, while all masters are up
        match prizes.take(1).await? {
            Take::Taken { left } => hand_out(left),
            Take::SoldOut { left } => sorry(left),
        }
        Ok(())
    }

    async fn snippet_5(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        let nightly = redlock.once("nightly", Duration::from_secs(24 * 3600));
        nightly.create().await?;               // an operator does this once
        nightly.at_most_once(async |_| report().await).await?;
        Ok(())
    }

    async fn snippet_6(redlock: Redlock) -> Result<(), Box<dyn Error>> {
        // A candidate waits until it is the leader. Candidates become the leader in the order of their arrival.
        let leadership = redlock.election("scheduler").campaign("10.0.0.1:9000").await?;
        schedule_until(leadership.lost(), leadership.term()).await;
        leadership.resign().await;

        // Any process can observe which candidate is the leader.
        let mut observation = redlock.election("scheduler").observe()?;
        loop {
            match observation.next().await {
                Some(leader) => println!("term {}: {:?}", leader.term, leader.note),
                None => println!("no leader known"),
            }
        }
    }
}

/// The code of `docs/fencing.md`. It is compiled, but does not run.
#[allow(unused, clippy::pedantic)]
#[rustfmt::skip]
mod fencing {
    use std::collections::BTreeMap;
    use std::error::Error;

    use quorate::testing::{FencedWrite, FencingProof};
    use quorate::{Fence, Redlock};

    #[derive(Default)]
    struct Prices(BTreeMap<&'static str, u32>);

    impl Prices {
        fn set(&mut self, name: &'static str, price: u32) {}
        fn get(&self, name: &str) -> Option<u32> { None }
    }

    type TableError = std::io::Error;
    struct Table;

    impl Table {
        async fn execute(&self, sql: &str, token: u64, value: String) -> Result<u64, TableError> { Ok(1) }
        async fn body(&self) -> Result<String, TableError> { Ok(String::new()) }
        async fn restart(&self) -> Result<(), TableError> { Ok(()) }
    }

    async fn snippet_0(redlock: Redlock) -> Result<u64, Box<dyn Error>> {
        let guard = redlock.acquire("prices").await?;
        let token = guard.fencing_token().ok_or("fencing is off")?;
        Ok(token)
    }

    async fn snippet_1(token: u64) -> Result<(), Box<dyn Error>> {
        let prices = Fence::new(Prices::default());
        prices.write(token).await?.set("bread", 3);     // an error if the token is older than the newest one
        let price = prices.read().await.get("bread");   // to show it; to change it, read through the guard of `write`
        Ok(())
    }

    async fn snippet_2(table: Table) -> Result<(), Box<dyn Error>> {
        let write = async |token: u64, value: String| {
            let rows = table.execute("UPDATE prices SET fence = ?1, body = ?2 WHERE fence <= ?1", token, value).await?;
            Ok::<_, TableError>(FencedWrite::accepted_if(rows == 1))
        };
        let read = async || table.body().await;
        let restart = async || table.restart().await;
        FencingProof::new(write, read).with_restart(restart).run().await?;
        Ok(())
    }
}
