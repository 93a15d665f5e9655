//! The test programs and simulation sweeps that run against the mutants.

use std::collections::BTreeSet;

/// The test programs that run against the mutants, the cheapest first. Each entry names a program and the tests of that
/// program to run.
const TESTS: &[(&str, Part)] = &[
    ("lib", Part::Only(&["protocol::"])),
    ("lib", Part::Only(&["rounds::"])),
    ("lib", Part::Only(&["waiting::"])),
    ("lib", Part::Only(&["hold::"])),
    ("lib", Part::Only(&["acquire::"])),
    ("lib", Part::Only(&["kinds::"])),
    ("lib", Part::Only(&["node::actor::"])),
    ("lib", Part::Only(&["node::memory::"])),
    ("lib", Part::Only(&["node::store::"])),
    ("lib", Part::Only(&["node::redis::link::"])),
    ("lib", Part::Only(&["node::redis::"])),
    ("lib", Part::All),
    // Run only those contract tests that start no server.
    ("contract", Part::Only(&["memory::"])),
    ("contract", Part::Only(&["table::"])),
    ("contract", Part::Only(&["table_without_a_clock::"])),
    (
        "contract",
        Part::Only(&["agreed::store", "agreed::a_store"]),
    ),
    (
        "contract",
        Part::Only(&["agreed::memory", "orders::memory_master", "together::"]),
    ),
    ("all", Part::Only(&["election::"])),
    ("all", Part::Only(&["masters::"])),
    ("all", Part::Only(&["memory::"])),
    ("all", Part::Only(&["store::"])),
    ("all", Part::Only(&["store_faults::"])),
    ("all", Part::Only(&["sweep::"])),
    ("all", Part::Only(&["wakes::"])),
    ("all", Part::Only(&["local_queue::"])),
    ("all", Part::Only(&["progress::"])),
    ("all", Part::Only(&["acquire::"])),
    ("all", Part::Only(&["waiting::"])),
    ("all", Part::Only(&["requests::"])),
    ("all", Part::Only(&["runtimes::"])),
    ("contract", Part::Only(&["server::"])),
    ("all", Part::Only(&["undoing::"])),
    ("all", Part::Only(&["limits::"])),
    ("all", Part::Only(&["proposals::"])),
    ("all", Part::Only(&["attempts::"])),
    ("all", Part::Only(&["several::"])),
    ("all", Part::Only(&["readers::"])),
    ("all", Part::Only(&["owner::"])),
    ("all", Part::Only(&["scope::"])),
    ("all", Part::Only(&["paused::"])),
    ("all", Part::Only(&["lost::"])),
    ("all", Part::Only(&["cancellation::"])),
    ("all", Part::Only(&["full::"])),
    ("all", Part::Only(&["forgotten::"])),
    ("all", Part::Only(&["marking::"])),
    ("all", Part::Only(&["marks::"])),
    ("all", Part::Only(&["release::"])),
    ("all", Part::Only(&["renewal::"])),
    ("all", Part::Only(&["risk::"])),
    ("all", Part::Only(&["traced::"])),
    ("all", Part::Only(&["stepping_out::"])),
    ("all", Part::Only(&["waiting_faults::"])),
    ("all", Part::Only(&["foreign::"])),
    ("all", Part::Only(&["deadline::"])),
    ("all", Part::Only(&["redis_node::"])),
    ("all", Part::Only(&["hostile::"])),
    ("all", Part::Only(&["burst::"])),
    ("all", Part::Only(&["lease::"])),
    ("all", Part::Only(&["semaphore::"])),
    ("all", Part::Only(&["permit_line::"])),
    ("all", Part::Only(&["once::"])),
    ("all", Part::Only(&["quota::"])),
    ("all", Part::Only(&["quota_faults::"])),
    ("all", Part::Only(&["notes::"])),
    ("all", Part::Only(&["list::"])),
    ("all", Part::Only(&["inspect::"])),
    ("all", Part::Only(&["bad_input::"])),
    ("all", Part::Only(&["settings::"])),
    ("all", Part::Only(&["kind_contract::"])),
    ("all", Part::Only(&["needs::"])),
    ("all", Part::Only(&["metrics::"])),
    ("all", Part::Only(&["dead_holders::"])),
    ("all", Part::Only(&["fence::"])),
    ("all", Part::Only(&["fencing_proof::"])),
    ("all", Part::Only(&["refusals::"])),
    ("all", Part::Only(&["blocking::"])),
    ("all", Part::Only(&["quorums::"])),
    ("all", Part::Only(&["fork::"])),
];

/// Which tests of a test program are run: all tests, or only the tests whose names contain one of the strings in
/// `Only`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    All,
    Only(&'static [&'static str]),
}

/// A `--quick` run uses only the first `QUICK_TESTS_COUNT` entries of `TESTS`.
const QUICK_TESTS_COUNT: usize = 37;

/// Which judges (test programs and sweeps of the simulation) are used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Whether only the cheapest judges are used (the option `--quick`).
    pub(crate) quick: bool,
    /// The names of the judges to use; if empty, all judges are used. A name is a test program, `simulation`, or a
    /// module of the tests in `tests/all`.
    pub(crate) judge_names: Vec<String>,
}

impl Choice {
    fn includes(&self, program: &str, part: Part) -> bool {
        let is_file_of = |judge_name: &String| match part {
            Part::Only([name]) => name.strip_suffix("::") == Some(judge_name),
            _ => false,
        };
        let is_named = |judge_name: &String| {
            judge_name == program || (program == "all" && is_file_of(judge_name))
        };
        self.judge_names.is_empty() || self.judge_names.iter().any(is_named)
    }

    /// Returns the chosen test programs, the cheapest first, each with the part of its tests that runs.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &'static (&'static str, Part)> {
        let count = if self.quick {
            QUICK_TESTS_COUNT
        } else {
            TESTS.len()
        };
        TESTS[..count]
            .iter()
            .filter(|(name, part)| self.includes(name, *part))
    }

    /// Returns the names of the chosen test programs.
    pub(crate) fn programs(&self) -> BTreeSet<&'static str> {
        self.tests().map(|(name, _)| *name).collect()
    }

    /// Whether the simulation is one of the chosen judges.
    pub(crate) fn simulation(&self) -> bool {
        self.includes("simulation", Part::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets;

    /// Test files that are not used as judges. Either the code that such a file tests is not mutated, or other judges
    /// test the same code.
    const NO_JUDGES: [&str; 13] = [
        "crates",
        "from_env",
        "interop",
        "json",
        "pages",
        "passwords",
        "promises",
        "redis_types",
        "language",
        "references",
        "repository",
        "tidy",
        "tiers",
    ];

    #[test]
    fn every_test_program_of_the_library_runs_on_mutants_or_is_excluded() {
        let files = ["tests/*/main.rs", "tests/all/*.rs"];
        let files = targets::tracked(&targets::root(), &files)
            .expect("git must list the files of the folder tests");
        for file in &files {
            let program = file
                .trim_start_matches("tests/")
                .trim_end_matches("/main.rs");
            let (program, name) = match program.split_once('/') {
                Some((program, file)) => (program, file.trim_end_matches(".rs")),
                None => (program, program),
            };
            let choice = Choice {
                judge_names: vec![name.to_owned()],
                ..Choice::default()
            };
            let is_judge = choice.tests().any(|(judge, _)| *judge == program);
            let is_known = is_judge || NO_JUDGES.contains(&name);
            assert!(
                is_known,
                "mutants/src/choice.rs must list {name} in TESTS or in NO_JUDGES"
            );
        }
        assert!(
            files.len() > 50,
            "git must list more than 50 files: {files:?}"
        );
    }
}
