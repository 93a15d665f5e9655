//! `quorate quota`: hands out at most N units across all machines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Args, Subcommand};
use quorate::{Quota, Take, ValueError, Wait};

use crate::config::{self, MasterOptions};
use crate::errors::{VALUE_INTERRUPTED, quota_failure};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::kind::{LockSpace, check_ancestors_of_value};
use crate::output;
use crate::patience::{Patience, is_undecided, patient_redlock};
use crate::process;
use crate::run::with_final_release;
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
    quota_command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Create a new quota with N units; all masters must be reachable
    Create {
        #[command(flatten)]
        options: QuotaOptions,
        /// Number of units of the quota
        #[arg(value_name = "N")]
        units: u64,
    },
    /// Take N units, or none if fewer than N are left
    Take {
        #[command(flatten)]
        options: QuotaOptions,
        /// Number of units to take
        #[arg(value_name = "N", default_value_t = 1)]
        units: u64,
    },
    /// Print how many units are left
    Left {
        #[command(flatten)]
        options: QuotaOptions,
    },
    /// Remove the quota and all its remaining units from all masters
    Drop {
        #[command(flatten)]
        options: QuotaOptions,
        /// Confirm that the quota is to be removed
        #[arg(long)]
        yes: bool,
    },
}

/// The quota, and the options to access it.
#[derive(Debug, Args)]
struct QuotaOptions {
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
struct UnitCounts {
    taken: u64,
    left: Option<u64>,
    /// The number of requested units, if the request was refused because fewer are left; `None` otherwise.
    refused_units: Option<u64>,
}

impl UnitCounts {
    fn none_taken(left: Option<u64>) -> Self {
        Self {
            taken: 0,
            left,
            refused_units: None,
        }
    }
}

/// Runs the subcommand (create, take, left or drop) on the quota.
pub(crate) fn run(args: QuotaArgs) -> CommandResult {
    if let QuotaCommand::Drop {
        options,
        yes: false,
    } = &args.quota_command
    {
        return Err(Failure::usage(format!(
            "refusing to drop the quota '{}' without --yes, because the number of units left would be lost",
            output::printable(options.name.as_bytes())
        )));
    }
    match args.quota_command {
        QuotaCommand::Create { options, units } => options.run_with_quota(async |quota| {
            quota.create(units).await?;
            Ok(UnitCounts::none_taken(Some(units)))
        }),
        QuotaCommand::Take { options, units } => options.run_with_quota(async |quota| {
            let result = quota.take(units).await?;
            let (taken, left) = match result {
                Take::Taken { left } => (units, left),
                Take::SoldOut { left } => (0, left),
            };
            Ok(UnitCounts {
                taken,
                left: Some(left),
                refused_units: (taken == 0).then_some(units),
            })
        }),
        QuotaCommand::Left { options } => options
            .run_with_quota(async |quota| Ok(UnitCounts::none_taken(Some(quota.left().await?)))),
        QuotaCommand::Drop { options, .. } => options.run_with_quota(async |quota| {
            if !quota.drop_quota().await? {
                output::print_notice("nothing to drop: no master has this quota");
            }
            Ok(UnitCounts::none_taken(None))
        }),
    }
}

impl QuotaOptions {
    /// Connects to the masters, runs `operation` on the quota, and prints the result.
    fn run_with_quota(
        self,
        operation: impl AsyncFn(&Quota) -> Result<UnitCounts, ValueError>,
    ) -> CommandResult {
        let (mut masters, file) = self.masters.complete()?;
        let wait = self.wait.or(file.settings.wait);
        let redlock = match wait {
            Some(Wait::None) => patient_redlock(&mut masters)?,
            _ => config::redlock(&masters, None)?,
        };
        let display = WaitDisplay::new(self.name.as_bytes());
        let quota = redlock.quota(self.name.as_bytes());
        let mut quota = quota.waiting(move |waiting| display.update(waiting));
        if let Some(wait) = wait {
            quota = quota.wait(wait);
        }
        let lock_space = LockSpace::new(&redlock, &masters);
        check_ancestors_of_value(&lock_space, &self.name)?;
        // `work` owns the value `quota`. At the end of `work`, its destructor removes the waiting message.
        let work = async move {
            let mut patience = Patience::begin();
            loop {
                // After `NotAcquired`, the quota is unchanged, so a retry is safe.
                match operation(&quota).await {
                    Err(ValueError::NotAcquired(error))
                        if wait == Some(Wait::None)
                            && is_undecided(&error)
                            && patience.pause_to_retry().await => {}
                    result => return result.map_err(quota_failure),
                }
            }
        };
        let work = process::interruptible(work, VALUE_INTERRUPTED);
        let counts = config::block_on(with_final_release(
            &redlock,
            masters.release_timeout(),
            work,
        ))?;
        let name = output::printable(self.name.as_bytes());
        if self.json {
            let UnitCounts { taken, left, .. } = counts;
            output::print_json(
                &serde_json::json!({ "quota": output::json_name(self.name.as_bytes()), "taken": taken, "left": left }),
            )?;
        } else if let Some(left) = counts.left {
            output::print(&format!("{left}\n"))?;
        }
        if let Some(result) = counts.refused_units {
            output::print_notice(format!(
                "'{name}': asked for {result} units, {} left; nothing was taken",
                counts.left.unwrap_or(0)
            ));
            return Ok(exit::FINDINGS);
        }
        Ok(exit::OK)
    }
}
