//! `quorate once`: runs a command once per period, across all machines.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use quorate::{AcquireError, LockGuard, Redlock, StatusVerdict, Wait};

use crate::calendar::{self, PeriodLength, Schedule};
use crate::config;
use crate::errors::{VALUE_INTERRUPTED, acquire_failure, record_failure};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::job_period::JobPeriod;
use crate::kind::{KindArgs, LockSpace, check_ancestors_of_value};
use crate::last_run::OnceStatus;
use crate::output;
use crate::process;
use crate::run::{self, JobArgs, with_final_release};
use crate::status::invalid_name;
use crate::waiting::WaitDisplay;

/// The text below the options of `quorate once --help`.
pub(crate) const AFTER_HELP: &str = "\
For cron jobs on several machines. All machines must use the same options. --per day, week (from Monday) and month
follow the calendar, in UTC or in the time zone of --tz. Other periods, such as --per 6h, follow one another from 1970-01-01
00:00 UTC. A call belongs to the period in which it began.

The command runs under the exclusive lock NAME (quorate help command), by default at most once per period: the masters
record the period as done before the command runs. So a command that fails or crashes does not run again in this
period. If its start cannot be prepared, the period is not recorded.

With --at-least, the period is recorded after the command has exited with 0. If it fails or crashes, the next call runs
it again, so it must be safe to repeat.

Create the record once, by hand, while all masters are up: quorate once --create NAME. If too many masters lose the
record, nothing runs: drop the record (quorate once --drop NAME --yes), and create it again.

quorate once --status NAME shows the last run, or that the command is running. With --per, it also shows whether the
current period is done. A call that finds it done warns, also with --quiet, if options or clocks look wrong.

Examples:
    quorate once --create nightly-report
    quorate once --per day --wait 10m nightly-report -- ./report.sh
    quorate once --per month --tz Europe/Berlin --wait 10m invoices -- ./invoices.sh
    quorate once --per 1h --at-least --try sync:users -- ./sync.sh

JSON fields (stable): once, state (held, never, done, failed, unknown), done, period, holder, run (host, pid, began,
ended, exit_code; of the holder if state is held).";

/// The exit codes of `quorate once`, with their meanings.
pub(crate) const CODES: [Meaning; 9] = [
    (
        "n",
        "the command's own exit code; also 0 if the period was already recorded as done",
    ),
    ("64", "wrong usage, or the record does not exist"),
    (
        "69",
        "too few masters answered, too many masters have lost the record, or a clock is wrong",
    ),
    ("70", ""),
    ("74", ""),
    ("75", ""),
    ("126", ""),
    ("127", ""),
    (
        "128+n",
        "signal number n ended the command, or ended the wait for the lock",
    ),
];

/// The heading, in help texts, of the options about the record of the last period, which the masters store.
const RECORD: &str = "Record of the last period";

/// Arguments of `once`.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    /// Length of a period: day, week, month, or a fixed time such as 15m
    #[arg(long, value_name = "TIME", env = "QUORATE_PER", value_parser = calendar::parse_period_length, required_unless_present_any = ["create", "drop", "status"])]
    per: Option<PeriodLength>,

    /// Time of day when periods begin [default: 00:00]
    #[arg(long, value_name = "HH:MM", env = "QUORATE_AT", value_parser = calendar::parse_time_of_day)]
    at: Option<Time>,

    /// Time zone of the calendar and of --at [default: UTC]
    ///
    /// For example Europe/Berlin.
    #[arg(long, value_name = "ZONE", env = "QUORATE_TZ", value_parser = calendar::parse_time_zone)]
    tz: Option<TimeZone>,

    /// Run the command again if it failed earlier in this period
    #[arg(long, env = "QUORATE_AT_LEAST", value_parser = clap::builder::BoolishValueParser::new())]
    at_least: bool,

    /// Exit with N if already done [default: 0]
    #[arg(
        long,
        value_name = "N",
        env = "QUORATE_DONE_EXIT_CODE",
        hide_short_help = true
    )]
    done_exit_code: Option<u8>,

    /// Create the record; all masters must be reachable
    #[arg(long, help_heading = RECORD, conflicts_with_all = ["drop", "status", "command", "shell"])]
    create: bool,

    /// Remove the record from all masters; needs --yes
    #[arg(long, help_heading = RECORD, conflicts_with_all = ["status", "command", "shell"])]
    drop: bool,

    /// Confirm --drop
    #[arg(long, help_heading = RECORD, requires = "drop", conflicts_with_all = ["create", "status", "command", "shell"])]
    yes: bool,

    /// Show when and where the command ran last, and how it ended
    #[arg(long, help_heading = RECORD, conflicts_with_all = ["command", "shell"])]
    status: bool,

    /// Print JSON, with --status
    #[arg(long, env = "QUORATE_JSON", help_heading = RECORD, value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    pub(crate) job: JobArgs,
}

impl OnceArgs {
    /// The words of the command to run, as the user typed them.
    pub(crate) fn command(&self) -> &[OsString] {
        self.job.command()
    }
}

/// How long `--status` waits for a holder that has left no note. A holder leaves a note when it runs the command. A
/// holder without a note usually does not run the command, and releases the lock soon.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between two checks whether the lock is free, while `--status` waits (see [`NOTE_TIMEOUT`]).
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// Runs a command once per period. With `--create`, `--drop` or `--status`, creates, drops or shows the once record.
pub(crate) fn run(args: OnceArgs) -> CommandResult {
    // Read the clock first, because this time selects the period.
    let now = SystemTime::now();
    let schedule = |per| Schedule::new(per, args.at, args.tz.clone());
    let done_exit_code = args.done_exit_code.unwrap_or(exit::OK);
    let period = |per| JobPeriod::new(schedule(per)?, now, args.at_least, done_exit_code);
    let period = args.per.map(period).transpose()?;
    if args.create || args.drop || args.status {
        return run_record_command(args, period.map(|period| period.range().clone()));
    }
    let Some(period) = period else {
        return Err(Failure::usage(
            "--per is missing: give the length of a period, for example --per 24h",
        ));
    };
    run::run_job(args.job, KindArgs::default(), Some(period))
}

/// The operation on the once record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordCommand {
    Create,
    Drop,
    Status,
}

fn run_record_command(args: OnceArgs, range: Option<Range<SystemTime>>) -> CommandResult {
    let (record_command, is_confirmed, json) = match &args {
        OnceArgs { create: true, .. } => (RecordCommand::Create, true, false),
        OnceArgs {
            status: true, json, ..
        } => (RecordCommand::Status, true, *json),
        OnceArgs { yes, .. } => (RecordCommand::Drop, *yes, false),
    };
    let (name, masters) = args.job.into_name();
    let name_text = output::printable(name.as_bytes());
    if !is_confirmed {
        return Err(Failure::usage(format!(
            "refusing to drop the record of '{name_text}' without --yes, because the masters would no longer know which \
             period was done"
        )));
    }
    let (masters, _) = masters.complete()?;
    let redlock = config::redlock(&masters, None)?;
    if record_command != RecordCommand::Status {
        check_ancestors_of_value(&LockSpace::new(&redlock, &masters), &name)?;
    }
    let work = async {
        match record_command {
            RecordCommand::Status => {
                let status = read_status(&redlock, name.as_bytes(), range).await?;
                if json {
                    output::print_json(&status)
                } else {
                    output::print(&status.text())
                }
            }
            record_command => {
                let action_text = create_or_drop(&redlock, name.as_bytes(), record_command).await?;
                output::print_notice(format!("{action_text} the record of '{name_text}'"));
                Ok(())
            }
        }
    };
    let work = process::interruptible(work, VALUE_INTERRUPTED);
    config::block_on(with_final_release(
        &redlock,
        masters.release_timeout(),
        work,
    ))?;
    Ok(exit::OK)
}

/// Creates or drops the record of the last period, which the masters store. Returns what the message to the user says
/// about the record: `created`, `dropped`, or that there was none.
async fn create_or_drop(
    redlock: &Redlock,
    name: &[u8],
    record_command: RecordCommand,
) -> Result<&'static str, Failure> {
    // Pass any period: `create` and `drop_record` ignore it.
    let once = redlock.once(name, Duration::from_secs(1));
    let display = WaitDisplay::new(name);
    let once = once.waiting(move |waiting| display.update(waiting));
    if record_command == RecordCommand::Create {
        once.create().await.map_err(record_failure)?;
        return Ok("created");
    }
    let had_record = once.drop_record().await.map_err(record_failure)?;
    Ok(if had_record {
        "dropped"
    } else {
        "nothing to drop: no master has"
    })
}

/// Reads the status from the once record, under the lock. If another client holds the lock, uses the note of that
/// client instead.
///
/// Never waits in the queue of the lock.
async fn read_status(
    redlock: &Redlock,
    name: &[u8],
    range: Option<Range<SystemTime>>,
) -> Result<OnceStatus, Failure> {
    let name_text = output::json_name(name);
    let give_up_at = Instant::now() + NOTE_TIMEOUT;
    loop {
        let lock = redlock.status(name).await;
        let lock = lock.map_err(|why| invalid_name(&OsString::from_vec(name.to_vec()), why))?;
        let has_timed_out = Instant::now() >= give_up_at;
        match lock.verdict() {
            StatusVerdict::Held(_) if lock.note().is_some() || has_timed_out => {
                return Ok(OnceStatus::from_holder(name_text, lock.note()));
            }
            StatusVerdict::Held(_) => {}
            _ => match redlock.lock(name).wait(Wait::None).acquire().await {
                Ok(guard) => return read_record(redlock, name, range.as_ref(), guard).await,
                Err(AcquireError::HeldByOther(conflict)) if has_timed_out => {
                    return Ok(OnceStatus::from_holder(name_text, conflict.note.as_deref()));
                }
                Err(error) if has_timed_out => return Err(acquire_failure(error)),
                Err(_) => {}
            },
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

/// Reads the record of the last period under the lock `guard`, and releases the lock. The read also writes the record
/// again on masters that have lost it.
async fn read_record(
    redlock: &Redlock,
    name: &[u8],
    range: Option<&Range<SystemTime>>,
    guard: LockGuard,
) -> Result<OnceStatus, Failure> {
    // Reading the once record ignores the length of the period.
    let once = redlock.once(name, Duration::from_secs(1));
    let status = match once.record(&guard).await {
        Ok(record) => {
            let status = OnceStatus::from_record(output::json_name(name), &record, range);
            record
                .refill()
                .await
                .map(|()| status)
                .map_err(record_failure)
        }
        Err(error) => Err(record_failure(error)),
    };
    guard.release().await;
    status
}
