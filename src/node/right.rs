//! The rights on a master that locks need, and the rights that a user does not have.

use std::fmt;

/// The purpose for which a right on a master is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Purpose {
    /// Needed to acquire, renew and release locks.
    Locking,
    /// Needed by the restart guard, which is on by default.
    RestartGuard,
    /// Needed for fencing tokens, which are on by default.
    Fencing,
    /// Needed for the queues that serve waiters first come, first served. Queues are on by default.
    Order,
    /// Needed to select the database that the URL names.
    Database,
    /// Needed to wake waiters. Without these rights, waiters poll by timer.
    WakeUps,
    /// Needed to close the previous connection at the server after a reconnection. Without these rights, an acquire
    /// from the previous connection may still take effect. Its lock then exists until the TTL expires.
    Reconnecting,
    /// Needed for the operator's functions `status`, `list`, `break_lock` and `inspect`.
    Operating,
    /// Needed to read the settings that show whether locks survive a restart of the server. Checked only if the restart
    /// guard is off.
    Persistence,
    /// Needed to give the connection a name in `CLIENT LIST`.
    Naming,
    /// Needed for locks on several resources, for readers-writer locks, and for locks that one owner can hold several
    /// times.
    Groups,
    /// Needed for values that are stored under a lock: the free units of a quota, or the last completed period of a
    /// task that runs once per period.
    Values,
    /// Needed to take and release slots of semaphores.
    Semaphores,
    /// Needed to write and read notes that describe the holder of a lock.
    Notes,
    /// Needed to notify the observers of an election immediately of a new leader. Without these rights, observers poll
    /// by timer.
    Elections,
    /// Needed to read and restore the generation marker. Without these rights, clients do not learn that masters are
    /// replaced.
    Masters,
    /// Needed to request many locks in one command. Without these rights, each lock is requested with a separate
    /// command.
    Crowds,
    /// Needed by operators to raise generation markers and replace masters. Clients do not need these rights.
    Changing,
    /// Needed to release locks with the built-in compare-and-delete command that some servers have. Without this right,
    /// a script releases the locks.
    Releases,
    /// Needed to delete obsolete records from the table of a database. Without this right, they stay there.
    Removal,
}

impl Purpose {
    /// The purposes of rights on Redis masters.
    pub(in crate::node) const OF_REDIS: [Self; 19] = [
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
        Self::Changing,
        Self::Database,
        Self::Persistence,
        Self::Naming,
        Self::Releases,
    ];

    /// Whether a lock that uses this purpose can be acquired only with the rights for the purpose. For example, a lock
    /// with `fencing(false)` does not use [`Fencing`](Self::Fencing).
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
            Self::Values => "quotas and once-per-period records",
            Self::Semaphores => "semaphores",
            Self::Notes => "notes about the holders of locks",
            Self::Elections => "immediate notices of new leaders",
            Self::Masters => "masters that change",
            Self::Changing => "replacing masters",
            Self::Crowds => "batches of many locks",
            Self::Releases => "cheaper releases",
            Self::Removal => "removing records that no lock needs any more",
        })
    }
}

/// One right on a master: a part of a Redis ACL, or a right on a table of a database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) enum Right {
    Command(String),
    Keys(String),
    Channels(String),
    /// A command that the server does not have, or that was renamed. No ACL rule can grant it.
    Unknown(String),
    /// A right such as `DELETE` on a table.
    Table {
        right: String,
        database: String,
        table: String,
    },
}

/// A right on a master that locks need, but that the client's user lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRight {
    right: Right,
    rule: Box<str>,
    purposes: Vec<Purpose>,
}

impl MissingRight {
    /// Adds the missing `right` to the list, with the `purposes` for which it is needed. If the list already contains
    /// the right, only adds the purposes to its entry.
    pub(in crate::node) fn add(list: &mut Vec<Self>, right: Right, purposes: &[Purpose]) {
        let index = list.iter().position(|missing| missing.right == right);
        let index = index.unwrap_or_else(|| {
            list.push(Self {
                rule: right.rule().into(),
                right,
                purposes: Vec::new(),
            });
            list.len() - 1
        });
        let purposes_of_right = &mut list[index].purposes;
        for purpose in purposes {
            if !purposes_of_right.contains(purpose) {
                purposes_of_right.push(*purpose);
            }
        }
    }

    /// Creates the entry for a missing `right`, for example `DELETE`, on a table of a database. `purpose` says why the
    /// right is needed.
    pub fn on_table(right: &str, database: &str, table: &str, purpose: Purpose) -> Self {
        let right = Right::Table {
            right: right.to_owned(),
            database: database.to_owned(),
            table: table.to_owned(),
        };
        Self {
            rule: right.rule().into(),
            right,
            purposes: vec![purpose],
        }
    }

    /// Replaces the [`rule`](Self::rule), for a database whose `GRANT` statement has another form.
    #[must_use]
    pub fn granted_by(self, rule: &str) -> Self {
        let rule = rule.into();
        Self { rule, ..self }
    }

    /// The rule with which an operator grants the right.
    ///
    /// - Redis: the ACL rule for `ACL SETUSER`, for example `+time`, `~lock:*` or `&quorate:wake:*`. Empty if the right
    ///   is for a command that the server does not have.
    /// - Databases: the `GRANT` statement, with `USER` in place of the user's name.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Whether the right concerns keys, not a command or a channel.
    pub fn is_about_keys(&self) -> bool {
        matches!(self.right, Right::Keys(_))
    }

    /// The purposes for which the right is needed.
    pub fn purposes(&self) -> &[Purpose] {
        &self.purposes
    }

    /// Whether acquiring a lock fails without this right.
    pub fn is_needed(&self) -> bool {
        self.purposes.iter().any(|purpose| purpose.is_needed())
    }
}

impl fmt::Display for MissingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.right {
            Right::Command(name) => f.write_str(&in_capitals(name)),
            Right::Keys(pattern) => write!(f, "keys like {pattern}"),
            Right::Channels(pattern) => write!(f, "channels like {pattern}"),
            Right::Unknown(name) => write!(f, "{} (unknown to the server)", in_capitals(name)),
            Right::Table { right, table, .. } => write!(f, "{right} on {table}"),
        }
    }
}

/// A command name in capitals, as documentation writes it, such as `SCRIPT LOAD`.
fn in_capitals(name: &str) -> String {
    name.replace('|', " ").to_ascii_uppercase()
}

impl Right {
    fn rule(&self) -> String {
        match self {
            Self::Command(name) => format!("+{name}"),
            Self::Keys(pattern) => format!("~{pattern}"),
            Self::Channels(pattern) => format!("&{pattern}"),
            Self::Unknown(_) => String::new(),
            Self::Table {
                right,
                database,
                table,
            } => format!("GRANT {right} ON `{database}`.`{table}` TO USER"),
        }
    }
}
