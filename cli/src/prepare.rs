//! `quorate prepare-server`: creates the tables (MySQL, MariaDB) or the path (ZooKeeper) that locks need on a server.

use clap::Args;

use crate::config;
use crate::exit::{self, Failure, Meaning, Outcome};
use crate::masters::{Scheme, scheme};
use crate::output;

/// The text below the options of `quorate prepare-server --help`.
pub(crate) const AFTER_HELP: &str = "\
MySQL and MariaDB need four tables. ZooKeeper needs a path. Redis and Valkey need nothing.

quorate prepare-server keeps existing tables and paths, so you can run it at any time, even while locks are held. It
creates missing tables, upgrades tables of an older version, and repairs tables with the wrong engine. If it has to
create the table or path that stores the locks, clients ignore the votes of the server for max_ttl.

For ZooKeeper, quorate prepare-server also copies the ACL of the path to all znodes below the path. Whenever you have
changed this ACL (setAcl), run quorate prepare-server again.

Use an account with the right to create tables or znodes. The clients that take locks can use another account with fewer
rights. quorate prepare-server prints the grants that the other account needs.

With --print, quorate connects to no server and changes nothing. It prints SQL for MySQL and MariaDB, or a shell script
with zkCli.sh for ZooKeeper, for example for a database migration tool. Run the SQL on each server separately. The
printed statements create missing tables and znodes, and repair nothing.

Examples:
    quorate prepare-server mysql://admin:secret@db1.example/locks
    quorate prepare-server --print mysql://admin@db1.example/locks > quorate.sql
    quorate prepare-server zk://h1:2181+h2+h3/locks";

/// The exit codes of `quorate prepare-server`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    ("0", "the server is prepared"),
    ("64", ""),
    (
        "69",
        "the server could not be prepared; the error message gives the reason",
    ),
    ("70", ""),
];

/// Arguments of `prepare-server`.
#[derive(Debug, Args)]
pub(crate) struct PrepareArgs {
    /// The URL of the server
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,

    /// Do not connect to the server: only print the SQL statements or the shell script
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(args: PrepareArgs) -> Outcome {
    for url in &args.urls {
        let said = if args.print {
            script(url)?
        } else {
            config::block_on(one(url))?
        };
        let Some(said) = said else {
            return Err(Failure::usage(
                "Redis and Valkey masters need no preparation: give a mysql:// or zk:// URL",
            ));
        };
        output::print(&said)?;
    }
    Ok(exit::OK)
}

/// Prepares the server with this URL and returns a report of what was created. Returns `None` if servers of its kind
/// need no preparation.
pub(crate) async fn one(url: &str) -> Result<Option<String>, Failure> {
    match scheme(url) {
        Scheme::Redis => Ok(None),
        Scheme::MySql => mysql(url).await.map(Some),
        Scheme::ZooKeeper => zookeeper(url).await.map(Some),
    }
}

/// The statements that prepare the server with this URL. `None` if servers of its kind need no preparation.
fn script(url: &str) -> Result<Option<String>, Failure> {
    match scheme(url) {
        Scheme::Redis => Ok(None),
        Scheme::MySql => mysql_script(url).map(Some),
        Scheme::ZooKeeper => zookeeper_script(url).map(Some),
    }
}

#[cfg(feature = "mysql")]
fn mysql_script(url: &str) -> Result<String, Failure> {
    quorate_mysql::script(url).map_err(|why| Failure::usage(why.to_string()))
}

#[cfg(not(feature = "mysql"))]
fn mysql_script(_: &str) -> Result<String, Failure> {
    Err(crate::masters::unknown("MySQL", "mysql"))
}

#[cfg(feature = "zookeeper")]
fn zookeeper_script(url: &str) -> Result<String, Failure> {
    quorate_zookeeper::script(url).map_err(|why| Failure::usage(why.to_string()))
}

#[cfg(not(feature = "zookeeper"))]
fn zookeeper_script(_: &str) -> Result<String, Failure> {
    Err(crate::masters::unknown("ZooKeeper", "zookeeper"))
}

#[cfg(any(feature = "mysql", feature = "zookeeper"))]
fn failed(error: impl std::fmt::Display) -> Failure {
    let why = error.to_string();
    Failure::new(exit::UNAVAILABLE, output::redact(&why))
}

#[cfg(feature = "mysql")]
async fn mysql(url: &str) -> Result<String, Failure> {
    let report = quorate_mysql::prepare(url).await.map_err(failed)?;
    let mut text = format!(
        "{}: {}\n",
        report.name,
        if report.made {
            "prepared"
        } else {
            "was already prepared"
        }
    );
    for repaired in &report.repaired {
        text.push_str(&format!("  repaired: {repaired}\n"));
    }
    for grant in &report.grants {
        text.push_str(&format!(
            "  grant for the account that takes locks: {grant}\n"
        ));
    }
    Ok(text)
}

#[cfg(not(feature = "mysql"))]
#[expect(
    clippy::unused_async,
    reason = "the signature is the same as with the feature `mysql`"
)]
async fn mysql(_: &str) -> Result<String, Failure> {
    Err(crate::masters::unknown("MySQL", "mysql"))
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: &str) -> Result<String, Failure> {
    let prepared = quorate_zookeeper::prepare(url).await.map_err(failed)?;
    let how = if prepared.made {
        "prepared"
    } else {
        "was already prepared"
    };
    let mut text = format!("{}: {how}\n", prepared.path);
    if prepared.changed > 0 {
        text.push_str(&format!(
            "  {} znodes below the path got the ACL of the path\n",
            prepared.changed
        ));
    }
    if prepared.refused > 0 {
        text.push_str(&format!(
            "  {} znodes below the path kept their old ACL, because this account has no right to change it: run this \
             command again as the account that created these znodes\n",
            prepared.refused
        ));
    }
    Ok(text)
}

#[cfg(not(feature = "zookeeper"))]
#[expect(
    clippy::unused_async,
    reason = "the signature is the same as with the feature `zookeeper`"
)]
async fn zookeeper(_: &str) -> Result<String, Failure> {
    Err(crate::masters::unknown("ZooKeeper", "zookeeper"))
}
