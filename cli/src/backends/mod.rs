//! The kinds of servers that can be masters. The file of a kind says how its masters are opened and prepared, and how
//! `demo` and `bench` start a server. Its file `doctor.rs` has the checks of `doctor` for this kind. `names.rs` says which
//! names and URLs lead to it.
//!
//! To add a kind, write such a file, and add the kind to `names.rs` and to [`ALL`].

#[cfg(not(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper"
)))]
mod absent;
mod backend;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod database;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
#[cfg(feature = "postgres")]
mod postgres;
mod redis;
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper"
))]
mod store_checks;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::thread;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quorate::RedlockBuilder;
use quorate_testbed::TestServer;

use crate::exit::Failure;

pub(crate) use backend::Backend;

/// All kinds, in the order in which texts name them.
pub(crate) const ALL: [&dyn Backend; 5] = [REDIS, MYSQL, POSTGRES, ZOOKEEPER, ETCD];

/// The kind of a URL whose scheme belongs to no other kind.
pub(crate) const REDIS: &dyn Backend = &redis::Redis;

#[cfg(feature = "mysql")]
const MYSQL: &dyn Backend = &mysql::MySql;
#[cfg(not(feature = "mysql"))]
const MYSQL: &dyn Backend = &absent::Absent(&names::MYSQL);

#[cfg(feature = "postgres")]
const POSTGRES: &dyn Backend = &postgres::Postgres;
#[cfg(not(feature = "postgres"))]
const POSTGRES: &dyn Backend = &absent::Absent(&names::POSTGRES);

#[cfg(feature = "zookeeper")]
const ZOOKEEPER: &dyn Backend = &zookeeper::ZooKeeper;
#[cfg(not(feature = "zookeeper"))]
const ZOOKEEPER: &dyn Backend = &absent::Absent(&names::ZOOKEEPER);

#[cfg(feature = "etcd")]
const ETCD: &dyn Backend = &etcd::Etcd;
#[cfg(not(feature = "etcd"))]
const ETCD: &dyn Backend = &absent::Absent(&names::ETCD);

/// The servers of all kinds, for help texts: `Redis or Valkey, MySQL or MariaDB, ..`.
pub(crate) fn servers() -> String {
    ALL.map(|kind| kind.names().help).join(", ")
}

/// The names of all kinds on the command line, for help texts.
pub(crate) fn names_of_kinds() -> String {
    ALL.map(|kind| kind.names().name).join(", ")
}

/// The kind of the server behind a URL.
pub(crate) fn of_url(url: &str) -> &'static dyn Backend {
    let name = url.trim().split_once("://").map_or("", |(name, _)| name);
    let name = name.to_ascii_lowercase();
    // Accept an incorrect addition, as in `jdbc:mysql`: the MySQL driver reports the correct scheme.
    let is = |kind: &&dyn Backend| {
        let mut words = name.split(['+', ':']);
        words.any(|word| kind.names().schemes.contains(&word))
    };
    ALL.into_iter().find(is).unwrap_or(REDIS)
}

/// The kind with this name on the command line, in any case.
pub(crate) fn of_name(name: &str) -> Option<&'static dyn Backend> {
    let is = |one: &str| one.eq_ignore_ascii_case(name);
    ALL.into_iter()
        .find(|kind| is(kind.names().name) || kind.names().aliases.iter().any(|alias| is(alias)))
}

/// Parses the name of a kind on the command line.
pub(crate) fn parser() -> impl TypedValueParser<Value = &'static dyn Backend> {
    let values = ALL.map(|kind| {
        let names = kind.names();
        let value = PossibleValue::new(names.name).help(names.help);
        value.aliases(names.aliases.iter().copied())
    });
    PossibleValuesParser::new(values).map(|name| of_name(&name).unwrap_or(REDIS))
}

/// Adds the master with this URL to the builder. `number` is its position in the list of masters, from 1, for errors.
///
/// # Errors
///
/// If the URL of a master of another kind than Redis is invalid, or if this build does not support this kind of master.
/// Redis URLs are checked only when the `Redlock` is built.
pub(crate) fn add(
    builder: RedlockBuilder,
    number: usize,
    url: &str,
) -> Result<RedlockBuilder, Failure> {
    of_url(url).add(builder, url).map_err(|error| {
        let shown = quorate::redact::url(url);
        Failure::usage(format!("master number {number} ({shown}): {error}"))
    })
}

/// The name of the database, the path of the znode, or the prefix of the keys, in which `demo` and `bench` keep their
/// locks.
pub(crate) const PLACE: &str = "quorate";

/// Prepares the server with this URL, if servers of its kind need a preparation.
pub(crate) async fn prepare(url: &str) -> Result<(), Failure> {
    if let Some(preparation) = of_url(url).prepare(url) {
        preparation.await?;
    }
    Ok(())
}

/// Starts one server for each entry of `kinds`, all at the same time. If one server fails to start, stops the others.
pub(crate) fn start_all(
    kinds: &[&'static dyn Backend],
) -> Result<Vec<Box<dyn TestServer>>, Failure> {
    thread::scope(|scope| {
        let starts: Vec<_> = kinds
            .iter()
            .map(|&kind| scope.spawn(move || start(kind)))
            .collect();
        // Join all threads, so that no thread starts a server after this function has returned a failure.
        let started: Vec<_> = starts
            .into_iter()
            .map(|start| {
                start
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        started.into_iter().collect()
    })
}

fn start(kind: &'static dyn Backend) -> Result<Box<dyn TestServer>, Failure> {
    if let Some(why) = kind.missing() {
        return Err(Failure::internal(why));
    }
    let cannot = |error| format!("cannot start {}: {error}", kind.program());
    kind.start()
        .map_err(|error| Failure::internal(cannot(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_scheme_selects_the_kind_of_master() {
        for (url, wanted) in [
            ("redis://h", "redis"),
            ("rediss://h", "redis"),
            ("unix:///run/redis.sock", "redis"),
            ("h:6379", "redis"),
            ("mysql://h/db", "mysql"),
            ("MySQLs://h/db", "mysql"),
            ("mysql+tls://h/db", "mysql"),
            ("jdbc:mariadb://h/db", "mysql"),
            ("postgres://h/db", "postgres"),
            ("postgresql+tls://h/db", "postgres"),
            ("zk+tls://h/locks", "zookeeper"),
            ("zk://h1+h2/locks", "zookeeper"),
            ("etcd://h1+h2/locks", "etcd"),
            ("etcd+tls://h", "etcd"),
        ] {
            assert_eq!(of_url(url).names().name, wanted, "{url}");
        }
    }

    #[test]
    fn kind_is_found_by_its_name_and_its_aliases() {
        let found = |name| of_name(name).map(|kind| kind.names().name);
        assert_eq!(found("MariaDB"), Some("mysql"));
        assert_eq!(found("zk"), Some("zookeeper"));
        assert_eq!(found("oracle"), None);
    }
}
