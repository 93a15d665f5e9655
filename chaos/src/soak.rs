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
const HELD: usize = 1_000;
/// The number of held locks in a soak if some masters are not Redis. It is smaller than [`HELD`], because such masters
/// write each renewal to disk.
const HELD_ON_DISK: usize = 200;

/// The scenario of a soak of this length. The clients hold 1,000 locks, or 200 if a master is not a Redis.
pub fn scenario(duration: Duration, base: Scenario) -> Scenario {
    let held = if base.nodes.is_empty() {
        HELD
    } else {
        HELD_ON_DISK
    };
    Scenario {
        duration,
        many: held.div_ceil(base.clients),
        many_hold: Duration::from_secs(20),
        gap: Duration::from_secs(2),
        pause: Duration::from_millis(400),
        ..base
    }
}

/// One reading of the resources of one process.
#[derive(Clone, Copy, Debug)]
struct Look {
    t: u64,
    memory: u64,
    handles: u64,
    connections: Option<u64>,
}

/// All readings of one process.
#[derive(Clone, Debug, Default)]
pub struct Series {
    looks: Vec<Look>,
}

impl Series {
    fn at(&self, t: u64) -> Option<Look> {
        let look = self.looks.iter().find(|look| look.t >= t);
        look.or(self.looks.last()).copied()
    }

    fn last(&self) -> Option<Look> {
        self.looks.last().copied()
    }
}

/// The readings of each process over time. If a client was restarted, the readings of its successive processes form one
/// series.
pub fn series(history: &History) -> BTreeMap<String, Series> {
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for line in &history.lines {
        if let Event::Gauge {
            memory,
            handles,
            connections,
        } = line.what
        {
            let name = line.who.split('.').next().unwrap_or_default().to_owned();
            all.entry(name).or_default().looks.push(Look {
                t: line.t,
                memory,
                handles,
                connections,
            });
        }
    }
    all
}

/// Finds processes whose memory, file descriptors or connections have grown since the first tenth of the run.
pub fn growth(scenario: &Scenario, history: &History) -> Finding {
    let settled = scenario.duration.as_nanos() as u64 / 10;
    let mut violations = Vec::new();
    let all = series(history);
    for (name, series) in &all {
        let (Some(then), Some(now)) = (series.at(settled), series.last()) else {
            continue;
        };
        let mut grown = |what: &str, then: u64, now: u64, slack: u64| {
            if now > then + slack && now > then + then / 4 {
                violations.push(Violation {
                    checker: "growth".into(),
                    from: settled,
                    to: history.end(),
                    who: vec![name.clone()],
                    resource: None,
                    what: format!("{name}: {what} must not grow, but grew from {then} to {now}"),
                    excused: None,
                });
            }
        };
        grown("memory", then.memory, now.memory, SLACK_BYTES);
        grown("open handles", then.handles, now.handles, SLACK_HANDLES);
        if let (Some(then), Some(now)) = (then.connections, now.connections) {
            grown("connections", then, now, SLACK_HANDLES);
        }
    }
    Finding {
        checker: "growth".into(),
        verdict: match (all.is_empty(), violations.is_empty()) {
            (true, _) => Verdict::Unknown,
            (false, true) => Verdict::Valid,
            (false, false) => Verdict::Invalid,
        },
        looked_at: format!(
            "memory, file handles and connections of {} processes",
            all.len()
        ),
        violations,
    }
}

/// A table of the readings at the start, after a tenth of the run, and at the end.
pub fn table(scenario: &Scenario, history: &History) -> String {
    let settled = scenario.duration.as_nanos() as u64 / 10;
    let mut out = String::from(
        "            MiB                      handles                  connections\n\
         process     start settled     end    start settled     end    start settled     end\n",
    );
    for (name, series) in series(history) {
        let (Some(first), Some(then), Some(last)) =
            (series.at(0), series.at(settled), series.last())
        else {
            continue;
        };
        let looks = [first, then, last];
        let _ = write!(out, "{name:<8}");
        for look in looks {
            let mib = look.memory as f64 / f64::from(1 << 20);
            let _ = write!(out, " {mib:>7.1}");
        }
        out.push(' ');
        for look in looks {
            let _ = write!(out, " {:>7}", look.handles);
        }
        if last.connections.is_some() {
            out.push(' ');
            for look in looks {
                let _ = write!(out, " {:>7}", look.connections.unwrap_or(0));
            }
        }
        out.push('\n');
    }
    out
}
