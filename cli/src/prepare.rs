//! `quorate prepare`: makes on a server what a master of its kind needs once.

use clap::Args;

use crate::config;
use crate::exit::{self, Failure, Meaning, Outcome};
use crate::masters::{Scheme, scheme};
use crate::output;

/// What stands below `quorate prepare --help`.
pub(crate) const AFTER_HELP: &str = "\
MySQL and MariaDB need four tables, ZooKeeper a path; Redis and Valkey need nothing. What is there already stays as it
is, so this can be said again at any time, also while locks are held; an older form is brought up to date, and a table that
is missing or has another engine is repaired. Where the records had to be made, the server's votes count after max_ttl.

It is said with a user who may create tables (or znodes), and the locks are then taken with one who may not: the
grants that this one needs are printed.

Examples:
    quorate prepare mysql://admin:secret@db1.example/locks
    quorate prepare zk://h1:2181+h2+h3/locks";

/// What it ends with.
pub(crate) const CODES: [Meaning; 4] = [
    ("0", "it is prepared"),
    ("64", ""),
    ("69", "the server could not be prepared: the line says why"),
    ("70", ""),
];

/// Arguments of `prepare`.
#[derive(Debug, Args)]
pub(crate) struct PrepareArgs {
    /// The server
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

pub(crate) fn run(args: PrepareArgs) -> Outcome {
    for url in &args.urls {
        let Some(said) = config::block_on(one(url))? else {
            return Err(Failure::usage(
                "a Redis or Valkey master needs nothing prepared: mysql:// and zk:// do",
            ));
        };
        output::print(&said)?;
    }
    Ok(exit::OK)
}

/// Prepares the server of this URL and tells what was done; nothing where its kind needs nothing.
pub(crate) async fn one(url: &str) -> Result<Option<String>, Failure> {
    match scheme(url) {
        Scheme::Redis => Ok(None),
        Scheme::MySql => mysql(url).await.map(Some),
        Scheme::ZooKeeper => zookeeper(url).await.map(Some),
    }
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
            "was prepared already"
        }
    );
    for repaired in &report.repaired {
        text.push_str(&format!("  repaired: {repaired}\n"));
    }
    for grant in &report.grants {
        text.push_str(&format!("  the locks' user needs: {grant}\n"));
    }
    Ok(text)
}

#[cfg(not(feature = "mysql"))]
async fn mysql(_: &str) -> Result<String, Failure> {
    Err(crate::masters::unknown("MySQL", "mysql"))
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: &str) -> Result<String, Failure> {
    let prepared = quorate_zookeeper::prepare(url).await.map_err(failed)?;
    let how = if prepared.made {
        "prepared"
    } else {
        "was prepared already"
    };
    Ok(format!("{}: {how}\n", prepared.path))
}

#[cfg(not(feature = "zookeeper"))]
async fn zookeeper(_: &str) -> Result<String, Failure> {
    Err(crate::masters::unknown("ZooKeeper", "zookeeper"))
}
