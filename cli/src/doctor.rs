//! `quorate doctor`: checks whether the masters are fit to hold locks. Each finding (a problem or a note) says what to
//! change.
//!
//! The library inspects the masters. The module [`findings`](crate::findings) derives the findings, and this module
//! prints them.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use quorate::{Fault, Inspection, RestartGuard};
use serde::Serialize;

use crate::backends::{self, Backend};
use crate::config::{self, MasterOptions, Origin};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::finding::{Finding, Rules, Severity};
use crate::findings::{addresses, judge, values};
use crate::output::{self, Cell, GREEN, RED, YELLOW, human};

/// The text below the options of `quorate doctor --help`.
pub(crate) const AFTER_HELP: &str = "\
Checks (errors and warnings make the exit code 1, notes do not):
    quorum         a majority of the masters can be used for locks
    reachable      each master replies in time
    login          each master accepts the user and the password in its URL
    version        quorate supports the version of each server and was tested with it
    masters        the number of masters is odd and greater than one
    run_id         no server is listed twice
    address        each address always leads to the same server (doctor connects eight times)
    role           no master is a replica or read-only
    cluster        no master is a node of a cluster (Redis Cluster, Galera)
    eviction       maxmemory-policy is noeviction
    memory         the server accepts writes (it has not reached maxmemory)
    prepared       each database has the tables of quorate, ZooKeeper the path in its URL, etcd the identity key
    binlog         the binary log of a database contains rows, not statements
    session        maxSessionTimeout of ZooKeeper is at least 2.5 times ?timeout= in its URL
    connections    the server accepts enough additional connections
    limits         the user of a database has not reached a limit of its account
    option         a database supports the options of its URL
    threads        the thread pool of MariaDB has enough threads for waiting clients
    pooler         no connection pooler shares the connections to PostgreSQL between clients
    replication    no commit of a PostgreSQL server waits for a synchronous standby
    notifications  the notification queue of PostgreSQL has room
    snapshot       no old snapshot keeps PostgreSQL from removing old versions of rows
    space          the database of etcd has room
    history        etcd removes the history of its keys (auto-compaction)
    latency        replies arrive well before the node timeout
    acl            the user may use the commands, keys and channels that the locks need
    clock          the clocks of the masters agree
    uptime         no master restarted so recently that its votes are ignored
    marked         all masters have the generation marker
    generation     the generation markers fit this configuration, and bear the name in masters_name
    persistence    a restart loses no locks, or the restart guard covers the loss
    values         every master has the quotas and the records of once (this needs the right to SCAN)
    unseen         doctor can read all settings (otherwise, it names the missing right)

doctor changes nothing on the masters. It checks whether the user may access keys that begin with --prefix. If the
names of all your locks begin with the same text, for example lock:, set --prefix to this text.

Examples:
    quorate doctor
    quorate doctor --prefix lock:
    quorate doctor --json | jq -r '.findings[] | select(.severity == \"error\") | .advice'

After the table, doctor prints where each setting comes from: a flag, a variable, or a file.

JSON fields (stable; absent values are null):
    well          whether there are no errors and no warnings
    settings[]    setting, source, overridden (an environment variable that has no effect)
    findings[]    severity (error, warning or note), check, master, finding, advice
    masters[]     master, reachable (true only if the master can be used for locks), error, connect_ms, latency_ms, \
server, version, role, run_id, uptime_s, votes_in_s (the time until the restart guard counts its votes), marked, \
clock_offset_ms (from the median of all masters), appendonly, appendfsync, snapshots, maxmemory_policy, \
wake_ups (whether the server notifies waiting clients), \
denied[], grant[] (rules for ACL SETUSER), settings (of databases, ZooKeeper and etcd), \
unseen[]";

/// How many times `doctor` connects to each master, to find out whether the address always leads to the same server.
const CONNECTIONS: usize = 8;

/// The exit codes of `quorate doctor`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    ("0", "no errors or warnings"),
    ("1", "errors or warnings were found"),
    ("64", ""),
    ("69", ""),
];

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// One master in the JSON form of `doctor`.
#[derive(Debug, Serialize)]
struct MasterReport {
    master: String,
    reachable: bool,
    error: Option<String>,
    connect_ms: Option<f64>,
    latency_ms: Option<f64>,
    server: Option<String>,
    version: Option<String>,
    role: Option<String>,
    run_id: Option<String>,
    uptime_s: Option<u64>,
    votes_in_s: Option<u64>,
    marked: Option<bool>,
    clock_offset_ms: Option<i64>,
    appendonly: Option<bool>,
    appendfsync: Option<String>,
    snapshots: Option<bool>,
    maxmemory_policy: Option<String>,
    wake_ups: bool,
    denied: Vec<String>,
    grant: Vec<String>,
    settings: BTreeMap<String, String>,
    unseen: Vec<String>,
    /// The state of the master. The table for people shows it, the JSON form does not.
    #[serde(skip)]
    state: MasterState,
}

/// The state of a master for this client. `Up` means that the client can take locks on it.
#[derive(Debug, Clone, Copy)]
enum MasterState {
    Up,
    /// The master replies, but this client cannot take locks on it, for example because of a wrong password.
    Refuses,
    Down,
}

/// Inspects all masters concurrently, and prints the findings.
pub(crate) fn run(args: DoctorArgs) -> CommandResult {
    let (masters, file) = args.masters.complete()?;
    let origins = masters.origins(&file);
    let redlock = config::redlock(&masters, None)?;
    let (rounds, value_lists) = config::block_on(async {
        // The first round measures round trips, so nothing else runs at the same time.
        let mut rounds = vec![redlock.inspect().await];
        let more_inspections = (1..CONNECTIONS).map(|_| redlock.inspect());
        rounds.extend(futures::future::join_all(more_inspections).await);
        // While masters are replaced, the next masters lack the values on purpose. A database has no keys to list.
        let is_comparable = masters.settings().next_masters.is_empty()
            && !rounds[0].iter().any(|inspection| inspection.records);
        let value_lists = if is_comparable {
            redlock.list_values().await
        } else {
            Vec::new()
        };
        Ok((rounds, value_lists))
    })?;
    let inspections = &rounds[0];
    let median_clock_ms = median_clock(inspections);
    let reports: Vec<MasterReport> = inspections
        .iter()
        .map(|inspection| MasterReport::new(inspection, median_clock_ms))
        .collect();
    let settings = masters.settings();
    let rules = Rules {
        max_ttl: settings.max_ttl(),
        restart_guard: settings.restart_guard != Some(RestartGuard::Off),
        prefix: settings
            .prefix
            .as_ref()
            .is_some_and(|prefix| !prefix.is_empty()),
    };
    let kinds = kinds(inspections.len(), &settings.masters);
    let mut findings = judge(inspections, &kinds, rules);
    findings.extend(addresses(&rounds));
    findings.extend(values(&value_lists, inspections.len()));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let is_well = findings.iter().all(|f| f.severity == Severity::Note);
    if args.json {
        output::print_json(&serde_json::json!({
            "well": is_well,
            "findings": findings,
            "masters": reports,
            "settings": origins,
        }))?;
    } else {
        output::print_page(&(page(&reports, &findings, is_well) + &settings_text(&origins)))?;
    }
    if findings.iter().any(|finding| finding.check == "quorum") {
        return Err(Failure::new(
            exit::UNAVAILABLE,
            "no quorum: fewer than a majority of the masters can be used",
        ));
    }
    Ok(if is_well { exit::OK } else { exit::FINDINGS })
}

/// The kinds of the `count` masters that the library inspects: first the masters at `urls`, then the next masters, which
/// can only be Redis masters.
pub(crate) fn kinds(count: usize, urls: &[String]) -> Vec<&'static dyn Backend> {
    let kinds = urls.iter().map(|url| backends::of_url(url));
    let redis = std::iter::repeat(backends::REDIS);
    kinds.chain(redis).take(count).collect()
}

/// The median of the masters' clock offsets, in milliseconds. The clock offset of a master is its clock minus this
/// machine's clock. `doctor` shows how much each offset differs from the median.
fn median_clock(inspections: &[Inspection]) -> i64 {
    let mut clocks: Vec<i64> = inspections
        .iter()
        .filter_map(|inspection| inspection.clock_offset_ms)
        .collect();
    clocks.sort_unstable();
    clocks.get(clocks.len() / 2).copied().unwrap_or(0)
}

impl MasterReport {
    fn new(inspection: &Inspection, median_clock_ms: i64) -> Self {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let fault = inspection.fault.as_ref();
        Self {
            master: inspection.node.to_string(),
            reachable: fault.is_none(),
            error: fault.map(|fault| output::redact(&fault.to_string()).into_owned()),
            connect_ms: inspection.connecting.map(ms),
            latency_ms: inspection.round_trip.map(ms),
            server: inspection.server.clone(),
            version: inspection.version.clone(),
            role: inspection.role.clone(),
            run_id: inspection.run_id.clone(),
            uptime_s: inspection.uptime.map(|uptime| uptime.as_secs()),
            votes_in_s: inspection.quarantined.map(|left| left.as_secs() + 1),
            marked: inspection.marked,
            clock_offset_ms: inspection
                .clock_offset_ms
                .map(|clock| clock.saturating_sub(median_clock_ms)),
            appendonly: inspection.append_only,
            appendfsync: inspection.append_fsync.clone(),
            snapshots: inspection.snapshots,
            maxmemory_policy: inspection.maxmemory_policy.clone(),
            wake_ups: inspection.wake_ups,
            denied: inspection.missing.iter().map(ToString::to_string).collect(),
            grant: inspection
                .missing
                .iter()
                .map(|permission| permission.rule().to_owned())
                .collect(),
            settings: inspection.settings.iter().cloned().collect(),
            unseen: inspection.unseen.clone(),
            state: match fault {
                None => MasterState::Up,
                Some(Fault::Down(_) | Fault::NoConnection(_) | Fault::Timeout(_)) => {
                    MasterState::Down
                }
                Some(_) => MasterState::Refuses,
            },
        }
    }

    fn row(&self) -> Vec<Cell> {
        let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
        let flush = self.settings.get("innodb_flush_log_at_trx_commit");
        let persistence = match (self.appendonly, &self.appendfsync, self.snapshots) {
            (Some(true), Some(fsync), _) => Some(format!("aof {fsync}")),
            (Some(true), None, _) => Some("aof".to_owned()),
            (_, _, Some(true)) => Some("snapshots".to_owned()),
            (Some(false), _, Some(false)) => Some("none".to_owned()),
            _ => flush.map(|flush| format!("flush {flush}")).or_else(|| {
                self.settings
                    .get("fsync")
                    .map(|fsync| format!("fsync {fsync}"))
            }),
        };
        vec![
            self.master.clone().into(),
            match self.state {
                MasterState::Up => Cell::styled("up", GREEN),
                MasterState::Refuses => Cell::styled("refuses", RED),
                MasterState::Down => Cell::styled("down", RED),
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
            or_dash(persistence),
            or_dash(self.maxmemory_policy.clone()),
            or_dash(self.run_id.as_ref().map(|id| id.chars().take(8).collect())),
        ]
    }
}

/// Describes where each setting comes from, with one line for each setting that is not at its default.
fn settings_text(origins: &[Origin]) -> String {
    let origin_line = |origin: &Origin| {
        let Origin {
            setting,
            source,
            overridden,
        } = origin;
        match overridden {
            Some(variable) => {
                format!("setting {setting}: from {source}, which overrides {variable}")
            }
            None => format!("setting {setting}: from {source}"),
        }
    };
    let lines: Vec<String> = origins.iter().map(origin_line).collect();
    format!("{}\nother settings: default\n", lines.join("\n"))
}

fn page(reports: &[MasterReport], findings: &[Finding], is_well: bool) -> String {
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
        let (style, severity_name) = match finding.severity {
            Severity::Error => (RED, "error"),
            Severity::Warning => (YELLOW, "warning"),
            Severity::Note => (output::BOLD, "note"),
        };
        let subject = finding
            .master
            .as_ref()
            .map_or_else(String::new, |master| format!("{master} "));
        text += &format!(
            "{style}{severity_name}{style:#}: {subject}{} [{}]\n    {}\n",
            finding.what, finding.check, finding.advice
        );
    }
    if is_well {
        text += &format!("{GREEN}all is well{GREEN:#}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The names of the checks in the code of a file: a text in a line of its own after a severity, or after `check:`.
    fn checks_in(code: &str) -> BTreeSet<String> {
        let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let names = code.lines().filter_map(|line| {
            // The severity may stand on the line of the name: `add(Severity::Note, "unseen", ..`.
            let after_severity = line.split_once("Severity::").map(|(_, rest)| rest);
            let line = after_severity
                .and_then(|rest| rest.split_once(", "))
                .map_or(line, |(_, rest)| rest);
            let line = line.trim().trim_start_matches("check: ");
            let name = line.strip_prefix('"')?.split_once("\",")?.0;
            is_name(name).then(|| name.to_owned())
        });
        names.collect()
    }

    #[test]
    fn help_of_doctor_lists_exactly_the_checks_in_the_code() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let read =
            |path: &Path| std::fs::read_to_string(path).expect("the source file must be readable");
        let mut checks = checks_in(&read(&source.join("findings.rs")));
        for shared in ["backends/database.rs", "backends/store_checks.rs"] {
            checks.append(&mut checks_in(&read(&source.join(shared))));
        }
        for kind in std::fs::read_dir(source.join("backends")).expect("the folder of the kinds") {
            let file = kind
                .expect("an entry of the folder")
                .path()
                .join("doctor.rs");
            if file.is_file() {
                checks.append(&mut checks_in(&read(&file)));
            }
        }
        assert!(checks.len() > 15, "{checks:?}");
        let table = AFTER_HELP
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with("    "));
        let listed: BTreeSet<String> = table
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect();
        assert_eq!(
            listed, checks,
            "the table of `doctor --help` against the code"
        );
    }
}
