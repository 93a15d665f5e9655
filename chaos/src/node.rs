//! The kinds of servers that can be masters.

use std::fmt;
use std::str::FromStr;

use quorate_testbed::{MariaDb, ZooKeeper};
use serde::{Deserialize, Serialize};

/// The kind of server that a master is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A Redis or Valkey.
    Redis,
    /// A MariaDB that syncs each commit to disk before it acknowledges the commit.
    Mysql,
    /// A MariaDB with `innodb_flush_log_at_trx_commit=0`: a crash loses the commits of the last second.
    MysqlFlush0,
    /// A ZooKeeper of one server.
    Zookeeper,
    /// A ZooKeeper ensemble of three servers, which counts as one master.
    Ensemble,
}

impl NodeKind {
    /// All kinds of servers that can be masters.
    pub const ALL: [Self; 5] = [
        Self::Redis,
        Self::Mysql,
        Self::MysqlFlush0,
        Self::Zookeeper,
        Self::Ensemble,
    ];

    /// The name of the kind on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Mysql => "mysql",
            Self::MysqlFlush0 => "mysql-flush0",
            Self::Zookeeper => "zookeeper",
            Self::Ensemble => "ensemble",
        }
    }

    /// The reason why this kind of server cannot be started on this machine, or `None` if it can. Always `None` for
    /// Redis, which this function does not check.
    pub fn lack(self) -> Option<String> {
        let why = match self {
            Self::Redis => None,
            Self::Mysql | Self::MysqlFlush0 => {
                MariaDb::available().err().map(|why| why.to_string())
            }
            Self::Zookeeper | Self::Ensemble => ZooKeeper::available().err(),
        };
        why.map(|why| format!("no {self}: {why}"))
    }

    /// The number of server processes that form one master of this kind.
    pub fn servers(self) -> usize {
        match self {
            Self::Ensemble => 3,
            _ => 1,
        }
    }

    /// Whether the master's clock decides when a lock expires. False for ZooKeeper: each lock client decides with its
    /// own clock.
    pub fn has_clock(self) -> bool {
        !matches!(self, Self::Zookeeper | Self::Ensemble)
    }

    /// The shortest name of a set of masters: their number if all are Redis, otherwise their kinds, e.g. `redis+mysql`.
    pub fn name_of(some: &[Self]) -> String {
        if some.iter().all(|one| *one == Self::Redis) {
            return some.len().to_string();
        }
        let names: Vec<_> = some.iter().map(|one| one.name()).collect();
        names.join("+")
    }
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for NodeKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = match name {
            "valkey" => Some(Self::Redis),
            "mariadb" => Some(Self::Mysql),
            "zk" => Some(Self::Zookeeper),
            _ => Self::ALL.into_iter().find(|one| one.name() == name),
        };
        named.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The kinds of masters that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Masters of any kind.
    All,
    /// Redis masters.
    Redis,
    /// MariaDB masters.
    Databases,
    /// MariaDB masters that lose no acknowledged commit in a crash.
    SafeDatabases,
    /// ZooKeeper masters, with one server or several.
    ZooKeepers,
    /// Masters that lose data when they are killed.
    Forgetful,
}

impl Which {
    /// Whether this group includes masters of the kind `node`.
    pub fn has(self, node: NodeKind) -> bool {
        use NodeKind::{Ensemble, Mysql, MysqlFlush0, Redis, Zookeeper};
        match self {
            Self::All => true,
            Self::Redis => node == Redis,
            Self::Databases => matches!(node, Mysql | MysqlFlush0),
            Self::SafeDatabases => node == Mysql,
            Self::ZooKeepers => matches!(node, Zookeeper | Ensemble),
            Self::Forgetful => matches!(node, Redis | MysqlFlush0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kind_of_master_is_refused_with_the_list_of_known_kinds() {
        for kind in NodeKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let json = serde_json::to_string(&kind).expect("the kind must be written as JSON");
            assert_eq!(
                json,
                format!("\"{kind}\""),
                "the JSON of a kind must be the name that Display prints"
            );
        }
        let why = "etcd"
            .parse::<NodeKind>()
            .expect_err("an unknown kind of server must be refused");
        assert!(why.contains("redis, mysql"), "{why}");
        assert_eq!(NodeKind::name_of(&[NodeKind::Redis; 3]), "3");
        let mix = [NodeKind::Redis, NodeKind::Mysql];
        assert_eq!(NodeKind::name_of(&mix), "redis+mysql");
    }
}
