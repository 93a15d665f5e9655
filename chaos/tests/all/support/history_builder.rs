//! Histories made by hand, for the tests of the checkers. If the variable `QUORATE_TEST_HISTORIES` names a folder, each
//! history that a checker reads is stored there with the findings about it. `scripts/judge --self-test` reads them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use quorate_chaos::checks::Findings;
use quorate_chaos::checks::Verdict;
use quorate_chaos::checks::all::check;
use quorate_chaos::claim::Claim;
use quorate_chaos::event::{Entry, Event};
use quorate_chaos::history::History;
use quorate_chaos::report;
use quorate_chaos::scenario::Scenario;

pub(crate) const MS: u64 = 1_000_000;

/// A history under construction; times are in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct HistoryBuilder(pub(crate) Vec<Entry>);

impl HistoryBuilder {
    pub(crate) fn at(mut self, ms: u64, process: &str, event: Event) -> Self {
        let (t, process) = (ms * MS, process.to_owned());
        self.0.push(Entry { t, process, event });
        self
    }

    /// Adds a fault that begins at `from` and ends at `to`.
    pub(crate) fn fault(self, kind: &str, master: &str, from: u64, to: u64) -> Self {
        let inject = Event::Inject {
            fault: 0,
            kind: kind.to_owned(),
            targets: vec![master.to_owned()],
        };
        let landed_count = Event::Landed {
            fault: 0,
            effect: "yes".into(),
        };
        self.at(from, "chaos", inject)
            .at(from, "chaos", landed_count)
            .at(to, "chaos", Event::Healed { fault: 0 })
    }

    /// The verdict of a checker, and the number of violations that it finds.
    pub(crate) fn checker_verdict(self, checker: &str, scenario: &Scenario) -> (Verdict, usize) {
        let history = History::new(self.0);
        let findings = check(scenario, &history);
        keep(scenario, &history, &findings);
        let finding = findings
            .of_checker(checker)
            .expect("a checker with this name must exist");
        (finding.verdict, finding.violations.len())
    }
}

/// Stores the history, if a folder for it is named. The name of its own folder is that of the test, and a number.
fn keep(scenario: &Scenario, history: &History, findings: &Findings) {
    static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(1);
    let Some(folder) = std::env::var_os("QUORATE_TEST_HISTORIES") else {
        return;
    };
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default().replace("::", ".");
    let folder = PathBuf::from(folder).join(format!("{test}-{number}"));
    fs::create_dir_all(&folder).expect("the folder must be created");
    report::store(scenario, history, &folder).expect("the history must be stored");
    let text = serde_json::to_string(findings).expect("findings must become JSON");
    fs::write(folder.join("findings.json"), text).expect("the findings must be stored");
}

/// The event in which a client starts to wait for the lock on the resource "file".
pub(crate) fn wait(op: u64) -> Event {
    Event::Wait {
        op,
        resource: "file".into(),
        further_resources: Vec::new(),
        claim: Claim::Alone,
        continued_hold: None,
    }
}

pub(crate) fn obtained(op: u64, token: Option<u64>, until: Option<u64>) -> Event {
    Event::Obtained {
        op,
        token,
        until,
        slot: None,
    }
}
