//! What a user of a master has to be allowed, as one table: commands, keys and channels, each with
//! what it is for. An inspection tries it line by line, `docs/operations.md` prints it (a test
//! compares), and tests run under exactly these rights.

use std::fmt;

use super::resp::{Command, Value};
use crate::keys::{self, Family, LEADER, LEADER_PLACE, RESERVED, WAKE, WAKE_PLACE};
use crate::node::Scope;

/// What a right is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Purpose {
    /// Taking, renewing and releasing locks.
    Locking,
    /// The restart guard, on by default.
    RestartGuard,
    /// Fencing tokens, on by default.
    Fencing,
    /// Waiting in order, on by default.
    Order,
    /// The database that the URL names.
    Database,
    /// Waking waiters; without, they go by their timers.
    WakeUps,
    /// Closing a broken connection at the server as well; without, what it had sent and the server had not
    /// read may still be carried out, and ends with its ttl.
    Reconnecting,
    /// `status`, `break_lock` and `inspect`.
    Operating,
    /// Telling whether a restart loses locks, where the restart guard is off.
    Persistence,
    /// A name in `CLIENT LIST`.
    Naming,
    /// Several resources in one lock, readers, owners.
    Groups,
    /// Values under a lock: quotas, and what is done once a period.
    Values,
    /// Semaphores.
    Semaphores,
    /// Telling who holds a lock, and reading it.
    Notes,
    /// Hearing of a new leader at once; without, observers go by their timers.
    Elections,
    /// Being told when the masters of a client are closed; needed to change them.
    Masters,
    /// Asking for many locks at once; without, each of them is looked at by itself.
    Crowds,
    /// Releasing by a command of the server's own, where it has one; without, a script does it.
    Releases,
}

impl Purpose {
    const ALL: [Self; 18] = [
        Self::Locking,
        Self::RestartGuard,
        Self::Fencing,
        Self::Order,
        Self::WakeUps,
        Self::Notes,
        Self::Elections,
        Self::Crowds,
        Self::Groups,
        Self::Reconnecting,
        Self::Operating,
        Self::Values,
        Self::Semaphores,
        Self::Masters,
        Self::Database,
        Self::Persistence,
        Self::Naming,
        Self::Releases,
    ];

    /// Whether no lock can be taken without it, where it is in use.
    pub fn is_needed(self) -> bool {
        matches!(
            self,
            Self::Locking | Self::RestartGuard | Self::Fencing | Self::Order | Self::Database
        )
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locking => "locking",
            Self::RestartGuard => "the restart guard",
            Self::Fencing => "fencing tokens",
            Self::Order => "waiting in order",
            Self::Database => "the database number in the URL",
            Self::WakeUps => "waking waiters",
            Self::Reconnecting => "clean reconnects",
            Self::Operating => "status, list, break and doctor",
            Self::Persistence => "judging persistence",
            Self::Naming => "a name in CLIENT LIST",
            Self::Groups => "several resources, readers and owners",
            Self::Values => "quotas and once a period",
            Self::Semaphores => "semaphores",
            Self::Notes => "notes of who holds a lock",
            Self::Elections => "hearing of new leaders at once",
            Self::Masters => "masters that change",
            Self::Crowds => "many locks at once",
            Self::Releases => "cheaper releases",
        })
    }
}

const DATABASE: &str = "{db}";

/// The table. Each line is a command that can be tried at any time: it changes nothing on keys that
/// do not exist, and the keys that it is tried on do not.
const USES: &[(Purpose, &str)] = &[
    (
        Purpose::Locking,
        "EVALSHA 0000000000000000000000000000000000000000 1 {lock}",
    ),
    // No program: it is refused behind the check of rights, and nothing stays loaded.
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
    // The sign may be there, and stays as it is.
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
    // The number of no connection. Never 0, which Redis 6.2 takes for every one.
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
    // A permit is looked at as a lock is, under the key of its slot.
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
    (Purpose::Masters, "PTTL {masters}"),
    // No such command: it is refused behind the check of rights, for the key may be there.
    (Purpose::Masters, "SET {masters} x NX XX"),
    (Purpose::Masters, "CLIENT SETNAME quorate"),
];

/// The purposes that one `Redlock` has.
pub(super) fn purposes(
    scope: &Scope,
    guarded: bool,
    database: bool,
) -> impl Iterator<Item = Purpose> {
    let (fencing, fair) = (scope.fencing, scope.fair);
    Purpose::ALL
        .into_iter()
        .filter(move |purpose| match purpose {
            Purpose::Locking | Purpose::Reconnecting | Purpose::Operating | Purpose::Masters => {
                true
            }
            // A courtesy, and less work for the master, that old servers do not know: nothing is missing without.
            Purpose::Naming | Purpose::Releases => false,
            Purpose::RestartGuard => guarded,
            Purpose::Persistence => !guarded,
            Purpose::Fencing | Purpose::Values | Purpose::Notes | Purpose::Crowds => fencing,
            // Most locks are one resource held alone; the table names it, and who asks for more hears of it.
            Purpose::Groups | Purpose::Semaphores => fencing && fair,
            Purpose::Order | Purpose::WakeUps | Purpose::Elections => fair,
            Purpose::Database => database,
        })
}

/// The names that the places in the table stand for.
pub(super) struct Names {
    pub(super) lock: String,
    pub(super) channel: String,
    pub(super) database: i64,
}

/// One line of the table with all that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    line: &'static str,
    purposes: Vec<Purpose>,
}

/// What `wanted` needs, every line once, in the order of the table.
pub(super) fn needs(wanted: impl Iterator<Item = Purpose>) -> Vec<Need> {
    let wanted: Vec<Purpose> = wanted.collect();
    let mut needs: Vec<Need> = Vec::new();
    for &(purpose, line) in USES {
        if !wanted.contains(&purpose) {
            continue;
        }
        match needs.iter_mut().find(|need| need.line == line) {
            Some(need) => need.purposes.push(purpose),
            None => needs.push(Need {
                line,
                purposes: vec![purpose],
            }),
        }
    }
    needs
}

impl Need {
    /// The command as an ACL names it: `get`, `script|load`.
    fn command(&self) -> String {
        let mut words = self.line.split(' ');
        let name = words.next().unwrap_or_default().to_ascii_lowercase();
        match name.as_str() {
            "script" | "client" | "config" => {
                let sub = words.next().unwrap_or_default().to_ascii_lowercase();
                format!("{name}|{sub}")
            }
            _ => name,
        }
    }

    fn family(&self) -> Option<Family> {
        let mut words = self.line.split(' ');
        words.find_map(|word| {
            Family::ALL
                .into_iter()
                .find(|family| family.place() == word)
        })
    }

    /// What stands before the names of the channels that it is about.
    fn channels(&self) -> Option<&'static str> {
        self.line.split(' ').find_map(|word| match word {
            WAKE_PLACE => Some(WAKE),
            LEADER_PLACE => Some(LEADER),
            _ => None,
        })
    }

    /// Whether it is this line of the table.
    pub(super) fn is(&self, line: &str) -> bool {
        self.line == line
    }

    /// Writes the attempt.
    pub(super) fn write(&self, names: &Names, out: &mut Vec<u8>) {
        let words = self.line.split(' ').map(|word| match word {
            WAKE_PLACE => names.channel.clone(),
            LEADER_PLACE => format!("{LEADER}{}", names.lock),
            DATABASE => names.database.to_string(),
            word => match Family::ALL
                .into_iter()
                .find(|family| family.place() == word)
            {
                Some(family @ (Family::Slot | Family::OfSlot)) => {
                    format!("{}0:{}", family.before(), names.lock)
                }
                Some(family @ Family::OfHold) => format!("{}x:{}", family.before(), names.lock),
                Some(family) if family.is_one_key() => family.before().to_owned(),
                Some(family) => format!("{}{}", family.before(), names.lock),
                None => word.to_owned(),
            },
        });
        let words: Vec<String> = words.collect();
        let mut command = Command::of(out, words.len());
        for word in &words {
            command.arg(word);
        }
    }

    /// The right that this reply to the attempt says is missing. All other refusals (of a replica,
    /// of a key that another type of value is under) are not about rights.
    pub(super) fn missing(&self, prefix: &str, reply: &Value<'_>) -> Option<Right> {
        let Value::Error(error) = reply else {
            return None;
        };
        let error = String::from_utf8_lossy(error);
        // Renamed away in the server's configuration.
        if error.starts_with("ERR unknown command") {
            return Some(Right::Unknown(self.command()));
        }
        if !error.starts_with("NOPERM") {
            return None;
        }
        Some(match (Denied::of(&error), self.family(), self.channels()) {
            (Denied::Key, Some(family), _) => Right::Keys(pattern(family, prefix)),
            (Denied::Channel, _, Some(channels)) => Right::Channels(format!("{channels}*")),
            _ => Right::Command(self.command()),
        })
    }
}

/// What a server's refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Command,
    Key,
    Channel,
}

impl Denied {
    /// Reads it from the text, whose words differ from version to version.
    pub(super) fn of(text: &str) -> Self {
        // A user may be called anything, and stands only in front of this.
        if text.contains("to run the '") || text.contains("can't run this command") {
            Self::Command
        } else if text.contains("access a key") || text.contains("one of the keys") {
            Self::Key
        } else if text.contains("access a channel")
            || text.contains("one of the channels")
            || text.contains("publish to the channel")
        {
            Self::Channel
        } else {
            Self::Command
        }
    }
}

/// The keys of one family, as an ACL pattern.
fn pattern(family: Family, prefix: &str) -> String {
    let slots = || {
        format!(
            "{}*:{}",
            Family::Slot.before(),
            pattern(Family::Lock, prefix)
        )
    };
    match family {
        Family::Slot => return slots(),
        family if family.is_one_key() => return family.before().to_owned(),
        Family::OfSlot => return format!("{RESERVED}*:{}", slots()),
        Family::OfHold => {
            return format!("{}*:{}", family.before(), pattern(Family::Lock, prefix));
        }
        _ => {}
    }
    let before = [family.before(), prefix].concat();
    String::from_utf8_lossy(&keys::pattern(before.as_bytes())).into_owned()
}

/// One right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Right {
    Command(String),
    Keys(String),
    Channels(String),
    /// No right at all: a command that the server does not have, or not under its name.
    Unknown(String),
}

/// A right that a user lacks and these locks would use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRight {
    right: Right,
    rule: Box<str>,
    purposes: Vec<Purpose>,
}

impl MissingRight {
    /// Adds what one attempt found to what was found before.
    pub(super) fn add(list: &mut Vec<Self>, right: Right, need: &Need) {
        let at = list.iter().position(|missing| missing.right == right);
        let at = at.unwrap_or_else(|| {
            list.push(Self {
                rule: right.rule().into(),
                right,
                purposes: Vec::new(),
            });
            list.len() - 1
        });
        let known = &mut list[at].purposes;
        for purpose in &need.purposes {
            if !known.contains(purpose) {
                known.push(*purpose);
            }
        }
    }

    /// The word of `ACL SETUSER` that grants it: `+time`, `~lock:*`, `&quorate:wake:*`. Empty for a
    /// command that the server does not know.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Whether it is about keys, and not about a command or a channel.
    pub fn is_about_keys(&self) -> bool {
        matches!(self.right, Right::Keys(_))
    }

    /// What it is needed for.
    pub fn purposes(&self) -> &[Purpose] {
        &self.purposes
    }

    /// Whether no lock can be taken without it.
    pub fn is_needed(&self) -> bool {
        self.purposes.iter().any(|purpose| purpose.is_needed())
    }
}

impl fmt::Display for MissingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.right {
            Right::Command(name) => f.write_str(&shouted(name)),
            Right::Keys(pattern) => write!(f, "keys like {pattern}"),
            Right::Channels(pattern) => write!(f, "channels like {pattern}"),
            Right::Unknown(name) => write!(f, "{} (unknown to the server)", shouted(name)),
        }
    }
}

/// A command as people write it: `SCRIPT LOAD`.
fn shouted(name: &str) -> String {
    name.replace('|', " ").to_ascii_uppercase()
}

impl Right {
    fn rule(&self) -> String {
        match self {
            Self::Command(name) => format!("+{name}"),
            Self::Keys(pattern) => format!("~{pattern}"),
            Self::Channels(pattern) => format!("&{pattern}"),
            Self::Unknown(_) => String::new(),
        }
    }
}

/// What a line of a script does: for errors that name only the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call<'a> {
    /// Its command, as the script writes it.
    pub(super) command: &'a str,
    /// The keys that it touches, where the line tells.
    pub(super) family: Option<Family>,
}

impl<'a> Call<'a> {
    /// The call in one line of a script. No line has two (a test holds that).
    pub(super) fn read(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once("call('")?;
        let (command, rest) = rest.split_once('\'')?;
        let first = rest.trim_start_matches([',', ' ']);
        let starts = |word: &str| {
            let rest = first.strip_prefix(word);
            rest.is_some_and(|rest| rest.starts_with([',', ')', ' ']))
        };
        let family = Family::ALL.into_iter().find(|family| match family {
            Family::Lock => starts("key") || first.starts_with("KEYS["),
            family => {
                let quoted = first.strip_prefix('\'');
                starts(family.place().trim_matches(['{', '}']))
                    || quoted.is_some_and(|name| name.starts_with(family.before()))
            }
        });
        Some(Self { command, family })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;
    use crate::node::redis::script::sources;

    /// What a user gets by the line on the page: all that is in use by default, and what operators ask.
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

    /// The words of `ACL SETUSER` that grant what `wanted` needs, behind the name of the user.
    fn rules(prefix: &str, wanted: &[Purpose]) -> String {
        let needs = needs(wanted.iter().copied());
        let mut keys = BTreeSet::new();
        let mut commands: Vec<String> = Vec::new();
        for need in &needs {
            keys.extend(need.family());
            let command = need.command();
            if !commands.contains(&command) {
                commands.push(command);
            }
        }
        let mut words = String::from("reset on >PASSWORD");
        for family in keys {
            let _ = write!(words, " ~{}", pattern(family, prefix));
        }
        let channels: BTreeSet<_> = needs.iter().filter_map(Need::channels).collect();
        if !channels.is_empty() {
            words += " resetchannels";
        }
        for channel in channels {
            let _ = write!(words, " &{channel}*");
        }
        for command in commands {
            let _ = write!(words, " +{command}");
        }
        words
    }

    /// The effect of a missing right.
    fn without(purpose: Purpose) -> &'static str {
        match purpose {
            Purpose::Locking
            | Purpose::RestartGuard
            | Purpose::Fencing
            | Purpose::Order
            | Purpose::Database => "no lock",
            Purpose::WakeUps => "waiters use only timers",
            Purpose::Reconnecting => {
                "requests of a broken connection may still be executed, until their TTL"
            }
            Purpose::Operating => "these commands fail",
            Purpose::Persistence => "`doctor` warns that it cannot check it",
            Purpose::Naming => "connections have no name",
            Purpose::Releases => "releases use the script: more work for the master",
            Purpose::Groups => "these kinds of locks fail",
            Purpose::Values => "these fail, but locks work",
            Purpose::Semaphores => "semaphores fail",
            Purpose::Notes => "no notes",
            Purpose::Elections => "observers use only timers",
            Purpose::Crowds => "each lock by itself: more work for the master",
            Purpose::Masters => {
                "clients do not learn that masters are replaced, and lost markers are not restored: grant it before"
            }
        }
    }

    fn when(purpose: Purpose) -> &'static str {
        match purpose {
            Purpose::Locking => "taking, renewing, releasing",
            Purpose::RestartGuard => "restart guard, unless it is off",
            Purpose::Fencing => "fencing tokens, unless they are off",
            Purpose::Order => "waiting in order, unless `unordered`",
            Purpose::Database => "a database number in the URL",
            Purpose::WakeUps => "wake-ups",
            Purpose::Reconnecting => "clean reconnects",
            Purpose::Operating => "`status`, `list`, `break`, `doctor`",
            Purpose::Persistence => "`doctor`, with the restart guard off",
            Purpose::Groups => "several resources, readers, owners",
            Purpose::Values => "quotas, once per period",
            Purpose::Semaphores => "semaphores",
            Purpose::Naming => "names in `CLIENT LIST` (the library's: Redis 7.2, Valkey)",
            Purpose::Releases => "cheaper releases of locks without waiters (Valkey 9)",
            Purpose::Notes => "notes of who holds a lock",
            Purpose::Elections => "notices of new leaders",
            Purpose::Masters => "replacing masters",
            Purpose::Crowds => "many locks at once",
        }
    }

    /// The part of the page that this table makes.
    fn page() -> String {
        let mut page = String::from("```\nACL SETUSER quorate ");
        page += &rules("lock:", &DEFAULTS);
        page += "\n```\n\n| for | commands | keys and channels | without it |\n|---|---|---|---|\n";
        for purpose in Purpose::ALL {
            let needs = needs(std::iter::once(purpose));
            let mut commands: Vec<String> = Vec::new();
            let mut objects: Vec<String> = Vec::new();
            for need in &needs {
                let command = format!("`{}`", need.command());
                let family = need.family().map(|family| match family {
                    Family::Lock => "the lock key".to_owned(),
                    family => format!("`{}`", family.before()),
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
                page,
                "| {} | {} | {} | {} |",
                when(purpose),
                commands.join(" ").replace('|', "\\|"),
                objects.join(" "),
                without(purpose)
            );
        }
        page
    }

    #[test]
    fn the_page_for_operators_prints_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
        let text = std::fs::read_to_string(path).expect("the page");
        assert!(
            text.contains(&page()),
            "docs/operations.md does not print what the table says:\n{}",
            page()
        );
    }

    /// What each script is for.
    const OF_SCRIPTS: [&[Purpose]; 20] = {
        use Purpose::{
            Crowds, Elections, Fencing, Groups, Locking, Notes, Operating, Order, Semaphores,
            Values, WakeUps,
        };
        [
            &[Locking, Fencing],
            &[Locking, Fencing],
            &[Locking, Notes],
            &[Locking, Notes],
            &[Operating],
            &[Operating, WakeUps],
            &[Locking, Fencing, Order, Notes],
            &[Locking, Order, WakeUps, Notes],
            &[Locking, Fencing, Order, Groups, WakeUps, Notes],
            &[Locking, Fencing, Groups],
            &[Locking, Order, Groups, WakeUps, Notes],
            &[Locking, Fencing, Groups],
            &[Values],
            &[Values],
            &[Locking, Fencing, Order, Semaphores],
            &[Locking, Order, WakeUps, Notes],
            &[Notes, Elections, Groups, Fencing],
            &[Locking],
            &[Locking, Fencing, Order, Notes, Crowds],
            &[Locking, Order, WakeUps, Crowds],
        ]
    };

    #[test]
    fn every_call_of_every_script_is_in_the_table() {
        for (source, purposes) in sources().iter().zip(OF_SCRIPTS) {
            for line in source.lines().filter(|line| line.contains("call('")) {
                assert_eq!(line.matches("call('").count(), 1, "one call a line: {line}");
                let call = Call::read(line).expect("a call");
                let name = call.command.to_ascii_lowercase();
                let listed = needs(purposes.iter().copied());
                let known = listed.iter().any(|need| {
                    need.command() == name
                        && (call.family.is_none() || need.family() == call.family)
                });
                assert!(known, "not in the table: {line} {call:?}");
                // What is not told is one of several in a loop, or no key.
                assert!(
                    call.family.is_some()
                        || ["time", "publish"].contains(&name.as_str())
                        || line.contains(", name")
                        || line.contains(", unpack("),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn every_line_of_the_table_is_used_by_a_script_or_by_the_driver() {
        // What is asked without a script; the loop over the three keys of a line tells no family.
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
        for need in needs(Purpose::ALL.into_iter()) {
            let called = sources().iter().any(|source| {
                source.lines().filter_map(Call::read).any(|call| {
                    let same = call.command.eq_ignore_ascii_case(&need.command());
                    same && (call.family.is_none() || call.family == need.family())
                })
            });
            let name = need.command();
            let driver = direct.contains(&name.as_str())
                || need.family() == Some(Family::Masters)
                || name.starts_with("client|")
                || name == "config|get";
            assert!(called || driver, "nobody needs {need:?}");
        }
    }

    #[test]
    fn refusals_are_read_in_the_words_of_every_version() {
        for (text, denied) in [
            (
                "NOPERM this user has no permissions to run the 'del' command or its subcommand",
                Denied::Command,
            ),
            (
                "NOPERM User one of the keys has no permissions to run the 'del' command",
                Denied::Command,
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Denied::Key,
            ),
            ("NOPERM No permissions to access a key", Denied::Key),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                Denied::Channel,
            ),
            ("NOPERM No permissions to access a channel", Denied::Channel),
        ] {
            assert_eq!(Denied::of(text), denied, "{text}");
        }
    }

    #[test]
    fn a_prefix_with_signs_of_patterns_is_taken_as_it_is() {
        assert_eq!(
            pattern(Family::Fence, "a*[b]?\\"),
            "quorate:fence:a\\*\\[b\\]\\?\\\\*"
        );
        assert_eq!(pattern(Family::Lock, ""), "*");
    }

    #[test]
    fn nothing_is_asked_for_what_is_not_in_use() {
        let classic = Scope {
            prefix: "".into(),
            fencing: false,
            fair: false,
            unheard_of: "x".into(),
        };
        let wanted: Vec<_> = purposes(&classic, true, false).collect();
        assert!(!wanted.contains(&Purpose::Order) && !wanted.contains(&Purpose::Fencing));
        let listed = needs(wanted.into_iter());
        assert!(!listed.iter().any(|need| need.command() == "zadd"));
        assert!(
            listed
                .iter()
                .all(|need| need.family() != Some(Family::Ticket))
        );
    }
}
