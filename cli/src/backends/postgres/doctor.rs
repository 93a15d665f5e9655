//! The checks of `doctor` for PostgreSQL masters. The checks do no I/O.

use quorate::{Fault, Inspection};

use crate::backends::{database, store_checks};
use crate::finding::{Add, FaultAdvice, Rules, Severity};

/// `doctor` warns if more than this part of the queue of notifications is in use.
const FULL: f64 = 0.25;
/// `doctor` reports a snapshot that is older than this number of transactions.
const OLD: u64 = 100_000;

/// The advice of `doctor` if no lock can be taken because of `fault`, whose text is `why`. `None` if the advice does
/// not depend on the kind of the master.
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
        Fault::Denied(_) => (
            "login",
            "correct the user, the password and the database in the URL of this master, or pg_hba.conf of the server",
        ),
        Fault::Down(why) if why.contains("max_connections") => (
            "connections",
            "raise the connection limit on the server, or open fewer sessions with ?lanes= in its URL",
        ),
        Fault::Unsupported(why) if why.contains("pooler") => (
            "pooler",
            "set pool_mode=session in the pooler, or name the PostgreSQL server itself in the URL of this master",
        ),
        Fault::Server(why) if why.contains("synchronous standby") => (
            "replication",
            "start the standby, or remove it from synchronous_standby_names and reload the configuration",
        ),
        // A session refuses such a server (`Asked::votes` in nodes/postgres/src/greet.rs, which has the text).
        Fault::Unsupported(why) if why.contains("fsync") => (
            "persistence",
            "set fsync = on in the configuration file, and restart the server",
        ),
        Fault::ReadOnly => (
            "role",
            "if this server is a standby, list its primary instead; otherwise set default_transaction_read_only = off",
        ),
        _ => return store_checks::explain(fault, why),
    };
    Some((check, format!("cannot be used: {why}"), advice))
}

/// Runs all checks on a PostgreSQL master on which locks can be taken.
pub(super) fn judge(master: &Inspection, _rules: Rules, add: &mut dyn Add) {
    persistence(master, add);
    let standbys = master.setting("synchronous_standby_names");
    if standbys.is_some_and(|names| !names.is_empty()) {
        add(
            Severity::Note,
            "replication",
            "has synchronous standbys: each change of a lock waits for them".to_owned(),
            "no action needed; if a standby stops, this master does not vote until it is back or removed from \
             synchronous_standby_names",
        );
    }
    database::room(master, "connections", add);
    notifications(master, add);
    snapshot(master, add);
    store_checks::judge(master, add);
}

/// Warns about settings with which a power cut can damage the data. A server with `fsync = off` gets no vote, so
/// [`explain`] reports it. Sessions override `synchronous_commit = off`.
fn persistence(master: &Inspection, add: &mut dyn Add) {
    if master.setting("full_page_writes") == Some("off") {
        add(
            Severity::Warning,
            "persistence",
            "has full_page_writes = off: a power cut can damage the tables".to_owned(),
            "set full_page_writes = on, unless the file system writes pages as a whole",
        );
    }
}

/// Warns if the queue of notifications fills up. All databases of the server share this queue.
fn notifications(master: &Inspection, add: &mut dyn Add) {
    let used = master.setting("notification_queue_usage");
    let used: Option<f64> = used.and_then(|value| value.parse().ok());
    if let Some(used) = used.filter(|used| *used > FULL) {
        let percent = used * 100.0;
        add(
            Severity::Warning,
            "notifications",
            format!(
                "has used {percent:.0} % of its queue of notifications: if it is full, waiting clients poll"
            ),
            "end the session that listens and does not read: SELECT pid, query FROM pg_stat_activity WHERE query ILIKE \
             'listen%'",
        );
    }
}

/// Reports an old snapshot, with which the server cannot remove old versions of records.
fn snapshot(master: &Inspection, add: &mut dyn Add) {
    let age = database::number(master, "oldest_snapshot_age");
    if let Some(age) = age.filter(|age| *age > OLD) {
        add(
            Severity::Note,
            "snapshot",
            format!(
                "has a snapshot that is {age} transactions old: the table of records grows until it ends"
            ),
            "end the session with the oldest backend_xmin in pg_stat_activity, or use a server for the locks alone",
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorate::NodeName;

    use super::*;

    fn found(settings: &[(&str, &str)]) -> Vec<(Severity, &'static str)> {
        let mut master = Inspection::new(NodeName::new("postgres h:5432/locks"));
        master.settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let rules = Rules {
            max_ttl: Duration::from_secs(30),
            restart_guard: true,
            prefix: true,
        };
        let mut all = Vec::new();
        judge(&master, rules, &mut |severity, check, _, _: &str| {
            all.push((severity, check));
        });
        all
    }

    #[test]
    fn doctor_finds_nothing_wrong_with_a_healthy_postgres() {
        let healthy = [
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_standby_names", ""),
            ("max_connections", "100"),
            ("connections", "5"),
            ("notification_queue_usage", "0"),
            ("oldest_snapshot_age", "2"),
        ];
        assert_eq!(found(&healthy), []);
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn doctor_reports_every_problem_of_a_postgres() {
        use Severity::{Note, Warning};
        for (settings, expected) in [
            (&[("full_page_writes", "off")][..], (Warning, "persistence")),
            (&[("synchronous_standby_names", "a")], (Note, "replication")),
            (
                &[("max_connections", "100"), ("connections", "95")],
                (Warning, "connections"),
            ),
            (
                &[("notification_queue_usage", "0.5")],
                (Warning, "notifications"),
            ),
            (&[("oldest_snapshot_age", "200000")], (Note, "snapshot")),
        ] {
            assert_eq!(found(settings), [expected], "{settings:?}");
        }
    }

    #[test]
    fn advice_depends_on_the_fault() {
        let mut master = Inspection::new(NodeName::new("postgres h:5432/locks"));
        let check = |master: &Inspection, fault: Fault| {
            let why = fault.to_string();
            explain(master, &fault, &why).map(|(check, _, _)| check)
        };
        let denied = || Fault::Denied("no".into());
        assert_eq!(check(&master, denied()), Some("login"));
        master.server = Some("postgresql".into());
        assert_eq!(check(&master, denied()), Some("acl"));
        assert_eq!(check(&master, Fault::ReadOnly), Some("role"));
        let unsupported = |why: &str| Fault::Unsupported(why.into());
        assert_eq!(
            check(&master, unsupported("a connection pooler")),
            Some("pooler")
        );
        assert_eq!(
            check(&master, unsupported("fsync is off")),
            Some("persistence")
        );
        let waiting = "an earlier commit still waits for a synchronous standby";
        assert_eq!(
            check(&master, Fault::Server(waiting.into())),
            Some("replication")
        );
        assert_eq!(check(&master, Fault::Busy), None);
    }
}
