//! `quorate quota`: hands out at most N units across all machines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Args, Subcommand};
use quorate::{Quota, Take, ValueError, Wait};

use crate::config::{self, MasterOptions};
use crate::errors::{VALUE_CUT_SHORT, no_quota};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::kind::{Place, check_ancestors_of_value};
use crate::output;
use crate::patience::{Patience, is_undecided, patient};
use crate::process;
use crate::run::leaving_nothing;
use crate::waiting::WaitDisplay;

/// The text below the options of `quorate quota --help`.
pub(crate) const AFTER_HELP: &str = "\
The masters store how many units are left. Every change of a quota takes the lock with the name of the quota.

Clients never take more units than were created, not even after crashes, clock jumps or late messages.

If a majority of the masters loses the quota between two successful takes, no more units can be taken. Then drop the
quota, and create it again with the number of units that are left according to your own records.

If take exits with 69 and says that the value may or may not have been written, you got no unit. But the units
that you asked for may be missing from the quota.

If you have a database, a single statement in the database is simpler and better:
UPDATE prizes SET stock = stock - 1 WHERE stock > 0.

Examples:
    quorate quota create prizes 10
    quorate quota take prizes && ./hand-out-a-prize
    quorate quota left prizes
    quorate quota drop prizes --yes

take and left print how many units are left.

JSON fields (stable): quota, taken, left.";

/// The exit codes of `quorate quota`, with their meanings.
pub(crate) const CODES: [Meaning; 8] = [
    (
        "0",
        "done: the quota was created or dropped, the units were taken, or the number of units left was printed",
    ),
    (
        "1",
        "fewer units are left than were asked for; nothing was taken",
    ),
    (
        "64",
        "wrong usage, or the quota does not exist or already exists; nothing was changed",
    ),
    (
        "69",
        "too few masters answered, or too many masters have lost the quota; you got no unit",
    ),
    (
        "70",
        "an internal failure, or the result could not be printed; units may have been taken",
    ),
    ("74", "the lock was lost before anything was written"),
    (
        "75",
        "another client held the lock of the quota for the whole wait, or the outer quorate process holds it",
    ),
    (
        "128+n",
        "signal number n ended quorate quota: you got no unit, but units may be missing from the quota",
    ),
];

/// Arguments of `quota`.
#[derive(Debug, Args)]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a new quota with N units; all masters must be reachable
    Create {
        #[command(flatten)]
        of: Of,
        /// Number of units of the quota
        #[arg(value_name = "N")]
        units: u64,
    },
    /// Take N units, or none if fewer than N are left
    Take {
        #[command(flatten)]
        of: Of,
        /// Number of units to take
        #[arg(value_name = "N", default_value_t = 1)]
        units: u64,
    },
    /// Print how many units are left
    Left {
        #[command(flatten)]
        of: Of,
    },
    /// Remove the quota and all its remaining units from all masters
    Drop {
        #[command(flatten)]
        of: Of,
        /// Confirm that the quota is to be removed
        #[arg(long)]
        yes: bool,
    },
}

/// The quota, and the options to access it.
#[derive(Debug, Args)]
struct Of {
    /// The name of the quota
    name: OsString,

    /// How long to wait for the lock of the quota: a duration, `forever` or `none` [default: 30s]
    #[arg(long, value_name = "TIME", env = "QUORATE_WAIT", value_parser = config::wait)]
    wait: Option<Wait>,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// The result of one subcommand of `quota`: the units taken, and the units left.
struct Count {
    taken: u64,
    left: Option<u64>,
    /// The number of requested units, if the request was refused because fewer are left; `None` otherwise.
    too_many: Option<u64>,
}

impl Count {
    fn done(left: Option<u64>) -> Self {
        Self {
            taken: 0,
            left,
            too_many: None,
        }
    }
}

/// Runs the subcommand (create, take, left or drop) on the quota.
pub(crate) fn run(args: QuotaArgs) -> CommandResult {
    if let Verb::Drop { of, yes: false } = &args.verb {
        return Err(Failure::usage(format!(
            "refusing to drop the quota '{}' without --yes, because the number of units left would be lost",
            output::bytes(of.name.as_bytes())
        )));
    }
    match args.verb {
        Verb::Create { of, units } => of.with(async |quota| {
            quota.create(units).await?;
            Ok(Count::done(Some(units)))
        }),
        Verb::Take { of, units } => of.with(async |quota| {
            let take = quota.take(units).await?;
            let (taken, left) = match take {
                Take::Taken { left } => (units, left),
                Take::SoldOut { left } => (0, left),
            };
            Ok(Count {
                taken,
                left: Some(left),
                too_many: (taken == 0).then_some(units),
            })
        }),
        Verb::Left { of } => of.with(async |quota| Ok(Count::done(Some(quota.left().await?)))),
        Verb::Drop { of, .. } => of.with(async |quota| {
            if !quota.drop_quota().await? {
                output::mention("nothing to drop: no master has this quota");
            }
            Ok(Count::done(None))
        }),
    }
}

impl Of {
    /// Connects to the masters, runs `ask` on the quota, and prints the result.
    fn with(self, ask: impl AsyncFn(&Quota) -> Result<Count, ValueError>) -> CommandResult {
        let (mut masters, file) = self.masters.complete()?;
        let wait = self.wait.or(file.settings.wait);
        let redlock = match wait {
            Some(Wait::None) => patient(&mut masters)?,
            _ => config::redlock(&masters, None)?,
        };
        let display = WaitDisplay::new(self.name.as_bytes());
        let quota = redlock.quota(self.name.as_bytes());
        let mut quota = quota.waiting(move |seen| display.see(seen));
        if let Some(wait) = wait {
            quota = quota.wait(wait);
        }
        let place = Place::new(&redlock, &masters);
        check_ancestors_of_value(&place, &self.name)?;
        // `work` owns the value `quota`. At the end of `work`, its destructor removes the waiting message.
        let work = async move {
            let mut patience = Patience::begin();
            loop {
                // After `NotAcquired`, the quota is unchanged, so a retry is safe.
                match ask(&quota).await {
                    Err(ValueError::NotAcquired(error))
                        if wait == Some(Wait::None)
                            && is_undecided(&error)
                            && patience.lets_ask_again().await => {}
                    asked => return asked.map_err(no_quota),
                }
            }
        };
        let work = process::unless_asked_to_end(work, VALUE_CUT_SHORT);
        let count = config::block_on(leaving_nothing(&redlock, masters.parting(), work))?;
        let name = output::bytes(self.name.as_bytes());
        if self.json {
            let Count { taken, left, .. } = count;
            output::print_json(
                &serde_json::json!({ "quota": output::name(self.name.as_bytes()), "taken": taken, "left": left }),
            )?;
        } else if let Some(left) = count.left {
            output::print(&format!("{left}\n"))?;
        }
        if let Some(asked) = count.too_many {
            output::mention(format!(
                "'{name}': asked for {asked} units, {} left; nothing was taken",
                count.left.unwrap_or(0)
            ));
            return Ok(exit::FINDINGS);
        }
        Ok(exit::OK)
    }
}
