//! The table of rights that a client or an operator needs on a Redis server. Each line names a purpose, and a command
//! with its keys or channels.
//!
//! - An inspection runs these commands to find missing rights.
//! - A test compares the table with `docs/operations.md` (Rights).
//! - The tests in `tests/all/needs.rs` run as a user with exactly these rights.

use std::collections::BTreeSet;

use super::denied::Denied;
use super::resp::{Command, Value};
use crate::keys::{
    self, Family, LEADER_CHANNEL_PREFIX, LEADER_PLACEHOLDER, RESERVED, WAKE_CHANNEL_PREFIX,
    WAKE_PLACEHOLDER,
};
use crate::node::Scope;
use crate::node::right::{Purpose, Right};

const DATABASE_PLACEHOLDER: &str = "{db}";

/// The table of rights. No command in it changes data, so an inspection can run all of them.
const COMMAND_USES: &[(Purpose, &str)] = &[
    (
        Purpose::Locking,
        "EVALSHA 0000000000000000000000000000000000000000 1 {lock}",
    ),
    // This script is invalid on purpose: the server first checks the user's rights, then refuses the script.
    (Purpose::Locking, "SCRIPT LOAD ("),
    (Purpose::Locking, "GET {lock}"),
    (Purpose::Locking, "SET {lock} x XX PX 1"),
    (Purpose::Locking, "DEL {lock}"),
    (Purpose::Locking, "PTTL {lock}"),
    (Purpose::Locking, "PEXPIRE {lock} 1"),
    (Purpose::Locking, "GET {broken}"),
    (Purpose::RestartGuard, "INFO server"),
    (Purpose::Fencing, "TIME"),
    (Purpose::Fencing, "GET {fence}"),
    (Purpose::Fencing, "SET {fence} x XX PX 1"),
    (Purpose::Order, "TIME"),
    (Purpose::Order, "EXISTS {queue}"),
    (Purpose::Order, "PTTL {queue}"),
    (Purpose::Order, "PEXPIRE {queue} 1"),
    (Purpose::Order, "ZADD {queue} XX 0 x"),
    (Purpose::Order, "ZCARD {queue}"),
    (Purpose::Order, "ZRANGE {queue} 0 0"),
    (Purpose::Order, "ZRANK {queue} x"),
    (Purpose::Order, "ZREM {queue} x"),
    (Purpose::Order, "PTTL {alive}"),
    (Purpose::Order, "PEXPIRE {alive} 1"),
    (Purpose::Order, "ZADD {alive} XX 0 x"),
    (Purpose::Order, "ZRANGEBYSCORE {alive} 0 0 LIMIT 0 1"),
    (Purpose::Order, "ZREM {alive} x"),
    (Purpose::Order, "ZSCORE {alive} x"),
    (Purpose::Order, "GET {ticket}"),
    (Purpose::Order, "SET {ticket} x XX PX 1"),
    (Purpose::Order, "PTTL {ticket}"),
    (Purpose::Order, "PEXPIRE {ticket} 1"),
    (Purpose::Order, "PTTL {lines}"),
    // If the key {lines} exists, its value is already 1, so this command changes nothing.
    (Purpose::Order, "SET {lines} 1 XX KEEPTTL"),
    (Purpose::Order, "EXISTS {lines}"),
    (Purpose::WakeUps, "SUBSCRIBE {wake}"),
    (Purpose::WakeUps, "PUBLISH {wake} x"),
    (Purpose::WakeUps, "PING"),
    (Purpose::Notes, "GET {lock}"),
    (Purpose::Notes, "PTTL {lock}"),
    (Purpose::Notes, "GET {note}"),
    (Purpose::Notes, "SET {note} x XX PX 1"),
    (Purpose::Notes, "DEL {note}"),
    (Purpose::Notes, "GETEX {note} PX 1"),
    (Purpose::Crowds, "MGET {fence}"),
    (Purpose::Crowds, "MGET {lock}"),
    (Purpose::Elections, "SUBSCRIBE {leader}"),
    (Purpose::Elections, "UNSUBSCRIBE {leader}"),
    (Purpose::Elections, "PUBLISH {leader} x"),
    (Purpose::Reconnecting, "CLIENT ID"),
    // No connection has this id. The id 0 would close every connection on Redis 6.2.
    (Purpose::Reconnecting, "CLIENT KILL ID 9223372036854775807"),
    (
        Purpose::Operating,
        "EVALSHA 0000000000000000000000000000000000000000 1 {lock}",
    ),
    (Purpose::Operating, "SCRIPT LOAD ("),
    (Purpose::Operating, "INFO server"),
    (Purpose::Operating, "TIME"),
    (Purpose::Operating, "GET {lock}"),
    (Purpose::Operating, "PTTL {lock}"),
    (Purpose::Operating, "DEL {lock}"),
    (Purpose::Operating, "PEXPIRE {lock} 1"),
    (Purpose::Operating, "GET {fence}"),
    (Purpose::Operating, "ZRANGE {queue} 0 0"),
    (Purpose::Operating, "ZSCORE {alive} x"),
    (Purpose::Operating, "GET {broken}"),
    (Purpose::Operating, "SET {broken} x XX PX 1"),
    (Purpose::Operating, "GET {note}"),
    (Purpose::Operating, "DEL {note}"),
    (Purpose::Operating, "ZRANGE {holds} 0 0"),
    (Purpose::Operating, "GET {of-hold}"),
    (Purpose::Operating, "DEL {of-hold}"),
    // The slots of a semaphore have their own kinds of keys, so reading them needs separate rights.
    (Purpose::Operating, "PTTL {slot}"),
    (Purpose::Operating, "PTTL {of-slot}"),
    (
        Purpose::Operating,
        "SCAN 0 MATCH {lock} COUNT 1 TYPE string",
    ),
    (Purpose::Database, "SELECT {db}"),
    (Purpose::Persistence, "CONFIG GET appendfsync"),
    (Purpose::Naming, "CLIENT SETINFO LIB-NAME quorate"),
    (Purpose::Releases, "DELIFEQ {lock} x"),
    (Purpose::Groups, "ZSCORE {holds} x"),
    (Purpose::Groups, "ZCOUNT {holds} 0 0"),
    (Purpose::Groups, "ZADD {holds} XX 0 x"),
    (Purpose::Groups, "ZREM {holds} x"),
    (Purpose::Groups, "ZREMRANGEBYSCORE {holds} 0 0"),
    (Purpose::Groups, "ZRANGE {holds} 0 0"),
    (Purpose::Groups, "PEXPIRE {holds} 1"),
    (Purpose::Groups, "PEXPIREAT {lock} 1"),
    (Purpose::Groups, "DEL {holds}"),
    (Purpose::Groups, "GET {of-hold}"),
    (Purpose::Groups, "DEL {of-hold}"),
    (Purpose::Values, "TIME"),
    (Purpose::Values, "GET {lock}"),
    (Purpose::Values, "GET {fence}"),
    (Purpose::Values, "SET {fence} x XX PX 1"),
    (Purpose::Values, "GET {value}"),
    (Purpose::Values, "SET {value} x XX PX 1"),
    (Purpose::Values, "DEL {value}"),
    (Purpose::Semaphores, "PTTL {slot}"),
    (Purpose::Semaphores, "PTTL {of-slot}"),
    (Purpose::Naming, "CLIENT SETNAME quorate"),
    (Purpose::Masters, "GET {masters}"),
    // A SET with both NX and XX is invalid, so it changes nothing. The server checks the user's rights first.
    (Purpose::Masters, "SET {masters} x NX XX"),
    (Purpose::Masters, "GET {age}"),
    (Purpose::Masters, "SET {age} x NX XX"),
    (Purpose::Masters, "CLIENT SETNAME quorate"),
    // Operators also need all rights of a client with fencing tokens. `purposes_of_operators` adds these rights.
    (Purpose::Changing, "CLIENT SETNAME quorate-operator"),
    // No connection has this id. So this LIST lists no connection, and this KILL closes none.
    (Purpose::Changing, "CLIENT LIST ID 9223372036854775807"),
    (Purpose::Changing, "CLIENT KILL ID 9223372036854775807"),
    (Purpose::Changing, "INFO server"),
    (Purpose::Changing, "TIME"),
    (Purpose::Changing, "SCAN 0 COUNT 1"),
    (Purpose::Changing, "SCRIPT LOAD ("),
    (
        Purpose::Changing,
        "EVALSHA 0000000000000000000000000000000000000000 1 {masters}",
    ),
    (Purpose::Changing, "GET {masters}"),
    (Purpose::Changing, "SET {masters} x NX XX"),
    (Purpose::Changing, "SET {age} x NX XX"),
];

/// The purposes for which a `Redlock` with these settings needs rights. `guarded` is true if the restart guard is on,
/// and `database` is true if the URL names a database.
pub(super) fn purposes(
    scope: &Scope,
    guarded: bool,
    database: bool,
) -> impl Iterator<Item = Purpose> + use<> {
    let (fencing, fair) = (scope.fencing, scope.fair);
    Purpose::OF_REDIS
        .into_iter()
        .filter(move |purpose| match purpose {
            Purpose::Locking | Purpose::Reconnecting | Purpose::Operating | Purpose::Masters => {
                true
            }
            // Locks work without these rights, so an inspection does not check them.
            Purpose::Naming | Purpose::Releases | Purpose::Changing | Purpose::Removal => false,
            Purpose::RestartGuard => guarded,
            Purpose::Persistence => !guarded,
            Purpose::Fencing | Purpose::Values | Purpose::Notes | Purpose::Crowds => fencing,
            // The scripts for groups and semaphores use both fencing counters and queues.
            Purpose::Groups | Purpose::Semaphores => fencing && fair,
            Purpose::Order | Purpose::WakeUps | Purpose::Elections => fair,
            Purpose::Database => database,
        })
}

/// The purposes for which an operator needs rights to replace masters. They include all purposes of a client with
/// fencing tokens. `guarded` is true if the restart guard is on, and `database` is true if the URL names a database.
pub(super) fn purposes_of_operators(
    scope: &Scope,
    guarded: bool,
    database: bool,
) -> impl Iterator<Item = Purpose> {
    let scope = Scope {
        fencing: true,
        ..scope.clone()
    };
    // Leave out the right to read the persistence settings: operators do not read them.
    let client_purposes = purposes(&scope, guarded, database);
    client_purposes
        .filter(|purpose| *purpose != Purpose::Persistence)
        .chain([Purpose::Changing])
}

/// All keys that an operator reads or writes to copy `key` to a new master, each with its family (the kind of key).
/// Empty if `key` stores neither a value under a lock nor a fencing counter.
pub(super) fn keys_to_copy(key: &[u8]) -> Vec<(Family, Vec<u8>)> {
    let keys_of = |families: BTreeSet<Family>, lock: &[u8]| {
        let key_of_family =
            |family: Family| (family, [family.key_prefix().as_bytes(), lock].concat());
        families.into_iter().map(key_of_family).collect()
    };
    if let Some(lock) = key.strip_prefix(Family::Value.key_prefix().as_bytes()) {
        let under_lock = [
            Purpose::Locking,
            Purpose::Fencing,
            Purpose::Order,
            Purpose::Notes,
            Purpose::Values,
        ];
        let needs = needs(under_lock.into_iter());
        let families = needs.iter().filter_map(Need::family);
        return keys_of(
            families
                .filter(|family| !family.is_single_key_per_master())
                .collect(),
            lock,
        );
    }
    match key.strip_prefix(Family::Fence.key_prefix().as_bytes()) {
        Some(lock) => keys_of([Family::Lock, Family::Fence].into(), lock),
        None => Vec::new(),
    }
}

/// The ACL right to the key of this family that belongs to `lock`. The right covers all locks whose names begin with:
///
/// - the configured `prefix`, if the name of `lock` begins with it;
/// - otherwise the part of the name of `lock` up to its first colon. Without a colon, this is the whole name.
pub(super) fn right_to_key(family: Family, lock: &[u8], prefix: &str) -> Right {
    let (family, name) = match (family, keys::parse_slot_key(lock)) {
        (Family::Lock, Some((_, name))) => (Family::Slot, name),
        (Family::Fence, Some((_, name))) => (Family::SlotFence, name),
        _ => (family, lock),
    };
    if !prefix.is_empty() && name.starts_with(prefix.as_bytes()) {
        return Right::Keys(acl_pattern(family, prefix));
    }
    let colon = name.iter().position(|byte| *byte == b':');
    let before = &name[..colon.map_or(name.len(), |at| at + 1)];
    Right::Keys(acl_pattern(family, &String::from_utf8_lossy(before)))
}

/// The names that replace the placeholders in the commands of the table.
pub(super) struct UnusedNames {
    lock: String,
    channel: String,
    database: i64,
}

impl UnusedNames {
    /// Names of locks, keys and channels that no client uses. An inspection that uses them does not affect any lock.
    pub(super) fn unused(scope: &Scope, database: i64) -> Self {
        Self {
            lock: format!("{}quorate-doctor-{}", scope.prefix, scope.unused_word),
            channel: format!("{WAKE_CHANNEL_PREFIX}{}", scope.unused_word),
            database,
        }
    }
}

/// One command of the table, with all purposes for which it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    template: &'static str,
    purposes: Vec<Purpose>,
}

/// The commands that are needed for `wanted_purposes`, in the order of the table. A command with several purposes
/// is listed once.
pub(super) fn needs(wanted_purposes: impl Iterator<Item = Purpose>) -> Vec<Need> {
    let wanted_purposes: Vec<Purpose> = wanted_purposes.collect();
    let mut needs: Vec<Need> = Vec::new();
    for &(purpose, template) in COMMAND_USES {
        if !wanted_purposes.contains(&purpose) {
            continue;
        }
        match needs.iter_mut().find(|need| need.template == template) {
            Some(need) => need.purposes.push(purpose),
            None => needs.push(Need {
                template,
                purposes: vec![purpose],
            }),
        }
    }
    needs
}

impl Need {
    /// The name of the command in an ACL, for example `get` or `script|load`.
    fn command(&self) -> String {
        let mut words = self.template.split(' ');
        let name = words.next().unwrap_or_default().to_ascii_lowercase();
        match name.as_str() {
            "script" | "client" | "config" => {
                let sub = words.next().unwrap_or_default().to_ascii_lowercase();
                format!("{name}|{sub}")
            }
            _ => name,
        }
    }

    /// The family of keys that the command uses (lock keys, counters and so on); `None` if it uses no keys.
    fn family(&self) -> Option<Family> {
        let mut words = self.template.split(' ');
        words.find_map(|word| {
            Family::ALL
                .into_iter()
                .find(|family| family.placeholder() == word)
        })
    }

    /// Whether the command uses a key whose name contains the name of a lock.
    pub(super) fn is_about_a_lock(&self) -> bool {
        self.family()
            .is_some_and(|family| !family.is_single_key_per_master())
    }

    /// The prefix of the channels that the command uses; `None` if it uses no channels.
    fn channels(&self) -> Option<&'static str> {
        self.template.split(' ').find_map(|word| match word {
            WAKE_PLACEHOLDER => Some(WAKE_CHANNEL_PREFIX),
            LEADER_PLACEHOLDER => Some(LEADER_CHANNEL_PREFIX),
            _ => None,
        })
    }

    /// Whether `template` is the text of this command in the table.
    pub(super) fn is_command(&self, template: &str) -> bool {
        self.template == template
    }

    /// The purposes for which the user needs the right to run the command.
    pub(super) fn purposes(&self) -> &[Purpose] {
        &self.purposes
    }

    /// Writes the command, with `names` in place of the placeholders.
    pub(super) fn write(&self, names: &UnusedNames, out: &mut Vec<u8>) {
        let words = self.template.split(' ').map(|word| match word {
            WAKE_PLACEHOLDER => names.channel.clone(),
            LEADER_PLACEHOLDER => format!("{LEADER_CHANNEL_PREFIX}{}", names.lock),
            DATABASE_PLACEHOLDER => names.database.to_string(),
            word => match Family::ALL
                .into_iter()
                .find(|family| family.placeholder() == word)
            {
                Some(family @ (Family::Slot | Family::SlotFence)) => {
                    format!("{}0:{}", family.key_prefix(), names.lock)
                }
                Some(family @ Family::HoldNote) => {
                    format!("{}x:{}", family.key_prefix(), names.lock)
                }
                Some(family) if family.is_single_key_per_master() => family.key_prefix().to_owned(),
                Some(family) => format!("{}{}", family.key_prefix(), names.lock),
                None => word.to_owned(),
            },
        });
        let words: Vec<String> = words.collect();
        let mut command = Command::new(out, words.len());
        for word in &words {
            command.arg(word);
        }
    }

    /// The right that the user lacks, according to the reply to the command. `None` if the command succeeded, or if its
    /// error does not concern rights: for example, the master is a replica, or a key has a value of another type.
    pub(super) fn missing_right(&self, prefix: &str, reply: &Value<'_>) -> Option<Right> {
        let Value::Error(error) = reply else {
            return None;
        };
        let error = String::from_utf8_lossy(error);
        // The server lacks this command or has renamed it. Report this, and not a missing right.
        if error.starts_with("ERR unknown command") {
            return Some(Right::Unknown(self.command()));
        }
        if !error.starts_with("NOPERM") {
            return None;
        }
        Some(
            match (Denied::from_error(&error), self.family(), self.channels()) {
                (Denied::Key, Some(family), _) => Right::Keys(acl_pattern(family, prefix)),
                (Denied::Channel, _, Some(channels)) => Right::Channels(format!("{channels}*")),
                _ => Right::Command(self.command()),
            },
        )
    }
}

/// The ACL pattern of the keys of one family that belong to locks with this prefix.
fn acl_pattern(family: Family, prefix: &str) -> String {
    let slots = || {
        format!(
            "{}*:{}",
            Family::Slot.key_prefix(),
            acl_pattern(Family::Lock, prefix)
        )
    };
    match family {
        Family::Slot => return slots(),
        family if family.is_single_key_per_master() => return family.key_prefix().to_owned(),
        Family::SlotFence => return format!("{RESERVED}*:{}", slots()),
        Family::HoldNote => {
            return format!(
                "{}*:{}",
                family.key_prefix(),
                acl_pattern(Family::Lock, prefix)
            );
        }
        _ => {}
    }
    let before = [family.key_prefix(), prefix].concat();
    String::from_utf8_lossy(&keys::pattern_of_prefix(before.as_bytes())).into_owned()
}

#[cfg(test)]
mod tests;
