//! The checks of `doctor` for ZooKeeper masters. The checks do no I/O.

use std::time::Duration;

use quorate::{Fault, Inspection};

use crate::backends::store_checks;
use crate::finding::{Add, FaultAdvice, Severity};
use crate::output::human;

/// The advice of `doctor` if no lock can be taken because of `fault`, whose text is `why`. `None` if the advice does not
/// depend on the kind of the master.
pub(super) fn explain<'a>(fault: &Fault, why: &str) -> Option<FaultAdvice<'a>> {
    let (check, advice) = match fault {
        Fault::Denied(_) => (
            "acl",
            "put a user with access to the path into the URL (zk://user:password@host/path), or change the ACL of the path (setAcl) and run `quorate prepare-server URL`",
        ),
        Fault::Unsupported(why) if why.contains("maxSessionTimeout") => (
            "session",
            "raise maxSessionTimeout in the zoo.cfg of the server, or lower ?timeout= in its URL",
        ),
        Fault::ReadOnly => (
            "role",
            "start members of the ensemble until a majority of them runs: without a majority, this member serves only reads",
        ),
        _ => return store_checks::explain(fault, why),
    };
    Some((check, format!("cannot be used: {why}"), advice))
}

/// Runs all checks on a ZooKeeper master on which locks can be taken.
pub(super) fn judge(master: &Inspection, add: &mut dyn Add) {
    age(master, add);
    leader(master, add);
    store_checks::judge(master, add);
}

/// Reports a ZooKeeper server older than version 3.5, which lacks features that locks need.
fn age(master: &Inspection, add: &mut dyn Add) {
    let Some(version) = master.version.as_deref() else {
        return;
    };
    let mut numbers = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let series = (numbers.next(), numbers.next());
    if let (Some(major), Some(minor)) = series
        && (major, minor) < (3, 5)
    {
        add(
            Severity::Error,
            "version",
            format!("is ZooKeeper {version}, which is too old"),
            "use ZooKeeper 3.5 or newer",
        );
    }
}

/// The largest difference, in milliseconds, between the clock of a ZooKeeper leader and that of this machine at which a
/// process that tries once gets the lock of a dead holder at once. See "The age of a lease in a store without a clock"
/// in docs/protocol.md.
const LEADER_AGREES_MS: u64 = 2_000;

/// Warns if the clock of the ensemble's leader and the clock of this machine differ by too much.
fn leader(master: &Inspection, add: &mut dyn Add) {
    let offset = master.clock_offset_ms;
    if let Some(offset) = offset.filter(|offset| offset.unsigned_abs() > LEADER_AGREES_MS) {
        let apart = human(Duration::from_millis(offset.unsigned_abs()));
        add(
            Severity::Warning,
            "clock",
            format!(
                "has a leader whose clock differs by {apart} from the clock of this machine: if a holder on another \
                 machine dies, the first process that tries once may still be refused after the lock has expired"
            ),
            "synchronise the clocks of the ZooKeeper servers and of all clients (chrony, ntpd) without a step (slew)",
        );
    }
}

/// Whether this master tolerates failures of its own servers, so that `doctor` accepts it as the only master. True for
/// a ZooKeeper ensemble.
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

    fn ensemble() -> Inspection {
        let mut master = Inspection::new(NodeName::new("zk h/locks"));
        master.records = true;
        master.server = Some("zookeeper".into());
        master.role = Some("leader".into());
        master
    }

    fn found(master: &Inspection) -> Vec<&'static str> {
        let mut all = Vec::new();
        judge(master, &mut |_, check, _, _: &str| all.push(check));
        all
    }

    #[test]
    fn doctor_reports_an_old_zookeeper_and_a_leader_with_a_wrong_clock() {
        let mut apart = ensemble();
        for (offset, expected) in [(-2_500, 1), (1_900, 0), (3_600_000, 1)] {
            apart.clock_offset_ms = Some(offset);
            assert_eq!(found(&apart).len(), expected, "{offset}");
        }
        let mut old = ensemble();
        for (version, expected) in [
            ("3.4.14", 1),
            ("3.5.0", 0),
            ("3.10.1", 0),
            ("4.0", 0),
            ("", 0),
        ] {
            old.version = Some(version.into());
            assert_eq!(found(&old).len(), expected, "{version}");
        }
    }

    #[test]
    fn single_master_causes_a_warning_unless_it_is_a_zookeeper_ensemble() {
        let mut master = ensemble();
        for (role, alone) in [("leader", true), ("follower", true), ("standalone", false)] {
            master.role = Some(role.into());
            assert_eq!(survives_alone(&master), alone, "{role}");
        }
    }

    #[test]
    fn doctor_gives_advice_for_each_fault_of_zookeeper() {
        let advice = |fault: &Fault| {
            let why = fault.to_string();
            let (check, _, advice) = explain(fault, &why).expect("advice");
            format!("{check}: {advice}")
        };
        let denied = Fault::Denied("no (1045)".into());
        assert!(advice(&denied).contains("setAcl"));
        let session = Fault::Unsupported("raise maxSessionTimeout".into());
        assert!(advice(&session).starts_with("session: raise maxSessionTimeout"));
        let late = Fault::Timeout(Duration::from_millis(250));
        assert!(advice(&late).contains("?timeout="));
        assert!(advice(&Fault::ReadOnly).contains("majority"));
    }
}
