//! `quorate break`: deletes a lock on all masters, whichever client holds it. This is the operator's last resort, so it
//! requires `--yes`.
//!
//! The output is the state of the lock before the deletion. With `--json`, it is an object as from `quorate status
//! --json`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use quorate::{InvalidResource, KeyState, NodeStatus, Redlock, Status, StatusVerdict};

use crate::config::{self, MasterOptions};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output;
use crate::patience::patient_redlock;
use crate::status::{ResourceStatus, holder_lines, invalid_name, no_quorum_failure, status_of};

/// The text below the options of `quorate break --help`.
pub(crate) const AFTER_HELP: &str = "\
The holder is not notified. It notices the loss at its next renewal, within a third of the lock's ttl. Until then, two
clients can believe that they hold the lock. During this time, only fencing tokens protect the data that they write.
If the holder is dead, there is no need to break its lock: the lock expires after its ttl.

To break a permit of a semaphore, give its --slot. Without --slot, the plain lock of this name is broken.

quorate first reads the lock from all masters. Then every master that answers gets a record of each holder that any
master has shown, so that none of them lets this holder renew its lock. Only then, and only if a majority of the masters
has these records, does quorate delete the lock. It never deletes a lock that another client acquires in the meantime.
If it exits with 69, repeat it.

If another program wrote the key, quorate break refuses to delete it, unless --foreign is given: look at quorate status
first. The locks of other Redlock libraries count as written by another program. On Redis, quorate break never deletes a
key that is not a string. The fencing counter is kept, so later fencing tokens are larger.

Examples:
    quorate status nightly-report
    quorate break nightly-report --yes
    quorate break api --slot 3 --yes

JSON fields (stable): the fields of an element of resources[] in status --json, with the values before the break.";

/// The exit codes of `quorate break`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    (
        "0",
        "a majority of masters answered, and these masters deleted the lock",
    ),
    (
        "64",
        "wrong usage, --yes is missing, or another program wrote the key and --foreign is missing; nothing was deleted",
    ),
    (
        "69",
        "fewer than a majority of the masters answered: nothing was deleted, and the lock may still be held; or too few \
         masters confirmed the deletion: the error says so, and the holder cannot renew its lock any more",
    ),
    ("78", ""),
];

/// Arguments of `break`.
#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    /// The name of the lock to delete
    resource: OsString,

    /// Delete only the permit in this slot of the semaphore named RESOURCE (quorate status shows the slots)
    #[arg(long, value_name = "SLOT")]
    slot: Option<usize>,

    /// Confirm that the lock is to be deleted, whoever holds it
    #[arg(long)]
    yes: bool,

    /// Delete the key even if another program wrote it
    #[arg(long)]
    foreign: bool,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// Force-releases the lock, and prints its state before the force-release.
pub(crate) fn run(args: BreakArgs) -> CommandResult {
    let name = args.resource.as_bytes();
    if !args.yes {
        return Err(Failure::usage(format!(
            "refusing to break the lock '{}' without --yes, because its holder is not notified \
             (quorate status shows the holder)",
            output::printable(name)
        )));
    }
    let (mut masters, _) = args.masters.complete()?;
    let redlock = patient_redlock(&mut masters)?;
    let name_and_slot = (args.resource.as_os_str(), args.slot);
    let status = config::block_on(force_release(&redlock, name_and_slot, args.foreign))?;
    let status_before = ResourceStatus {
        slot: args.slot,
        ..ResourceStatus::new(name, &status)
    };
    if args.json {
        output::print_json(&status_before)?;
    } else {
        output::print_page(&page(&status_before, status.deletion_was_sent()))?;
    }
    match status_before.verdict {
        "unknown" if status.deletion_was_sent() => Err(unconfirmed_failure(&status_before)),
        "unknown" => Err(no_quorum_failure(&status_before)),
        _ => Ok(exit::OK),
    }
}

/// Force-releases the lock of this name, or the permit in this slot, and returns the state before the force-release. If
/// the verdict of this state is [`StatusVerdict::Unknown`], nothing was deleted, unless
/// [`Status::deletion_was_sent`]. `foreign`: delete the key even if another program wrote it.
async fn force_release(
    redlock: &Redlock,
    (resource, slot): (&OsStr, Option<usize>),
    foreign: bool,
) -> Result<Status, Failure> {
    let name = resource.as_bytes();
    let to_failure = |why: InvalidResource| invalid_name(resource, why);
    if !foreign {
        let status = status_of(redlock, resource, slot).await?;
        check_foreign(name, &status)?;
        if status.verdict() == StatusVerdict::Unknown {
            return Ok(status);
        }
    }
    let status = match slot {
        Some(slot) => redlock.break_permit(name, slot).await,
        None => redlock.break_lock(name).await,
    };
    status.map_err(to_failure)
}

/// Checks that no master has a key that another program wrote, because this program may still need its data.
fn check_foreign(name: &[u8], status: &Status) -> Result<(), Failure> {
    let is_foreign = |node: &&NodeStatus| node.state.as_ref().is_ok_and(KeyState::is_foreign);
    let foreign_count = status.nodes.iter().filter(is_foreign).count();
    if foreign_count == 0 {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "refusing to delete the key of the lock '{name}': another program wrote it on {foreign_count} of {all} masters, and \
         may need it (quorate status '{name}' shows its value); nothing was deleted. If nobody needs the key, or if it is \
         a lock of another Redlock library, add --foreign",
        name = output::printable(name),
        all = status.nodes.len(),
    )))
}

/// The error if the deletion was sent, and fewer than a majority of the masters confirmed it.
fn unconfirmed_failure(status_before: &ResourceStatus) -> Failure {
    Failure::new(
        exit::UNAVAILABLE,
        format!(
            "only {} of {} masters have confirmed the deletion, {} are needed: the holder cannot renew its lock any more, \
             but masters that still have the lock refuse other clients until its ttl ends; run quorate break again",
            status_before.answered,
            status_before.masters.len(),
            status_before.quorum
        ),
    )
}

/// The output for people: one line per master, with the state of the lock before it was deleted. `was_sent` is whether
/// the deletion was sent to the masters.
fn page(status_before: &ResourceStatus, was_sent: bool) -> String {
    let mut text = holder_lines(status_before);
    for master in &status_before.masters {
        let result_text = match (&master.token, &master.error) {
            (Some(token), _) if status_before.verdict == "unknown" && !was_sent => {
                format!("not deleted, because too few masters answered: {token}")
            }
            (Some(token), _) => {
                let ttl_left_text = master.ttl_left_ms.map_or_else(
                    || "no expiry: another program wrote this key".to_owned(),
                    |ms| {
                        format!(
                            "{} left",
                            output::human(std::time::Duration::from_millis(ms))
                        )
                    },
                );
                format!("deleted {token} ({ttl_left_text})")
            }
            (None, Some(error))
                if matches!(master.error_kind, Some("wrong_type" | "server_error")) =>
            {
                format!("not deleted: {error}")
            }
            (None, Some(error)) if was_sent => format!("deletion not confirmed: {error}"),
            (None, Some(error)) => format!("not reached: {error}"),
            (None, None) => "no key".to_owned(),
        };
        text += &format!("{}: {result_text}\n", master.master);
    }
    text
}

#[cfg(test)]
mod tests {
    use quorate::Redlock;

    use super::*;

    #[tokio::test]
    async fn message_says_whether_the_deletion_was_sent() {
        let redlock = Redlock::in_memory(3);
        let _guard = redlock.acquire("x").await.expect("the lock must be free");
        let status = redlock.break_lock("x").await.expect("a valid name");
        assert!(status.deletion_was_sent());
        let mut status_before = ResourceStatus::new(b"x", &status);
        assert_eq!(page(&status_before, true).matches(": deleted ").count(), 3);
        // Two of the three masters have not confirmed the deletion.
        for master in &mut status_before.masters[1..] {
            (master.token, master.error) = (None, Some("no answer within 50ms".to_owned()));
            master.error_kind = Some("timeout");
        }
        (status_before.verdict, status_before.answered) = ("unknown", 1);
        let text = page(&status_before, true);
        assert_eq!(text.matches("deletion not confirmed: no answer").count(), 2);
        assert_eq!(text.matches(": deleted ").count(), 1, "{text}");
        let message = unconfirmed_failure(&status_before).message;
        assert!(message.contains("only 1 of 3 masters"), "{message}");
        assert!(message.contains("cannot renew") && message.contains("run quorate break again"));
        let text = page(&status_before, false);
        assert_eq!(text.matches("not reached: no answer").count(), 2);
        assert!(text.contains("not deleted, because too few masters answered"));
    }
}
