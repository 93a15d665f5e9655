//! The checks of `doctor` that are the same for all kinds of masters. They derive findings (problems and notes) from the
//! inspections of the masters, without I/O. The checks of one kind are in `backends/`, for example `postgres/doctor.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate::{Fault, Inspection, ListedValue, MissingRight, Purpose};

use crate::backends::{self, Backend};
use crate::finding::{Add, Finding, Rules, Severity, advice_of};
use crate::output::{self, human, redact};

/// The server versions that `scripts/versions` tests. A test compares the versions in docs/operations.md with this list.
fn tested_versions() -> impl Iterator<Item = (&'static str, &'static str)> {
    let kinds = backends::ALL.into_iter();
    kinds.flat_map(|kind| kind.names().tested.iter().copied())
}

/// Largest difference between the clocks of two masters that `doctor` does not report, in milliseconds.
const CLOCKS_AGREE_MS: i64 = 500;
/// `doctor` reports an error if `max_ttl` is shorter than this time plus the largest difference between the clocks of
/// two masters.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Runs all checks on each master and on all masters together. `kinds` has the kind of each master. The most severe
/// findings come first.
pub(crate) fn judge(
    masters: &[Inspection],
    kinds: &[&'static dyn Backend],
    rules: Rules,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    together(masters, kinds, rules, &mut findings);
    for (master, &kind) in masters.iter().zip(kinds) {
        let mut add = |severity, check, what: String, advice: &str| {
            findings.push(Finding {
                severity,
                check,
                master: Some(master.node.to_string()),
                what,
                advice: advice.to_owned(),
            });
        };
        if let Some(fault) = &master.fault {
            unusable(master, kind, fault, &mut add);
        } else {
            one(master, kind, rules, &mut add);
        }
        rights(master, kind, rules, &mut add);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Finds addresses that lead to several servers in turn. Each element of `rounds` is the result of one connection to each
/// of the masters, in the same order.
pub(crate) fn addresses(rounds: &[Vec<Inspection>]) -> Vec<Finding> {
    let Some(first) = rounds.first() else {
        return Vec::new();
    };
    let finding = |(index, master): (usize, &Inspection)| {
        let all = rounds.iter().filter_map(|round| round.get(index));
        // A database and ZooKeeper have an id that a restart does not change.
        let ids = all.filter_map(|seen| seen.identity.as_ref().or(seen.run_id.as_ref()));
        let answers = ids.clone().count();
        let ids: BTreeSet<&String> = ids.collect();
        let shown: Vec<String> = ids.iter().map(|id| id.chars().take(8).collect()).collect();
        (ids.len() > 1).then(|| Finding {
            severity: Severity::Error,
            check: "address",
            master: Some(master.node.to_string()),
            what: format!(
                "leads to {} servers in turn ({answers} connections, ids {}): two clients can hold the same lock",
                ids.len(),
                shown.join(", ")
            ),
            advice: "name each server by an address of its own, for example the pod of a StatefulSet and not a Service, \
                     and set masters_name; if the server was just restarted, run doctor again"
                .to_owned(),
        })
    };
    first.iter().enumerate().filter_map(finding).collect()
}

/// How many values a finding names. It counts the others.
const NAMED: usize = 5;

/// Finds quotas and records of `once` that some of the masters have lost. `masters` is the number of all masters.
pub(crate) fn values(listed: &[ListedValue], masters: usize) -> Vec<Finding> {
    let quorum = masters / 2 + 1;
    let lacking = listed.iter().filter(|value| !value.missing_on.is_empty());
    let (lost, at_risk): (Vec<_>, Vec<_>) =
        lacking.partition(|value| masters - value.missing_on.len() < quorum);
    let finding = |severity, values: &[&ListedValue], what: &str, advice: &str| {
        let name = |value: &ListedValue| output::printable(&value.name);
        let first = output::shell_word(&values.first()?.name);
        let list = values.iter().take(NAMED).map(|value| {
            let lacking: Vec<_> = value.missing_on.iter().map(ToString::to_string).collect();
            format!("'{}' ({})", name(value), lacking.join(", "))
        });
        let mut list = list.collect::<Vec<_>>().join("; ");
        if values.len() > NAMED {
            list += &format!("; and {} more", values.len() - NAMED);
        }
        Some(Finding {
            severity,
            check: "values",
            master: None,
            what: format!("{what}: {list}"),
            advice: advice.replace("NAME", &first),
        })
    };
    let lost = finding(
        Severity::Error,
        &lost,
        "quotas or records of once are lost, or were only partly created or dropped: too few masters have them, so no job \
         runs and no unit is handed out",
        "if you had dropped it, only drop it again: `quorate once --drop NAME --yes` for a record, `quorate quota drop \
         NAME --yes` for a quota; otherwise find out whether the job ran, or which units are left, drop it, and run \
         `quorate once --create NAME` or `quorate quota create NAME N`",
    );
    let at_risk = finding(
        Severity::Warning,
        &at_risk,
        "some masters lack quotas or records of once that the others have",
        "if you had dropped it, drop it again; otherwise, before another master restarts, run `quorate once --status \
         NAME` for a record, or `quorate quota left NAME` for a quota: this copies it back",
    );
    lost.into_iter().chain(at_risk).collect()
}

/// Adds the finding that no lock can be taken on this master because of `fault`, with advice.
fn unusable(master: &Inspection, kind: &dyn Backend, fault: &Fault, add: &mut dyn Add) {
    let why = redact(&fault.to_string()).into_owned();
    if let Some((check, what, advice)) = kind.explain(master, fault, &why) {
        return add(Severity::Error, check, what, advice);
    }
    let newer = newer();
    let (check, what, advice) = match fault {
        Fault::Unsupported(_) => (
            unsupported_check(&why),
            format!("cannot be used: {why}"),
            advice_of(&why).unwrap_or(&newer),
        ),
        Fault::Unprepared(_) => (
            "prepared",
            format!("cannot be used: {why}"),
            "run `quorate prepare-server URL` with an account that may create tables or znodes",
        ),
        Fault::SameServer(_) => (
            "run_id",
            format!("cannot be used: {why}"),
            "list every server only once, even if it has several databases or addresses",
        ),
        Fault::OtherMasters(_) => (
            "generation",
            format!("has no vote: {why}"),
            "correct the setting, or run the step of quorate masters that the message names",
        ),
        Fault::Down(_) => (
            "reachable",
            format!("does not reply: {why}"),
            "start this master, or correct its URL, firewall or certificate",
        ),
        Fault::NoConnection(_) => (
            "reachable",
            format!("does not reply: {why}"),
            "start this master, continue its process if it is stopped, or correct its URL or firewall",
        ),
        Fault::OutOfMemory | Fault::Misconf => refuses_writes(fault, &why),
        _ => (
            "reachable",
            format!("cannot be used: {why}"),
            "find the reason in the log of the server",
        ),
    };
    add(Severity::Error, check, what, advice);
}

/// The check, the problem and the advice for a master that refuses all commands that write.
fn refuses_writes(fault: &Fault, why: &str) -> (&'static str, String, &'static str) {
    let (check, advice) = if *fault == Fault::OutOfMemory {
        (
            "memory",
            "raise maxmemory (CONFIG SET maxmemory, and the configuration file), or remove other data; keep noeviction",
        )
    } else {
        (
            "persistence",
            "find the failed write in the log of the server, for example a full disk",
        )
    };
    let what = format!("refuses writes, so it can be used for no lock: {why}");
    (check, what, advice)
}

/// The advice for an unsupported server without a remedy in the text of its fault.
fn newer() -> String {
    let kinds = backends::ALL.into_iter();
    let mut oldest: Vec<&str> = kinds
        .flat_map(|kind| kind.names().oldest)
        .copied()
        .collect();
    let last = oldest.pop().unwrap_or_default();
    format!("use Valkey, or at least {} or {last}", oldest.join(", "))
}

/// The check to which a finding about the fault `Unsupported` belongs.
fn unsupported_check(why: &str) -> &'static str {
    if why.contains("is a node of a cluster") {
        "cluster"
    } else if why.contains("not the protocol of") {
        "reachable"
    } else {
        "version"
    }
}

/// Adds findings about rights that the configured user of this master lacks.
fn rights(master: &Inspection, kind: &dyn Backend, rules: Rules, add: &mut dyn Add) {
    // The check of a server's persistence reports the rights that only it needs, so leave them out here.
    let matters_for_locks = |missing: &&MissingRight| missing.purposes() != [Purpose::Persistence];
    // Without the setting `prefix`, the keys of the locks are unknown, so rights to keys cannot be checked.
    let unclear = |missing: &&MissingRight| missing.is_about_keys() && !rules.prefix;
    let missing: Vec<&MissingRight> = master.missing.iter().filter(matters_for_locks).collect();
    let some = |wanted: &dyn Fn(&&MissingRight) -> bool| -> Vec<&MissingRight> {
        missing.iter().copied().filter(|one| wanted(one)).collect()
    };
    let list = |missing: &[&MissingRight]| {
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    let grant = |missing: &[&MissingRight]| {
        let rules: Vec<&str> = missing.iter().map(|one| one.rule()).collect();
        kind.grant(&rules)
    };
    let needed = some(&|one| one.is_needed() && !unclear(one));
    if !needed.is_empty() {
        let what = format!(
            "cannot be used for locks: the user in the URL has no right to use {}",
            list(&needed)
        );
        add(Severity::Error, "acl", what, &grant(&needed));
    }
    let wanted = some(&|one| !one.is_needed() && !unclear(one));
    if !wanted.is_empty() {
        let mut purposes: Vec<String> = Vec::new();
        for purpose in wanted.iter().flat_map(|one| one.purposes()) {
            let purpose = purpose.to_string();
            if !purposes.contains(&purpose) {
                purposes.push(purpose);
            }
        }
        let what = format!(
            "the user in the URL has no right to use {}; needed for: {}",
            list(&wanted),
            purposes.join(", ")
        );
        add(Severity::Warning, "acl", what, &grant(&wanted));
    }
    let keys = some(&unclear);
    if !keys.is_empty() {
        add(
            Severity::Warning,
            "acl",
            "the user in the URL can access only certain keys, and doctor does not know the names of your locks"
                .to_owned(),
            "run doctor with the prefix of the names of your locks, for example --prefix lock:",
        );
    }
}

fn together(
    masters: &[Inspection],
    kinds: &[&'static dyn Backend],
    rules: Rules,
    findings: &mut Vec<Finding>,
) {
    let mut add = |severity, check, finding, advice: &str| {
        findings.push(Finding {
            severity,
            check,
            master: None,
            what: finding,
            advice: advice.to_owned(),
        });
    };
    let n = masters.len();
    let usable = masters.iter().filter(|m| m.fault.is_none()).count();
    let quorum = n / 2 + 1;
    if usable < quorum {
        add(
            Severity::Error,
            "quorum",
            format!(
                "{usable} of {n} masters can be used, but a lock needs {quorum}: no lock can be taken"
            ),
            "repair masters until a majority can be used: the other findings say how",
        );
    }
    if n == 1 && !kinds[0].survives_alone(&masters[0]) {
        add(
            Severity::Warning,
            "masters",
            "there is only one master: while it is down, no lock can be taken".to_owned(),
            "use three or five independent masters",
        );
    } else if n > 1 && n.is_multiple_of(2) {
        add(
            Severity::Warning,
            "masters",
            format!(
                "{n} masters tolerate only as many failures as {} masters",
                n - 1
            ),
            "use an odd number of masters",
        );
    }
    young(masters, usable, quorum, &mut add);
    if rules.restart_guard {
        marked(masters, quorum, &mut add);
    }
    clocks_apart(masters, rules, &mut add);
}

/// Adds a finding if the masters' clocks differ.
fn clocks_apart(masters: &[Inspection], rules: Rules, add: &mut dyn Add) {
    let clocks = masters.iter().filter_map(|m| m.clock_offset_ms);
    let (Some(least), Some(most)) = (clocks.clone().min(), clocks.max()) else {
        return;
    };
    let apart = most.saturating_sub(least);
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
                "synchronise the clocks (chrony, ntpd) without a step (slew), or one master at a time with a wait of {} in \
                 between, because a step forward ends the locks on a master; if the clocks differ by more than {}, and \
                 all masters lose their data, fencing tokens can decrease",
                human(rules.max_ttl),
                human(limit)
            ),
        );
    }
}

/// Adds an error if too few masters vote because others have just started. `usable` is the number of masters without a
/// fault.
fn young(masters: &[Inspection], usable: usize, quorum: usize, add: &mut dyn Add) {
    let votes = |m: &&Inspection| m.fault.is_none() && m.quarantined.is_none();
    let voting = masters.iter().filter(votes).count();
    if usable < quorum || voting >= quorum {
        return;
    }
    add(
        Severity::Error,
        "uptime",
        format!(
            "{voting} of {} masters vote, but a lock needs {quorum}, because others have just started: no lock can be \
             taken",
            masters.len()
        ),
        "the warnings about these masters say when they vote",
    );
}

/// Adds a finding if at least one master lacks the key `quorate:masters`, with which clients recognize a replaced server
/// (see "Generation markers" in docs/protocol.md).
fn marked(masters: &[Inspection], quorum: usize, add: &mut dyn Add) {
    let unmarked = masters.iter().filter(|m| m.marked == Some(false)).count();
    // If a master is not Redis or Valkey, clients do not use this key.
    if unmarked == 0 || masters.iter().any(|m| m.records) {
        return;
    }
    if !masters.iter().any(|m| m.marked == Some(true)) {
        let what = "the masters have no generation marker, so clients cannot detect a wrong server at the address of a \
                    master";
        let advice = "run `quorate masters mark --watch` once, while all masters are up";
        return add(Severity::Note, "marked", what.to_owned(), advice);
    }
    let n = masters.len();
    let (severity, effect) = if n - unmarked < quorum {
        (Severity::Error, ", and gets no lock in this time")
    } else {
        (Severity::Warning, "")
    };
    add(
        severity,
        "marked",
        format!(
            "{unmarked} of {n} masters have no generation marker, and the others have one: each new client ignores the \
             votes of the masters without a marker for up to max_ttl{effect}"
        ),
        "if the addresses lead to the right servers, run `quorate masters mark --watch` while all masters are up",
    );
}

fn one(master: &Inspection, kind: &dyn Backend, rules: Rules, add: &mut dyn Add) {
    if let (Some(server), Some(version)) = (&master.server, &master.version) {
        untested(server, version, add);
    }
    just_started(master, add);
    kind.judge(master, rules, add);
}

/// Adds a note if `scripts/versions` does not test this version of the server.
fn untested(server: &str, version: &str, add: &mut dyn Add) {
    let is_tested = tested_versions().any(|(kind, series)| {
        let rest = version.strip_prefix(series);
        kind == server && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    if !is_tested {
        let list: Vec<String> = tested_versions()
            .map(|(kind, v)| format!("{kind} {v}"))
            .collect();
        add(
            Severity::Note,
            "version",
            format!(
                "{server} {version} is not tested; tested versions are {}",
                list.join(", ")
            ),
            "test this version with scripts/versions, or use a tested version",
        );
    }
}

/// Adds a warning if the master restarted so recently that clients still ignore its votes on locks.
fn just_started(master: &Inspection, add: &mut dyn Add) {
    let Some(left) = master.quarantined else {
        return;
    };
    // Round up to a whole second, because "0s" makes no sense as a time to wait.
    let left = human(Duration::from_secs(left.as_secs() + 1));
    if master.is_uptime_impossible && master.marked != Some(true) {
        add(
            Severity::Warning,
            "uptime",
            format!(
                "its clock was set after its start, so its uptime is unknown: each new client ignores the votes of this \
                 master for {left}"
            ),
            "correct its clock, and restart this master (one master at a time): new clients then count its votes as soon \
             as max_ttl has passed",
        );
        return;
    }
    let started = match master.uptime {
        Some(uptime) => format!("started {} ago", human(uptime)),
        None => "started recently".to_owned(),
    };
    // The age of a marked master grows only while a client is connected to it.
    let remedy = if master.marked == Some(true) {
        "wait until clients have been connected for this time, or run `quorate masters mark --watch`"
    } else {
        "wait until this time has passed"
    };
    add(
        Severity::Warning,
        "uptime",
        format!("{started}: clients ignore the votes of this master for another {left}"),
        &format!("{remedy}; if this master restarts often, find the cause"),
    );
}

#[cfg(test)]
mod tests;
