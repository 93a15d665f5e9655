//! `quorate prepare-server`: creates what locks need on a server, for example tables in a database.

use clap::Args;

use crate::backends::{self, Backend};
use crate::config;
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output;

/// The text below the options of `quorate prepare-server --help`.
pub(crate) fn after_help() -> String {
    let needs = backends::ALL.map(|kind| {
        let names = kind.names();
        format!("    {:<18} {}", names.help, names.preparation)
    });
    format!("Preparation:\n{}\n\n{DETAILS}", needs.join("\n"))
}

/// The part of the help that does not depend on the list of kinds.
const DETAILS: &str = "\
quorate prepare-server keeps existing tables, paths and keys, so you can run it at any time, even while locks are held.
It creates missing tables, upgrades tables of an older version, and repairs tables with the wrong engine. If it has to
create the table or path that stores the locks, clients ignore the votes of the server for max_ttl.

For ZooKeeper, quorate prepare-server also copies the ACL of the path to all znodes below the path. Whenever you have
changed this ACL (setAcl), run quorate prepare-server again.

After you have restored an etcd cluster from a snapshot, delete the key /quorate-server, wait for max_ttl, and run
quorate prepare-server: the cluster then has another identity.

Use an account with the right to create tables, znodes or keys. The clients that take locks can use another account with
fewer rights. quorate prepare-server prints the grants that the other account needs.

With --print, quorate connects to no server and changes nothing. It prints SQL for a database, or a shell script with
zkCli.sh for ZooKeeper or etcdctl for etcd, for example for a database migration tool. Run the SQL on each server
separately. The printed statements create missing tables, znodes and keys, and repair nothing.

Examples:
    quorate prepare-server mysql://admin:secret@db1.example/locks
    quorate prepare-server --print mysql://admin@db1.example/locks > quorate.sql
    quorate prepare-server zk://h1:2181+h2+h3/locks
    quorate prepare-server etcd://h1:2379+h2+h3/locks";

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

/// The error for a server that needs no preparation.
fn needs_none(kind: &dyn Backend) -> Failure {
    let others = backends::ALL
        .iter()
        .filter_map(|kind| kind.names().schemes.first());
    let others: Vec<String> = others.map(|scheme| format!("{scheme}://")).collect();
    let (servers, others) = (kind.names().help, others.join(", "));
    Failure::usage(format!(
        "{servers} masters need no preparation: give a URL that begins with one of {others}"
    ))
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
            return Err(needs_none(kind));
        };
        output::print(&report?)?;
    }
    Ok(exit::OK)
}
