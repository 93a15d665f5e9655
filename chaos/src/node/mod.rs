//! The kinds of servers that can be masters. The file of a kind has its rows of the table, and the code that starts and
//! probes its servers.
//!
//! To add a kind, write such a file, and add its rows to [`NodeKind::all`].

pub mod etcd;
pub mod mariadb;
pub mod postgres;
mod probe;
pub mod redis;
mod row;
pub mod zookeeper;

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use probe::Probe;
pub use row::{Gauge, Login, Row};

/// The kind of server that a master is: a reference to its row of the table.
#[derive(Clone, Copy)]
pub struct NodeKind(&'static Row);

impl NodeKind {
    /// A Redis or Valkey.
    pub const REDIS: Self = Self(&redis::ROWS[0]);

    /// All kinds of servers that can be masters.
    pub fn all() -> Vec<Self> {
        let tables = [
            redis::ROWS,
            mariadb::ROWS,
            postgres::ROWS,
            zookeeper::ROWS,
            etcd::ROWS,
        ];
        tables.into_iter().flatten().map(Self).collect()
    }

    /// The kind of the master with this URL. A URL whose scheme belongs to no other kind leads to Redis.
    pub fn of_url(url: &str) -> Self {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        let kind = Self::all()
            .into_iter()
            .find(|kind| scheme == Some(kind.scheme));
        kind.unwrap_or(Self::REDIS)
    }

    /// The names of all kinds with their explanations, for help texts.
    pub fn descriptions() -> String {
        let describe = |kind: Self| match kind.description {
            "" => kind.name.to_owned(),
            description => format!("{} ({description})", kind.name),
        };
        let descriptions: Vec<String> = Self::all().into_iter().map(describe).collect();
        descriptions.join(", ")
    }

    /// Whether the kind is Redis or Valkey.
    pub fn is_redis(self) -> bool {
        self.software == redis::REDIS
    }

    /// The reason why this kind of server cannot be started on this machine, or `None` if it can. Always `None` for
    /// Redis, which this function does not check.
    pub fn missing_reason(self) -> Option<String> {
        (self.missing_reason)().map(|why| format!("no {self}: {why}"))
    }

    /// The shortest name of a set of masters: their number if all are Redis, otherwise their kinds, e.g. `redis+mysql`.
    pub fn set_name(kinds: &[Self]) -> String {
        if kinds.iter().all(|kind| kind.is_redis()) {
            return kinds.len().to_string();
        }
        let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
        names.join("+")
    }
}

impl Deref for NodeKind {
    type Target = Row;

    fn deref(&self) -> &Row {
        self.0
    }
}

impl PartialEq for NodeKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for NodeKind {}

impl fmt::Debug for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for NodeKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let kinds = Self::all();
        let has_name = |kind: &&Self| kind.name == name || kind.aliases.contains(&name);
        kinds.iter().find(has_name).copied().ok_or_else(|| {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

impl Serialize for NodeKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for NodeKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(de::Error::custom)
    }
}

/// The kinds of masters that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterGroup {
    /// Masters of any kind.
    All,
    /// Masters with this server software.
    Of(&'static str),
    /// Masters with this server software that lose no acknowledged write in a crash.
    SafeOf(&'static str),
    /// Masters of the kind with this name.
    Named(&'static str),
    /// Masters that lose data when they are killed.
    Forgetful,
}

impl MasterGroup {
    /// Whether this group includes masters of the kind `node`.
    pub fn includes(self, node: NodeKind) -> bool {
        match self {
            Self::All => true,
            Self::Of(software) => node.software == software,
            Self::SafeOf(software) => node.software == software && !node.forgets,
            Self::Named(name) => node.name == name,
            Self::Forgetful => node.forgets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kind_of_master_is_refused_with_the_list_of_known_kinds() {
        for kind in NodeKind::all() {
            assert_eq!(kind.name.parse(), Ok(kind));
            let json = serde_json::to_string(&kind).expect("the kind must be written as JSON");
            assert_eq!(
                json,
                format!("\"{kind}\""),
                "the JSON of a kind must be the name that Display prints"
            );
            let read: NodeKind = serde_json::from_str(&json).expect("the JSON must be readable");
            assert_eq!(read, kind);
            for alias in kind.aliases {
                assert_eq!(alias.parse(), Ok(kind));
            }
        }
        let why = "consul"
            .parse::<NodeKind>()
            .expect_err("an unknown kind of server must be refused");
        assert!(why.contains("redis, mysql"), "{why}");
        assert_eq!(NodeKind::set_name(&[NodeKind::REDIS; 3]), "3");
        let mix = [NodeKind::REDIS, "mysql".parse().expect("a kind")];
        assert_eq!(NodeKind::set_name(&mix), "redis+mysql");
    }

    #[test]
    fn groups_of_masters_follow_from_the_properties_of_their_kinds() {
        let names_in = |group: MasterGroup| -> Vec<&str> {
            let kinds = NodeKind::all().into_iter();
            kinds
                .filter(|kind| group.includes(*kind))
                .map(|kind| kind.0.name)
                .collect()
        };
        for (group, kinds) in [
            (MasterGroup::Of(redis::REDIS), &["redis"][..]),
            (
                MasterGroup::Of(mariadb::MARIADB),
                &["mysql", "mysql-flush0"],
            ),
            (MasterGroup::SafeOf(mariadb::MARIADB), &["mysql"]),
            (
                MasterGroup::Of(postgres::POSTGRES),
                &["postgres", "postgres-small"],
            ),
            (MasterGroup::Named("postgres"), &["postgres"]),
            (
                MasterGroup::Of(zookeeper::ZOOKEEPER),
                &["zookeeper", "ensemble"],
            ),
            (MasterGroup::Of(etcd::ETCD), &["etcd", "etcd-cluster"]),
            (MasterGroup::Named(etcd::CLUSTER), &["etcd-cluster"]),
            (MasterGroup::Forgetful, &["redis", "mysql-flush0"]),
        ] {
            assert_eq!(names_in(group), kinds, "{group:?}");
        }
        assert_eq!(names_in(MasterGroup::All).len(), NodeKind::all().len());
    }
}
