//! Adds a master to the [`RedlockBuilder`]. The scheme of the URL determines the kind of master.

use clap::ValueEnum;
use quorate::RedlockBuilder;

use crate::exit::Failure;

/// Adds the master with this URL to the builder. `number` is its position in the list of masters, from 1, for errors.
///
/// # Errors
///
/// If the URL of a MySQL or ZooKeeper master is invalid, or if this build does not support this kind of master. Redis
/// URLs are checked only when the `Redlock` is built.
pub(crate) fn add(
    builder: RedlockBuilder,
    number: usize,
    url: &str,
) -> Result<RedlockBuilder, Failure> {
    match scheme(url) {
        Scheme::Redis => Ok(builder.master(url)),
        Scheme::MySql => mysql(builder, number, url),
        Scheme::ZooKeeper => zookeeper(builder, number, url),
    }
}

/// The kind of server behind a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheme {
    /// Redis or Valkey
    Redis,
    /// MySQL or MariaDB
    #[value(name = "mysql", alias = "mariadb")]
    MySql,
    /// ZooKeeper
    #[value(name = "zookeeper", alias = "zk")]
    ZooKeeper,
}

impl Scheme {
    /// The name of the kind on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::MySql => "mysql",
            Self::ZooKeeper => "zookeeper",
        }
    }
}

pub(crate) fn scheme(url: &str) -> Scheme {
    let name = url.trim().split_once("://").map_or("", |(name, _)| name);
    let name = name.to_ascii_lowercase();
    // Accept an incorrect addition, as in `jdbc:mysql`: the MySQL driver reports the correct scheme.
    let is = |names: &[&str]| {
        let mut words = name.split(['+', ':']);
        words.any(|word| names.contains(&word))
    };
    if is(&["mysql", "mysqls", "mysql2", "mysqlx", "mariadb", "mariadbs"]) {
        Scheme::MySql
    } else if is(&["zk", "zks", "zookeeper", "zookeepers"]) {
        Scheme::ZooKeeper
    } else {
        Scheme::Redis
    }
}

#[cfg(any(feature = "mysql", feature = "zookeeper"))]
fn wrong(number: usize, url: &str, error: &dyn std::fmt::Display) -> Failure {
    let shown = quorate::redact::url(url);
    Failure::usage(format!("master number {number} ({shown}): {error}"))
}

#[cfg(feature = "mysql")]
fn mysql(builder: RedlockBuilder, number: usize, url: &str) -> Result<RedlockBuilder, Failure> {
    let store = quorate_mysql::MySql::open(url).map_err(|error| wrong(number, url, &error))?;
    Ok(builder.node(quorate::node::store::StoreNode::new(store)))
}

#[cfg(not(feature = "mysql"))]
fn mysql(_: RedlockBuilder, _: usize, _: &str) -> Result<RedlockBuilder, Failure> {
    Err(unknown("MySQL", "mysql"))
}

#[cfg(feature = "zookeeper")]
fn zookeeper(builder: RedlockBuilder, number: usize, url: &str) -> Result<RedlockBuilder, Failure> {
    let node = quorate_zookeeper::node(url).map_err(|error| wrong(number, url, &error))?;
    Ok(builder.node(node))
}

#[cfg(not(feature = "zookeeper"))]
fn zookeeper(_: RedlockBuilder, _: usize, _: &str) -> Result<RedlockBuilder, Failure> {
    Err(unknown("ZooKeeper", "zookeeper"))
}

#[cfg(not(all(feature = "mysql", feature = "zookeeper")))]
pub(crate) fn unknown(name: &str, feature: &str) -> Failure {
    Failure::usage(format!(
        "this build does not support {name} masters: rebuild it with --features {feature}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_scheme_selects_the_kind_of_master() {
        for (url, wanted) in [
            ("redis://h", Scheme::Redis),
            ("rediss://h", Scheme::Redis),
            ("unix:///run/redis.sock", Scheme::Redis),
            ("h:6379", Scheme::Redis),
            ("mysql://h/db", Scheme::MySql),
            ("MySQLs://h/db", Scheme::MySql),
            ("mysql+tls://h/db", Scheme::MySql),
            ("jdbc:mariadb://h/db", Scheme::MySql),
            ("zk+tls://h/locks", Scheme::ZooKeeper),
            ("zk://h1+h2/locks", Scheme::ZooKeeper),
        ] {
            assert_eq!(scheme(url), wanted, "{url}");
        }
    }
}
