//! What `doctor` thinks of what the masters say about themselves: pure judgement, no connection.

use std::time::Duration;

use serde::Serialize;

use crate::output::human;

/// What one master says about itself. Where it does not say, or may not be asked, `None`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// `redis`, `valkey` or whatever else speaks the protocol.
    pub(crate) server: Option<String>,
    /// Its version.
    pub(crate) version: Option<String>,
    /// `master` or `slave`.
    pub(crate) role: Option<String>,
    /// Whether it is a node of a cluster.
    pub(crate) cluster: Option<bool>,
    /// Names the server process.
    pub(crate) run_id: Option<String>,
    /// Time since it started.
    pub(crate) uptime: Option<Duration>,
    /// `appendonly`.
    pub(crate) aof: Option<bool>,
    /// `appendfsync`.
    pub(crate) fsync: Option<String>,
    /// Whether snapshots are configured.
    pub(crate) snapshots: Option<bool>,
    /// `maxmemory-policy`.
    pub(crate) eviction: Option<String>,
    /// Commands that its user may not run, of those that locking needs.
    pub(crate) denied: Vec<String>,
    /// Its clock minus ours, in milliseconds, as good as the latency allows.
    pub(crate) clock_ms: Option<i64>,
}

/// One master as doctor met it.
#[derive(Debug, Clone)]
pub(crate) struct Patient {
    /// Its address, without credentials.
    pub(crate) master: String,
    /// What it says, or why it says nothing.
    pub(crate) facts: Result<Facts, String>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Worth knowing; all is well.
    Note,
    /// Locking works, with less than it could.
    Warning,
    /// Locking does not work here, or is not safe.
    Error,
}

/// One thing that doctor has to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How bad.
    pub(crate) severity: Severity,
    /// Which check found it; stable.
    pub(crate) check: &'static str,
    /// The master, where it is about one.
    pub(crate) master: Option<String>,
    /// What is the case.
    #[serde(rename = "finding")]
    pub(crate) what: String,
    /// What to change.
    pub(crate) advice: String,
}

/// The deployment's rules that facts are judged by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The longest ttl in use.
    pub(crate) max_ttl: Duration,
    /// Whether restarted masters sit out.
    pub(crate) restart_guard: bool,
}

/// The clock difference up to which two healthy machines are not worth a word.
const CLOCKS_AGREE_MS: i64 = 500;
/// Clock differences count twice into the distance that fencing tokens need (the protocol's S = 1 s).
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Judges all masters, one by one and together.
pub(crate) fn judge(patients: &[Patient], rules: Rules) -> Vec<Finding> {
    let mut findings = Vec::new();
    together(patients, rules, &mut findings);
    for patient in patients {
        match &patient.facts {
            Ok(facts) => one(&patient.master, facts, rules, &mut findings),
            Err(why) => findings.push(Finding {
                severity: Severity::Error,
                check: "reachable",
                master: Some(patient.master.clone()),
                what: format!("gives no answer: {why}"),
                advice: "start it, or correct its URL, password, firewall or certificate"
                    .to_owned(),
            }),
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn together(patients: &[Patient], rules: Rules, findings: &mut Vec<Finding>) {
    let mut add = |severity, check, finding, advice: &str| {
        findings.push(Finding {
            severity,
            check,
            master: None,
            what: finding,
            advice: advice.to_owned(),
        });
    };
    let n = patients.len();
    let reached = patients.iter().filter(|p| p.facts.is_ok()).count();
    let quorum = n / 2 + 1;
    if reached < quorum {
        add(
            Severity::Error,
            "quorum",
            format!(
                "{reached} of {n} masters answer and {quorum} are needed: no lock can be taken"
            ),
            "bring masters back until a majority answers",
        );
    }
    if n == 1 {
        add(
            Severity::Warning,
            "masters",
            "there is only one master: when it is down nobody gets a lock".to_owned(),
            "use three or five independent masters",
        );
    } else if n.is_multiple_of(2) {
        add(
            Severity::Warning,
            "masters",
            format!("{n} masters survive no more failures than {}", n - 1),
            "use an odd number of masters",
        );
    }
    for (i, patient) in patients.iter().enumerate() {
        let id = |p: &Patient| p.facts.as_ref().ok().and_then(|f| f.run_id.clone());
        let Some(mine) = id(patient) else { continue };
        if let Some(first) = patients[..i].iter().find(|p| id(p).as_ref() == Some(&mine)) {
            add(
                Severity::Error,
                "run_id",
                format!(
                    "{} and {} are the same server (run id {mine}): one memory would count as two votes",
                    first.master, patient.master
                ),
                "list every server once; another database or address of the same server is no other master",
            );
        }
    }
    let clocks = patients
        .iter()
        .filter_map(|p| p.facts.as_ref().ok()?.clock_ms);
    let (Some(least), Some(most)) = (clocks.clone().min(), clocks.max()) else {
        return;
    };
    let apart = most - least;
    if apart > CLOCKS_AGREE_MS {
        let apart_time = Duration::from_millis(apart.unsigned_abs());
        let limit = rules.max_ttl.saturating_sub(CLOCK_SLACK);
        let severity = if apart_time > limit {
            Severity::Error
        } else {
            Severity::Warning
        };
        add(
            severity,
            "clock",
            format!("the masters' clocks are {} apart", human(apart_time)),
            &format!(
                "synchronise them (chrony, ntpd): beyond {} fencing tokens may fall when all masters lose their data",
                human(limit)
            ),
        );
    }
}

fn one(master: &str, facts: &Facts, rules: Rules, findings: &mut Vec<Finding>) {
    let mut add = |severity, check, finding: String, advice: &str| {
        findings.push(Finding {
            severity,
            check,
            master: Some(master.to_owned()),
            what: finding,
            advice: advice.to_owned(),
        });
    };
    if let Some(role) = facts.role.as_deref().filter(|&role| role != "master") {
        let role = if role == "slave" { "replica" } else { role };
        add(
            Severity::Error,
            "role",
            format!("is a {role}, not a master"),
            "list its master instead, or make it one with REPLICAOF NO ONE",
        );
    }
    if facts.cluster == Some(true) {
        add(
            Severity::Error,
            "cluster",
            "is a node of a cluster: it refuses keys of other slots, and the nodes are not independent".to_owned(),
            "use a server with cluster-enabled no",
        );
    }
    match facts.eviction.as_deref() {
        Some("noeviction") => {}
        Some(policy) => add(
            Severity::Error,
            "eviction",
            format!("maxmemory-policy is {policy}: it can evict a lock while it is held"),
            "CONFIG SET maxmemory-policy noeviction, and put it into the configuration file",
        ),
        None => add(
            Severity::Warning,
            "eviction",
            "does not say its maxmemory-policy".to_owned(),
            "make sure that it is noeviction, or let the user run INFO",
        ),
    }
    if !facts.denied.is_empty() {
        add(
            Severity::Error,
            "acl",
            format!("its user may not run {}", facts.denied.join(", ")),
            "grant them: ACL SETUSER <user> +<command> for each, with access to the lock keys and quorate:*",
        );
    }
    restarts(facts, rules, &mut add);
}

/// What a restart of this master would mean, and whether there was one just now.
fn restarts(
    facts: &Facts,
    rules: Rules,
    add: &mut impl FnMut(Severity, &'static str, String, &str),
) {
    let durable = match (facts.aof, facts.fsync.as_deref()) {
        (Some(aof), Some(fsync)) => Some(aof && fsync == "always"),
        (Some(false), None) => Some(false),
        _ => None,
    };
    if !rules.restart_guard && durable != Some(true) {
        let (severity, what) = match durable {
            None => (
                Severity::Warning,
                "does not say whether it can forget a lock in a restart",
            ),
            Some(_) => (Severity::Error, "can forget a lock in a restart"),
        };
        add(
            severity,
            "persistence",
            format!("{what}, and the restart guard is off"),
            "turn the restart guard on, or run the master with appendonly yes and appendfsync always",
        );
    } else if rules.restart_guard && durable != Some(true) {
        let kept = match (facts.aof, facts.fsync.as_deref(), facts.snapshots) {
            (Some(true), Some("everysec"), _) => "can lose the last second",
            (Some(true), _, _) => "can lose the last seconds",
            (_, _, Some(true)) => "can lose everything since the last snapshot",
            (Some(false), _, Some(false)) => "loses everything",
            _ => "may lose locks",
        };
        add(
            Severity::Note,
            "persistence",
            format!("{kept} in a restart; the restart guard covers that"),
            &format!(
                "nothing to do: its votes are left out for {} after a restart",
                human(rules.max_ttl)
            ),
        );
    }
    if let Some(uptime) = facts
        .uptime
        .filter(|&uptime| rules.restart_guard && uptime < rules.max_ttl)
    {
        add(
            Severity::Warning,
            "uptime",
            format!(
                "started {} ago: its votes are left out for another {}",
                human(uptime),
                human(rules.max_ttl.saturating_sub(uptime))
            ),
            "wait; no need to act unless it restarts again and again",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        max_ttl: Duration::from_secs(30),
        restart_guard: true,
    };

    fn healthy(n: usize) -> Patient {
        Patient {
            master: format!("redis://m{n}:6379"),
            facts: Ok(Facts {
                server: Some("redis".into()),
                version: Some("7.0.15".into()),
                role: Some("master".into()),
                cluster: Some(false),
                run_id: Some(format!("id{n}")),
                uptime: Some(Duration::from_secs(3600)),
                aof: Some(true),
                fsync: Some("always".into()),
                snapshots: Some(false),
                eviction: Some("noeviction".into()),
                denied: vec![],
                clock_ms: Some(3),
            }),
        }
    }

    fn ill(change: impl FnOnce(&mut Facts)) -> Vec<(Severity, &'static str)> {
        let mut patients = vec![healthy(1), healthy(2), healthy(3)];
        if let Ok(facts) = &mut patients[2].facts {
            change(facts);
        }
        judge(&patients, RULES)
            .into_iter()
            .map(|f| (f.severity, f.check))
            .collect()
    }

    #[test]
    fn healthy_masters_leave_nothing_to_say() {
        assert_eq!(ill(|_| {}), vec![]);
    }

    #[test]
    fn every_illness_is_found() {
        use Severity::{Error, Note, Warning};
        assert_eq!(ill(|f| f.role = Some("slave".into())), [(Error, "role")]);
        assert_eq!(ill(|f| f.cluster = Some(true)), [(Error, "cluster")]);
        assert_eq!(ill(|f| f.run_id = Some("id1".into())), [(Error, "run_id")]);
        assert_eq!(
            ill(|f| f.eviction = Some("allkeys-lru".into())),
            [(Error, "eviction")]
        );
        assert_eq!(ill(|f| f.eviction = None), [(Warning, "eviction")]);
        assert_eq!(ill(|f| f.denied = vec!["eval".into()]), [(Error, "acl")]);
        assert_eq!(
            ill(|f| f.uptime = Some(Duration::from_secs(3))),
            [(Warning, "uptime")]
        );
        assert_eq!(ill(|f| f.clock_ms = Some(900)), [(Warning, "clock")]);
        assert_eq!(ill(|f| f.clock_ms = Some(-60_000)), [(Error, "clock")]);
        assert_eq!(
            ill(|f| f.fsync = Some("everysec".into())),
            [(Note, "persistence")]
        );
    }

    #[test]
    fn masters_that_are_down_are_errors_and_a_lost_quorum_is_one_more() {
        let down = |n| Patient {
            master: format!("redis://m{n}:6379"),
            facts: Err("connection refused".into()),
        };
        let count = |patients: &[Patient], check| {
            judge(patients, RULES)
                .iter()
                .filter(|f| f.check == check && f.severity == Severity::Error)
                .count()
        };
        let minority = [healthy(1), healthy(2), down(3)];
        assert_eq!(
            (count(&minority, "reachable"), count(&minority, "quorum")),
            (1, 0)
        );
        let majority = [healthy(1), down(2), down(3)];
        assert_eq!(
            (count(&majority, "reachable"), count(&majority, "quorum")),
            (2, 1)
        );
    }

    #[test]
    fn without_the_guard_a_forgetful_master_is_an_error() {
        let mut patient = healthy(1);
        if let Ok(facts) = &mut patient.facts {
            facts.aof = Some(false);
            facts.uptime = Some(Duration::from_secs(1));
        }
        let rules = Rules {
            restart_guard: false,
            ..RULES
        };
        let findings = judge(&[patient, healthy(2), healthy(3)], rules);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            (findings[0].severity, findings[0].check),
            (Severity::Error, "persistence")
        );
    }

    #[test]
    fn an_even_number_or_a_single_master_is_warned_about() {
        let checks = |n: usize| {
            let patients: Vec<Patient> = (0..n).map(healthy).collect();
            judge(&patients, RULES).len()
        };
        assert_eq!([checks(1), checks(2), checks(3), checks(4)], [1, 1, 0, 1]);
    }
}
