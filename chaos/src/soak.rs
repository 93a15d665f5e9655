//! A soak: a long chaos run that checks whether the resource usage of a process grows without limit.
//!
//! - A soak holds many locks at the same time: 1,000 if all masters are Redis, otherwise 200.
//! - Clients and faults pause for longer than in an ordinary run.
//! - The memory, file descriptors and connections of each process are compared at two times: after the first tenth of
//!   the run, and at its end.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::checks::{Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::History;
use crate::scenario::Scenario;

/// The growth of a process's memory that is tolerated, in bytes. If 25 % of the earlier memory is more, then 25 % is
/// tolerated.
const SLACK_BYTES: u64 = 6 << 20;
/// The number of additional file descriptors or connections that is tolerated. If 25 % of the earlier number is more,
/// then 25 % is tolerated.
const SLACK_HANDLES: u64 = 12;

/// The number of held locks in a soak whose masters are all Redis.
const HELD_LOCKS: usize = 1_000;
/// The number of held locks in a soak if some masters are not Redis. It is smaller than [`HELD_LOCKS`], because such
/// masters write each renewal to disk.
const HELD_LOCKS_ON_DISK: usize = 200;

/// The scenario of a soak of this length. The clients hold 1,000 locks, or 200 if a master is not a Redis.
pub fn scenario(duration: Duration, base_scenario: Scenario) -> Scenario {
    let lock_count = if base_scenario.nodes.is_empty() {
        HELD_LOCKS
    } else {
        HELD_LOCKS_ON_DISK
    };
    Scenario {
        duration,
        many: lock_count.div_ceil(base_scenario.clients),
        many_hold: Duration::from_secs(20),
        gap: Duration::from_secs(2),
        pause: Duration::from_millis(400),
        ..base_scenario
    }
}

/// One reading of the resources of one process.
#[derive(Clone, Copy, Debug)]
struct Reading {
    t: u64,
    memory: u64,
    handles: u64,
    connections: Option<u64>,
}

/// All readings of one process.
#[derive(Clone, Debug, Default)]
pub struct Series {
    readings: Vec<Reading>,
}

impl Series {
    fn reading_at(&self, t: u64) -> Option<Reading> {
        let reading = self.readings.iter().find(|reading| reading.t >= t);
        reading.or(self.readings.last()).copied()
    }

    fn last_reading(&self) -> Option<Reading> {
        self.readings.last().copied()
    }
}

/// The readings of each process over time. If a client was restarted, the readings of its successive processes form one
/// series.
pub fn series(history: &History) -> BTreeMap<String, Series> {
    let mut by_process: BTreeMap<String, Series> = BTreeMap::new();
    for entry in &history.entries {
        if let Event::Gauge {
            memory,
            handles,
            connections,
        } = entry.event
        {
            let name = entry
                .process
                .split('.')
                .next()
                .unwrap_or_default()
                .to_owned();
            by_process.entry(name).or_default().readings.push(Reading {
                t: entry.t,
                memory,
                handles,
                connections,
            });
        }
    }
    by_process
}

/// Finds processes whose memory, file descriptors or connections have grown since the first tenth of the run.
pub fn growth(scenario: &Scenario, history: &History) -> Finding {
    let settled_at = scenario.duration.as_nanos() as u64 / 10;
    let mut violations = Vec::new();
    let by_process = series(history);
    for (name, series) in &by_process {
        let (Some(early), Some(late)) = (series.reading_at(settled_at), series.last_reading())
        else {
            continue;
        };
        let mut check_growth = |resource: &str, early: u64, late: u64, slack: u64| {
            if late > early + slack && late > early + early / 4 {
                violations.push(Violation {
                    checker: "growth".into(),
                    from: settled_at,
                    to: history.end(),
                    processes: vec![name.clone()],
                    resource: None,
                    description: format!(
                        "{name}: {resource} must not grow, but grew from {early} to {late}"
                    ),
                    excused: None,
                });
            }
        };
        check_growth("memory", early.memory, late.memory, SLACK_BYTES);
        check_growth("open handles", early.handles, late.handles, SLACK_HANDLES);
        if let (Some(early), Some(late)) = (early.connections, late.connections) {
            check_growth("connections", early, late, SLACK_HANDLES);
        }
    }
    Finding {
        checker: "growth".into(),
        verdict: match (by_process.is_empty(), violations.is_empty()) {
            (true, _) => Verdict::Unknown,
            (false, true) => Verdict::Valid,
            (false, false) => Verdict::Invalid,
        },
        coverage: format!(
            "memory, file handles and connections of {} processes",
            by_process.len()
        ),
        violations,
    }
}

/// A table of the readings at the start, after a tenth of the run, and at the end.
pub fn table(scenario: &Scenario, history: &History) -> String {
    let settled_at = scenario.duration.as_nanos() as u64 / 10;
    let mut out = String::from(
        "            MiB                      handles                  connections\n\
         process     start settled     end    start settled     end    start settled     end\n",
    );
    for (name, series) in series(history) {
        let (Some(first), Some(settled), Some(late)) = (
            series.reading_at(0),
            series.reading_at(settled_at),
            series.last_reading(),
        ) else {
            continue;
        };
        let readings = [first, settled, late];
        let _ = write!(out, "{name:<8}");
        for reading in readings {
            let mib = reading.memory as f64 / f64::from(1 << 20);
            let _ = write!(out, " {mib:>7.1}");
        }
        out.push(' ');
        for reading in readings {
            let _ = write!(out, " {:>7}", reading.handles);
        }
        if late.connections.is_some() {
            out.push(' ');
            for reading in readings {
                let _ = write!(out, " {:>7}", reading.connections.unwrap_or(0));
            }
        }
        out.push('\n');
    }
    out
}
