//! `quorate masters`: replaces the masters while they are in use, one step after the other.
//!
//! What is safe is decided in the library; this file asks, waits and prints.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use quorate::list::DEFAULT_MAX_TTL;
use quorate::{ChangeError, ChangeStage, ClientKind, MasterSeen, MastersChange, Redlock, Survey};

use crate::config::{self, MasterOptions};
use crate::exit::{self, Failure, Meaning, Outcome};
use crate::output::{self, Cell, GREEN, RED, YELLOW, human};
use crate::process;
use crate::run::leaving_nothing;

/// The ttl of the locks under which values are carried, at most: they are renewed, and an operator that is killed leaves them
/// locked for no longer.
const LOCKED: Duration = Duration::from_secs(5);

const CUT_SHORT: &str = "the step may be done in part: take it again";

/// What stands below `quorate masters --help`.
pub(crate) const AFTER_HELP: &str = "\
Masters are replaced while clients use them, all or some of them, also more or fewer of them:

    1  start the new servers, and name them as next_masters beside masters, here:
       quorate masters prepare
    2  give all clients next_masters as well. They lock on a majority of each set. Clients without may go on.
       quorate masters status         names the clients that are still without
    3  quorate masters close          from here on the masters refuse clients without next_masters
    4  quorate masters open           waits until all that these had is over, carries values and fencing numbers, opens
    5  give all clients the next masters as masters, no next_masters, and masters_generation one higher
    6  quorate masters finish         from here on the masters refuse clients that still have next_masters
    7  stop the servers that are left over, for good

Once, when masters are set up, and before any change:

    quorate masters mark           writes the generation marker on all of them. Another server behind the address of one
                                   is known by its missing mark, and its votes are left out for the longest ttl

Each step can be taken again, and says what it saw and what is missing; it does nothing that is not safe. Before 3 the
change can be left again. Step 4 carries the values under locks (quota, once) to the next masters, one line for each.

Examples:
    quorate masters status --masters redis://a,redis://b,redis://c --next-masters redis://a,redis://b,redis://d
    quorate masters open --max-ttl 30s";

/// What it ends with.
pub(crate) const CODES: [Meaning; 5] = [
    ("0", "the step is done (status: it was told)"),
    ("1", ""),
    ("64", ""),
    ("69", ""),
    ("70", ""),
];

/// Arguments of `masters`.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// What to do
    #[command(subcommand)]
    step: Step,
}

/// The steps.
#[derive(Debug, Subcommand)]
enum Step {
    /// Show how far the change is, and who is connected
    Status(StepArgs),
    /// Write the generation marker on masters that are not being changed
    Mark(StepArgs),
    /// Check the next masters, and tell all masters of the change
    Prepare(StepArgs),
    /// Refuse clients that know only the old masters
    Close(StepArgs),
    /// Wait until all that those had is over, and open the next masters
    Open(StepArgs),
    /// Refuse clients that know both
    Finish(StepArgs),
    /// Tell how the change can be left
    BackOut(StepArgs),
}

/// What every step takes.
#[derive(Debug, Args)]
struct StepArgs {
    /// Others who run scripts or set keys on these servers are known to take none of these locks
    ///
    /// Without this, close and open stop at every client that runs scripts or sets keys and has no name of ours: it may be another
    /// Redlock client, which knows of no change.
    #[arg(long, env = "QUORATE_STRANGERS_PASS", value_parser = clap::builder::BoolishValueParser::new())]
    strangers_pass: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// Takes one step.
pub(crate) fn run(args: ChangeArgs) -> Outcome {
    let (Step::Status(step)
    | Step::Mark(step)
    | Step::Prepare(step)
    | Step::Close(step)
    | Step::Open(step)
    | Step::Finish(step)
    | Step::BackOut(step)) = &args.step;
    let (masters, _) = step.masters.clone().complete()?;
    let ttl = masters
        .settings()
        .max_ttl
        .unwrap_or(DEFAULT_MAX_TTL)
        .min(LOCKED);
    let redlock = config::redlock(&masters, Some(ttl))?;
    let work = take_step(&args, &redlock, step.strangers_pass);
    let work = process::unless_asked_to_end(work, CUT_SHORT);
    config::block_on(leaving_nothing(&redlock, masters.parting(), work))
}

async fn take_step(args: &ChangeArgs, redlock: &Redlock, strangers_pass: bool) -> Outcome {
    if let Step::Status(_) = args.step {
        return status(redlock).await;
    }
    if let Step::Mark(_) = args.step {
        return marked(redlock).await;
    }
    let change = redlock.change().map_err(Failure::usage)?;
    let change = change.strangers_pass(strangers_pass);
    match args.step {
        Step::Prepare(_) => prepared(&change).await,
        Step::Close(_) => closed(&change).await,
        Step::Open(_) => opened(&change).await,
        Step::Finish(_) => finished(&change).await,
        Step::BackOut(_) => left(&change).await,
        Step::Status(_) | Step::Mark(_) => status(redlock).await,
    }
}

async fn status(redlock: &Redlock) -> Outcome {
    let survey = redlock.survey().await.map_err(Failure::usage)?;
    show(&survey)?;
    output::print(&format!("{}\n", what_next(&survey)))?;
    if survey
        .masters
        .iter()
        .all(|master| master.seen.fault.is_some())
    {
        return Err(Failure::new(exit::UNAVAILABLE, "no master answered"));
    }
    Ok(exit::OK)
}

async fn marked(redlock: &Redlock) -> Outcome {
    match redlock.mark_masters().await {
        Ok(survey) => {
            show(&survey)?;
            done("marked: each RUN ID and UPTIME above has to be that of the server that you mean")
        }
        Err(ChangeError::Missing(missing)) => {
            show(&redlock.survey().await.map_err(Failure::usage)?)?;
            refused(&missing)
        }
        Err(_) => Err(Failure::usage(
            "only Redis and Valkey masters keep marks, and only where all masters are of these kinds",
        )),
    }
}

async fn prepared(change: &MastersChange<'_>) -> Outcome {
    let survey = taken(change, change.prepare().await).await?;
    show(&survey)?;
    show_values(&survey)?;
    done("prepared: give all clients next_masters, then close")
}

async fn closed(change: &MastersChange<'_>) -> Outcome {
    let survey = taken(change, change.close().await).await?;
    show(&survey)?;
    show_values(&survey)?;
    let ended: usize = survey.masters.iter().map(|master| master.seen.ended).sum();
    done(&format!(
        "closed: clients without next_masters are refused from now on ({ended} connections ended); then open"
    ))
}

async fn opened(change: &MastersChange<'_>) -> Outcome {
    if change.look().await.stage() >= ChangeStage::Open {
        // Again, for masters that were not reached.
        let survey = taken(change, change.open_again().await).await?;
        show(&survey)?;
        return done("open already: give all clients the next masters alone, then finish");
    }
    let before = taken(change, change.closed().await).await?;
    wait(change.wait()).await;
    let survey = taken(change, change.open(&before).await).await?;
    show(&survey)?;
    show_values(&survey)?;
    done(
        "open: give all clients the next masters alone, with masters_generation one higher; then finish",
    )
}

async fn finished(change: &MastersChange<'_>) -> Outcome {
    let survey = taken(change, change.finish().await).await?;
    show(&survey)?;
    let left: Vec<String> = survey
        .masters
        .iter()
        .filter(|master| !master.is_next)
        .map(|master| master.node.to_string())
        .collect();
    if !left.is_empty() {
        output::print(&format!("stop for good: {}\n", left.join(", ")))?;
    }
    done("finished: the next masters are the masters")
}

async fn left(change: &MastersChange<'_>) -> Outcome {
    let survey = change.look().await;
    show(&survey)?;
    match survey.stage() {
        ChangeStage::Untouched | ChangeStage::Prepared => done(
            "nothing has been closed: take next_masters away from all clients again, and the change is left",
        ),
        _ => Err(Failure::new(
            exit::FINDINGS,
            "masters have been closed, and that is not taken back: go on to finish, and then change back to the masters \
             of before as to any others",
        )),
    }
}

/// What a step told; where it was not taken, what all masters show first.
async fn taken(
    change: &MastersChange<'_>,
    step: Result<Survey, ChangeError>,
) -> Result<Survey, Failure> {
    match step {
        Ok(survey) => Ok(survey),
        Err(ChangeError::Missing(missing)) => {
            show(&change.look().await)?;
            refused(&missing)
        }
        Err(error) => Err(Failure::usage(error)),
    }
}

/// Says what keeps a step from being taken.
fn refused<T>(missing: &[String]) -> Result<T, Failure> {
    for missing in missing {
        output::say(missing);
    }
    Err(Failure::new(
        exit::FINDINGS,
        "not done: see above what is missing",
    ))
}

/// Waits, and shows how long it still takes.
async fn wait(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        output::mention(format!(
            "waiting {} until all that clients of the old masters had is over",
            human(left)
        ));
        tokio::time::sleep(left.min(Duration::from_secs(5))).await;
    }
}

fn done(line: &str) -> Outcome {
    output::print(&format!("{GREEN}{line}{GREEN:#}\n"))?;
    Ok(exit::OK)
}

fn what_next(survey: &Survey) -> &'static str {
    if !survey.is_change() && survey.refuses() {
        return "these masters have no votes for who names them so: name those in force, and their generation";
    }
    if !survey.is_change() && !survey.is_marked() {
        return "no next_masters are named: nothing is being changed here; not all masters are marked: quorate masters mark";
    }
    if !survey.is_change() {
        return "no next_masters are named: nothing is being changed here";
    }
    match survey.stage() {
        ChangeStage::Untouched => "not prepared: the next step is prepare",
        ChangeStage::Prepared => {
            "prepared: give all clients next_masters; when none at the old step is left, or they may be refused, close"
        }
        ChangeStage::PartlyClosed => "closed on too few of the old masters: close again",
        ChangeStage::Closed => "closed: the next step is open",
        ChangeStage::Open => "open: give all clients the next masters alone; then finish",
        ChangeStage::Finished => {
            "finished: name the next masters as masters, with masters_generation one higher"
        }
        _ => "unknown",
    }
}

fn show(survey: &Survey) -> Result<(), Failure> {
    let row = |master| row(master, survey.is_change());
    let rows: Vec<Vec<Cell>> = survey.masters.iter().map(row).collect();
    output::print(&output::table(
        &["MASTER", "SET", "MARK", "UPTIME", "RUN ID", "CLIENTS"],
        &rows,
    ))
}

/// One line for each value under a lock, and what may be worth a look.
fn show_values(survey: &Survey) -> Result<(), Failure> {
    for value in &survey.carried {
        output::print(&format!("{value}\n"))?;
    }
    for advice in survey.advice() {
        output::say(advice);
    }
    Ok(())
}

fn row(master: &MasterSeen, is_change: bool) -> Vec<Cell> {
    let seen = &master.seen;
    let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
    let set = match (master.is_old, master.is_next) {
        (true, true) => "both",
        (false, true) => "next",
        _ if is_change => "old",
        _ => "-",
    };
    let clients = match &seen.fault {
        Some(fault) => Cell::styled(output::redact(&fault.to_string()).into_owned(), RED),
        None => clients(master),
    };
    vec![
        master.node.to_string().into(),
        set.into(),
        or_dash(seen.mark.clone()),
        or_dash(seen.uptime.map(human)),
        or_dash(seen.run_id.as_ref().map(|id| id.chars().take(8).collect())),
        clients,
    ]
}

/// How many clients there are of each step.
fn clients(master: &MasterSeen) -> Cell {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for client in &master.seen.clients {
        let kind = match client.kind {
            ClientKind::AtStep(step, _) => format!("step {step}"),
            ClientKind::Untold => "untold".to_owned(),
            ClientKind::Stranger => "stranger".to_owned(),
        };
        *count.entry(kind).or_default() += 1;
    }
    let known = count.keys().all(|kind| kind.starts_with("step"));
    let text: Vec<String> = count
        .iter()
        .map(|(kind, n)| format!("{n} at {kind}"))
        .collect();
    let text = text
        .join(", ")
        .replace("at untold", "untold")
        .replace("at stranger", "strangers");
    match (text.is_empty(), known) {
        (true, _) => "-".to_owned().into(),
        (_, true) => text.into(),
        _ => Cell::styled(text, YELLOW),
    }
}
