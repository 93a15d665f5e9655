//! Tests of the table in CONTRIBUTING.md that shows which tests each tier runs. A tier is one of the scripts
//! `scripts/test`, `.ci/run` and `scripts/test --all`. The table must agree with the tests and the scripts.

use crate::repository::{files, root};

/// The attribute of a test that only `scripts/test --all` runs.
const NIGHTLY_ATTRIBUTE: &str = concat!("#[ignore = ", "\"nightly\"]");

fn read_text(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The text of a script or a configuration file, without its comment lines.
fn without_comments(name: &str) -> String {
    let read_text = read_text(name);
    let lines = read_text
        .split_inclusive('\n')
        .filter(|line| !line.trim_start().starts_with('#'));
    lines.collect()
}

/// The three cells of a table row in CONTRIBUTING.md: `scripts/test`, `.ci/run` and `scripts/test --all`.
fn table_row(name: &str) -> [String; 3] {
    let page = read_text("CONTRIBUTING.md");
    let row_start = format!("| {name} |");
    let table_row = page.lines().find_map(|line| line.strip_prefix(&row_start));
    let table_row = table_row.unwrap_or_else(|| panic!("CONTRIBUTING.md has no table row {name}"));
    let cells: Vec<String> = table_row
        .split('|')
        .map(|cell| cell.trim().to_owned())
        .collect();
    let [short, ci_script, full] = &cells[..3] else {
        panic!("{name}: {cells:?}")
    };
    [short.clone(), ci_script.clone(), full.clone()]
}

/// The number as text, with commas between thousands: `20,000`.
fn with_commas(number: u64) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{},{:03}", with_commas(number / 1_000), number % 1_000)
    }
}

/// Checks the table row `name` in CONTRIBUTING.md. The cells for `scripts/test` and `.ci/run` must contain the number
/// `short`, and the cell for `scripts/test --all` must contain the number `full`.
fn assert_row_shows(name: &str, short: u64, full: u64) {
    let (short, full) = (with_commas(short), with_commas(full));
    assert_eq!(table_row(name), [short.clone(), short, full], "{name}");
}

/// The numbers in a piece of code.
fn parse_numbers(code: &str) -> Vec<u64> {
    let words = code.split(|c: char| !c.is_ascii_digit() && c != '_');
    words
        .filter_map(|word| word.replace('_', "").parse().ok())
        .collect()
}

/// Constants in the simulation that contain numbers of seeds, each with the name of its table row in CONTRIBUTING.md.
const SEEDS: [(&str, &str); 7] = [
    ("REDIS", "seeds of Redis masters"),
    ("CHANGES", "seeds of masters that are replaced"),
    ("CLOCKS", "seeds of clocks that jump at restarts"),
    ("STORES", "seeds of stores as masters"),
    (
        "TRIES",
        "seeds of short processes and stores without a clock",
    ),
    ("CROSSINGS", "seeds of each of these for the crossings"),
    ("MODEL", "seeds whose histories the model checks"),
];

/// The steps of the scripts: for each step, the name of its table row in CONTRIBUTING.md, and its command.
const STEPS: [(&str, &str); 16] = [
    ("examples on pages and in rustdoc", "cargo test --doc"),
    ("programs in `examples/`", "scripts/examples"),
    ("packages for Python and Node.js", "scripts/python quick"),
    ("server versions", "scripts/versions"),
    ("fuzz targets, a minute each", "scripts/fuzz 60"),
    ("histories judged by a checker of others", "scripts/judge"),
    ("order of threads (loom)", "--cfg quorate_loom"),
    ("oldest compiler", "cargo \"+$lowest\""),
    ("lowest versions", "scripts/lowest-versions"),
    ("contents of the crates", "scripts/package c"),
    (
        "command installed from the crates",
        "scripts/package crates",
    ),
    ("no features", "scripts/features none"),
    ("each feature alone", "scripts/features none each"),
    ("format", "cargo fmt"),
    ("lints (clippy)", "cargo clippy"),
    ("documentation builds", "cargo doc"),
];

/// The table rows in CONTRIBUTING.md that no test compares with code. They contain goals, measured times, or tests that
/// every tier runs.
const NOT_COMPARED: [&str; 4] = [
    "goal in a fresh clone on a machine with two cores",
    "measured, with `cargo-nextest`",
    "measured, with Rust alone",
    "unit, contract, library and command tests",
];

#[test]
fn every_row_of_the_test_tier_table_is_checked_or_exempt() {
    let page = read_text("CONTRIBUTING.md");
    let head = "| | `scripts/test` | `.ci/run` | `scripts/test --all` |\n";
    let (_, table) = page.split_once(head).expect("the table of test tiers");
    let rows = table
        .lines()
        .take_while(|line| line.starts_with("| ") || line.starts_with("|--"));
    let rows = rows.filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let known_rows = [
        SEEDS.map(|(_, name)| name).as_slice(),
        &STEPS.map(|(name, _)| name),
    ]
    .concat();
    let known_rows = [
        &known_rows[..],
        &NOT_COMPARED,
        &[
            "searches for seeded bugs",
            "rules that chaos runs must break with seeded bugs",
            "states of the model",
            "tests with chaos runs",
            "random sequences on MariaDB and on ZooKeeper",
        ],
    ]
    .concat();
    let rows: Vec<&str> = rows.collect();
    for table_row in &rows {
        assert!(
            known_rows.contains(table_row),
            "no test compares the table row {table_row}"
        );
    }
    assert_eq!(rows.len(), known_rows.len(), "{rows:?}");
}

/// The module names at the beginning of test names in a filter of cargo-nextest. For example, `/^(a|b)::/` names `a`
/// and `b`.
fn modules_in_filter(filter: &str) -> Vec<String> {
    let starting_files = filter.split('^').skip(1);
    let names = starting_files.filter_map(|start| Some(start.split_once("::")?.0));
    let names = names.flat_map(|names| names.trim_matches(['(', ')']).split('|'));
    names.map(str::to_owned).collect()
}

/// The folder that contains the test modules which a filter of cargo-nextest selects.
fn test_folder(filter: &str) -> &'static str {
    if filter.contains("package(quorate-chaos) &") {
        "chaos/tests/all"
    } else if filter.contains("package(quorate-page) &") {
        "page/tests/all"
    } else if filter.contains("binary(contract)") {
        "tests/contract"
    } else {
        assert!(
            filter.contains("package(quorate) & binary(all)"),
            "{filter}"
        );
        "tests/all"
    }
}

#[test]
fn filters_of_the_test_runner_name_only_modules_that_exist() {
    let config = without_comments(".config/nextest.toml");
    let filters: Vec<&str> = config
        .lines()
        .filter_map(|line| line.strip_prefix("filter = "))
        .collect();
    let mut module_count = 0;
    for filter in filters {
        for module in modules_in_filter(filter) {
            let file = format!("{}/{module}.rs", test_folder(filter));
            assert!(root().join(&file).exists(), "{filter}: no {file}");
            module_count += 1;
        }
    }
    assert!(
        module_count > 4,
        "the filters in .config/nextest.toml must name at least 5 modules, but name {module_count}"
    );
}

#[test]
fn chaos_test_group_contains_exactly_the_modules_that_start_chaos_runs() {
    let config = without_comments(".config/nextest.toml");
    let text_before = config.split("test-group = 'chaos'").next();
    let filter = text_before.and_then(|text| text.lines().rfind(|line| line.starts_with("filter")));
    let mut modules = modules_in_filter(filter.expect("a filter"));
    modules.sort();
    let folder = root().join("chaos/tests/all");
    let files = std::fs::read_dir(folder).expect("a folder");
    let files = files.map(|file| file.expect("an entry").path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "rs"));
    let starting_files = files.filter(|file| {
        let code = std::fs::read_to_string(file).expect("a source");
        code.contains("Run::") || code.contains("chaos()")
    });
    let names =
        starting_files.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, modules);
}

#[test]
fn table_of_test_tiers_shows_the_seeds_of_each_tier() {
    let code = read_text("simulation/tests/all/support/mod.rs");
    for (constant, name) in SEEDS {
        let row_start = format!("pub(crate) const {constant}: Seeds = Seeds::new(");
        let line = code.lines().find_map(|line| line.strip_prefix(&row_start));
        let seeds = parse_numbers(line.unwrap_or_else(|| panic!("no {constant}")));
        assert_row_shows(name, seeds[0], seeds[1]);
    }
}

#[test]
fn table_of_test_tiers_shows_the_random_sequences_of_each_tier() {
    let code = read_text("nodes/contract/src/suite.rs");
    let start = "const SEQUENCES_PER_KIND: Sequences = Sequences::new(";
    let line = code.lines().find_map(|line| line.strip_prefix(start));
    let counts = parse_numbers(line.expect("the constant SEQUENCES_PER_KIND"));
    // Each comparison runs two kinds of sequences.
    assert_row_shows(
        "random sequences on MariaDB and on ZooKeeper",
        2 * counts[0],
        2 * counts[1],
    );
    let test_script = without_comments("scripts/test");
    assert!(test_script.contains("export QUORATE_TEST_SEQUENCES=all"));
}

#[test]
fn table_of_test_tiers_shows_the_seeded_bugs_of_each_tier() {
    let code = read_text("mutants/src/seeded/list.rs");
    let list = read_text("mutants/seeded.toml");
    let list: toml::Table = list.parse().expect("the list must be valid");
    let bugs = list["bug"].as_array().expect("the seeded bugs").iter();
    let caught: Vec<&toml::Value> = bugs
        .flat_map(|bug| bug["caught"].as_array().expect("the rules"))
        .collect();
    for (row, unit, constant) in [
        ("searches for seeded bugs", "seeds", "SHORT_SEEDS"),
        (
            "rules that chaos runs must break with seeded bugs",
            "seconds",
            "SHORT_SECONDS",
        ),
    ] {
        let line_start = format!("const {constant}: u64 = ");
        let limit = code.lines().find_map(|line| line.strip_prefix(&line_start));
        let limit = parse_numbers(limit.expect("the bound of the short run"))[0];
        let bounds = caught.iter().filter_map(|caught| caught.get(unit));
        let bounds: Vec<u64> = bounds
            .map(|bound| bound.as_integer().expect("a number").unsigned_abs())
            .collect();
        let short = bounds.iter().filter(|bound| **bound < limit).count();
        assert_row_shows(row, short as u64, bounds.len() as u64);
    }
}

#[test]
fn table_of_test_tiers_shows_the_states_of_the_model_in_each_tier() {
    let code = read_text("model/tests/all/search.rs");
    let states = |constant: &str| {
        let row_start = format!("const {constant}: usize = ");
        let line = code.lines().find_map(|line| line.strip_prefix(&row_start));
        parse_numbers(line.unwrap_or_else(|| panic!("no {constant}")))[0]
    };
    assert_row_shows(
        "states of the model",
        states("SMALL_STATES"),
        states("ALL_STATES"),
    );
}

#[test]
fn table_of_test_tiers_shows_the_chaos_runs_of_each_tier() {
    let [mut short, mut full] = [0, 0];
    for file in ["runs", "mixes", "changes"] {
        let code = read_text(&format!("chaos/tests/all/{file}.rs"));
        let nightly = code.matches(NIGHTLY_ATTRIBUTE).count() as u64;
        let tests = code.matches("#[test]").count() + code.matches("#[tokio::test").count();
        // Only `runs.rs` has tests that start chaos runs but are not nightly.
        if file == "runs" {
            short = tests as u64 - nightly;
        }
        full += nightly;
    }
    assert_row_shows("tests with chaos runs", short, short + full);
}

#[test]
fn table_of_test_tiers_shows_which_checks_each_tier_runs() {
    let test_script = without_comments("scripts/test");
    let (short, full) = test_script
        .split_once("[ -n \"$all\" ]; then")
        .expect("scripts/test must have steps for --all only");
    let ci_script = without_comments(".ci/run");
    assert!(ci_script.lines().any(|line| line == "scripts/test"));
    for (name, command) in STEPS {
        let is_short = short.contains(command);
        let tier_flags = [
            is_short,
            is_short || ci_script.contains(command),
            is_short || full.contains(command),
        ];
        let runs_in_tier = tier_flags.map(|is_in_tier| if is_in_tier { "yes" } else { "no" });
        assert_eq!(table_row(name), runs_in_tier, "{name}");
    }
    let features = without_comments("scripts/features");
    for check in [
        "quorate \"\"",
        "quorate \"$feature\"",
        "quorate-cli \"$feature\"",
    ] {
        assert!(features.contains(&format!("check {check}\n")), "{check}");
    }
}

#[test]
fn ignore_attribute_is_used_only_for_nightly_tests_of_simulation_chaos_and_model() {
    for file in files().iter().filter(|file| file.is_rust()) {
        let lines = file.text.lines().map(str::trim);
        for line in lines.filter(|line| line.starts_with("#[ignore")) {
            let path = &file.path;
            let folders = ["simulation/tests", "chaos/tests", "model/tests"];
            let is_slow = folders.iter().any(|folder| path.starts_with(folder));
            assert!(
                is_slow && line == NIGHTLY_ATTRIBUTE,
                "{}: {line}",
                path.display()
            );
        }
    }
}

#[test]
fn first_command_of_the_readme_is_the_same_on_all_pages_and_runs_in_ci() {
    let readme = read_text("README.md");
    let end = readme
        .find(" -- demo`")
        .expect("a command that runs the demo");
    let start = readme[..end].rfind('`').expect("the start of the command") + 1;
    let command = format!("{} -- demo", &readme[start..end]);
    assert!(command.starts_with("cargo run "), "{command}");
    let ci_script = without_comments(".ci/run");
    assert!(ci_script.lines().any(|line| line == command), "{command}");
    for file in files() {
        for line in file
            .text
            .lines()
            .filter(|line| file.is_page() && line.contains(" -- demo"))
        {
            assert!(line.contains(&command), "{}: {line}", file.path.display());
        }
    }
}
