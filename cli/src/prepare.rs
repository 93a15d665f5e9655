//! `quorate prepare-server`: creates the tables (MySQL, MariaDB, PostgreSQL) or the path (ZooKeeper) that locks need on a server.

use clap::Args;

use crate::backends;
use crate::config;
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output;

/// The text below the options of `quorate prepare-server --help`.
pub(crate) const AFTER_HELP: &str = "\
MySQL and MariaDB need four tables, PostgreSQL needs two. ZooKeeper needs a path. Redis and Valkey need nothing.

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

pub(crate) fn run(args: PrepareArgs) -> CommandResult {
    for url in &args.urls {
        let kind = backends::of_url(url);
        let report = if args.print {
            kind.script(url)
        } else {
            kind.prepare(url).map(config::block_on)
        };
        let Some(report) = report else {
            return Err(Failure::usage(
                "Redis and Valkey masters need no preparation: give a mysql://, postgres:// or zk:// URL",
            ));
        };
        output::print(&report?)?;
    }
    Ok(exit::OK)
}
