//! Which tests are asked whether a mutant lives, and in which order.

use std::collections::BTreeSet;

/// The test programs that judge, by price, with what is run of each: those named, or all but them.
const TESTS: &[(&str, Part)] = &[
    ("lib", Part::Only(&["protocol::"])),
    ("lib", Part::Only(&["rounds::"])),
    ("lib", Part::Only(&["waiting::"])),
    ("lib", Part::Only(&["hold::"])),
    ("lib", Part::Only(&["acquire::"])),
    ("lib", Part::Only(&["node::actor::"])),
    ("lib", Part::Only(&["node::redis::link::"])),
    ("lib", Part::Only(&["node::redis::"])),
    ("lib", Part::All),
    ("wakes", Part::All),
    ("local_line", Part::All),
    ("told", Part::All),
    ("acquire", Part::All),
    ("waiting", Part::All),
    ("contract", Part::AllBut(&["agreement", "other_servers"])),
    ("undoing", Part::All),
    ("limits", Part::All),
    ("proposals", Part::All),
    ("attempts", Part::All),
    ("several", Part::All),
    ("readers", Part::All),
    ("owner", Part::All),
    ("lost", Part::All),
    ("cancellation", Part::All),
    ("contract", Part::Only(&["agreement"])),
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
    ("election", Part::All),
    ("once", Part::All),
    ("quota", Part::All),
    ("quota_faults", Part::All),
    ("notes", Part::All),
    ("list", Part::All),
    ("settings", Part::All),
    ("kinds", Part::All),
    ("memory", Part::All),
];

/// The tests of a program that are run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    All,
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

/// The programs that a quick look is content with.
const QUICK: usize = 25;

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
