//! The summary of a run in numbers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::checks::{Findings, Verdict};
use crate::event::Event;
use crate::history::History;
use crate::scenario::{Exclusion, Scenario};
use crate::workload::workload_name;

/// The summary of a run in numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The date and time at which the summary was made, in UTC.
    pub date: String,
    /// The version of this program and the library.
    pub version: String,
    /// The scenario of the run.
    pub scenario: Scenario,
    /// Whether the scenario forbids two holders at the same time, allows them, or must produce them to test the
    /// checkers.
    pub exclusion: Exclusion,
    /// The overall verdict.
    pub verdict: Verdict,
    /// The findings of each checker.
    pub findings: Findings,
    /// The number of injected faults, by kind.
    pub faults: BTreeMap<String, FaultCount>,
    /// The kinds of faults and the workloads that this machine does not support, each with the reason.
    pub unavailable: BTreeMap<String, String>,
    /// The number of attempts that obtained the lock, by the name of their workload.
    pub obtained: BTreeMap<String, usize>,
    /// The number of attempts that ended without the lock, by reason.
    pub missed: BTreeMap<String, usize>,
    /// The number of loss notifications, by cause.
    pub notified: BTreeMap<String, usize>,
    /// The number of violations that the scenario does not allow.
    pub violations: usize,
    /// The number of violations that the scenario allows.
    pub excused: usize,
    /// The memory and file descriptors of each process at the first and the last reading.
    pub gauges: BTreeMap<String, ResourceUse>,
}

/// One kind of fault in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCount {
    /// The number of faults whose effect was observed.
    pub landed: usize,
    /// The number of faults whose end was observed.
    pub healed: usize,
    /// The number of faults that could not be injected or ended.
    pub failed: usize,
}

/// The resources of a process at the first and the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUse {
    /// The memory in bytes at the first reading.
    pub memory_first: u64,
    /// The memory in bytes at the last reading.
    pub memory_last: u64,
    /// The largest memory in bytes among all readings.
    pub memory_most: u64,
    /// The number of open file descriptors at the first reading.
    pub handles_first: u64,
    /// The number of open file descriptors at the last reading.
    pub handles_last: u64,
    /// The largest number of open file descriptors among all readings.
    pub handles_most: u64,
    /// The number of connections of a master at the first reading; `None` for a client.
    #[serde(default)]
    pub connections_first: Option<u64>,
    /// The number of connections of a master at the last reading; `None` for a client.
    #[serde(default)]
    pub connections_last: Option<u64>,
}

impl Summary {
    /// Computes the summary.
    pub fn of(scenario: &Scenario, history: &History, findings: &Findings) -> Self {
        let mut faults: BTreeMap<String, FaultCount> = BTreeMap::new();
        for span in history.faults() {
            let count = faults.entry(span.kind).or_default();
            count.landed += usize::from(span.landed_at.is_some());
            count.healed += usize::from(span.healed_at.is_some());
            count.failed += usize::from(span.failure.is_some());
        }
        let mut summary = Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: scenario.clone(),
            exclusion: scenario.exclusion(),
            verdict: findings.verdict,
            findings: findings.clone(),
            faults,
            unavailable: BTreeMap::new(),
            obtained: BTreeMap::new(),
            missed: BTreeMap::new(),
            notified: BTreeMap::new(),
            violations: 0,
            excused: 0,
            gauges: BTreeMap::new(),
        };
        for violation in findings.violations() {
            match violation.excused {
                None => summary.violations += 1,
                Some(_) => summary.excused += 1,
            }
        }
        for attempt in history.attempts() {
            if attempt.served_at().is_some() {
                let name = workload_name(&attempt.resource);
                *summary.obtained.entry(name.to_owned()).or_default() += 1;
            }
        }
        for entry in &history.entries {
            match &entry.event {
                Event::Unavailable { kind, why } => {
                    summary.unavailable.insert(kind.clone(), why.clone());
                }
                Event::Missed { why, .. } => *summary.missed.entry(why.clone()).or_default() += 1,
                Event::Dropped { .. } => {
                    *summary.missed.entry("dropped".into()).or_default() += 1;
                }
                Event::Notified { cause, .. } => {
                    *summary.notified.entry(cause.clone()).or_default() += 1;
                }
                Event::Gauge {
                    memory,
                    handles,
                    connections,
                } => {
                    summary.add_reading(&entry.process, *memory, *handles, *connections);
                }
                _ => {}
            }
        }
        summary
    }

    fn add_reading(&mut self, process: &str, memory: u64, handles: u64, connections: Option<u64>) {
        let first_reading = ResourceUse {
            memory_first: memory,
            handles_first: handles,
            connections_first: connections,
            ..ResourceUse::default()
        };
        // A restarted client has several processes. Combine the readings of all its processes in one entry.
        let name = process.split('.').next().unwrap_or(process).to_owned();
        let resource_use = self.gauges.entry(name).or_insert(first_reading);
        resource_use.memory_last = memory;
        resource_use.handles_last = handles;
        resource_use.connections_last = connections;
        resource_use.memory_most = resource_use.memory_most.max(memory);
        resource_use.handles_most = resource_use.handles_most.max(handles);
    }

    /// The number of all attempts that obtained the lock.
    pub fn acquisitions(&self) -> usize {
        self.obtained.values().sum()
    }

    /// The number of all faults whose effect was observed.
    pub fn landed(&self) -> usize {
        self.faults.values().map(|count| count.landed).sum()
    }
}
