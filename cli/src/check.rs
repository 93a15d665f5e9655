//! `quorate check NAME TOKEN`: tells whether a fencing token is still the token of the lock's holder.
//!
//! The command changes nothing on the masters.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use futures::future::try_join_all;
use quorate::{Redlock, Status, TokenVerdict};

use crate::config::{self, MasterOptions};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::kind;
use crate::output;
use crate::patience::{Patience, patient_redlock};
use crate::status::{ResourceStatus, holder_lines, no_quorum_failure, status_of};

/// The text below the options of `quorate check --help`.
pub(crate) const AFTER_HELP: &str = "\
The answer is one of
    current      a majority of the masters shows the same holder and no newer token, and TOKEN is that of the holder
    superseded   a majority of the masters has a newer number: another client has taken the lock, or has tried to
    ended        the lock with this token was released, has expired or was broken; no majority has a newer number
    unknown      fewer than a majority of the masters answered, or their answers do not decide

Only 0 means that the holder of TOKEN holds the lock. Treat every other exit code as no.

A check before a write does not protect the data: the lock can be lost between the check and the write, for example if
the machine is suspended. Only the resource that is written can refuse a stale token: pass it QUORATE_FENCING_TOKEN.
Use check to stop a script before a step that cannot be undone, and in an incident, to find out whether the token that a
resource has stored, or a process has logged, is the newest one.

Within quorate run, once and lead, NAME and TOKEN can be omitted. With quorate run --also, check then checks all names
of the lock, and the answer is current only if it is current for each of them. For a permit of a semaphore, give its
slot, because each permit has tokens of its own. All readers, and all holds of an owner, share one token: it is current
while one of them holds the lock.

Examples:
    quorate run nightly -- sh -c './prepare && quorate check && ./delete-old'
    quorate check nightly-report 1795867843360792
    quorate check --slot 3 api 1795867843360792
    quorate check --json nightly-report 1795867843360792 | jq -r .verdict

JSON fields (stable): token, verdict (current, superseded, ended, unknown), status (an element of resources[] in \
quorate status --json), also[] (verdict and status of each other name of a lock with --also).";

/// The exit codes of `quorate check`, with their meanings.
pub(crate) const CODES: [Meaning; 5] = [
    ("0", "current"),
    ("64", ""),
    ("69", "unknown"),
    ("74", "superseded, or ended"),
    ("78", ""),
];

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The name of the lock [default: QUORATE_RESOURCE, within quorate run]
    #[arg(requires = "token")]
    name: Option<OsString>,

    /// The fencing token to check, a number from 1 to 2^53 [default: QUORATE_FENCING_TOKEN, within quorate run]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 53))]
    token: Option<u64>,

    /// Check the token of the permit in this slot of the semaphore NAME
    #[arg(long, value_name = "SLOT")]
    slot: Option<usize>,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// The lock and the token to check.
struct Subject {
    /// The names of the lock; several for a lock with `--also`. Never empty.
    names: Vec<OsString>,
    token: u64,
    slot: Option<usize>,
}

/// One name of the lock: its state on the masters, and the verdict on the token.
struct TokenCheck {
    status: ResourceStatus,
    verdict: TokenVerdict,
}

impl Subject {
    /// The lock and the token that the command line names. If it names none, those of the `quorate run` around this
    /// command.
    fn new(args: &CheckArgs) -> Result<Self, Failure> {
        let non_empty_variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let (Some(name), Some(token)) = (&args.name, args.token) {
            return Ok(Self {
                names: vec![name.clone()],
                token,
                slot: args.slot,
            });
        }
        let (Some(name), Some(token)) = (
            non_empty_variable("QUORATE_RESOURCE"),
            non_empty_variable("QUORATE_FENCING_TOKEN"),
        ) else {
            return Err(Failure::usage(
                "no lock to check: give NAME and TOKEN (only within quorate run, once and lead, they can be omitted)",
            ));
        };
        let slot = non_empty_variable("QUORATE_SLOT")
            .map(|slot| parse_number("QUORATE_SLOT", slot))
            .transpose()?;
        let mut names = vec![name];
        names.extend(kind::also_of_this_command()?);
        Ok(Self {
            names,
            token: parse_number("QUORATE_FENCING_TOKEN", token)?,
            slot: args.slot.or(slot),
        })
    }

    /// The status of each name.
    async fn read_statuses(&self, redlock: &Redlock) -> Result<Vec<Status>, Failure> {
        let names = self.names.iter();
        let statuses = names.map(|name| status_of(redlock, name, self.slot));
        try_join_all(statuses).await
    }

    fn check_status(&self, (name, status): (&OsString, &Status)) -> TokenCheck {
        TokenCheck {
            status: ResourceStatus {
                slot: self.slot,
                ..ResourceStatus::new(name.as_bytes(), status)
            },
            verdict: status.check(self.token),
        }
    }
}

/// The verdict on a lock with several names is that on the name with the highest severity.
fn severity(verdict: TokenVerdict) -> u8 {
    match verdict {
        TokenVerdict::Current => 0,
        TokenVerdict::Ended => 2,
        TokenVerdict::Superseded => 3,
        _ => 1,
    }
}

/// The value of the environment variable `name`, which must be a number.
fn parse_number<T: std::str::FromStr>(name: &str, value: OsString) -> Result<T, Failure> {
    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let not_a_number = |_| Failure::usage(format!("{name} must be a number, but is {text:?}"));
    text.parse().map_err(not_a_number)
}

/// Reads the lock from the masters, and prints the verdict on the token.
pub(crate) fn run(args: CheckArgs) -> CommandResult {
    let subject = Subject::new(&args)?;
    let (mut masters, _) = args.masters.complete()?;
    let statuses = config::block_on(read_patiently(&mut masters, &subject))?;
    let named_statuses = subject.names.iter().zip(&statuses);
    let checks: Vec<TokenCheck> = named_statuses
        .map(|one| subject.check_status(one))
        .collect();
    let worst = checks.iter().max_by_key(|one| severity(one.verdict));
    let (Some(worst), Some((first, also))) = (worst, checks.split_first()) else {
        return Err(Failure::internal("no name of a lock was checked"));
    };
    if args.json {
        let also = also.iter().map(
            |one| serde_json::json!({ "verdict": verdict_name(one.verdict), "status": one.status }),
        );
        output::print_json(&serde_json::json!({
            "token": subject.token,
            "verdict": verdict_name(worst.verdict),
            "status": first.status,
            "also": also.collect::<Vec<_>>(),
        }))?;
    } else if !output::is_quiet() {
        let pages = checks.iter().map(|one| page(subject.token, one));
        output::print_page(&pages.collect::<String>())?;
    }
    match worst.verdict {
        TokenVerdict::Current => Ok(exit::OK),
        TokenVerdict::Superseded | TokenVerdict::Ended => Ok(exit::LOST),
        _ if worst.status.verdict == "unknown" => Err(no_quorum_failure(&worst.status)),
        _ => Ok(exit::UNAVAILABLE),
    }
}

/// Reads the lock. Tries again with longer timeouts while too few masters answered, but a majority may be up.
async fn read_patiently(
    masters: &mut MasterOptions,
    subject: &Subject,
) -> Result<Vec<Status>, Failure> {
    let is_undecided = |status: &Status| ResourceStatus::new(b"", status).is_undecided;
    let statuses = subject
        .read_statuses(&config::redlock(masters, None)?)
        .await?;
    if !statuses.iter().any(is_undecided) {
        return Ok(statuses);
    }
    let (redlock, mut patience) = (patient_redlock(masters)?, Patience::begin());
    loop {
        let statuses = subject.read_statuses(&redlock).await?;
        if !statuses.iter().any(is_undecided) || !patience.pause_to_retry().await {
            return Ok(statuses);
        }
    }
}

/// The verdict as the JSON output shows it.
fn verdict_name(verdict: TokenVerdict) -> &'static str {
    match verdict {
        TokenVerdict::Current => "current",
        TokenVerdict::Superseded => "superseded",
        TokenVerdict::Ended => "ended",
        _ => "unknown",
    }
}

/// The output for people about one name: the verdict with its reason, and the present holder of the lock.
fn page(token: u64, check: &TokenCheck) -> String {
    let TokenCheck { status, verdict } = check;
    let counters = status.masters.iter().filter_map(|m| m.fencing_counter);
    let reason = match (*verdict, counters.max()) {
        (TokenVerdict::Current, _) => "its holder holds the lock".to_owned(),
        (TokenVerdict::Superseded, Some(counter)) => {
            format!("a majority of the masters has a newer number, up to {counter}")
        }
        (TokenVerdict::Ended, Some(counter)) if counter < token => format!(
            "no client with this token holds the lock; the masters know no token above {counter}"
        ),
        (TokenVerdict::Ended, None) => {
            "no client holds the lock, and the masters know no token of it".to_owned()
        }
        (TokenVerdict::Ended, _) => "no client with this token holds the lock".to_owned(),
        _ if status.verdict == "unknown" => "no majority answered".to_owned(),
        _ => "no majority of the masters decides (quorate status shows what each master has)"
            .to_owned(),
    };
    let name = match status.slot {
        Some(slot) => format!("{}, permit in slot {slot}", status.display_name),
        None => status.display_name.clone(),
    };
    let verdict = verdict_name(*verdict);
    format!(
        "{name}: token {token} is {verdict}: {reason}\n{}",
        holder_lines(status)
    )
}
