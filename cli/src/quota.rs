//! `quorate quota`: so many pieces and no more, over all machines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Args, Subcommand};
use quorate::{Quota, Take, Wait};

use crate::config::{self, MasterOptions};
use crate::errors::{VALUE_CUT_SHORT, no_value};
use crate::exit::{self, Failure, Meaning, Outcome};
use crate::kind::{Place, check_ancestors_of_value};
use crate::output;
use crate::process;
use crate::run::leaving_nothing;

/// What stands below `quorate quota --help`.
pub(crate) const AFTER_HELP: &str = "\
What is left stands on the masters, under the lock of the same name. Never more are taken than were
created, whatever clocks, crashes and late messages do, and if masters lose their memory one after another
with a take in between. If a majority loses it before that, the quota is lost and nothing is taken:
drop it, and create it anew with what is left by your own books.

A take that exits with 69 and says that it may have been written or not has taken nothing for you, and
may have wasted a piece.

With a database of your own, one statement there is simpler and better:
UPDATE prizes SET stock = stock - 1 WHERE stock > 0.

Examples:
    quorate quota create prizes 10
    quorate quota take prizes && ./hand-out-a-prize
    quorate quota left prizes
    quorate quota drop prizes --yes

take and left print how many are left. JSON fields (stable): quota, taken, left.";

/// What it ends with.
pub(crate) const CODES: [Meaning; 8] = [
    (
        "0",
        "done: what was asked for is taken, created, dropped or printed",
    ),
    (
        "1",
        "sold out: fewer are left than were asked for; none was taken",
    ),
    (
        "64",
        "wrong usage: also a quota that is not there, or is there already; nothing was touched",
    ),
    (
        "69",
        "no quorum of masters, or too many have lost it; nothing is handed out",
    ),
    (
        "70",
        "an internal failure, or the answer could not be printed: a take may have taken",
    ),
    ("74", "the lock was lost before anything was written"),
    (
        "75",
        "somebody else held its lock until the wait was over, or the quorate that it runs under does",
    ),
    (
        "128+n",
        "signal n ended it: nothing is taken for you, and a piece may be wasted",
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
    /// Create it with so many pieces; every master must be there, and have none
    Create {
        #[command(flatten)]
        of: Of,
        /// How many pieces
        #[arg(value_name = "N")]
        pieces: u64,
    },
    /// Take pieces, all or none
    Take {
        #[command(flatten)]
        of: Of,
        /// How many pieces
        #[arg(value_name = "N", default_value_t = 1)]
        pieces: u64,
    },
    /// Print how many are left
    Left {
        #[command(flatten)]
        of: Of,
    },
    /// Remove it from every master, with all that is left
    Drop {
        #[command(flatten)]
        of: Of,
        /// Yes, remove it
        #[arg(long)]
        yes: bool,
    },
}

/// Which quota, and how.
#[derive(Debug, Args)]
struct Of {
    /// The name of the quota
    name: OsString,

    /// How long to wait for its lock: a duration, `forever` or `none` [default: 30s]
    #[arg(long, value_name = "TIME", env = "QUORATE_WAIT", value_parser = config::wait)]
    wait: Option<Wait>,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// What it came to.
struct Count {
    taken: u64,
    left: Option<u64>,
    sold_out: bool,
}

impl Count {
    fn done(left: Option<u64>) -> Self {
        Self {
            taken: 0,
            left,
            sold_out: false,
        }
    }
}

/// Does what is asked of the quota.
pub(crate) fn run(args: QuotaArgs) -> Outcome {
    if let Verb::Drop { of, yes: false } = &args.verb {
        return Err(Failure::usage(format!(
            "dropping '{}' forgets how many are left: say --yes if that is what you want",
            output::bytes(of.name.as_bytes())
        )));
    }
    match args.verb {
        Verb::Create { of, pieces } => of.with(async |quota| {
            quota.create(pieces).await.map_err(no_value)?;
            Ok(Count::done(Some(pieces)))
        }),
        Verb::Take { of, pieces } => of.with(async |quota| {
            let take = quota.take(pieces).await.map_err(no_value)?;
            let (taken, left) = match take {
                Take::Taken { left } => (pieces, left),
                Take::SoldOut { left } => (0, left),
            };
            Ok(Count {
                taken,
                left: Some(left),
                sold_out: taken == 0,
            })
        }),
        Verb::Left { of } => {
            of.with(async |quota| Ok(Count::done(Some(quota.left().await.map_err(no_value)?))))
        }
        Verb::Drop { of, .. } => of.with(async |quota| {
            quota.drop_quota().await.map_err(no_value)?;
            Ok(Count::done(None))
        }),
    }
}

impl Of {
    /// Asks the quota, and prints what it came to.
    fn with(self, ask: impl AsyncFnOnce(&Quota) -> Result<Count, Failure>) -> Outcome {
        let (masters, file) = self.masters.complete()?;
        let redlock = config::redlock(&masters, None)?;
        let mut quota = redlock.quota(self.name.as_bytes());
        if let Some(wait) = self.wait.or(file.settings.wait) {
            quota = quota.wait(wait);
        }
        let place = Place::new(&redlock, &masters);
        check_ancestors_of_value(&place, &self.name)?;
        let work = process::unless_asked_to_end(async { ask(&quota).await }, VALUE_CUT_SHORT);
        let count = config::block_on(leaving_nothing(&redlock, masters.parting(), work))?;
        let name = output::bytes(self.name.as_bytes());
        if self.json {
            let Count { taken, left, .. } = count;
            output::print_json(
                &serde_json::json!({ "quota": name, "taken": taken, "left": left }),
            )?;
        } else if let Some(left) = count.left {
            output::print(&format!("{left}\n"))?;
        }
        if count.sold_out {
            output::mention(format!(
                "'{name}' is sold out: {} left",
                count.left.unwrap_or(0)
            ));
            return Ok(exit::FINDINGS);
        }
        Ok(exit::OK)
    }
}
