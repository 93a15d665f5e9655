//! The run as a picture: one page, no network. The drawing is done by the script in
//! `timeline.html`; this file only chooses what it is given.

use std::collections::BTreeMap;

use serde::Serialize;

use super::summary::Summary;
use crate::checks::{Findings, Verdict, Violation};
use crate::event::Event;
use crate::history::{Attempt, History};
use crate::workload::family;

/// A browser draws this many marks without effort; more than these are not given to it.
const MARKS: usize = 60_000;
/// More violations than these tell nothing new.
const VIOLATIONS: usize = 400;

#[derive(Serialize)]
struct Page<'a> {
    verdict: String,
    facts: String,
    checks: Vec<Check<'a>>,
    end: u64,
    calm: Option<u64>,
    finish: Option<u64>,
    lanes: Vec<Lane>,
    rows: Vec<Track>,
    faults: Vec<Band>,
    marks: Vec<Mark>,
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
    master: bool,
}

#[derive(Serialize)]
struct Track {
    lane: usize,
    resource: String,
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

/// Row, from, to, held or waited, token, who, how it ended. A tuple, because there are many.
#[derive(Serialize)]
struct Mark(usize, u64, u64, u8, Option<u64>, String, String);

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

/// The page as text.
pub(super) fn page(
    summary: &Summary,
    history: &History,
    findings: &Findings,
) -> anyhow::Result<String> {
    let data = serde_json::to_string(&data(summary, history, findings))?;
    // So that no text in it can end the script element.
    let data = data.replace("</", "<\\/");
    Ok(include_str!("timeline.html").replacen("/*DATA*/", &data, 1))
}

fn data<'a>(summary: &Summary, history: &History, findings: &'a Findings) -> Page<'a> {
    let scenario = &summary.scenario;
    let lanes: Vec<Lane> = (0..scenario.clients)
        .map(|client| (format!("c{}", client + 1), false))
        .chain((0..scenario.masters).map(|master| (format!("m{}", master + 1), true)))
        .map(|(name, master)| Lane { name, master })
        .collect();
    let lane_of = |who: &str| {
        let name = who.split('.').next().unwrap_or(who);
        lanes.iter().position(|lane| lane.name == name)
    };
    let attempts = history.attempts();
    let (rows, row_of) = rows(&attempts, lane_of);
    let end = history.end();
    let all = findings.violations();
    let marks = marks(&attempts, &row_of, end, &all);
    Page {
        verdict: summary.verdict.to_string(),
        facts: facts(summary, marks.left_out),
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
        marks: marks.kept,
        violations: broken(&all, lane_of),
        hidden: all.len().saturating_sub(VIOLATIONS),
        rows,
        lanes,
    }
}

/// The run in one line.
fn facts(summary: &Summary, left_out: usize) -> String {
    let scenario = &summary.scenario;
    let mut facts = format!(
        "{} \u{b7} seed {} \u{b7} {} masters, {} clients, {} \u{b7} {} faults landed \u{b7} {} acquisitions \u{b7} {}",
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
        facts.push_str(" \u{b7} too long to draw in full: holds far from violations are left out");
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
                .filter_map(&lane_of)
                .collect(),
            resource: one.resource.as_deref().map(family),
            what: &one.what,
            excused: one.excused.as_deref(),
        })
        .collect()
}

type TrackOf = BTreeMap<(usize, String), usize>;

/// A row for each client and resource; the many locks of one client share one.
fn rows(
    attempts: &[Attempt],
    lane_of: impl Fn(&str) -> Option<usize>,
) -> (Vec<Track>, BTreeMap<String, (usize, TrackOf)>) {
    let mut found: TrackOf = BTreeMap::new();
    for attempt in attempts {
        if let Some(lane) = lane_of(&attempt.who) {
            found.insert((lane, family(&attempt.resource).to_owned()), 0);
        }
    }
    let mut rows = Vec::new();
    for ((lane, resource), row) in &mut found {
        *row = rows.len();
        rows.push(Track {
            lane: *lane,
            resource: resource.clone(),
        });
    }
    let mut by_who = BTreeMap::new();
    for attempt in attempts {
        if let Some(lane) = lane_of(&attempt.who) {
            by_who
                .entry(attempt.who.clone())
                .or_insert_with(|| (lane, found.clone()));
        }
    }
    (rows, by_who)
}

struct Marks {
    kept: Vec<Mark>,
    left_out: usize,
}

fn marks(
    attempts: &[Attempt],
    row_of: &BTreeMap<String, (usize, TrackOf)>,
    end: u64,
    violations: &[&Violation],
) -> Marks {
    const NEAR: u64 = 2_000_000_000;
    let near = |from: u64, to: u64| {
        violations
            .iter()
            .take(VIOLATIONS)
            .any(|one| one.from <= to + NEAR && from <= one.to + NEAR)
    };
    let most = attempts.len() * 2 > MARKS;
    let first = attempts.len().saturating_sub(MARKS / 2);
    let mut marks = Marks {
        kept: Vec::new(),
        left_out: 0,
    };
    for (number, attempt) in attempts.iter().enumerate() {
        let Some((lane, rows)) = row_of.get(&attempt.who) else {
            continue;
        };
        let Some(&row) = rows.get(&(*lane, family(&attempt.resource).to_owned())) else {
            continue;
        };
        let over = attempt.obtained.or(attempt.missed).or(attempt.gone);
        let over = over.unwrap_or(end).max(attempt.began);
        if most && number < first && !near(attempt.began, over) {
            marks.left_out += 1;
            continue;
        }
        let how = match (attempt.obtained, attempt.missed) {
            (Some(_), _) => "obtained",
            (None, Some(_)) => "not obtained",
            (None, None) => "no end seen",
        };
        marks.kept.push(Mark(
            row,
            attempt.began / 1_000,
            over / 1_000,
            0,
            None,
            attempt.name(),
            how.to_owned(),
        ));
        if let Some((from, to)) = attempt.belief(end) {
            let how = match (&attempt.told, attempt.release, attempt.gone) {
                (Some((_, cause)), ..) => format!("told that it is lost: {cause}"),
                (None, Some(release), _) if release <= to => "released".to_owned(),
                (None, Some(_), _) => "its validity ended before it was released".to_owned(),
                (None, None, Some(_)) => "its client ended".to_owned(),
                (None, None, None) => "no end seen".to_owned(),
            };
            marks.kept.push(Mark(
                row,
                from / 1_000,
                to / 1_000,
                1,
                attempt.token,
                attempt.name(),
                how,
            ));
        }
    }
    marks.kept.sort_by_key(|mark| mark.1);
    marks
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
