//! Tests of environment variables: an empty variable counts as unset, and an unknown `QUORATE_*` variable causes a
//! warning.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{
    self, RunOutput, output_of, quorate_command, quorate_on, quorate_run, start_masters,
};

/// The commands that connect to masters, with their required arguments.
const COMMANDS: [&[&str]; 11] = [
    &["run", "r", "true"],
    &["hold", "r"],
    &["once", "--per", "1h", "r", "true"],
    &["lead", "r", "true"],
    &["watch", "r"],
    &["status", "r"],
    &["check", "r", "7"],
    &["doctor"],
    &["break", "r", "--yes"],
    &["bench"],
    &["quota", "left", "r"],
];

#[test]
fn every_environment_variable_of_every_command_may_be_empty() {
    for words in COMMANDS {
        let page = if words[0] == "quota" {
            "quota-left"
        } else {
            words[0]
        };
        let names = common::variables_of(page);
        assert!(names.len() > 12, "{words:?}: {names:?}");
        let mut command = quorate_command();
        for name in &names {
            command.env(name, "");
        }
        let output = output_of(command.args(words));
        assert_eq!(output.code, Some(64), "{words:?}: {output:?}");
        assert!(
            output.stderr.contains("no masters"),
            "{words:?}: {output:?}"
        );
    }
}

fn output_with_variable(name: &str, words: &[&str]) -> RunOutput {
    let masters = start_masters(1);
    output_of(quorate_on(&masters).env(name, "5s").args(words))
}

#[test]
fn misspelt_environment_variable_is_reported_with_a_suggestion() {
    let warning_line =
        "quorate: warning: quorate has no variable QUORATE_TLL: did you mean QUORATE_TTL?\n";
    for words in [&["run", "r", "true"][..], &["status"], &["status", "r"]] {
        let output = output_with_variable("QUORATE_TLL", words);
        assert_eq!(
            (output.code, &*output.stderr),
            (Some(0), warning_line),
            "{output:?}"
        );
        let empty_run = output_of(
            quorate_on(&start_masters(1))
                .env("QUORATE_TLL", "")
                .args(words),
        );
        assert_eq!(
            (empty_run.code, &*empty_run.stderr),
            (Some(0), ""),
            "{empty_run:?}"
        );
    }
    let far_run = output_with_variable("QUORATE_SOMETHING", &["status"]);
    assert!(
        far_run.stderr.contains("QUORATE_SOMETHING") && !far_run.stderr.contains("did you mean"),
        "{far_run:?}"
    );
    let quiet_run = output_with_variable("QUORATE_TLL", &["status", "--quiet"]);
    assert_eq!(
        (quiet_run.code, &*quiet_run.stderr),
        (Some(0), ""),
        "{quiet_run:?}"
    );
}

/// The names in `text` of the `QUORATE_*` variables that Rust code reads with `std::env::var` or `std::env::var_os`.
fn variables_read_in(text: &str) -> impl Iterator<Item = &str> {
    let reads = ["var(\"", "var_os(\""].map(|call| text.split(call).skip(1));
    reads
        .into_iter()
        .flatten()
        .filter_map(|rest| rest.split('"').next())
        .filter(|name| name.starts_with("QUORATE_"))
}

/// Adds the `QUORATE_*` variables that the Rust files in `folder` read to `names`.
fn collect_variables(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, file_type) = (entry.path(), entry.file_type().expect("a type"));
        // Symbolic links are not followed, because the links of npm can form a circle.
        if file_type.is_dir() && !path.ends_with("target") {
            collect_variables(&path, names);
        } else if file_type.is_file() && path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            names.extend(variables_read_in(&text).map(str::to_owned));
        }
    }
}

#[test]
fn variables_of_the_tests_and_tools_cause_no_warning() {
    let mut names = BTreeSet::new();
    collect_variables(
        concat!(env!("CARGO_MANIFEST_DIR"), "/..").as_ref(),
        &mut names,
    );
    for option in common::variables_of("run") {
        names.remove(&option);
    }
    for name in [
        "QUORATE_SERVER_DATA",
        "QUORATE_TEST_SEQUENCES",
        "QUORATE_CLI",
    ] {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
    let variables = names.iter().map(|name| (name, "/nonexistent"));
    let output = output_of(quorate_command().envs(variables).arg("status"));
    assert!(output.stderr.contains("no masters"), "{output:?}");
    assert!(!output.stderr.contains("no variable"), "{output:?}");
}

#[test]
fn nested_quorate_does_not_warn_about_variables_set_by_the_outer_quorate() {
    let masters = start_masters(3);
    let quorate_path = env!("CARGO_BIN_EXE_quorate");
    for options in [&["--owner", "me"][..], &["--permits", "2"]] {
        let outer_output = output_of(&mut quorate_run(
            &masters,
            &[options, &["r"]].concat(),
            &[quorate_path, "run", "another", "--", "true"],
        ));
        assert_eq!(
            (outer_output.code, &*outer_output.stderr),
            (Some(0), ""),
            "{outer_output:?}"
        );
    }
}
