//! The checks of `doctor` for MySQL and MariaDB masters. The checks do no I/O.

use quorate::{Fault, Inspection};

use crate::backends::{database, store_checks};
use crate::finding::{Add, FaultAdvice, Rules, Severity};
use crate::output::human;

/// The advice for a server that has reached its connection limit.
const FEWER: &str =
    "raise the connection limit on the server, or open fewer sessions with ?lanes= in its URL";

/// The advice for a server that refuses writes.
const READ_ONLY: &str = "if this server is a replica, list its source instead; otherwise run SET GLOBAL read_only = 0, or start the \
                 server without innodb_read_only";

/// The advice of `doctor` if no lock can be taken because of `fault`, whose text is `why`. `None` if the advice does not
/// depend on the kind of the master.
pub(super) fn explain<'a>(
    master: &Inspection,
    fault: &Fault,
    why: &str,
) -> Option<FaultAdvice<'a>> {
    let (check, advice) = match fault {
        // The server is known, so the login succeeded. `Denied` means that the user lacks rights.
        Fault::Denied(_) if master.server.is_some() => (
            "acl",
            "run `quorate prepare-server URL` with an administrator account: it prints the grants that are needed",
        ),
        Fault::Down(why)
            if ["max_connections", "max_user_connections"]
                .iter()
                .any(|limit| why.contains(limit)) =>
        {
            ("connections", FEWER)
        }
        Fault::Server(why) if why.contains("(1226)") => (
            "limits",
            "raise the limit of the user in the URL with ALTER USER, or remove it: a lock needs several queries and \
             updates for each renewal",
        ),
        Fault::Denied(why) if why.contains("has expired") => (
            "login",
            "set a new password for the user (ALTER USER .. IDENTIFIED BY ..), and put the password into the URL of this master",
        ),
        Fault::Denied(why) if why.contains("is locked") || why.contains("is blocked") => (
            "login",
            "unlock the user in the URL, or unblock the host of this client",
        ),
        Fault::Denied(_) => (
            "login",
            "correct the user, the password and the database in the URL of this master, or run the GRANTs that `quorate prepare-server URL` prints",
        ),
        Fault::Unsupported(why) if why.contains("binlog_format") => (
            "binlog",
            "run SET GLOBAL binlog_format = ROW, and set binlog_format in the configuration file; open connections \
             keep the old format",
        ),
        Fault::Unsupported(why) if why.contains("(1290)") => (
            "option",
            "turn off the option that the finding names, or use another server",
        ),
        Fault::ReadOnly => ("role", READ_ONLY),
        _ => return store_checks::explain(fault, why),
    };
    Some((check, format!("cannot be used: {why}"), advice))
}

/// Runs all checks on a MySQL or MariaDB master on which locks can be taken.
pub(super) fn judge(master: &Inspection, rules: Rules, add: &mut dyn Add) {
    role(master, add);
    together_with_others(master, add);
    if master.setting("log_bin") == Some("ON")
        && master.setting("binlog_format") == Some("STATEMENT")
    {
        add(
            Severity::Error,
            "binlog",
            "has binlog_format = STATEMENT: the server refuses the writes that a lock needs"
                .to_owned(),
            "run SET GLOBAL binlog_format = ROW, and set binlog_format in the configuration file",
        );
    }
    if master.uptime.is_some() {
        persistence(master, rules, add);
    }
    database::room(master, "Threads_connected", add);
    threads(master, add);
    store_checks::judge(master, add);
}

fn role(master: &Inspection, add: &mut dyn Add) {
    match master.role.as_deref() {
        Some("slave") => {
            let source = master.setting("source").unwrap_or("another server");
            add(
                Severity::Error,
                "role",
                format!("is a replica of {source}: writes to {source} are copied to this server"),
                "list the source of this replica instead, or exclude the database of the locks from the replication (replicate-ignore-db)",
            );
        }
        Some("read-only") => add(
            Severity::Error,
            "role",
            "is read-only".to_owned(),
            READ_ONLY,
        ),
        _ => {}
    }
}

/// Checks whether the database server belongs to a cluster with synchronous replication.
fn together_with_others(master: &Inspection, add: &mut dyn Add) {
    let galera = master.setting("wsrep_on") == Some("ON");
    let group = master
        .setting("group_replication_group_name")
        .is_some_and(|name| !name.is_empty());
    if galera || group {
        let what = if galera {
            "a Galera cluster"
        } else {
            "a replication group"
        };
        add(
            Severity::Warning,
            "cluster",
            format!(
                "is a member of {what}: all members together count as one master; this setup is not tested"
            ),
            "use independent servers, or list only one member of the cluster, and list the same member in all clients",
        );
    }
}

/// Checks whether a crash or a power cut can lose commits of the database server.
fn persistence(master: &Inspection, rules: Rules, add: &mut dyn Add) {
    let flush = master.setting("innodb_flush_log_at_trx_commit");
    let binlog = match master.setting("log_bin") {
        Some("ON") => master.setting("sync_binlog"),
        _ => Some("1"),
    };
    let (Some(flush), Some(binlog)) = (flush, binlog) else {
        return add(
            Severity::Warning,
            "persistence",
            "does not report whether a crash can lose commits".to_owned(),
            "keep --restart-guard on",
        );
    };
    if flush == "1" && binlog == "1" {
        return;
    }
    let lost = match (flush, binlog) {
        ("1", _) => format!("sync_binlog = {binlog}: a power cut can lose the last commits"),
        ("0", _) => {
            "innodb_flush_log_at_trx_commit = 0: a crash can lose the commits of the last second"
                .to_owned()
        }
        _ => format!(
            "innodb_flush_log_at_trx_commit = {flush}: a power cut can lose the commits of the last second"
        ),
    };
    if rules.restart_guard {
        let advice = format!(
            "no action needed: clients ignore the votes of this master for {} after a restart",
            human(rules.max_ttl)
        );
        let what = format!("{lost}; the restart guard protects locks from this loss");
        add(Severity::Note, "persistence", what, &advice);
    } else {
        add(
            Severity::Error,
            "persistence",
            format!("{lost}, and the restart guard is off"),
            "use --restart-guard on, or set innodb_flush_log_at_trx_commit = 1 and, if the server writes a binary log, \
             sync_binlog = 1",
        );
    }
}

/// Warns if the thread pool of a MariaDB server may have fewer threads than the server has connections. Waiting clients
/// then poll, because blocked statements could occupy all threads.
fn threads(master: &Inspection, add: &mut dyn Add) {
    let pooled = master.setting("thread_handling") == Some("pool-of-threads");
    let (true, Some(threads), Some(connections)) = (
        pooled,
        database::number(master, "thread_pool_max_threads"),
        database::number(master, "max_connections"),
    ) else {
        return;
    };
    if threads < 2 * connections {
        add(
            Severity::Note,
            "threads",
            format!(
                "has a thread pool of at most {threads} threads for {connections} connections \
                 (thread_pool_max_threads, max_connections): clients that wait for a lock poll this server, because \
                 statements that wait could occupy all of its threads"
            ),
            "raise thread_pool_max_threads to at least twice max_connections if waiting clients cause too much load",
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorate::NodeName;

    use super::super::MySql;
    use super::*;
    use crate::backends::Backend;

    const RULES: Rules = Rules {
        max_ttl: Duration::from_secs(30),
        restart_guard: true,
        prefix: true,
    };

    fn database(settings: &[(&str, &str)]) -> Inspection {
        let mut master = Inspection::new(NodeName::new("mysql h/locks"));
        master.records = true;
        master.server = Some("mariadb".into());
        master.role = Some("master".into());
        master.uptime = Some(Duration::from_secs(3600));
        master.settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        master
    }

    fn found(master: &Inspection, rules: Rules) -> Vec<(Severity, &'static str)> {
        let mut all = Vec::new();
        judge(master, rules, &mut |severity, check, _, _: &str| {
            all.push((severity, check));
        });
        all
    }

    const SAFE: (&str, &str) = ("innodb_flush_log_at_trx_commit", "1");

    #[test]
    fn doctor_finds_nothing_wrong_with_a_healthy_database() {
        let master = database(&[
            SAFE,
            ("log_bin", "ON"),
            ("sync_binlog", "1"),
            ("binlog_format", "ROW"),
            ("wsrep_on", "OFF"),
            ("group_replication_group_name", ""),
            ("max_connections", "151"),
            ("thread_handling", "pool-of-threads"),
            ("thread_pool_max_threads", "65536"),
            ("Threads_connected", "7"),
        ]);
        assert_eq!(found(&master, RULES), []);
        let rules = Rules {
            restart_guard: false,
            ..RULES
        };
        assert_eq!(found(&master, rules), []);
    }

    #[test]
    fn doctor_reports_every_problem_of_a_database() {
        use Severity::{Error, Warning};
        for (settings, expected) in [
            (
                &[
                    ("log_bin", "ON"),
                    ("sync_binlog", "1"),
                    ("binlog_format", "STATEMENT"),
                ][..],
                (Error, "binlog"),
            ),
            (&[("wsrep_on", "ON")], (Warning, "cluster")),
            (
                &[("group_replication_group_name", "5a3f")],
                (Warning, "cluster"),
            ),
            (
                &[("max_connections", "20"), ("Threads_connected", "15")],
                (Warning, "connections"),
            ),
            (
                &[
                    ("thread_handling", "pool-of-threads"),
                    ("thread_pool_max_threads", "8"),
                    ("max_connections", "151"),
                ],
                (Severity::Note, "threads"),
            ),
        ] {
            let mut master = database(settings);
            master.settings.push((SAFE.0.into(), SAFE.1.into()));
            assert_eq!(found(&master, RULES), [expected], "{settings:?}");
        }
        for role in ["slave", "read-only"] {
            let mut master = database(&[SAFE]);
            master.role = Some(role.into());
            assert_eq!(found(&master, RULES), [(Error, "role")]);
        }
        let mut slow = database(&[SAFE]);
        slow.timeout = Some(Duration::from_millis(250));
        slow.round_trip = Some(Duration::from_millis(130));
        assert_eq!(found(&slow, RULES), [(Warning, "latency")]);
        slow.round_trip = Some(Duration::from_millis(120));
        slow.unseen = vec!["whether the server is a replica: GRANT the right".into()];
        assert_eq!(found(&slow, RULES), [(Severity::Note, "unseen")]);
    }

    #[test]
    fn doctor_reports_possible_data_loss_as_an_error_only_without_the_restart_guard() {
        let off = Rules {
            restart_guard: false,
            ..RULES
        };
        for settings in [
            &[("innodb_flush_log_at_trx_commit", "0")][..],
            &[("innodb_flush_log_at_trx_commit", "2")],
            &[SAFE, ("log_bin", "ON"), ("sync_binlog", "0")],
        ] {
            let master = database(settings);
            let (note, error) = (found(&master, RULES), found(&master, off));
            assert_eq!(note, [(Severity::Note, "persistence")], "{settings:?}");
            assert_eq!(error, [(Severity::Error, "persistence")], "{settings:?}");
        }
        let silent = database(&[]);
        assert_eq!(found(&silent, RULES), [(Severity::Warning, "persistence")]);
    }

    #[test]
    fn single_database_causes_a_warning() {
        assert!(!MySql.survives_alone(&database(&[])));
    }

    /// The check and the advice for this fault, as `CHECK: ADVICE`.
    fn advice(master: &Inspection, fault: &Fault) -> String {
        let why = fault.to_string();
        let (check, _, advice) = explain(master, fault, &why).expect("advice");
        format!("{check}: {advice}")
    }

    #[test]
    fn doctor_gives_advice_for_each_fault_of_a_database() {
        let mut unknown = database(&[]);
        unknown.server = None;
        let denied = Fault::Denied("no (1045)".into());
        assert!(advice(&unknown, &denied).starts_with("login: correct the user"));
        assert!(advice(&database(&[]), &denied).contains("acl: run `quorate prepare-server"));
        for full in [
            Fault::Down("Too many connections (1040): raise max_connections".into()),
            Fault::Down("exceeded the 'max_user_connections' resource (1226)".into()),
        ] {
            assert!(advice(&unknown, &full).starts_with("connections: raise the connection limit"));
        }
        let hourly = Fault::Server("exceeded the 'max_questions' resource (1226)".into());
        assert!(advice(&unknown, &hourly).starts_with("limits: raise the limit"));
        let locked = Fault::Denied("this account is locked (4151)".into());
        assert!(advice(&unknown, &locked).contains("unlock the user in the URL"));
        let expired =
            Fault::Denied("the password of the user in the URL has expired (1820)".into());
        assert!(advice(&unknown, &expired).contains("new password"));
        let option = Fault::Unsupported("running with the --x option (1290)".into());
        assert!(advice(&database(&[]), &option).starts_with("option: turn off the option"));
        assert!(advice(&database(&[]), &Fault::ReadOnly).contains("read_only = 0"));
        let binlog = Fault::Unsupported("binlog_format=STATEMENT".into());
        assert!(advice(&database(&[]), &binlog).contains("binlog_format = ROW"));
        let late = Fault::Timeout(Duration::from_millis(250));
        assert!(advice(&database(&[]), &late).contains("?timeout="));
    }
}
