//! `quorate status` without a name: prints all held locks, the holders of each, and the number of its waiters.

use std::os::unix::ffi::OsStrExt;

use quorate::Listing;

use crate::config;
use crate::exit::{self, CommandResult};
use crate::output::{self, Cell};
use crate::patience::{Patience, may_be_up, patient_redlock};
use crate::status::{ResourceStatus, StatusArgs, unanswered_failure};

/// Lists the held locks and prints them.
pub(crate) fn run(args: StatusArgs) -> CommandResult {
    let (mut masters, _) = args.masters.complete()?;
    let redlock = config::redlock(&masters, None)?;
    let name_start = args.starting_with.unwrap_or_default();
    let masters_count = redlock.masters().count();
    let listing = config::block_on(async {
        let mut listing = redlock.list(name_start.as_bytes()).await;
        if is_undecided(&listing, masters_count) {
            let (redlock, mut patience) = (patient_redlock(&mut masters)?, Patience::begin());
            listing = redlock.list(name_start.as_bytes()).await;
            while is_undecided(&listing, masters_count) && patience.pause_to_retry().await {
                listing = redlock.list(name_start.as_bytes()).await;
            }
        }
        Ok(listing)
    })?;
    let locks = listing.locks.iter();
    let locks = locks.map(ResourceStatus::from_listed);
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
            "resources": locks, "complete": listing.complete, "not_asked": not_asked,
        }))?;
    } else {
        output::print_page(&page(&listing, &locks))?;
    }
    if !listing.majority_answered {
        let answered = masters_count - listing.faults.len();
        let kinds = listing.faults.iter().map(|(_, fault)| fault.kind());
        return Err(unanswered_failure(
            (answered, masters_count, masters_count / 2 + 1),
            kinds,
        ));
    }
    Ok(exit::OK)
}

/// True if fewer than a majority of the masters answered, but a majority may be up (see [`may_be_up`]). `masters_count`
/// is the number of masters.
fn is_undecided(listing: &Listing, masters_count: usize) -> bool {
    let faults = listing.faults.iter().map(|(_, fault)| fault);
    !listing.majority_answered && may_be_up(faults, masters_count)
}

fn page(listing: &Listing, locks: &[ResourceStatus]) -> String {
    let mut text = if locks.is_empty() && !listing.majority_answered {
        "unknown: no majority answered\n".to_owned()
    } else if locks.is_empty() {
        "nothing is locked\n".to_owned()
    } else {
        let rows: Vec<Vec<Cell>> = locks.iter().map(lock_row).collect();
        output::table(&["RESOURCE", "TTL LEFT", "WAITING", "HOLDER"], &rows)
    };
    if !listing.majority_answered {
        text += "the list is incomplete: no majority of the masters answered, so there may be more locks\n";
    } else if !listing.complete {
        text += "the list is incomplete: there may be more locks (narrow the list with --starting-with)\n";
    }
    for (master, fault) in &listing.faults {
        text += &format!(
            "not asked: {master}: {}\n",
            output::redact(&fault.to_string())
        );
    }
    text
}

fn lock_row(lock: &ResourceStatus) -> Vec<Cell> {
    let name = match lock.slot {
        Some(slot) => format!("{}, permit in slot {slot}", lock.display_name),
        None => lock.display_name.clone(),
    };
    vec![
        name.into(),
        lock.ttl_left_text().into(),
        lock.queue_length().to_string().into(),
        lock.holders_text().into(),
    ]
}
