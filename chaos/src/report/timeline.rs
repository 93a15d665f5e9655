//! The timeline page of a run: one HTML file that loads nothing from the network. This module selects the data, and the
//! script in `timeline.html` draws them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::drawing::{Drawing, Mark, Row};
use super::summary::Summary;
use crate::checks::{Findings, Verdict, Violation};
use crate::event::Event;
use crate::history::{Attempt, History};
use crate::pace;
use crate::scenario::Scenario;
use crate::workload::{Workload, family};

/// The largest number of violations on the page. If there are more violations, the page states how many it omits.
const VIOLATIONS: usize = 400;
/// If a hold or fault ends at most this time before a violation, or starts at most this time after it, the timeline
/// always shows it. In nanoseconds.
const NEAR: u64 = 2_000_000_000;

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
    violations: Vec<Broken<'a>>,
    hidden: usize,
}

#[derive(Serialize)]
struct Check<'a> {
    checker: &'a str,
    verdict: Verdict,
    looked_at: &'a str,
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
    who: String,
    step: u64,
    from: u64,
    to: u64,
}

#[derive(Serialize)]
struct Broken<'a> {
    checker: &'a str,
    from: u64,
    to: u64,
    lanes: Vec<usize>,
    resource: Option<&'a str>,
    what: &'a str,
    excused: Option<&'a str>,
}

/// The HTML page as text.
pub(super) fn page(
    summary: &Summary,
    history: &History,
    findings: &Findings,
) -> anyhow::Result<String> {
    let data = serde_json::to_string(&data(summary, history, findings))?;
    // Escape `</`, so that no text can end the script element.
    let data = data.replace("</", "<\\/");
    Ok(include_str!("timeline.html").replacen("/*DATA*/", &data, 1))
}

fn data<'a>(summary: &Summary, history: &History, findings: &'a Findings) -> Page<'a> {
    let attempts = history.attempts();
    let lanes = lanes(&summary.scenario, &attempts);
    let lane_of = |who: &str| {
        let name = who.split('.').next().unwrap_or(who);
        lanes.iter().position(|lane| lane.name == name)
    };
    let end = history.end();
    let all = findings.violations();
    let near = |from: u64, to: u64| {
        let mut shown = all.iter().take(VIOLATIONS);
        shown.any(|one| one.from <= to + NEAR && from <= one.to + NEAR)
    };
    let drawn = Drawing::of(history, &attempts, lane_of, near);
    Page {
        verdict: summary.verdict.to_string(),
        facts: facts(summary, drawn.left_out),
        checks: findings
            .findings
            .iter()
            .map(|finding| Check {
                checker: &finding.checker,
                verdict: finding.verdict,
                looked_at: &finding.looked_at,
            })
            .collect(),
        end: end / 1_000,
        calm: history.calm().map(|t| t / 1_000),
        finish: history.finish().map(|t| t / 1_000),
        faults: bands(history, lane_of),
        marks: drawn.marks,
        pace: match summary.scenario.changes {
            Some(_) => pace::per_second(&pace::had(&attempts), end),
            None => Vec::new(),
        },
        steps: steps(history),
        lives: match summary.scenario.changes {
            Some(_) => lives(history, lane_of),
            None => Vec::new(),
        },
        rows: drawn.rows,
        violations: broken(&all, lane_of),
        hidden: all.len().saturating_sub(VIOLATIONS),
        lanes,
    }
}

/// The lanes of the timeline from top to bottom: the locks that were held, then clients, then masters. If masters were
/// changed, the first lane shows the number of locks obtained per second.
fn lanes(scenario: &Scenario, attempts: &[Attempt]) -> Vec<Lane> {
    let shared = Workload::KINDS.iter().map(|workload| workload.name());
    let shared = shared.filter(|name| {
        let mut held = attempts.iter().filter(|one| one.obtained.is_some());
        held.any(|one| family(&one.resource) == *name)
    });
    let lane = |name: String, kind| Lane { name, kind };
    let clients = (1..=scenario.clients).map(|client| format!("c{client}"));
    let masters = (1..=scenario.masters).map(|master| format!("m{master}"));
    let pace = scenario.changes.iter();
    pace.map(|_| lane("had/s".to_owned(), "pace"))
        .chain(shared.map(|name| lane(name.to_owned(), "lock")))
        .chain(clients.map(|name| lane(name, "client")))
        .chain(masters.map(|name| lane(name, "master")))
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
        scenario.locker.name(),
    );
    if left_out > 0 {
        facts.push_str(
            " \u{b7} too long to draw: only the latest holds and those near violations are shown",
        );
    }
    facts
}

fn broken<'a>(
    violations: &[&'a Violation],
    lane_of: impl Fn(&str) -> Option<usize>,
) -> Vec<Broken<'a>> {
    let shown = violations.iter().take(VIOLATIONS);
    shown
        .map(|one| Broken {
            checker: &one.checker,
            from: one.from / 1_000,
            to: one.to / 1_000,
            lanes: one
                .who
                .iter()
                .flat_map(|who| who.split(' '))
                .chain(one.resource.as_deref().map(family))
                .filter_map(&lane_of)
                .collect(),
            resource: one.resource.as_deref().map(family),
            what: &one.what,
            excused: one.excused.as_deref(),
        })
        .collect()
}

fn steps(history: &History) -> Vec<StepBand> {
    let steps = pace::steps(history).into_iter();
    let band = |step: pace::Step| StepBand {
        change: step.change + 1,
        name: step.name,
        from: step.from / 1_000,
        to: step.to / 1_000,
        tries: step.tries,
        done: step.done,
    };
    steps.map(band).collect()
}

fn lives(history: &History, lane_of: impl Fn(&str) -> Option<usize>) -> Vec<LifeBand> {
    let lives = pace::lives(history).into_iter();
    let band = |life: pace::Life| {
        Some(LifeBand {
            lane: lane_of(&life.who)?,
            who: life.who,
            step: life.step,
            from: life.from / 1_000,
            to: life.to / 1_000,
        })
    };
    lives.filter_map(band).collect()
}

fn bands(history: &History, lane_of: impl Fn(&str) -> Option<usize>) -> Vec<Band> {
    let mut seen: BTreeMap<usize, &str> = BTreeMap::new();
    for line in &history.lines {
        if let Event::Landed { fault, seen: how } = &line.what {
            seen.insert(*fault, how);
        }
    }
    let end = history.end();
    history
        .faults()
        .into_iter()
        .map(|span| Band {
            lanes: span.targets.iter().filter_map(|who| lane_of(who)).collect(),
            from: span.from / 1_000,
            to: span.over.unwrap_or(end) / 1_000,
            seen: seen
                .get(&span.number)
                .map(|how| (*how).to_owned())
                .unwrap_or_default(),
            failed: span.failed,
            kind: span.kind,
        })
        .collect()
}
