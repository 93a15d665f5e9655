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
use crate::workload::{Order, Workload, workload_name};

/// The two markers in a page between which the results are written. The text around the markers stays.
#[derive(Clone, Copy, Debug)]
pub struct ResultMarkers {
    begin: &'static str,
    end: &'static str,
}

impl ResultMarkers {
    /// The markers for the results of runs with Redis masters only.
    pub const REDIS: Self = Self {
        begin: "<!-- matrix: written by scripts/chaos --all -->",
        end: "<!-- end of matrix -->",
    };
    /// The markers for the results of runs with other masters, alone or together with Redis.
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
    pub fault_time: Duration,
    /// The seed of the first run. Each later run uses the next number.
    pub seed: u64,
}

/// Makes all runs of the matrix, one after the other. If `stop` becomes true, returns early with the runs completed so
/// far. Reports of runs whose verdict is not "valid" are kept in `report_dir`.
///
/// # Errors
///
/// If a run cannot be started.
pub fn run(
    plan: &Plan,
    base: &Scenario,
    report_dir: &Path,
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
        let masters = NodeKind::set_name(&nodes);
        if let Some(why) = nodes.iter().find_map(|node| node.missing_reason()) {
            eprintln!("left out: {kind} on {masters}: {why}");
            continue;
        }
        let workloads = scenario.workloads.clone();
        let name = Workload::group_name(&workloads);
        let dir = report_dir.join(format!("{name}-{kind}-{masters}-{}", order.name()));
        let result = run::run(&scenario, &dir, &mut progress, stop)?;
        let summary = Summary::of(&scenario, &result.history, &result.findings);
        let cell = Cell {
            workloads,
            kind,
            nodes,
            order,
            summary,
        };
        eprintln!("[{:>3}/{total}] {}", cells.len() + 1, cell.progress_line());
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
        let mut scenarios = Vec::new();
        for workloads in &self.workloads {
            for &kind in &self.kinds {
                let has_suitable_master =
                    |nodes: &&Vec<_>| nodes.iter().any(|node| kind.on.includes(*node));
                for nodes in self.fleets.iter().filter(has_suitable_master) {
                    for &order in &self.orders {
                        let scenario = Scenario {
                            seed: self.seed + scenarios.len() as u64,
                            duration: self.fault_time,
                            faults: vec![kind],
                            workloads: workloads.clone(),
                            order,
                            guarded: !kind.is_unguarded(),
                            ..base.clone().with_nodes(nodes)
                        };
                        scenarios.push((scenario, kind));
                    }
                }
            }
        }
        scenarios
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
        let name = Workload::group_name(&self.workloads);
        let (kind, order) = (self.kind, self.order.name());
        let masters = NodeKind::set_name(&self.nodes);
        let columns = format!("| {name} | {kind} | {masters} | {order} |");
        if self.is_unavailable() {
            let reason = &summary.unavailable[kind.name()];
            return format!("{columns} | | | | | unavailable: {reason} |\n");
        }
        let exclusion = match summary.exclusion {
            Exclusion::Holds => "holds",
            Exclusion::MayBreak => "may break",
            Exclusion::MustBreak => "must break",
        };
        format!(
            "{columns} {exclusion} | {} | {} | {} | {} | {} |\n",
            summary.landed(),
            summary.acquisitions(),
            summary.violations,
            summary.excused,
            summary.verdict
        )
    }

    fn progress_line(&self) -> String {
        let status = if self.is_unavailable() {
            "unavailable".to_owned()
        } else {
            self.summary.verdict.to_string()
        };
        format!(
            "{:<10} {:<22} {} masters, {:<9} {status:<12} {} faults took effect, {} acquisitions, {} violations, {} \
             allowed overlaps",
            Workload::group_name(&self.workloads),
            self.kind.name(),
            NodeKind::set_name(&self.nodes),
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
    let sum_of = |count: &dyn Fn(&Cell) -> usize| {
        let available = cells.iter().filter(|cell| !cell.is_unavailable());
        available.map(count).sum::<usize>()
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
        sum_of(&|cell| cell.summary.landed()),
        sum_of(&|cell| cell.summary.acquisitions()),
        sum_of(&|cell| cell.summary.violations),
        sum_of(&|cell| cell.summary.excused),
    );
    out.push_str(&workload_table(cells));
    out.push('\n');
    out.push_str(&fault_table(cells));
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
fn fault_table(cells: &[Cell]) -> String {
    let group = |workload: &Workload| {
        if Workload::LOCK.contains(workload) {
            ("lock", Workload::LOCK.to_vec())
        } else {
            (workload.name(), vec![*workload])
        }
    };
    let mut groups: Vec<(&str, Vec<Workload>)> = Workload::ALL.iter().map(group).collect();
    groups.dedup();
    groups.retain(|(_, workloads)| {
        let mut used_workloads = cells.iter().flat_map(|cell| &cell.workloads);
        used_workloads.any(|workload| workloads.contains(workload))
    });
    let names: Vec<&str> = groups.iter().map(|(name, _)| *name).collect();
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
        let sum_of = |workloads: &dyn Fn(&Summary) -> usize| {
            runs.iter().map(|run| workloads(run)).sum::<usize>()
        };
        let obtained_in = |workloads: &[Workload]| {
            let group = workloads.iter();
            let obtained_counts = group.map(|workload| {
                sum_of(&|run| {
                    run.obtained
                        .get(workload.name())
                        .copied()
                        .unwrap_or_default()
                })
            });
            obtained_counts.sum::<usize>().to_string()
        };
        let obtained_by_group: Vec<String> = groups
            .iter()
            .map(|(_, workloads)| obtained_in(workloads))
            .collect();
        let _ = writeln!(
            out,
            "| {fault} | {} | {} | {} | {} | {} |",
            runs.len(),
            sum_of(&Summary::landed),
            obtained_by_group.join(" | "),
            sum_of(&|run| run.violations),
            sum_of(&|run| run.excused),
        );
    }
    out
}

/// The result of each workload, as a Markdown table.
fn workload_table(cells: &[Cell]) -> String {
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
        let violation_count = |excused: bool| {
            let violations = runs
                .iter()
                .flat_map(|cell| cell.summary.findings.violations());
            violations
                .filter(|violation| violation.excused.is_some() == excused)
                .filter(|violation| violation.resource.as_deref().map(workload_name) == Some(name))
                .count()
        };
        let faults: BTreeSet<&str> = runs
            .iter()
            .filter(|cell| cell.summary.landed() > 0)
            .map(|cell| cell.kind.name())
            .collect();
        let sum_of = |count: &dyn Fn(&Summary) -> usize| {
            let counts = runs.iter().map(|cell| count(&cell.summary));
            counts.sum::<usize>()
        };
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} | {} |",
            runs.len(),
            faults.len(),
            sum_of(&|summary| summary.landed()),
            sum_of(&|summary| summary.obtained.get(name).copied().unwrap_or(0)),
            violation_count(false),
            violation_count(true),
        );
    }
    out
}

/// Writes the results into the file between the markers of `markers`, and keeps the text around them.
///
/// # Errors
///
/// If the file cannot be read or written.
pub fn write_results(path: &Path, markers: ResultMarkers, matrix: &str) -> anyhow::Result<()> {
    let ResultMarkers { begin, end } = markers;
    let old_text = fs::read_to_string(path).unwrap_or_default();
    let marked_block = format!("{begin}\n{matrix}{end}");
    let new_text = match (old_text.find(begin), old_text.find(end)) {
        (Some(from), Some(to)) if from < to => {
            format!(
                "{}{marked_block}{}",
                &old_text[..from],
                &old_text[to + end.len()..]
            )
        }
        _ if old_text.is_empty() => format!("# Matrix\n\n{marked_block}\n"),
        _ => format!("{}\n\n{marked_block}\n", old_text.trim_end()),
    };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, new_text).with_context(|| format!("write {}", path.display()))
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
        let mut unavailable_cell = cell(&Workload::KINDS, Verdict::Unknown, &[("readers", 99)]);
        let unavailable = [("kill".to_owned(), "no".to_owned())];
        unavailable_cell.summary.unavailable = unavailable.into();
        let cells = [
            unavailable_cell,
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
        let heading = "| fault | runs | landed | lock | transfer | readers | permits | owners | prizes | leader | violations | allowed |";
        assert!(text.contains(heading), "{text}");
        let row = "| kill | 3 | 0 | 12 | 0 | 7 | 20 | 0 | 0 | 0 | 0 | 0 |";
        assert!(text.contains(row), "{text}");
        assert_eq!(text.matches("| kill | 3 | fair |").count(), 2, "{text}");
        assert!(text.contains("| kinds | kill | 3 | fair | | | | | | unavailable: no |"));
        assert!(text.contains("| kinds | kill | 3 | fair | holds | 0 | 23 | 0 | 0 | unknown |"));
        let (_, listed_runs) = text
            .split_once("the scenario allowed violations:")
            .expect("the report must have the list of runs");
        assert!(!listed_runs.contains("| lock |"), "{text}");
    }
}
