//! `quorate list`: prints the locks that are held, their holders, and the number of waiters.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use quorate::Listing;

use crate::config::{self, MasterOptions};
use crate::exit::{self, Meaning, Outcome};
use crate::output::{self, Cell};
use crate::status::{ResourceStatus, unanswered};

/// The text below the options of `quorate list --help`.
pub(crate) const AFTER_HELP: &str = "\
Lists at most 1000 locks and takes about 5s at most; a line says if the list is incomplete. Every string under
the key prefix counts as a lock. If no majority of the masters answers, a lock that is not listed may still be
held. A restarted master that does not vote yet is not asked. Locks that have been held for less than about
100ms have no note; nor have the locks of other Redlock clients.

Examples:
    quorate list
    quorate list deploy: --json | jq -r '.locks[] | [.resource, .note.host] | @tsv'

JSON fields (stable): locks[], each as in status --json, and for a permit its slot; complete; not_asked[] (master, error, error_kind).";

/// The exit codes of `quorate list`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    ("0", "a majority of masters answered"),
    ("64", ""),
    ("69", ""),
    ("78", ""),
];

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// List only locks whose names begin with this text
    #[arg(value_name = "PREFIX", default_value = "")]
    beginning: OsString,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// Lists the held locks and prints them.
pub(crate) fn run(args: ListArgs) -> Outcome {
    let (masters, _) = args.masters.complete()?;
    let redlock = config::redlock(&masters, None)?;
    let all = redlock.masters().count();
    let listing = config::block_on(async { Ok(redlock.list(args.beginning.as_bytes()).await) })?;
    let locks = listing.locks.iter();
    let locks = locks.map(ResourceStatus::of_listed);
    let locks: Vec<ResourceStatus> = locks.collect();
    if args.json {
        let not_asked = listing.faults.iter().map(|(master, fault)| {
            let error = output::redact(&fault.to_string()).into_owned();
            serde_json::json!({
                "master": master.to_string(), "error": error, "error_kind": fault.kind(),
            })
        });
        let not_asked: Vec<_> = not_asked.collect();
        output::print_json(&serde_json::json!({
            "locks": locks, "complete": listing.complete, "not_asked": not_asked,
        }))?;
    } else {
        output::print_page(&page(&listing, &locks))?;
    }
    if !listing.majority_answered {
        let answered = all - listing.faults.len();
        let kinds = listing.faults.iter().map(|(_, fault)| fault.kind());
        return Err(unanswered((answered, all, all / 2 + 1), kinds));
    }
    Ok(exit::OK)
}

fn page(listing: &Listing, locks: &[ResourceStatus]) -> String {
    let mut text = if locks.is_empty() && !listing.majority_answered {
        "unknown: no majority answered\n".to_owned()
    } else if locks.is_empty() {
        "nothing is locked\n".to_owned()
    } else {
        let rows: Vec<Vec<Cell>> = locks.iter().map(row).collect();
        output::table(&["RESOURCE", "TTL LEFT", "WAITING", "HOLDER"], &rows)
    };
    if !listing.complete {
        text += "incomplete: there may be more locks (give a PREFIX to list fewer)\n";
    }
    for (master, fault) in &listing.faults {
        text += &format!(
            "not asked: {master}: {}\n",
            output::redact(&fault.to_string())
        );
    }
    text
}

fn row(lock: &ResourceStatus) -> Vec<Cell> {
    let name = match lock.slot {
        Some(slot) => format!("{}, permit in slot {slot}", lock.resource),
        None => lock.resource.clone(),
    };
    vec![
        name.into(),
        lock.left().into(),
        lock.waiting().to_string().into(),
        lock.held_by().into(),
    ]
}
