//! `quorate watch`: prints the leader, and every change of the leader, until the command is ended.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use quorate::{Leader, Redlock};

use crate::config::{self, MasterOptions};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output;
use crate::status::{NoteStatus, ResourceStatus, invalid_name, no_quorum_failure};

/// The text below the options of `quorate watch --help`.
pub(crate) const AFTER_HELP: &str = "\
The output is only a hint: the leader may have changed before you read its name. Do not rely on the name of the leader.
Rely on the leader's term, a number that never decreases.

When the leader changes, the masters notify quorate. Because a notification can be lost, quorate also asks the masters
for the leader, three times per ttl. If fewer than a majority of the masters answer, no leader is known: quorate prints
the reason on stderr, and continues. If the configuration is outdated, quorate exits with 78.

Examples:
    quorate watch scheduler
    quorate watch scheduler --json | jq -r .note.text

JSON fields (stable), one object a line: election, leader (whether one is known), term, note (host, pid,
process, since, text). Absent values are null.";

/// The exit codes of `quorate watch`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    ("0", "nobody reads the output of quorate watch any more"),
    ("64", ""),
    ("78", ""),
    ("128+n", "signal number n ended quorate watch"),
];

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The name of the election
    name: OsString,

    /// Print one JSON object per line
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// Prints the leader and every change of the leader. Ends when a signal arrives, or when stdout is a pipe without a
/// reader.
pub(crate) fn run(args: WatchArgs) -> CommandResult {
    let (masters, file) = args.masters.complete()?;
    let redlock = config::redlock(&masters, file.settings.ttl)?;
    let name = args.name.as_bytes();
    let observation = redlock.election(name).observe();
    let mut observation = observation.map_err(|why| invalid_name(&args.name, why))?;
    let interval = masters.settings().ttl() / POLLS_PER_TTL;
    config::block_on(async {
        let mut masters_failure = std::pin::pin!(watch_masters(&redlock, name, interval));
        loop {
            let leader = tokio::select! {
                leader = observation.next() => leader,
                failure = &mut masters_failure => return Err(failure),
                () = output::wait_until_unread() => return Ok(exit::OK),
            };
            let line = if args.json {
                json_line(name, leader.as_ref())?
            } else {
                plain_line(name, leader.as_ref())
            };
            if !output::print_line(&line)? {
                return Ok(exit::OK);
            }
        }
    })
}

/// How many times per ttl the masters are asked whether a majority of them answers.
const POLLS_PER_TTL: u32 = 3;

/// Prints on stderr when fewer than a majority of the masters answer, and when a majority answers again.
///
/// Returns only if the masters refuse this client, because it does not know the current set of masters. Waiting does not
/// repair this.
async fn watch_masters(redlock: &Redlock, name: &[u8], interval: Duration) -> Failure {
    let mut has_no_quorum = false;
    loop {
        let status = match redlock.status(name).await {
            Ok(status) => ResourceStatus::new(name, &status),
            Err(why) => return Failure::internal(why),
        };
        if status.verdict == "unknown" {
            let failure = no_quorum_failure(&status);
            if failure.code == exit::CONFIG {
                return failure;
            }
            if !std::mem::replace(&mut has_no_quorum, true) {
                output::print_message(format!(
                    "{}; no leader is known until a majority answers: {}",
                    failure.message,
                    faults_text(&status)
                ));
            }
        } else if std::mem::take(&mut has_no_quorum) {
            output::print_notice("a majority of the masters answers again");
        }
        tokio::time::sleep(interval).await;
    }
}

/// The error of each master that did not answer.
fn faults_text(status: &ResourceStatus) -> String {
    let master_errors = status.masters.iter();
    let master_errors = master_errors
        .filter_map(|master| Some(format!("{}: {}", master.master, master.error.as_ref()?)));
    master_errors.collect::<Vec<_>>().join("; ")
}

fn plain_line(name: &[u8], leader: Option<&Leader>) -> String {
    let name = output::printable(name);
    match leader {
        None => format!("{name}: no leader known"),
        Some(leader) => {
            let note = leader.note.as_ref();
            let note = note.map_or_else(String::new, |note| format!(", {note}"));
            format!("{name}: term {}{note}", leader.term)
        }
    }
}

fn json_line(name: &[u8], leader: Option<&Leader>) -> Result<String, Failure> {
    let note = leader.and_then(|leader| leader.note.as_ref());
    let message = serde_json::json!({
        "election": output::json_name(name),
        "leader": leader.is_some(),
        "term": leader.map(|leader| leader.term),
        "note": note.map(NoteStatus::new),
    });
    serde_json::to_string(&message).map_err(Failure::internal)
}
