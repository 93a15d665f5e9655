//! The matrix: one short run for each combination of workloads, fault, masters, and order (`fair` or `unordered`). The
//! results are written as tables into a page.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;

use crate::checks::Verdict;
use crate::faults::Kind;
use crate::node::NodeKind;
use crate::progress::Progress;
use crate::report::Summary;
use crate::run;
use crate::scenario::{Exclusion, Scenario};
use crate::workload::{Order, Workload, family};

/// The two markers in a page between which the results are written. The text around the markers stays.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    begin: &'static str,
    end: &'static str,
}

impl Place {
    /// The markers for the results of runs with Redis masters only.
    pub const REDIS: Self = Self {
        begin: "<!-- matrix: written by scripts/chaos --all -->",
        end: "<!-- end of matrix -->",
    };
    /// The markers for the results of runs with MariaDB or ZooKeeper masters.
    pub const MIXES: Self = Self {
        begin: "<!-- mixes: written by scripts/chaos --mixes -->",
        end: "<!-- end of mixes -->",
    };
}

/// A cell of the matrix: one run and its result.
#[derive(Debug)]
pub struct Cell {
    /// The workloads that ran at the same time.
    pub workloads: Vec<Workload>,
    /// The kind of fault.
    pub kind: Kind,
    /// The kinds of the masters.
    pub nodes: Vec<NodeKind>,
    /// The order in which waiting clients get the lock.
    pub order: Order,
    /// The result.
    pub summary: Summary,
}

/// The dimensions of the matrix. Each combination of their values is one run. A combination is left out if its fault
/// fits none of its masters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Groups of workloads. The workloads of a group run at the same time, in the same run.
    pub workloads: Vec<Vec<Workload>>,
    /// The kinds of faults.
    pub kinds: Vec<Kind>,
    /// The sets of masters, each given by the kinds of its masters.
    pub fleets: Vec<Vec<NodeKind>>,
    /// The orders in which waiting clients get the lock.
    pub orders: Vec<Order>,
    /// The time during which faults are injected in each run.
    pub cell: Duration,
    /// The seed of the first run. Each later run uses the next number.
    pub seed: u64,
}

/// Makes all runs of the matrix, one after the other. If `stop` becomes true, returns early with the runs completed so
/// far. Reports of runs whose verdict is not "valid" are kept in `out`.
///
/// # Errors
///
/// If a run cannot be started.
pub fn run(
    plan: &Plan,
    base: &Scenario,
    out: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let scenarios = plan.scenarios(base);
    let total = scenarios.len();
    let mut progress = Progress::hidden();
    for (scenario, kind) in scenarios {
        if stop.load(Ordering::Relaxed) {
            return Ok(cells);
        }
        let (nodes, order) = (scenario.nodes(), scenario.order);
        let masters = NodeKind::name_of(&nodes);
        if let Some(why) = nodes.iter().find_map(|node| node.lack()) {
            eprintln!("left out: {kind} on {masters}: {why}");
            continue;
        }
        let workloads = scenario.workloads.clone();
        let name = Workload::name_of(&workloads);
        let dir = out.join(format!("{name}-{kind}-{masters}-{}", order.name()));
        let outcome = run::run(&scenario, &dir, &mut progress, stop)?;
        let summary = Summary::of(&scenario, &outcome.history, &outcome.findings);
        let cell = Cell {
            workloads,
            kind,
            nodes,
            order,
            summary,
        };
        eprintln!("[{:>3}/{total}] {}", cells.len() + 1, cell.line());
        if cell.summary.verdict == Verdict::Valid {
            let _ = fs::remove_dir_all(&dir);
        }
        cells.push(cell);
    }
    Ok(cells)
}

impl Plan {
    /// The scenarios of all runs of the matrix, in order. Each scenario has its own seed and is paired with the kind of
    /// fault that is injected.
    fn scenarios(&self, base: &Scenario) -> Vec<(Scenario, Kind)> {
        let mut all = Vec::new();
        for workloads in &self.workloads {
            for &kind in &self.kinds {
                let of = |nodes: &&Vec<_>| nodes.iter().any(|node| kind.on.has(*node));
                for nodes in self.fleets.iter().filter(of) {
                    for &order in &self.orders {
                        let scenario = Scenario {
                            seed: self.seed + all.len() as u64,
                            duration: self.cell,
                            faults: vec![kind],
                            workloads: workloads.clone(),
                            order,
                            guarded: !kind.is_unguarded(),
                            ..base.clone().over(nodes)
                        };
                        all.push((scenario, kind));
                    }
                }
            }
        }
        all
    }
}

impl Cell {
    /// Whether the fault could not be injected, because this machine or this number of masters does not support it.
    pub fn is_unavailable(&self) -> bool {
        self.summary.unavailable.contains_key(self.kind.name())
    }

    /// Whether the fault was available, the verdict is "valid", and the run had no violations at all. If the scenario
    /// allowed a violation, the result is false too.
    fn is_plainly_valid(&self) -> bool {
        let summary = &self.summary;
        summary.verdict == Verdict::Valid && summary.excused == 0 && !self.is_unavailable()
    }

    /// The row of this run in the result table.
    fn row(&self) -> String {
        let summary = &self.summary;
        let name = Workload::name_of(&self.workloads);
        let (kind, order) = (self.kind, self.order.name());
        let masters = NodeKind::name_of(&self.nodes);
        let cell = format!("| {name} | {kind} | {masters} | {order} |");
        if self.is_unavailable() {
            let why = &summary.unavailable[kind.name()];
            return format!("{cell} | | | | | unavailable: {why} |\n");
        }
        let exclusion = match summary.exclusion {
            Exclusion::Holds => "holds",
            Exclusion::MayBreak => "may break",
            Exclusion::MustBreak => "must break",
        };
        format!(
            "{cell} {exclusion} | {} | {} | {} | {} | {} |\n",
            summary.landed(),
            summary.acquisitions(),
            summary.violations,
            summary.excused,
            summary.verdict
        )
    }

    fn line(&self) -> String {
        let what = if self.is_unavailable() {
            "unavailable".to_owned()
        } else {
            self.summary.verdict.to_string()
        };
        format!(
            "{:<10} {:<22} {} masters, {:<9} {what:<12} {} faults took effect, {} acquisitions, {} violations, {} \
             allowed overlaps",
            Workload::name_of(&self.workloads),
            self.kind.name(),
            NodeKind::name_of(&self.nodes),
            self.order.name(),
            self.summary.landed(),
            self.summary.acquisitions(),
            self.summary.violations,
            self.summary.excused
        )
    }
}

/// The results of these runs of the matrix as Markdown.
pub fn markdown(cells: &[Cell], server: &str) -> String {
    let mut out = String::new();
    let date = humantime::format_rfc3339_seconds(SystemTime::now());
    // If the fault of a run was unavailable, leave the acquisitions of that run out of the sums.
    let sum = |of: &dyn Fn(&Cell) -> usize| {
        let had = cells.iter().filter(|cell| !cell.is_unavailable());
        had.map(of).sum::<usize>()
    };
    let unavailable = cells.iter().filter(|cell| cell.is_unavailable()).count();
    let valid = cells
        .iter()
        .filter(|cell| cell.summary.verdict == Verdict::Valid)
        .count();
    let _ = writeln!(
        out,
        "{date}, version {}, {server}.\n\n\
         {} runs: {valid} valid, {} not valid, {unavailable} unavailable.\n\
         {} faults took effect, {} acquisitions, {} violations, {} overlaps that the scenario allows.\n",
        env!("CARGO_PKG_VERSION"),
        cells.len(),
        cells.len() - valid - unavailable,
        sum(&|cell| cell.summary.landed()),
        sum(&|cell| cell.summary.acquisitions()),
        sum(&|cell| cell.summary.violations),
        sum(&|cell| cell.summary.excused),
    );
    out.push_str(&by_workload(cells));
    out.push('\n');
    out.push_str(&by_fault(cells));
    out.push_str(
        "\nRuns whose verdict is not \"valid\", or in which the scenario allowed violations:\n\n",
    );
    out.push_str("| workload | fault | masters | order | exclusion | landed | acquisitions | violations | allowed | verdict |\n");
    out.push_str("|---|---|---|---|---|---|---|---|---|---|\n");
    for cell in cells.iter().filter(|cell| !cell.is_plainly_valid()) {
        out.push_str(&cell.row());
    }
    out
}

/// The results as a Markdown table with one row per kind of fault. Each row sums up all runs with this fault.
fn by_fault(cells: &[Cell]) -> String {
    let parts = |workload: &Workload| {
        if Workload::LOCK.contains(workload) {
            ("lock", Workload::LOCK.to_vec())
        } else {
            (workload.name(), vec![*workload])
        }
    };
    let mut kinds: Vec<(&str, Vec<Workload>)> = Workload::ALL.iter().map(parts).collect();
    kinds.dedup();
    kinds.retain(|(_, of)| {
        let mut all = cells.iter().flat_map(|cell| &cell.workloads);
        all.any(|one| of.contains(one))
    });
    let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
    let mut out = format!(
        "| fault | runs | landed | {} | violations | allowed |\n|---|---|---|{}---|---|\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let mut faults: Vec<Kind> = Vec::new();
    for cell in cells {
        if !faults.contains(&cell.kind) {
            faults.push(cell.kind);
        }
    }
    for fault in faults {
        let runs: Vec<&Summary> = cells
            .iter()
            .filter(|cell| cell.kind == fault && !cell.is_unavailable())
            .map(|cell| &cell.summary)
            .collect();
        let sum = |of: &dyn Fn(&Summary) -> usize| runs.iter().map(|run| of(run)).sum::<usize>();
        let of_kind = |of: &[Workload]| {
            let parts = of.iter();
            let obtained = parts
                .map(|one| sum(&|run| run.obtained.get(one.name()).copied().unwrap_or_default()));
            obtained.sum::<usize>().to_string()
        };
        let by_kind: Vec<String> = kinds.iter().map(|(_, of)| of_kind(of)).collect();
        let _ = writeln!(
            out,
            "| {fault} | {} | {} | {} | {} | {} |",
            runs.len(),
            sum(&Summary::landed),
            by_kind.join(" | "),
            sum(&|run| run.violations),
            sum(&|run| run.excused),
        );
    }
    out
}

/// The result of each workload, as a Markdown table.
fn by_workload(cells: &[Cell]) -> String {
    let mut out = String::from(
        "| workload | runs | kinds of faults | landed | acquisitions | violations | allowed |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for workload in Workload::ALL {
        let name = workload.name();
        let runs = cells.iter();
        let runs = runs.filter(|cell| cell.workloads.contains(&workload) && !cell.is_unavailable());
        let runs: Vec<&Cell> = runs.collect();
        if runs.is_empty() {
            continue;
        }
        let about = |excused: bool| {
            let all = runs
                .iter()
                .flat_map(|cell| cell.summary.findings.violations());
            all.filter(|one| one.excused.is_some() == excused)
                .filter(|one| one.resource.as_deref().map(family) == Some(name))
                .count()
        };
        let faults: BTreeSet<&str> = runs
            .iter()
            .filter(|cell| cell.summary.landed() > 0)
            .map(|cell| cell.kind.name())
            .collect();
        let sum = |of: &dyn Fn(&Summary) -> usize| {
            let parts = runs.iter().map(|cell| of(&cell.summary));
            parts.sum::<usize>()
        };
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} | {} |",
            runs.len(),
            faults.len(),
            sum(&|summary| summary.landed()),
            sum(&|summary| summary.obtained.get(name).copied().unwrap_or(0)),
            about(false),
            about(true),
        );
    }
    out
}

/// Writes the results into the file between the markers of `place`, and keeps the text around them.
///
/// # Errors
///
/// If the file cannot be read or written.
pub fn record(path: &Path, place: Place, matrix: &str) -> anyhow::Result<()> {
    let Place { begin, end } = place;
    let old = fs::read_to_string(path).unwrap_or_default();
    let block = format!("{begin}\n{matrix}{end}");
    let new = match (old.find(begin), old.find(end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{block}{}", &old[..from], &old[to + end.len()..])
        }
        _ if old.is_empty() => format!("# Matrix\n\n{block}\n"),
        _ => format!("{}\n\n{block}\n", old.trim_end()),
    };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, new).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Findings;
    use crate::history::History;

    fn cell(workloads: &[Workload], verdict: Verdict, obtained: &[(&str, usize)]) -> Cell {
        let scenario = Scenario {
            workloads: workloads.to_vec(),
            ..Scenario::default()
        };
        let findings = Findings {
            verdict,
            findings: Vec::new(),
        };
        let mut summary = Summary::of(&scenario, &History::default(), &findings);
        let named = obtained.iter().map(|(name, n)| ((*name).to_owned(), *n));
        summary.obtained = named.collect();
        Cell {
            workloads: workloads.to_vec(),
            kind: "kill".parse().expect("the name must be that of a fault"),
            nodes: vec![NodeKind::REDIS; 3],
            order: Order::Fair,
            summary,
        }
    }

    #[test]
    fn matrix_report_contains_totals_and_every_run_that_is_not_valid() {
        let mut without = cell(&Workload::KINDS, Verdict::Unknown, &[("readers", 99)]);
        let unavailable = [("kill".to_owned(), "no".to_owned())];
        without.summary.unavailable = unavailable.into();
        let cells = [
            without,
            cell(&Workload::LOCK, Verdict::Valid, &[("file", 7), ("many", 5)]),
            cell(
                &Workload::KINDS,
                Verdict::Unknown,
                &[("readers", 3), ("permits", 20)],
            ),
            cell(&Workload::KINDS, Verdict::Valid, &[("readers", 4)]),
        ];
        let text = markdown(&cells, "a server");
        let sums =
            "4 runs: 2 valid, 1 not valid, 1 unavailable.\n0 faults took effect, 39 acquisitions,";
        assert!(text.contains(sums), "{text}");
        let head = "| fault | runs | landed | lock | transfer | readers | permits | owners | prizes | leader | violations | allowed |";
        assert!(text.contains(head), "{text}");
        let row = "| kill | 3 | 0 | 12 | 0 | 7 | 20 | 0 | 0 | 0 | 0 | 0 |";
        assert!(text.contains(row), "{text}");
        assert_eq!(text.matches("| kill | 3 | fair |").count(), 2, "{text}");
        assert!(text.contains("| kinds | kill | 3 | fair | | | | | | unavailable: no |"));
        assert!(text.contains("| kinds | kill | 3 | fair | holds | 0 | 23 | 0 | 0 | unknown |"));
        let (_, only) = text
            .split_once("the scenario allowed violations:")
            .expect("the report must have the list of runs");
        assert!(!only.contains("| lock |"), "{text}");
    }
}
