//! How the kinds of servers are named. A build without the feature of a kind needs its names as well, to say what is
//! missing.

/// The names of one kind of server.
#[derive(Debug)]
pub(crate) struct Names {
    /// The name of the kind on the command line, such as `mysql`, which is also the name of its feature.
    pub(crate) name: &'static str,
    /// Other names of the kind on the command line.
    pub(crate) aliases: &'static [&'static str],
    /// The servers of this kind, for help texts.
    pub(crate) help: &'static str,
    /// The preparation that `prepare-server` makes on a server of this kind.
    pub(crate) preparation: &'static str,
    /// The schemes of URLs that lead to servers of this kind, in lower case. Also wrong ones, if the error of
    /// [`add`](super::Backend::add) then says which scheme is correct.
    pub(crate) schemes: &'static [&'static str],
    /// The servers of this kind and their versions that `scripts/versions` tests.
    pub(crate) tested: &'static [(&'static str, &'static str)],
    /// The oldest servers of this kind on which locks work.
    pub(crate) oldest: &'static [&'static str],
}

/// A URL without the scheme of another kind leads to Redis.
pub(super) const REDIS: Names = Names {
    name: "redis",
    aliases: &[],
    help: "Redis or Valkey",
    preparation: "none",
    schemes: &[],
    tested: &[
        ("redis", "6.2"),
        ("redis", "7.0"),
        ("redis", "8.2"),
        ("valkey", "8.1"),
        ("valkey", "9.1"),
    ],
    oldest: &["Redis 6.2"],
};

pub(super) const MYSQL: Names = Names {
    name: "mysql",
    aliases: &["mariadb"],
    help: "MySQL or MariaDB",
    preparation: "four tables",
    schemes: &["mysql", "mysqls", "mysql2", "mysqlx", "mariadb", "mariadbs"],
    tested: &[("mariadb", "10.11")],
    oldest: &["MariaDB 10.6", "MySQL 8"],
};

pub(super) const POSTGRES: Names = Names {
    name: "postgres",
    aliases: &["postgresql", "pg"],
    help: "PostgreSQL",
    preparation: "a schema with two tables",
    schemes: &["postgres", "postgresql", "postgress", "pg", "pgsql"],
    tested: &[("postgresql", "15")],
    oldest: &["PostgreSQL 14"],
};

pub(super) const ZOOKEEPER: Names = Names {
    name: "zookeeper",
    aliases: &["zk"],
    help: "ZooKeeper",
    preparation: "a path",
    schemes: &["zk", "zks", "zookeeper", "zookeepers"],
    tested: &[("zookeeper", "3.8")],
    oldest: &["ZooKeeper 3.5"],
};

pub(super) const ETCD: Names = Names {
    name: "etcd",
    aliases: &[],
    help: "etcd",
    preparation: "a key with the identity of the cluster",
    schemes: &["etcd", "etcds", "etcd3"],
    tested: &[("etcd", "3.4")],
    oldest: &["etcd 3.4"],
};
