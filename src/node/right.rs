//! The rights on a master that locks need, and the rights that a user lacks.

use std::fmt;

/// The purpose for which a right on a master is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Purpose {
    /// Taking, renewing and releasing locks.
    Locking,
    /// Needed by the restart guard, which is on by default.
    RestartGuard,
    /// Needed for fencing tokens, which are on by default.
    Fencing,
    /// Needed to let waiters queue in order, which is on by default.
    Order,
    /// Needed to select the database that the URL names.
    Database,
    /// Waking waiters. Without these rights waiters rely on their timers.
    WakeUps,
    /// Closing a broken connection at the server as well. Without these rights the server may still execute a request
    /// that it had received but not read. A lock that is taken this way stays until its TTL expires.
    Reconnecting,
    /// The operator's commands `status`, `break_lock` and `inspect`.
    Operating,
    /// Finding out whether a restart loses locks. Needed only if the restart guard is off.
    Persistence,
    /// Giving the connection a name in `CLIENT LIST`.
    Naming,
    /// Locks on several resources, readers, and owners.
    Groups,
    /// Values stored under a lock: quotas, and tasks that run once a period.
    Values,
    /// Taking and releasing slots of semaphores.
    Semaphores,
    /// Writing and reading the note that names the holder of a lock.
    Notes,
    /// Announcing a new leader to observers at once. Without these rights observers rely on their timers.
    Elections,
    /// Reading and restoring the generation marker; needed to replace masters.
    Masters,
    /// Requesting many locks in one command. Without these rights each lock is requested by itself.
    Crowds,
    /// Releasing with the server's own compare-and-delete command, if it has one. Without this right a script releases.
    Releases,
}

impl Purpose {
    pub(in crate::node) const ALL: [Self; 18] = [
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

    /// Whether no lock can be taken without the rights for this purpose, provided that the feature is in use.
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

/// One right, as an ACL of Redis names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) enum Right {
    Command(String),
    Keys(String),
    Channels(String),
    /// A command that the server does not have, or that was renamed. This is not a right that could be granted.
    Unknown(String),
}

/// A right that the user of a master lacks and that locks would use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRight {
    right: Right,
    rule: Box<str>,
    purposes: Vec<Purpose>,
}

impl MissingRight {
    /// Adds a right that is needed for `purposes` to the list. If the list has the right already, these purposes are
    /// added to it.
    pub(in crate::node) fn add(list: &mut Vec<Self>, right: Right, purposes: &[Purpose]) {
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
        for purpose in purposes {
            if !known.contains(purpose) {
                known.push(*purpose);
            }
        }
    }

    /// The rule of `ACL SETUSER` that grants the right: `+time`, `~lock:*`, `&quorate:wake:*`. Empty for a command that
    /// the server does not know.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Whether the right is about keys, and not about a command or a channel.
    pub fn is_about_keys(&self) -> bool {
        matches!(self.right, Right::Keys(_))
    }

    /// The purposes for which the right is needed.
    pub fn purposes(&self) -> &[Purpose] {
        &self.purposes
    }

    /// Whether no lock can be taken without the right.
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

/// A command name as documentation writes it, such as `SCRIPT LOAD`.
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
