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
    if args.json {
        output::print_json(&listing)?;
    } else {
        let locks = listing.locks.iter();
        let locks: Vec<_> = locks.map(ResourceStatus::from_listed).collect();
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

#[cfg(test)]
mod tests {
    use quorate::Redlock;

    use super::*;

    #[tokio::test]
    async fn status_of_a_name_and_the_list_of_all_locks_have_the_same_json_form() {
        let redlock = Redlock::in_memory(3);
        let name = b"deploy\xff\n".as_slice();
        let guards = [
            redlock.lock(name),
            redlock.lock("readers").shared(),
            redlock.semaphore("seats", 2),
        ];
        let guards = guards.map(|request| async { request.acquire().await.expect("free") });
        let guards = futures::future::join_all(guards).await;
        let waiter = redlock.lock(name).acquire();
        let mut waiter = std::pin::pin!(waiter);
        let _ = tokio::time::timeout(std::time::Duration::from_millis(200), &mut waiter).await;
        let listing = redlock.list("").await;
        assert_eq!(listing.locks.len(), guards.len());
        for listed in &listing.locks {
            let of_command = serde_json::to_value(ResourceStatus::from_listed(listed));
            let of_library = serde_json::to_value(listed);
            assert_eq!(of_command.expect("JSON"), of_library.expect("JSON"));
        }
    }
}
