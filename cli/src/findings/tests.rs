use quorate::NodeName;

use super::*;

const RULES: Rules = Rules {
    max_ttl: Duration::from_secs(30),
    restart_guard: true,
    prefix: true,
};

/// Judges Redis masters.
fn judge(masters: &[Inspection], rules: Rules) -> Vec<Finding> {
    super::judge(masters, &vec![backends::REDIS; masters.len()], rules)
}

fn healthy(n: usize) -> Inspection {
    let mut master = Inspection::new(NodeName::new(format!("m{n}:6379")));
    master.server = Some("redis".into());
    master.version = Some("7.0.15".into());
    master.role = Some("master".into());
    master.cluster = Some(false);
    master.uptime = Some(Duration::from_secs(3600));
    master.append_only = Some(true);
    master.append_fsync = Some("always".into());
    master.snapshots = Some(false);
    master.maxmemory_policy = Some("noeviction".into());
    master.marked = Some(true);
    master.clock_offset_ms = Some(3);
    master
}

fn faulty(n: usize, fault: Fault) -> Inspection {
    let mut master = Inspection::new(NodeName::new(format!("m{n}:6379")));
    master.fault = Some(fault);
    master
}

fn ill(change: impl FnOnce(&mut Inspection)) -> Vec<(Severity, &'static str)> {
    let mut masters = vec![healthy(1), healthy(2), healthy(3)];
    change(&mut masters[2]);
    judge(&masters, RULES)
        .into_iter()
        .map(|f| (f.severity, f.check))
        .collect()
}

#[test]
fn doctor_finds_nothing_wrong_with_healthy_masters() {
    assert_eq!(ill(|_| {}), vec![]);
}

#[test]
fn doctor_reports_every_problem_of_a_redis_master() {
    use Severity::{Error, Note, Warning};
    assert_eq!(ill(|f| f.role = Some("slave".into())), [(Error, "role")]);
    assert_eq!(ill(|f| f.cluster = Some(true)), [(Error, "cluster")]);
    assert_eq!(
        ill(|f| f.maxmemory_policy = Some("allkeys-lru".into())),
        [(Error, "eviction")]
    );
    assert_eq!(ill(|f| f.maxmemory_policy = None), [(Warning, "eviction")]);
    assert_eq!(
        ill(|f| f.quarantined = Some(Duration::from_secs(3))),
        [(Warning, "uptime")]
    );
    assert_eq!(
        ill(|f| f.version = Some("7.01".into())),
        [(Note, "version")]
    );
    assert_eq!(
        ill(|f| f.server = Some("dragonfly".into())),
        [(Note, "version")]
    );
    assert_eq!(ill(|f| f.version = Some("8.2".into())), []);
    assert_eq!(ill(|f| f.clock_offset_ms = Some(900)), [(Warning, "clock")]);
    for mad in [-60_000, i64::MIN, i64::MAX] {
        assert_eq!(ill(|f| f.clock_offset_ms = Some(mad)), [(Error, "clock")]);
    }
    assert_eq!(
        ill(|f| f.append_fsync = Some("everysec".into())),
        [(Note, "persistence")]
    );
}

/// The advice of the only finding about masters, one of which has been changed.
fn advice(rules: Rules, change: impl FnOnce(&mut Inspection)) -> String {
    let mut masters = vec![healthy(1), healthy(2), healthy(3)];
    change(&mut masters[2]);
    let findings = judge(&masters, rules);
    let [finding] = &findings[..] else {
        panic!("one finding must be reported: {findings:?}");
    };
    finding.advice.clone()
}

/// A server that loads a snapshot starts empty if only its configuration file says `appendonly yes`.
#[test]
fn advice_to_use_an_append_only_file_keeps_the_data() {
    let rules = Rules {
        restart_guard: false,
        ..RULES
    };
    let advice = advice(rules, |f| f.append_only = Some(false));
    let set = advice.find("CONFIG SET appendonly yes");
    let wait = advice.find("aof_rewrite_in_progress:0");
    let file = advice.find("configuration file");
    assert!(set.is_some() && set < wait && wait < file, "{advice}");
    assert!(advice.contains("would start empty"), "{advice}");
}

#[test]
fn advice_about_clocks_does_not_end_the_locks_of_a_majority() {
    let apart = advice(RULES, |f| f.clock_offset_ms = Some(900));
    assert!(apart.contains("without a step (slew)"), "{apart}");
    assert!(
        apart.contains("one master at a time with a wait of 30s"),
        "{apart}"
    );
    let set = advice(RULES, |f| {
        f.is_uptime_impossible = true;
        f.marked = None;
        f.quarantined = Some(Duration::from_secs(29));
    });
    assert!(set.contains("one master at a time"), "{set}");
}

#[test]
fn advice_about_a_replica_keeps_it_from_being_a_replica_again() {
    let role = advice(RULES, |f| f.role = Some("slave".into()));
    let read_only = advice(RULES, |f| f.fault = Some(Fault::ReadOnly));
    for advice in [role, read_only] {
        for words in ["REPLICAOF NO ONE", "configuration file", "Sentinel"] {
            assert!(advice.contains(words), "{advice}");
        }
    }
}

#[test]
fn advice_about_eviction_does_not_break_a_cache() {
    let advice = advice(RULES, |f| f.maxmemory_policy = Some("allkeys-lru".into()));
    assert!(
        advice.starts_with("if this server is also a cache"),
        "{advice}"
    );
}

#[test]
fn doctor_reports_missing_generation_markers_only_if_the_restart_guard_is_on() {
    use Severity::Warning;
    assert_eq!(ill(|f| f.marked = Some(false)), [(Warning, "marked")]);
    assert_eq!(
        ill(|f| f.marked = None),
        [],
        "a generation marker that the user may not read must not cause a finding"
    );
    let unmarked = || {
        let mut masters = vec![healthy(1), healthy(2), healthy(3)];
        for master in &mut masters {
            master.marked = Some(false);
        }
        masters
    };
    let found = judge(&unmarked(), RULES);
    assert_eq!(found.len(), 1, "{found:?}");
    let rules = Rules {
        restart_guard: false,
        ..RULES
    };
    let checks = |masters: &[Inspection], rules| {
        let found = judge(masters, rules);
        found.iter().any(|finding| finding.check == "marked")
    };
    assert!(!checks(&unmarked(), rules));
    let mut mixed = unmarked();
    mixed[0].records = true;
    assert!(!checks(&mixed, RULES));
}

/// A client ignores an unmarked master if it has seen a marked one, so it then gets no majority.
#[test]
fn doctor_reports_an_error_if_only_a_minority_of_the_masters_has_the_generation_marker() {
    let mixed = |unmarked: usize| {
        let mut masters: Vec<Inspection> = (1..=5).map(healthy).collect();
        for master in masters.iter_mut().take(unmarked) {
            master.marked = Some(false);
        }
        let found = judge(&masters, RULES);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].check, "marked");
        found.into_iter().next()
    };
    let minority = mixed(2).expect("a finding");
    assert_eq!(minority.severity, Severity::Warning, "{minority:?}");
    let majority = mixed(3).expect("a finding");
    assert_eq!(majority.severity, Severity::Error, "{majority:?}");
    assert!(majority.what.contains("3 of 5 masters"), "{majority:?}");
    assert!(
        majority.advice.contains("masters mark --watch"),
        "{majority:?}"
    );
}

#[test]
fn doctor_reports_an_error_if_a_majority_of_the_masters_has_just_restarted() {
    let restarted = |count: usize| {
        let mut masters: Vec<Inspection> = (1..=3).map(healthy).collect();
        for master in masters.iter_mut().take(count) {
            master.quarantined = Some(Duration::from_secs(9));
        }
        let found = judge(&masters, RULES);
        let errors = found.iter().filter(|f| f.severity == Severity::Error);
        let errors: Vec<_> = errors.map(|f| (f.check, f.what.clone())).collect();
        (found.len(), errors)
    };
    assert_eq!(restarted(1), (1, Vec::new()));
    let (count, errors) = restarted(2);
    assert_eq!((count, errors.len()), (3, 1), "{errors:?}");
    assert_eq!(errors[0].0, "uptime");
    assert!(errors[0].1.contains("no lock can be taken"), "{errors:?}");
}

#[test]
fn doctor_reports_an_error_if_a_master_refuses_writes() {
    for (fault, check) in [
        (Fault::OutOfMemory, "memory"),
        (Fault::Misconf, "persistence"),
    ] {
        let mut master = healthy(1);
        master.fault = Some(fault);
        let findings = judge(&[master, healthy(2), healthy(3)], RULES);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(
            (findings[0].severity, findings[0].check),
            (Severity::Error, check)
        );
    }
}

#[test]
fn doctor_reports_unreachable_masters_and_a_missing_majority_as_errors() {
    let down = |n| faulty(n, Fault::Down("connection refused".into()));
    let count = |masters: &[Inspection], check| {
        judge(masters, RULES)
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
fn master_without_persistence_is_reported_as_an_error_if_the_restart_guard_is_off() {
    let mut master = healthy(1);
    master.append_only = Some(false);
    master.uptime = Some(Duration::from_secs(1));
    let rules = Rules {
        restart_guard: false,
        ..RULES
    };
    let findings = judge(&[master, healthy(2), healthy(3)], rules);
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].severity, findings[0].check),
        (Severity::Error, "persistence")
    );
}

#[test]
fn doctor_warns_about_an_even_number_of_masters_and_about_a_single_master() {
    let checks = |n: usize| {
        let masters: Vec<Inspection> = (0..n).map(healthy).collect();
        judge(&masters, RULES).len()
    };
    assert_eq!([checks(1), checks(2), checks(3), checks(4)], [1, 1, 0, 1]);
}

#[test]
fn master_that_refuses_locks_is_reported_with_advice() {
    for (fault, check, advice) in [
        (Fault::Denied("WRONGPASS".into()), "login", "password"),
        (
            Fault::Down("refused".into()),
            "reachable",
            "start this master",
        ),
        (
            Fault::Timeout(Duration::from_millis(50)),
            "reachable",
            "--node-timeout",
        ),
        (Fault::Loading, "reachable", "log"),
        (
            Fault::Unsupported("no RESP3".into()),
            "version",
            "Redis 6.2",
        ),
        (Fault::SameServer("m1".into()), "run_id", "once"),
    ] {
        let findings = judge(&[faulty(1, fault), healthy(2), healthy(3)], RULES);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(
            (findings[0].severity, findings[0].check),
            (Severity::Error, check)
        );
        assert!(findings[0].advice.contains(advice), "{findings:?}");
    }
}

#[test]
fn documented_server_versions_match_the_tested_versions() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("## Versions\n").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let listed: Vec<(String, String)> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("refused"))
        .filter_map(|line| {
            let mut words = line.trim_start_matches("| ").split(' ');
            let (server, version) = (words.next()?, words.next()?);
            let (series, _) = version.rsplit_once('.')?;
            Some((server.to_lowercase(), series.to_owned()))
        })
        .collect();
    for (server, series) in tested_versions() {
        assert!(
            listed.iter().any(|(s, v)| s == server && v == series),
            "the page must list the tested version {server} {series}: {listed:?}"
        );
    }
    for (server, series) in listed {
        assert!(
            tested_versions().any(|one| one == (&*server, &*series)),
            "doctor must know {server} {series}, which is listed on the page"
        );
    }
}

#[test]
fn doctor_says_that_the_clock_of_a_master_with_a_negative_uptime_was_set() {
    let mut master = healthy(1);
    master.uptime = Some(Duration::ZERO);
    master.is_uptime_impossible = true;
    // For a master with a generation marker, the age record decides, not the uptime.
    master.marked = None;
    master.quarantined = Some(Duration::from_secs(29));
    let findings = judge(&[master, healthy(2), healthy(3)], RULES);
    let [finding] = &findings[..] else {
        panic!("one finding must be reported");
    };
    assert_eq!(
        (finding.severity, finding.check),
        (Severity::Warning, "uptime")
    );
    assert!(
        finding.what.contains("its clock was set"),
        "{}",
        finding.what
    );
    assert!(finding.what.contains("for 30s"), "{}", finding.what);
    assert!(
        finding.advice.contains("restart this master"),
        "{}",
        finding.advice
    );
}

#[test]
fn doctor_reports_an_address_that_leads_to_several_servers_in_turn() {
    let seen = |n: usize, run: &str, identity: Option<&str>| {
        let mut master = healthy(n);
        master.run_id = Some(run.to_owned());
        master.identity = identity.map(str::to_owned);
        master
    };
    let round = |second: &str| vec![seen(1, "a", None), seen(2, second, None)];
    assert_eq!(addresses(&[]), []);
    assert_eq!(addresses(&[round("b"), round("b")]), []);
    let found = addresses(&[round("b"), round("c"), round("b")]);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].severity, found[0].check),
        (Severity::Error, "address")
    );
    assert_eq!(found[0].master.as_deref(), Some("m2:6379"));
    assert!(
        found[0]
            .what
            .contains("2 servers in turn (3 connections, ids b, c)")
    );
    // A connection that failed shows nothing.
    let failed = vec![seen(1, "a", None), faulty(2, Fault::Busy)];
    assert_eq!(addresses(&[round("b"), failed]), []);
    // A restart changes the run of a database, but not its identity.
    let database = |run| vec![seen(1, run, Some("server"))];
    assert_eq!(addresses(&[database("a"), database("b")]), []);
}

#[test]
fn advice_about_an_old_server_names_the_oldest_supported_servers() {
    let advice = "use Valkey, or at least Redis 6.2, MariaDB 10.6, MySQL 8, PostgreSQL 14, ZooKeeper 3.5 or etcd 3.4";
    assert_eq!(newer(), advice);
}
