//! `quorate doctor`: are these masters fit to hold locks? Each finding says what to change.
//!
//! This file asks and prints; what the answers mean is judged in [`findings`](crate::findings).

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::config::{self, GuardMode, MasterOptions};
use crate::exit::{self, Failure, Outcome};
use crate::findings::{Facts, Finding, Patient, Rules, Severity, judge};
use crate::output::{self, Cell, GREEN, RED, YELLOW, human};
use crate::probe::{Probe, Prober};

/// What stands below `quorate doctor --help`.
pub(crate) const AFTER_HELP: &str = "\
Checks (errors and warnings make the exit code 1, notes do not):
    quorum, reachable    enough masters answer; each does
    masters              their number is odd and more than one
    run_id               no server is listed twice
    role, cluster        none is a replica or a node of a cluster
    eviction             maxmemory-policy is noeviction
    acl                  the user may run what locking needs
    clock                the masters' clocks agree
    uptime               none started so lately that it does not vote yet
    persistence          what a restart would lose, and whether the restart guard covers it

Nothing on the masters is changed.

Examples:
    quorate doctor
    quorate doctor --json | jq -r '.findings[] | select(.severity == \"error\") | .advice'

JSON fields (stable): well, findings[]: severity (error, warning, note), check, master, finding, advice;
masters[]: master, reachable, error, latency_ms, server, version, role, run_id, uptime_s,
clock_offset_ms (against the middle of all), appendonly, appendfsync, snapshots, maxmemory_policy,
denied[]. Absent values are null.

Exit codes:
    0       all is well
    1       something is to be put right
    64      wrong usage
    69      no quorum of masters";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// One master in the JSON form.
#[derive(Debug, Serialize)]
struct MasterReport {
    master: String,
    reachable: bool,
    error: Option<String>,
    latency_ms: Option<f64>,
    server: Option<String>,
    version: Option<String>,
    role: Option<String>,
    run_id: Option<String>,
    uptime_s: Option<u64>,
    clock_offset_ms: Option<i64>,
    appendonly: Option<bool>,
    appendfsync: Option<String>,
    snapshots: Option<bool>,
    maxmemory_policy: Option<String>,
    denied: Vec<String>,
}

const DEFAULT_MAX_TTL: Duration = Duration::from_secs(30);

/// Examines all masters at once.
pub(crate) fn run(args: DoctorArgs) -> Outcome {
    let (masters, _) = args.masters.complete()?;
    // The library refuses what is wrong before anything is contacted, and knows the names.
    let names: Vec<String> = config::redlock(&masters, None)?
        .masters()
        .map(ToString::to_string)
        .collect();
    let urls = masters.masters.clone().unwrap_or_default();
    let prober = Prober::new(&masters);
    let probes = config::block_on(async { Ok(ask_all(&prober, &urls).await) })?;

    let middle = middle_clock(&probes);
    let reports: Vec<MasterReport> = names
        .iter()
        .zip(&probes)
        .map(|(name, probe)| MasterReport::new(name, probe, middle))
        .collect();
    let patients: Vec<Patient> = names
        .into_iter()
        .zip(probes)
        .map(|(master, probe)| Patient {
            master,
            facts: probe.map(|probe| probe.facts),
        })
        .collect();
    let rules = Rules {
        max_ttl: masters.max_ttl.unwrap_or(DEFAULT_MAX_TTL),
        restart_guard: masters.restart_guard != Some(GuardMode::Off),
    };
    let findings = judge(&patients, rules);
    let well = findings.iter().all(|f| f.severity == Severity::Note);
    if args.json {
        output::print_json(&serde_json::json!({
            "well": well,
            "findings": findings,
            "masters": reports,
        }))?;
    } else {
        output::print(&page(&reports, &findings, well))?;
    }
    if findings.iter().any(|finding| finding.check == "quorum") {
        return Err(Failure::new(exit::UNAVAILABLE, "no quorum of masters"));
    }
    Ok(if well { exit::OK } else { exit::FINDINGS })
}

async fn ask_all(prober: &Prober, urls: &[String]) -> Vec<Result<Probe, String>> {
    futures::future::join_all(urls.iter().map(|url| prober.ask(url))).await
}

/// The median of the clocks: what offsets are shown against.
fn middle_clock(probes: &[Result<Probe, String>]) -> i64 {
    let mut clocks: Vec<i64> = probes
        .iter()
        .filter_map(|probe| probe.as_ref().ok()?.facts.clock_ms)
        .collect();
    clocks.sort_unstable();
    clocks.get(clocks.len() / 2).copied().unwrap_or(0)
}

impl MasterReport {
    fn new(master: &str, probe: &Result<Probe, String>, middle: i64) -> Self {
        let facts = match probe {
            Ok(probe) => probe.facts.clone(),
            Err(_) => Facts::default(),
        };
        Self {
            master: master.to_owned(),
            reachable: probe.is_ok(),
            error: probe.as_ref().err().cloned(),
            latency_ms: probe
                .as_ref()
                .ok()
                .map(|probe| (probe.latency.as_secs_f64() * 1e6).round() / 1e3),
            server: facts.server,
            version: facts.version,
            role: facts.role,
            run_id: facts.run_id,
            uptime_s: facts.uptime.map(|uptime| uptime.as_secs()),
            clock_offset_ms: facts.clock_ms.map(|clock| clock - middle),
            appendonly: facts.aof,
            appendfsync: facts.fsync,
            snapshots: facts.snapshots,
            maxmemory_policy: facts.eviction,
            denied: facts.denied,
        }
    }

    fn row(&self) -> Vec<Cell> {
        let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
        let kept = match (self.appendonly, &self.appendfsync, self.snapshots) {
            (Some(true), Some(fsync), _) => Some(format!("aof {fsync}")),
            (Some(true), None, _) => Some("aof".to_owned()),
            (_, _, Some(true)) => Some("snapshots".to_owned()),
            (Some(false), _, Some(false)) => Some("none".to_owned()),
            _ => None,
        };
        vec![
            self.master.clone().into(),
            if self.reachable {
                Cell::styled("up", GREEN)
            } else {
                Cell::styled("down", RED)
            },
            or_dash(
                self.latency_ms
                    .map(|ms| human(Duration::from_secs_f64(ms / 1e3))),
            ),
            or_dash(
                self.server
                    .as_ref()
                    .map(|server| format!("{server} {}", self.version.as_deref().unwrap_or("?"))),
            ),
            or_dash(self.role.clone()),
            or_dash(self.uptime_s.map(|secs| human(Duration::from_secs(secs)))),
            or_dash(self.clock_offset_ms.map(|ms| format!("{ms:+}ms"))),
            or_dash(kept),
            or_dash(self.maxmemory_policy.clone()),
            or_dash(self.run_id.as_ref().map(|id| id.chars().take(8).collect())),
        ]
    }
}

fn page(reports: &[MasterReport], findings: &[Finding], well: bool) -> String {
    let rows: Vec<Vec<Cell>> = reports.iter().map(MasterReport::row).collect();
    let mut text = output::table(
        &[
            "MASTER", "STATE", "LATENCY", "SERVER", "ROLE", "UPTIME", "CLOCK", "KEPT", "EVICTION",
            "RUN ID",
        ],
        &rows,
    );
    text.push('\n');
    for finding in findings {
        let (style, word) = match finding.severity {
            Severity::Error => (RED, "error"),
            Severity::Warning => (YELLOW, "warning"),
            Severity::Note => (output::BOLD, "note"),
        };
        let subject = finding
            .master
            .as_ref()
            .map_or_else(String::new, |master| format!("{master} "));
        text += &format!(
            "{style}{word}{style:#}: {subject}{} [{}]\n    {}\n",
            finding.what, finding.check, finding.advice
        );
    }
    if well {
        text += &format!("{GREEN}all is well{GREEN:#}\n");
    }
    text
}
