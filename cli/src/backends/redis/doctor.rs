//! The checks of `doctor` for Redis and Valkey masters. The checks do no I/O.

use quorate::{Fault, Inspection};

use crate::finding::{Add, FaultAdvice, Rules, Severity, advice_of};
use crate::output::human;

/// The advice of `doctor` if no lock can be taken because of `fault`, whose text is `why`. `None` if the advice does not
/// depend on the kind of the master.
pub(super) fn explain<'a>(
    master: &Inspection,
    fault: &Fault,
    why: &'a str,
) -> Option<FaultAdvice<'a>> {
    Some(match fault {
        Fault::Denied(_) if master.missing.is_empty() => (
            "login",
            format!("refuses the login: {why}"),
            login_advice(why),
        ),
        Fault::Denied(_) => (
            "acl",
            format!("refuses the connection of a client that takes locks: {why}"),
            "grant the rights that the next finding names",
        ),
        Fault::ReadOnly => (
            "role",
            format!("cannot be used: {why}"),
            "if this server is a replica, list its source instead, or make it a master for good: REPLICAOF NO ONE, no \
             replicaof in its configuration file, and no Sentinel or operator that manages it, because a resync deletes its \
             locks without a restart; for a database: SET GLOBAL read_only = 0, and the configuration file",
        ),
        Fault::Timeout(_) => (
            "reachable",
            format!("replies too late: {why}"),
            "find out what keeps this master busy, or raise --node-timeout",
        ),
        _ => return None,
    })
}

fn login_advice(why: &str) -> &str {
    let without_password = ["this server has no password", "protected mode"];
    let advice = advice_of(why).filter(|_| without_password.iter().any(|text| why.contains(text)));
    advice.unwrap_or("correct the user and the password in the URL of this master")
}

/// The ACL rules that grant missing rights, as a command.
pub(super) fn grant(rules: &[&str]) -> String {
    match rules.join(" ").trim() {
        "" => "restore the names of the commands that the server has renamed (rename-command)"
            .to_owned(),
        rules => format!("ACL SETUSER <user> {rules}"),
    }
}

/// Runs all checks on a Redis or Valkey master on which locks can be taken.
pub(super) fn judge(master: &Inspection, rules: Rules, add: &mut dyn Add) {
    if let Some(role) = master.role.as_deref().filter(|&role| role != "master") {
        let role = if role == "slave" { "replica" } else { role };
        add(
            Severity::Error,
            "role",
            format!("is a {role}, not a master"),
            "list the master of this replica instead, or make this server a master for good: REPLICAOF NO ONE, no \
             replicaof in its configuration file, and no Sentinel or operator that manages it, because a resync deletes its \
             locks without a restart",
        );
    }
    if master.cluster == Some(true) {
        add(
            Severity::Error,
            "cluster",
            "is a cluster node: it stores only some of the keys, and cluster nodes are not independent".to_owned(),
            "use a server with cluster-enabled no",
        );
    }
    match master.maxmemory_policy.as_deref() {
        Some("noeviction") => {}
        Some(policy) => add(
            Severity::Error,
            "eviction",
            format!(
                "maxmemory-policy is {policy}: the server can evict a lock while a client holds the lock"
            ),
            "if this server is also a cache, use another server for the locks; otherwise run CONFIG SET maxmemory-policy \
             noeviction, and set maxmemory-policy in the configuration file",
        ),
        None => add(
            Severity::Warning,
            "eviction",
            "does not report its maxmemory-policy".to_owned(),
            "make sure that maxmemory-policy is noeviction, or grant the user in the URL the ACL rule +info",
        ),
    }
    restarts(master, rules, add);
}

/// Adds a finding if this master would lose locks in a restart.
fn restarts(master: &Inspection, rules: Rules, add: &mut dyn Add) {
    let durable = match (master.append_only, master.append_fsync.as_deref()) {
        (Some(aof), Some(fsync)) => Some(aof && fsync == "always"),
        (Some(false), None) => Some(false),
        _ => None,
    };
    if !rules.restart_guard && durable != Some(true) {
        let (severity, what, advice) = match durable {
            None => (
                Severity::Warning,
                "does not report whether a restart can lose locks",
                "use --restart-guard on, or grant the user in the URL the ACL rules +info and +config|get",
            ),
            Some(_) => (
                Severity::Error,
                "can lose locks in a restart",
                "use --restart-guard on, or run CONFIG SET appendonly yes and CONFIG SET appendfsync always, wait until \
                 INFO persistence shows aof_rewrite_scheduled:0 and aof_rewrite_in_progress:0, and then put both settings \
                 into the configuration file; do not only edit the file and restart: the server would start empty",
            ),
        };
        add(
            severity,
            "persistence",
            format!("{what}, and the restart guard is off"),
            advice,
        );
    } else if rules.restart_guard && durable != Some(true) {
        let kept = match (
            master.append_only,
            master.append_fsync.as_deref(),
            master.snapshots,
        ) {
            (Some(true), Some("everysec"), _) => "can lose the writes of the last second",
            (Some(true), _, _) => "can lose the writes of the last few seconds",
            (_, _, Some(true)) => "can lose all writes since the last snapshot",
            (Some(false), _, Some(false)) => "loses everything",
            _ => "may lose locks",
        };
        add(
            Severity::Note,
            "persistence",
            format!("{kept} in a restart; the restart guard protects locks from this loss"),
            &format!(
                "locks need no action: clients ignore the votes of this master for {0} after a restart. If you use quotas \
                 or once: after each restart, wait {0}, and run `quorate once --status NAME` or `quorate quota left \
                 NAME`, before another master restarts",
                human(rules.max_ttl)
            ),
        );
    }
}
