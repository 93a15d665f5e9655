//! Which tests are asked whether a mutant lives, and in which order.

use std::collections::BTreeSet;

/// The test programs that judge, by price, with what is run of each: those named, or all.
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
    // The memory master, and the same rules behind a store; without a server.
    ("contract", Part::Only(&["memory::"])),
    ("contract", Part::Only(&["table::"])),
    ("contract", Part::Only(&["table_without_a_clock::"])),
    ("contract", Part::Only(&["agreed::a_store"])),
    ("contract", Part::Only(&["agreed::the", "together::"])),
    ("election", Part::All),
    ("masters", Part::All),
    ("memory", Part::All),
    ("store", Part::All),
    ("store_faults", Part::All),
    ("sweep", Part::All),
    ("wakes", Part::All),
    ("local_line", Part::All),
    ("told", Part::All),
    ("acquire", Part::All),
    ("waiting", Part::All),
    ("contract", Part::Only(&["server::"])),
    ("undoing", Part::All),
    ("limits", Part::All),
    ("proposals", Part::All),
    ("attempts", Part::All),
    ("several", Part::All),
    ("readers", Part::All),
    ("owner", Part::All),
    ("scope", Part::All),
    ("paused", Part::All),
    ("lost", Part::All),
    ("cancellation", Part::All),
    ("full", Part::All),
    ("forgotten", Part::All),
    ("marking", Part::All),
    ("marks", Part::All),
    ("renewal", Part::All),
    ("traced", Part::All),
    ("stepping_out", Part::All),
    ("waiting_faults", Part::All),
    ("foreign", Part::All),
    ("deadline", Part::All),
    ("redis_node", Part::All),
    ("hostile", Part::All),
    ("burst", Part::All),
    ("lease", Part::All),
    ("semaphore", Part::All),
    ("permit_line", Part::All),
    ("once", Part::All),
    ("quota", Part::All),
    ("quota_faults", Part::All),
    ("notes", Part::All),
    ("list", Part::All),
    ("inspect", Part::All),
    ("bad_input", Part::All),
    ("settings", Part::All),
    ("kinds", Part::All),
    ("needs", Part::All),
    ("metrics", Part::All),
];

/// Programs that need a feature.
pub(crate) const WITH_FEATURES: &[(&str, &str)] = &[("metrics", "metrics")];

/// The tests of a program that are run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    All,
    Only(&'static [&'static str]),
}

/// The programs that a quick look is content with.
const QUICK: usize = 35;

/// Who is heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// Only the cheap ones.
    pub(crate) quick: bool,
    /// Only these programs; empty for all.
    pub(crate) only: Vec<String>,
}

impl Heard {
    fn hears(&self, program: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == program)
    }

    /// The tests that are heard, the cheapest first: those of a program, and which of them.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &'static (&'static str, Part)> {
        let most = if self.quick { QUICK } else { TESTS.len() };
        TESTS[..most].iter().filter(|(name, _)| self.hears(name))
    }

    /// Their programs.
    pub(crate) fn programs(&self) -> BTreeSet<&'static str> {
        self.tests().map(|(name, _)| *name).collect()
    }

    /// Whether the simulation is.
    pub(crate) fn simulation(&self) -> bool {
        self.hears("simulation")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets;

    /// Test programs that say nothing of the deciding code: of pages, of what the package is made of, of its settings,
    /// and of verbs that others test already.
    const NO_JUDGES: [&str; 7] = [
        "blocking",
        "crates",
        "from_env",
        "interop",
        "pages",
        "redis_types",
        "tidy",
    ];

    #[test]
    fn every_test_program_of_the_library_is_a_judge_or_named_as_none() {
        let files = targets::tracked(&targets::root(), &["tests/*.rs", "tests/*/main.rs"]);
        let judges: BTreeSet<&str> = TESTS.iter().map(|(name, _)| *name).collect();
        for file in files.expect("the files") {
            let name = file.trim_start_matches("tests/").trim_end_matches(".rs");
            let name = name.trim_end_matches("/main");
            let known = judges.contains(name) || NO_JUDGES.contains(&name);
            assert!(known, "name {name} in mutants/src/heard.rs");
        }
    }
}
