//! The timeline page of a run: one HTML file that loads nothing from the network. This module selects the data, and the
//! script in `timeline.html` draws them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::drawing::{Drawing, Mark, Row};
use super::summary::Summary;
use crate::change_statistics;
use crate::checks::{Findings, Verdict, Violation};
use crate::event::Event;
use crate::history::{Attempt, History};
use crate::scenario::Scenario;
use crate::workload::{Workload, workload_name};

/// The largest number of violations on the page. If there are more violations, the page states how many it omits.
const MAX_VIOLATIONS: usize = 400;
/// If a hold or fault ends at most this time before a violation, or starts at most this time after it, the timeline
/// always shows it. In nanoseconds.
const ALWAYS_SHOWN_DISTANCE: u64 = 2_000_000_000;

#[derive(Serialize)]
struct Page<'a> {
    verdict: String,
    facts: String,
    checks: Vec<Check<'a>>,
    end: u64,
    calm: Option<u64>,
    finish: Option<u64>,
    lanes: Vec<Lane>,
    rows: Vec<Row>,
    faults: Vec<Band>,
    marks: Vec<Mark>,
    /// The number of locks obtained in each second; empty if masters were not changed.
    pace: Vec<usize>,
    steps: Vec<StepBand>,
    lives: Vec<LifeBand>,
    violations: Vec<ViolationBand<'a>>,
    hidden: usize,
}

#[derive(Serialize)]
struct Check<'a> {
    checker: &'a str,
    verdict: Verdict,
    #[serde(rename = "looked_at")]
    coverage: &'a str,
}

#[derive(Serialize)]
struct Lane {
    name: String,
    /// The kind of lane: `pace` (locks obtained per second), `lock`, `client` or `master`.
    kind: &'static str,
}

#[derive(Serialize)]
struct Band {
    kind: String,
    lanes: Vec<usize>,
    from: u64,
    to: u64,
    seen: String,
    failed: Option<String>,
}

/// A step of replacing the masters, e.g. `begin`.
#[derive(Serialize)]
struct StepBand {
    change: usize,
    name: String,
    from: u64,
    to: u64,
    tries: usize,
    done: bool,
}

/// A client process. Its `step` states which masters it used: 0 for the first set, 2 for the second set, 1 for both.
#[derive(Serialize)]
struct LifeBand {
    lane: usize,
    #[serde(rename = "who")]
    process: String,
    step: u64,
    from: u64,
    to: u64,
}

#[derive(Serialize)]
struct ViolationBand<'a> {
    checker: &'a str,
    from: u64,
    to: u64,
    lanes: Vec<usize>,
    resource: Option<&'a str>,
    #[serde(rename = "what")]
    description: &'a str,
    excused: Option<&'a str>,
}

/// The HTML page as text.
pub(super) fn page(
    summary: &Summary,
    history: &History,
    findings: &Findings,
) -> anyhow::Result<String> {
    let json = serde_json::to_string(&page_data(summary, history, findings))?;
    // Escape `</`, so that no text can end the script element.
    let json = json.replace("</", "<\\/");
    Ok(include_str!("timeline.html").replacen("/*DATA*/", &json, 1))
}

fn page_data<'a>(summary: &Summary, history: &History, findings: &'a Findings) -> Page<'a> {
    let attempts = history.attempts();
    let lanes = lanes(&summary.scenario, &attempts);
    let lane_of = |process: &str| {
        let name = process.split('.').next().unwrap_or(process);
        lanes.iter().position(|lane| lane.name == name)
    };
    let end = history.end();
    let violations = findings.violations();
    let is_near_violation = |from: u64, to: u64| {
        let mut shown_violations = violations.iter().take(MAX_VIOLATIONS);
        shown_violations.any(|violation| {
            violation.from <= to + ALWAYS_SHOWN_DISTANCE
                && from <= violation.to + ALWAYS_SHOWN_DISTANCE
        })
    };
    let drawing = Drawing::of(history, &attempts, lane_of, is_near_violation);
    Page {
        verdict: summary.verdict.to_string(),
        facts: facts(summary, drawing.left_out),
        checks: findings
            .findings
            .iter()
            .map(|finding| Check {
                checker: &finding.checker,
                verdict: finding.verdict,
                coverage: &finding.coverage,
            })
            .collect(),
        end: end / 1_000,
        calm: history.calm().map(|t| t / 1_000),
        finish: history.finish().map(|t| t / 1_000),
        faults: fault_bands(history, lane_of),
        marks: drawing.marks,
        pace: match summary.scenario.changes {
            Some(_) => {
                change_statistics::per_second(&change_statistics::success_times(&attempts), end)
            }
            None => Vec::new(),
        },
        steps: step_bands(history),
        lives: match summary.scenario.changes {
            Some(_) => process_bands(history, lane_of),
            None => Vec::new(),
        },
        rows: drawing.rows,
        violations: violation_bands(&violations, lane_of),
        hidden: violations.len().saturating_sub(MAX_VIOLATIONS),
        lanes,
    }
}

/// The lanes of the timeline from top to bottom: the locks that were held, then clients, then masters. If masters were
/// changed, the first lane shows the number of locks obtained per second.
fn lanes(scenario: &Scenario, attempts: &[Attempt]) -> Vec<Lane> {
    let held_kinds = Workload::KINDS.iter().map(|workload| workload.name());
    let held_kinds = held_kinds.filter(|name| {
        let mut acquired = attempts
            .iter()
            .filter(|attempt| attempt.obtained_at.is_some());
        acquired.any(|attempt| workload_name(&attempt.resource) == *name)
    });
    let new_lane = |name: String, kind| Lane { name, kind };
    let clients = (1..=scenario.clients).map(|client| format!("c{client}"));
    let masters = (1..=scenario.masters).map(|master| format!("m{master}"));
    let pace = scenario.changes.iter();
    pace.map(|_| new_lane("had/s".to_owned(), "pace"))
        .chain(held_kinds.map(|name| new_lane(name.to_owned(), "lock")))
        .chain(clients.map(|name| new_lane(name, "client")))
        .chain(masters.map(|name| new_lane(name, "master")))
        .collect()
}

/// The main facts of the run in one line.
fn facts(summary: &Summary, left_out: usize) -> String {
    let scenario = &summary.scenario;
    let mut facts = format!(
        "{} \u{b7} seed {} \u{b7} {} masters, {} clients, {} \u{b7} {} faults took effect \u{b7} {} acquisitions \
         \u{b7} {}",
        summary.date,
        scenario.seed,
        scenario.masters,
        scenario.clients,
        scenario.order.name(),
        summary.landed(),
        summary.acquisitions(),
        scenario.code_name(),
    );
    if left_out > 0 {
        facts.push_str(
            " \u{b7} too long to draw: only the latest holds and those near violations are shown",
        );
    }
    facts
}

fn violation_bands<'a>(
    violations: &[&'a Violation],
    lane_of: impl Fn(&str) -> Option<usize>,
) -> Vec<ViolationBand<'a>> {
    let shown_violations = violations.iter().take(MAX_VIOLATIONS);
    shown_violations
        .map(|violation| ViolationBand {
            checker: &violation.checker,
            from: violation.from / 1_000,
            to: violation.to / 1_000,
            lanes: violation
                .processes
                .iter()
                .flat_map(|process| process.split(' '))
                .chain(violation.resource.as_deref().map(workload_name))
                .filter_map(&lane_of)
                .collect(),
            resource: violation.resource.as_deref().map(workload_name),
            description: &violation.description,
            excused: violation.excused.as_deref(),
        })
        .collect()
}

fn step_bands(history: &History) -> Vec<StepBand> {
    let step_bands = change_statistics::steps(history).into_iter();
    let to_band = |step: change_statistics::Step| StepBand {
        change: step.change + 1,
        name: step.name,
        from: step.from / 1_000,
        to: step.to / 1_000,
        tries: step.tries,
        done: step.succeeded,
    };
    step_bands.map(to_band).collect()
}

fn process_bands(history: &History, lane_of: impl Fn(&str) -> Option<usize>) -> Vec<LifeBand> {
    let process_bands = change_statistics::client_processes(history).into_iter();
    let to_band = |process: change_statistics::ClientProcess| {
        Some(LifeBand {
            lane: lane_of(&process.process)?,
            process: process.process,
            step: process.step,
            from: process.from / 1_000,
            to: process.to / 1_000,
        })
    };
    process_bands.filter_map(to_band).collect()
}

fn fault_bands(history: &History, lane_of: impl Fn(&str) -> Option<usize>) -> Vec<Band> {
    let mut effects: BTreeMap<usize, &str> = BTreeMap::new();
    for entry in &history.entries {
        if let Event::Landed { fault, effect } = &entry.event {
            effects.insert(*fault, effect);
        }
    }
    let end = history.end();
    history
        .faults()
        .into_iter()
        .map(|span| Band {
            lanes: span
                .targets
                .iter()
                .filter_map(|process| lane_of(process))
                .collect(),
            from: span.from / 1_000,
            to: span.over_at.unwrap_or(end) / 1_000,
            seen: effects
                .get(&span.number)
                .map(|effect| (*effect).to_owned())
                .unwrap_or_default(),
            failed: span.failure,
            kind: span.kind,
        })
        .collect()
}
