use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::*;
use crate::node::redis::call::Call;
use crate::node::redis::script::{CARRY_COUNTERS, OperatorScript, RAISE_MARKER, Script};
use crate::node::redis::source::with_parts;

/// The purposes whose rights the line `ACL SETUSER quorate` in `docs/operations.md` grants.
const DEFAULTS: [Purpose; 14] = [
    Purpose::Locking,
    Purpose::RestartGuard,
    Purpose::Fencing,
    Purpose::Order,
    Purpose::WakeUps,
    Purpose::Notes,
    Purpose::Elections,
    Purpose::Crowds,
    Purpose::Reconnecting,
    Purpose::Operating,
    Purpose::Groups,
    Purpose::Values,
    Purpose::Semaphores,
    Purpose::Masters,
];

/// The purposes whose rights the line `ACL SETUSER quorate-operator` in `docs/operations.md` grants. They include the
/// purposes of clients.
fn operator_purposes() -> Vec<Purpose> {
    let mut purposes = DEFAULTS.to_vec();
    purposes.push(Purpose::Changing);
    purposes
}

/// The rules for `ACL SETUSER` that grant the rights for the `wanted_purposes` purposes, without the user name.
fn acl_rules(prefix: &str, wanted_purposes: &[Purpose]) -> String {
    let needs = needs(wanted_purposes.iter().copied());
    let mut keys = BTreeSet::new();
    let mut commands: Vec<String> = Vec::new();
    for need in &needs {
        keys.extend(need.family());
        let command = need.command();
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    let mut rule_words = String::from("reset on >PASSWORD");
    for family in keys {
        let _ = write!(rule_words, " ~{}", acl_pattern(family, prefix));
    }
    let channels: BTreeSet<_> = needs.iter().filter_map(Need::channels).collect();
    if !channels.is_empty() {
        rule_words += " resetchannels";
    }
    for channel in channels {
        let _ = write!(rule_words, " &{channel}*");
    }
    for command in commands {
        let _ = write!(rule_words, " +{command}");
    }
    rule_words
}

/// The last column of the table in `docs/operations.md`: what fails without the rights for a purpose.
fn effect_without(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Locking
        | Purpose::RestartGuard
        | Purpose::Fencing
        | Purpose::Order
        | Purpose::Database => "no lock",
        Purpose::WakeUps => "waiters use only timers",
        Purpose::Reconnecting => {
            "requests of a broken connection may still be executed until their TTL has passed"
        }
        Purpose::Operating => "these commands fail",
        Purpose::Persistence => "`doctor` warns that it cannot check persistence",
        Purpose::Naming => "connections have no name",
        Purpose::Releases => "releases run a script, which is more work for the master",
        Purpose::Groups => "these kinds of locks fail",
        Purpose::Values => "quotas and once-per-period work fail, but locks work",
        Purpose::Semaphores => "semaphores fail",
        Purpose::Notes => "no notes",
        Purpose::Elections => "observers use only timers",
        Purpose::Crowds => "each lock needs its own request, which is more work for the master",
        Purpose::Changing => "`quorate masters` writes nothing, and names the missing rights",
        Purpose::Masters => {
            "clients do not learn that masters are replaced, and lost markers are not restored: grant it before. A client with `masters_name` takes no lock"
        }
        Purpose::Removal => unreachable!("a right on a table"),
    }
}

/// The first column of the table in `docs/operations.md`: when the rights for a purpose are needed.
fn purpose_text(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Locking => "taking, renewing, releasing",
        Purpose::RestartGuard => "restart guard, unless it is off",
        Purpose::Fencing => "fencing tokens, unless they are off",
        Purpose::Order => "waiting in order, unless `unordered`",
        Purpose::Database => "a database number in the URL",
        Purpose::WakeUps => "wake-ups",
        Purpose::Reconnecting => "clean reconnects",
        Purpose::Operating => "`status`, `break`, `doctor`",
        Purpose::Persistence => "`doctor`, with the restart guard off",
        Purpose::Groups => "several resources, readers, owners",
        Purpose::Values => "quotas, once per period",
        Purpose::Semaphores => "semaphores",
        Purpose::Naming => "names in `CLIENT LIST` (the library's: Redis 7.2, Valkey)",
        Purpose::Releases => "cheaper releases of locks without waiters (Valkey 9)",
        Purpose::Notes => "notes about the holders of locks",
        Purpose::Elections => "notices of new leaders",
        Purpose::Masters => "noticing that masters are replaced",
        Purpose::Changing => "`quorate masters`: operators only",
        Purpose::Crowds => "batches of many locks",
        Purpose::Removal => unreachable!("a right on a table"),
    }
}

/// The table of rights as `docs/operations.md` must contain it.
fn rights_table() -> String {
    let mut rights_table = String::from("```\nACL SETUSER quorate ");
    rights_table += &acl_rules("lock:", &DEFAULTS);
    rights_table +=
        "\n```\n\n| for | commands | keys and channels | without it |\n|---|---|---|---|\n";
    for purpose in Purpose::OF_REDIS {
        let needs = needs(std::iter::once(purpose));
        let mut commands: Vec<String> = Vec::new();
        let mut objects: Vec<String> = Vec::new();
        for need in &needs {
            let command = format!("`{}`", need.command());
            let family = need.family().map(|family| match family {
                Family::Lock => "the lock key".to_owned(),
                family => format!("`{}`", family.key_prefix()),
            });
            let channel = need.channels().map(|channels| format!("`{channels}`"));
            if !commands.contains(&command) {
                commands.push(command);
            }
            for object in family.into_iter().chain(channel) {
                if !objects.contains(&object) {
                    objects.push(object);
                }
            }
        }
        let _ = writeln!(
            rights_table,
            "| {} | {} | {} | {} |",
            purpose_text(purpose),
            commands.join(" ").replace('|', "\\|"),
            objects.join(" "),
            effect_without(purpose)
        );
    }
    rights_table
}

#[test]
fn operations_page_contains_the_table_of_rights() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let text = std::fs::read_to_string(path).expect("the page must be readable");
    assert!(
        text.contains(&rights_table()),
        "docs/operations.md must contain this table of rights:\n{}",
        rights_table()
    );
    let operator = format!(
        "```\nACL SETUSER quorate-operator {}\n```\n",
        acl_rules("lock:", &operator_purposes())
    );
    assert!(
        text.contains(&operator),
        "docs/operations.md must contain the rights of an operator:\n{operator}"
    );
}

#[test]
fn every_redis_call_of_a_script_is_in_the_table_of_rights() {
    for script in Script::ALL {
        calls_are_listed(script.source(), script.row().purposes);
    }
}

#[test]
fn every_call_of_a_script_for_operators_is_in_the_table_of_operator_rights() {
    for row in [&RAISE_MARKER, &CARRY_COUNTERS] {
        calls_are_listed(&with_parts(row.source), row.purposes);
        let rights = operator_purposes();
        assert!(row.purposes.iter().all(|purpose| rights.contains(purpose)));
    }
}

/// Checks that the table of rights lists each call in this script under one of the `purposes`.
fn calls_are_listed(script: &str, purposes: &[Purpose]) {
    let listed = needs(purposes.iter().copied());
    for line in script.lines().filter(|line| line.contains("call('")) {
        assert_eq!(
            line.matches("call('").count(),
            1,
            "each line may contain only one call: {line}"
        );
        let call = Call::read(line).expect("each line of the script must contain a redis.call");
        let name = call.command.to_ascii_lowercase();
        let is_listed = listed.iter().any(|need| {
            need.command() == name && (call.family.is_none() || need.family() == call.family)
        });
        assert!(
            is_listed,
            "the table of rights must contain this call: {line} {call:?}"
        );
        // The family may be unknown only for a call without a key, or for a key that the script computes.
        assert!(
            call.family.is_some()
                || ["time", "publish"].contains(&name.as_str())
                || line.contains(", name")
                || line.contains(", string.sub(key,")
                || line.contains(", unpack("),
            "the family of keys must be known for this call: {line}"
        );
    }
}

#[test]
fn every_right_in_the_table_is_used_by_a_script_or_the_driver() {
    // The commands that the library sends directly, outside of scripts.
    let direct = [
        "evalsha",
        "script|load",
        "info",
        "subscribe",
        "unsubscribe",
        "scan",
        "ping",
        "select",
        "delifeq",
    ];
    for need in needs(Purpose::OF_REDIS.into_iter()) {
        let is_called = Script::ALL.into_iter().any(|script| {
            script.source().lines().filter_map(Call::read).any(|call| {
                let same = call.command.eq_ignore_ascii_case(&need.command());
                same && (call.family.is_none() || call.family == need.family())
            })
        });
        let name = need.command();
        let is_sent_directly = direct.contains(&name.as_str())
            || need.family() == Some(Family::Masters)
            || name.starts_with("client|")
            || name == "config|get";
        assert!(
            is_called || is_sent_directly,
            "no script and no driver needs the right {need:?}: remove it from the table of rights"
        );
    }
}

#[test]
fn acl_pattern_escapes_wildcards_in_the_prefix() {
    assert_eq!(
        acl_pattern(Family::Fence, "a*[b]?\\"),
        "quorate:fence:a\\*\\[b\\]\\?\\\\*"
    );
    assert_eq!(acl_pattern(Family::Lock, ""), "*");
}

#[test]
fn rights_of_disabled_features_are_not_needed() {
    let classic = Scope {
        prefix: "".into(),
        fencing: false,
        fair: false,
        unused_word: "x".into(),
    };
    let wanted_purposes: Vec<_> = purposes(&classic, true, false).collect();
    assert!(
        !wanted_purposes.contains(&Purpose::Order) && !wanted_purposes.contains(&Purpose::Fencing)
    );
    let listed = needs(wanted_purposes.into_iter());
    assert!(!listed.iter().any(|need| need.command() == "zadd"));
    assert!(
        listed
            .iter()
            .all(|need| need.family() != Some(Family::Ticket))
    );
}

/// Otherwise a simulated server that has loaded the script would execute it when an operator checks its rights.
#[test]
fn check_of_rights_calls_no_script_of_a_simulated_server() {
    let mut calls = 0;
    for (_, template) in COMMAND_USES {
        if let ["EVALSHA", digest, ..] = template.split(' ').collect::<Vec<_>>()[..] {
            assert_eq!(OperatorScript::from_digest(digest.as_bytes()), None);
            calls += 1;
        }
    }
    assert!(calls > 0);
}
