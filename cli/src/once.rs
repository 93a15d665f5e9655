//! `quorate once`: runs a command once per period, across all machines.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use quorate::Once;

use crate::config;
use crate::errors::{VALUE_CUT_SHORT, no_record};
use crate::exit::{self, Failure, Meaning, Outcome};
use crate::kind::{Place, check_ancestors_of_value};
use crate::output;
use crate::period::Period;
use crate::process;
use crate::run::{self, RunArgs, leaving_nothing};

/// The text below the options of `quorate once --help`.
pub(crate) const AFTER_HELP: &str = "\
For cron jobs on several machines: the masters record which period was done last. Periods are counted from
1970-01-01 UTC: a period of 24h begins at midnight UTC.

By default the command runs at most once per period: the period is first recorded as done, then the command
runs. After a crash in between, or if the command fails, it does not run again in this period. A command that
does not exist or is not executable does not use up the period; neither does a script without its interpreter.
With --at-least the command runs first, and the period is recorded as done once the command has exited with 0.
After a failure or a crash the command runs again, so it must be safe to repeat.

Create the record once, by hand, while all masters are up: quorate once --create NAME. A missing record is
never treated as a new one. If too many masters have lost it, nothing runs: quorate once --drop NAME removes
what is left, and then the record can be created again.

The command runs under the exclusive lock of the same name. Everything else is as for quorate run.

Examples:
    quorate once --create nightly-report
    quorate once --per 24h nightly-report -- ./report.sh
    quorate once --per 1h --at-least --try sync:users -- ./sync.sh";

/// The exit codes of `quorate once`, with their meanings.
pub(crate) const CODES: [Meaning; 9] = [
    (
        "n",
        "the command's own exit code; 0 also if this period was done before",
    ),
    (
        "64",
        "wrong usage, or the record does not exist; the command did not run",
    ),
    (
        "69",
        "no quorum of masters, or too many have lost the record; the command did not run",
    ),
    ("70", ""),
    (
        "74",
        "the lock was lost; the command was stopped, or a message says that it could not be",
    ),
    (
        "75",
        "another client held the lock for the whole wait; the command did not run",
    ),
    ("126", ""),
    ("127", ""),
    (
        "128+n",
        "signal n ended the command, the wait for the lock, or the access to the record",
    ),
];

/// Arguments of `once`.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    /// Length of a period, for example 24h
    #[arg(long, value_name = "TIME", env = "QUORATE_PER", value_parser = config::duration, required_unless_present_any = ["create", "drop"])]
    per: Option<Duration>,

    /// If the command fails or crashes, run it again at the next call in the same period, until it exits with 0
    #[arg(long, env = "QUORATE_AT_LEAST", value_parser = clap::builder::BoolishValueParser::new())]
    at_least: bool,

    /// Create the record of the last period; all masters must be reachable
    #[arg(long, conflicts_with_all = ["drop", "command", "shell"])]
    create: bool,

    /// Remove the record of the last period from all masters
    #[arg(long, conflicts_with_all = ["command", "shell"])]
    drop: bool,

    #[command(flatten)]
    run: RunArgs,
}

impl OnceArgs {
    /// The options of `quorate run`, which `once` also has.
    pub(crate) fn shared(&mut self) -> &mut RunArgs {
        &mut self.run
    }

    /// The words of the command to run, as the user typed them.
    pub(crate) fn command(&self) -> &[OsString] {
        self.run.command()
    }
}

/// A period for `--create` and `--drop`. Its length has no effect there.
const SOME: Duration = Duration::from_secs(1);

/// Runs a command once per period, or creates or drops the record of the last period in which the command ran.
pub(crate) fn run(args: OnceArgs) -> Outcome {
    if let Some(option) = args.run.lock.kind().asks_for_another() {
        return Err(Failure::usage(format!(
            "{option} is not supported by quorate once, which takes the exclusive lock of its name: use quorate run"
        )));
    }
    if args.create || args.drop {
        return record(args);
    }
    let Some(per) = args.per else {
        return Err(Failure::usage(
            "--per is missing: give the length of a period, for example --per 24h",
        ));
    };
    if per < Duration::from_millis(1) {
        return Err(Failure::usage(
            "--per is below 1ms: give the length of a period, for example --per 24h",
        ));
    }
    let at_least = args.at_least;
    run::run_once(args.run, Some(Period { per, at_least }))
}

fn record(args: OnceArgs) -> Outcome {
    let (name, masters) = args.run.into_name();
    let (masters, _) = masters.complete()?;
    let redlock = config::redlock(&masters, None)?;
    check_ancestors_of_value(&Place::new(&redlock, &masters), &name)?;
    let once = redlock.once(bytes(&name), SOME);
    let work = process::unless_asked_to_end(look_after(&once, args.create), VALUE_CUT_SHORT);
    config::block_on(leaving_nothing(&redlock, masters.parting(), work))?;
    let done = if args.create { "created" } else { "dropped" };
    output::mention(format!(
        "{done} the record of '{}'",
        output::bytes(bytes(&name))
    ));
    Ok(exit::OK)
}

async fn look_after(once: &Once, create: bool) -> Result<(), Failure> {
    let done = if create {
        once.create().await
    } else {
        once.drop_record().await
    };
    done.map_err(no_record)
}

fn bytes(name: &OsString) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    name.as_bytes()
}
