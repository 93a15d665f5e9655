//! `quorate once`: a command that runs once a period, over all machines.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use quorate::Once;

use crate::config;
use crate::errors::{VALUE_CUT_SHORT, no_value};
use crate::exit::{self, Failure, Meaning, Outcome};
use crate::kind::{Place, check_ancestors_of_value};
use crate::output;
use crate::period::Period;
use crate::process;
use crate::run::{self, RunArgs, leaving_nothing};

/// What stands below `quorate once --help`.
pub(crate) const AFTER_HELP: &str = "\
The right tool for cron on many machines: which period was done last is kept on the masters, not a lock
that ends with its ttl. Periods lie on a grid from 1970, UTC: a period of 24h begins at midnight UTC.

At most once (as it is): first it is written down that this period is done, then the command runs. A
crash in between leaves the period out; a command that is not there or not executable does not, nor does a script whose interpreter is not. With --at-least the command runs first, and the period is done
when it has ended with 0: after a failure or a crash it runs again, so it must bear that.

The record is created once, by hand, while all masters are there: quorate once --create NAME. A
record that is missing is never taken for a new one. Where too many masters have lost it, nothing runs:
quorate once --drop NAME removes what is left, and it can be created anew.

The command runs under the lock of the same name, held alone, and everything else is as for quorate run.

Examples:
    quorate once --create nightly-report
    quorate once --per 24h nightly-report -- ./report.sh
    quorate once --per 1h --at-least --try sync:users -- ./sync.sh";

/// What it ends with.
pub(crate) const CODES: [Meaning; 9] = [
    (
        "n",
        "the command's own code; 0 also where this period was done before",
    ),
    (
        "64",
        "wrong usage, or there is no record yet; the command did not run",
    ),
    (
        "69",
        "no quorum of masters, or too many have lost the record; the command did not run",
    ),
    ("70", ""),
    (
        "74",
        "the lock was lost; the command was stopped, or it is said that it could not be",
    ),
    (
        "75",
        "held by another until the wait was over; the command did not run",
    ),
    ("126", ""),
    ("127", ""),
    (
        "128+n",
        "signal n ended the command, the wait for the lock, or the work on the record",
    ),
];

/// Arguments of `once`.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    /// How long a period is
    #[arg(long, value_name = "TIME", env = "QUORATE_PER", value_parser = config::duration, required_unless_present_any = ["create", "drop"])]
    per: Option<Duration>,

    /// Run again after a failure or a crash, until the command has ended with 0 once in the period
    #[arg(long, env = "QUORATE_AT_LEAST", value_parser = clap::builder::BoolishValueParser::new())]
    at_least: bool,

    /// Create the record, with no period done; every master must be there
    #[arg(long, conflicts_with_all = ["drop", "command", "shell"])]
    create: bool,

    /// Remove the record from every master
    #[arg(long, conflicts_with_all = ["command", "shell"])]
    drop: bool,

    #[command(flatten)]
    run: RunArgs,
}

impl OnceArgs {
    /// The options that it shares with `run`.
    pub(crate) fn shared(&mut self) -> &mut RunArgs {
        &mut self.run
    }

    /// The words of the command as they were typed.
    pub(crate) fn command(&self) -> &[OsString] {
        self.run.command()
    }
}

/// Any period: the record is the same for all.
const SOME: Duration = Duration::from_secs(1);

/// Runs a command once a period, or looks after the record of that.
pub(crate) fn run(args: OnceArgs) -> Outcome {
    if let Some(option) = args.run.lock.kind().asks_for_another() {
        return Err(Failure::usage(format!(
            "{option} is for quorate run: what is done once is done under the lock of its name, held alone"
        )));
    }
    if args.create || args.drop {
        return record(args);
    }
    let Some(per) = args.per else {
        return Err(Failure::usage(
            "how long is a period? --per 24h, for example",
        ));
    };
    if per < Duration::from_millis(1) {
        return Err(Failure::usage(
            "a period of nothing has no once: --per 24h, for example",
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
    done.map_err(no_value)
}

fn bytes(name: &OsString) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    name.as_bytes()
}
