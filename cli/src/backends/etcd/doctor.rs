//! The checks of `doctor` for etcd masters. The checks do no I/O.

use std::time::Duration;

use quorate::{Fault, Inspection};

use crate::backends::store_checks;
use crate::finding::{Add, FaultAdvice, Severity};
use crate::output::human;

/// `doctor` warns if the database takes more than this part of its quota.
const FULL: f64 = 0.8;
/// `doctor` warns about a history that was never compacted if the cluster has counted this many changes.
const MANY_CHANGES: u64 = 100_000;
/// The largest difference, in milliseconds, between the clock of a member and that of this machine at which a process
/// that tries once gets the lock of a dead holder at once. See "The age of a lease in a store without a clock" in
/// docs/protocol.md.
const CLOCKS_AGREE_MS: u64 = 2_000;
/// How an administrator makes room in the database.
const MAKE_ROOM: &str = "run `etcdctl compact REVISION`, `etcdctl defrag` and `etcdctl alarm disarm`, and start the \
                         members with --auto-compaction-retention=1h";

/// The advice of `doctor` if no lock can be taken because of `fault`, whose text is `why`. `None` if the advice does not
/// depend on the kind of the master.
pub(super) fn explain<'a>(fault: &Fault, why: &str) -> Option<FaultAdvice<'a>> {
    let (check, advice) = match fault {
        Fault::Denied(why) if why.contains("permission denied") => (
            "acl",
            "grant the role of this user the rights that `quorate prepare-server URL` prints",
        ),
        Fault::Denied(_) => (
            "login",
            "put a user of the cluster and its password into the URL (etcd://user:password@host)",
        ),
        Fault::Server(why) if why.contains("database space exceeded") => ("space", MAKE_ROOM),
        Fault::Down(why) if why.contains("no leader") => (
            "role",
            "start members of the cluster until a majority of them runs",
        ),
        Fault::Down(why) if why.contains("learner") => (
            "role",
            "name voting members of the cluster in the URL, or promote this one (etcdctl member promote)",
        ),
        _ => return store_checks::explain(fault, why),
    };
    Some((check, format!("cannot be used: {why}"), advice))
}

/// Runs all checks on an etcd master on which locks can be taken.
pub(super) fn judge(master: &Inspection, add: &mut dyn Add) {
    age(master, add);
    space(master, add);
    history(master, add);
    clock(master, add);
    store_checks::judge(master, add);
}

/// Reports an etcd older than version 3.4.
fn age(master: &Inspection, add: &mut dyn Add) {
    let version = master.version.as_deref().unwrap_or_default();
    let mut numbers = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    if let (Some(major), Some(minor)) = (numbers.next(), numbers.next())
        && (major, minor) < (3, 4)
    {
        add(
            Severity::Error,
            "version",
            format!("is etcd {version}, which is too old"),
            "use etcd 3.4 or newer",
        );
    }
}

/// A figure of the cluster; `None` if it is unknown.
fn figure(master: &Inspection, name: &str) -> Option<u64> {
    master.setting(name)?.parse().ok()
}

/// Reports alarms of the cluster, and a database that is nearly full.
fn space(master: &Inspection, add: &mut dyn Add) {
    if let Some(alarms) = master.setting("alarms").filter(|alarms| !alarms.is_empty()) {
        add(
            Severity::Error,
            "space",
            format!("has raised an alarm ({alarms})"),
            MAKE_ROOM,
        );
        return;
    }
    let (size, quota) = (figure(master, "db_bytes"), figure(master, "quota_bytes"));
    if let (Some(size), Some(quota)) = (size, quota)
        && quota > 0
        && size as f64 > quota as f64 * FULL
    {
        let percent = size as f64 * 100.0 / quota as f64;
        add(
            Severity::Warning,
            "space",
            format!(
                "has filled {percent:.0} % of the quota of its database: if it is full, no lock can be taken"
            ),
            MAKE_ROOM,
        );
    }
}

/// Reports a history of changes that the cluster never removes, or that is long.
fn history(master: &Inspection, add: &mut dyn Add) {
    let revision = figure(master, "revision").unwrap_or_default();
    let (severity, what) = match master.setting("history") {
        Some("whole") if revision < MANY_CHANGES => {
            (Severity::Note, "has never removed the history of its keys")
        }
        Some("whole") => (
            Severity::Warning,
            "has never removed the history of its keys",
        ),
        Some("long") => (
            Severity::Warning,
            "keeps the history of more than 1,000,000 changes",
        ),
        _ => return,
    };
    add(
        severity,
        "history",
        what.to_owned(),
        "start the members with --auto-compaction-retention=1h: without it, each change of a lock takes room in the \
         database for ever",
    );
}

/// Warns if the clock of the member and the clock of this machine differ by too much.
fn clock(master: &Inspection, add: &mut dyn Add) {
    let offset = master.clock_offset_ms;
    if let Some(offset) = offset.filter(|offset| offset.unsigned_abs() > CLOCKS_AGREE_MS) {
        let apart = human(Duration::from_millis(offset.unsigned_abs()));
        add(
            Severity::Warning,
            "clock",
            format!(
                "has a member whose clock differs by {apart} from the clock of this machine: if a holder on another \
                 machine dies, the first process that tries once may still be refused after the lock has expired"
            ),
            "synchronise the clocks of the etcd members and of all clients (chrony, ntpd) without a step (slew)",
        );
    }
}

/// Whether this master tolerates failures of its own servers, so that `doctor` accepts it as the only master. True for
/// a cluster with several members.
pub(super) fn survives_alone(master: &Inspection) -> bool {
    master
        .role
        .as_deref()
        .is_some_and(|role| role != "standalone")
}

#[cfg(test)]
mod tests {
    use quorate::NodeName;

    use super::*;

    fn cluster(settings: &[(&str, &str)]) -> Inspection {
        let mut master = Inspection::new(NodeName::new("etcd h:2379/locks"));
        master.settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        master
    }

    fn found(master: &Inspection) -> Vec<(Severity, &'static str)> {
        let mut all = Vec::new();
        judge(master, &mut |severity, check, _, _: &str| {
            all.push((severity, check));
        });
        all
    }

    #[test]
    fn doctor_finds_nothing_wrong_with_a_healthy_etcd() {
        let mut healthy = cluster(&[
            ("alarms", ""),
            ("db_bytes", "1000"),
            ("quota_bytes", "2147483648"),
            ("revision", "5000000"),
            ("history", "compacted"),
        ]);
        healthy.version = Some("3.5.21".into());
        healthy.clock_offset_ms = Some(900);
        assert_eq!(found(&healthy), []);
        assert_eq!(found(&cluster(&[])), []);
    }

    #[test]
    fn doctor_reports_every_problem_of_an_etcd() {
        use Severity::{Error, Note, Warning};
        for (settings, expected) in [
            (&[("alarms", "NOSPACE")][..], (Error, "space")),
            (
                &[("db_bytes", "90"), ("quota_bytes", "100")],
                (Warning, "space"),
            ),
            (
                &[("history", "whole"), ("revision", "7")],
                (Note, "history"),
            ),
            (
                &[("history", "whole"), ("revision", "100000")],
                (Warning, "history"),
            ),
            (&[("history", "long")], (Warning, "history")),
        ] {
            assert_eq!(found(&cluster(settings)), [expected], "{settings:?}");
        }
        let mut old = cluster(&[]);
        old.version = Some("3.3.27".into());
        assert_eq!(found(&old), [(Error, "version")]);
        let mut apart = cluster(&[]);
        apart.clock_offset_ms = Some(-2_500);
        assert_eq!(found(&apart), [(Warning, "clock")]);
    }

    #[test]
    fn advice_depends_on_the_fault() {
        let check = |fault: Fault| {
            let why = fault.to_string();
            explain(&fault, &why).map(|(check, _, _)| check)
        };
        let text = |text: &str| text.to_owned().into();
        let denied = Fault::Denied(text("etcdserver: permission denied (7)"));
        assert_eq!(check(denied), Some("acl"));
        assert_eq!(check(Fault::Denied(text("no user"))), Some("login"));
        let full = Fault::Server(text("etcdserver: mvcc: database space exceeded (8)"));
        assert_eq!(check(full), Some("space"));
        for role in ["the cluster has no leader", "the member is a learner"] {
            assert_eq!(check(Fault::Down(text(role))), Some("role"));
        }
        assert_eq!(check(Fault::Down(text("refused"))), None);
    }

    #[test]
    fn single_master_causes_a_warning_unless_it_is_a_cluster_of_several_members() {
        let mut master = cluster(&[]);
        for (role, alone) in [("leader", true), ("follower", true), ("standalone", false)] {
            master.role = Some(role.into());
            assert_eq!(survives_alone(&master), alone, "{role}");
        }
    }
}
