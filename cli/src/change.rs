//! `quorate masters`: replaces the masters while clients use them, step by step.
//!
//! The library decides which steps are safe. This file calls the library, waits, and prints.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use quorate::{
    ChangeError, ChangeStage, ClientKind, Fault, MasterSeen, MastersChange, Redlock, Survey,
};

use crate::config::{self, MasterOptions};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output::{self, Cell, GREEN, RED, YELLOW, human};
use crate::process;
use crate::run::leaving_nothing;
use crate::survey::{self, SurveyStatus};

/// The largest ttl of the locks that the step `open` holds while it copies quotas and once-only jobs to the next
/// masters.
const LOCKED: Duration = Duration::from_secs(5);

const CUT_SHORT: &str = "the step may be only partly done: run the step again";

/// The text below the options of `quorate masters --help`.
pub(crate) const AFTER_HELP: &str = "\
Steps to replace some or all masters while clients use them (the new set may be larger or smaller):
    1 begin     start the new servers; in this configuration, add next_masters (the complete new set); run begin
    2 clients   set next_masters for all clients; quorate masters status lists the clients without next_masters
    3 close     run close: the masters now refuse clients without next_masters
    4 open      run open: it waits until the locks of refused clients have expired, and opens the next masters
    5 clients   for all clients: set masters to the next masters, remove next_masters, increase masters_generation by 1
    6 finish    run finish: the masters now refuse clients that still have next_masters
    7 servers   stop the replaced servers for good

A client with next_masters needs a majority of the old masters and a majority of the next masters for each lock.

Run quorate masters mark once when you set up the masters, before the first change. It writes a generation marker to
all masters. If another server gets the address of a master, that server lacks the marker, and clients ignore its
votes for max_ttl. With masters_name, the marker also bears this name, and clients ignore a server without it for ever.
masters mark connects to each master several times. It refuses an address that leads to several servers in turn.

You can repeat each step. If a step is not safe yet, it stops and prints the reason. Before step 3, you
can abandon the change. Step 4 copies the fencing counters and the values of quota and once to the next masters. It
prints a line for each value, and holds the value's lock during the copy.

masters status also lists the connected clients: the step, state, host and process id of each client, the name of its
connections, and its address on each master. The states are:
    current          the client has the same step number as this configuration
    outdated         the client has a lower step number; during a change, it lacks next_masters
    ahead            the client has a higher step number, so this configuration is outdated
    other masters    the client uses other masters, or other names for the masters
    without marker   a quorate client that does not check the marker: its version is old, or it lacks a right
    unknown          another program that runs scripts or sets keys

JSON fields of masters status (stable; absent values are null):
    stage       untouched, begun, partly_closed, closed, open or finished; null without next_masters
    step        the step number of this configuration (2 * masters_generation, + 1 with next_masters)
    masters[]   master, set (old, next or both), mark, uptime_s, run_id, error, error_kind
    clients[]   step, state (as above, with _ instead of spaces), host, pid, name, connections[] (master, address)

Examples:
    quorate masters status --json | jq -r '.clients[] | select(.state == \"outdated\") | [.host, .pid] | @tsv'
    quorate masters status --masters redis://a,redis://b,redis://c --next-masters redis://a,redis://b,redis://d
    quorate masters open --max-ttl 30s";

/// The exit codes of `quorate masters`, with their meanings.
pub(crate) const CODES: [Meaning; 5] = [
    (
        "0",
        "the step is done (masters status: the state was printed)",
    ),
    (
        "1",
        "the step was not done, or the state of a master is unknown: the messages give the reason",
    ),
    ("64", ""),
    ("69", ""),
    ("70", ""),
];

/// Arguments of `masters`.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// The step of the change
    #[command(subcommand)]
    step: Step,
}

/// The steps of a change of the masters. "Next masters" are the masters that will replace the old ones.
#[derive(Debug, Subcommand)]
enum Step {
    /// Show the state of the change and the connected clients
    Status(StatusArgs),
    /// Mark each master as a member of the current set (not while masters are being replaced)
    Mark(MarkArgs),
    /// Check the next masters, and record the change on all masters
    Begin(StepArgs),
    /// From now on, refuse clients that do not set next_masters
    Close(PassArgs),
    /// Open the next masters, after the locks of clients refused by close have expired
    Open(PassArgs),
    /// From now on, refuse clients that still set next_masters
    Finish(StepArgs),
    /// Show whether the change can still be abandoned, and how
    BackOut(StepArgs),
}

/// The options that every step of a change of the masters has.
#[derive(Debug, Args)]
struct StepArgs {
    #[command(flatten)]
    masters: MasterOptions,
}

/// Options of `masters status`.
#[derive(Debug, Args)]
struct StatusArgs {
    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,

    #[command(flatten)]
    step: StepArgs,
}

/// The options of `masters mark`.
#[derive(Debug, Args)]
struct MarkArgs {
    /// Stay connected until clients count the votes of all masters that can be reached
    ///
    /// After a restart, a marked master votes again when clients have been connected to it for max_ttl. Use this option
    /// if all your clients are short-lived processes.
    #[arg(long, env = "QUORATE_WATCH", value_parser = clap::builder::BoolishValueParser::new())]
    watch: bool,

    #[command(flatten)]
    step: StepArgs,
}

/// The options of `masters close` and `masters open`.
#[derive(Debug, Args)]
struct PassArgs {
    /// Continue although unknown clients write to the masters. Use this only if they take no locks
    ///
    /// An unknown client may use another Redlock library, which ignores the change of the masters.
    #[arg(long, env = "QUORATE_ALLOW_UNKNOWN_CLIENTS", value_parser = clap::builder::BoolishValueParser::new())]
    allow_unknown_clients: bool,

    #[command(flatten)]
    step: StepArgs,
}

/// Runs one step of a change of the masters.
pub(crate) fn run(args: ChangeArgs) -> CommandResult {
    let (step, allow_unknown_clients) = match &args.step {
        Step::Close(pass) | Step::Open(pass) => (&pass.step, pass.allow_unknown_clients),
        Step::Status(status) => (&status.step, false),
        Step::Mark(mark) => (&mark.step, false),
        Step::Begin(step) | Step::Finish(step) | Step::BackOut(step) => (step, false),
    };
    let (masters, _) = step.masters.clone().complete()?;
    let ttl = masters.settings().max_ttl().min(LOCKED);
    let redlock = config::redlock(&masters, Some(ttl))?;
    let work = take_step(&args, &redlock, allow_unknown_clients);
    let work = process::unless_asked_to_end(work, CUT_SHORT);
    config::block_on(leaving_nothing(&redlock, masters.parting(), work))
}

async fn take_step(
    args: &ChangeArgs,
    redlock: &Redlock,
    allow_unknown_clients: bool,
) -> CommandResult {
    let change = || {
        let change = redlock.change().map_err(Failure::usage);
        change.map(|change| change.allow_unknown_clients(allow_unknown_clients))
    };
    match &args.step {
        Step::Status(args) => status(redlock, args.json).await,
        Step::Mark(mark) => marked(redlock, mark.watch).await,
        Step::Begin(_) => begun(&change()?).await,
        Step::Close(_) => closed(&change()?).await,
        Step::Open(_) => opened(&change()?).await,
        Step::Finish(_) => finished(&change()?).await,
        Step::BackOut(_) => left(&change()?).await,
    }
}

async fn status(redlock: &Redlock, json: bool) -> CommandResult {
    let survey = redlock.survey().await.map_err(Failure::usage)?;
    if json {
        output::print_json(&SurveyStatus::new(&survey))?;
    } else {
        show(&survey)?;
        output::print(&format!(
            "{}
",
            survey::clients_table(&survey)
        ))?;
    }
    let mut masters = survey.masters.iter();
    // If rights are missing, skip this error: the last error of this function names the remedy.
    let lacks_rights = masters.any(MasterSeen::lacks_rights);
    if let Some(refusal) = refusal(&survey).filter(|_| !lacks_rights) {
        return Err(Failure::new(
            exit::FINDINGS,
            format!("cannot read the state of all masters: {refusal}"),
        ));
    }
    let mut masters = survey.masters.iter();
    if !lacks_rights && masters.all(|master| master.seen.fault.is_some()) {
        return Err(Failure::new(exit::UNAVAILABLE, "no master answered"));
    }
    if !json {
        output::print(&format!("{}\n", what_next(&survey)))?;
    }
    if lacks_rights {
        return Err(Failure::new(
            exit::FINDINGS,
            "cannot read the state of all masters: grant the rights that are named above",
        ));
    }
    Ok(exit::OK)
}

/// The first error that a master has replied with, for example because it refused the password. `None` if no master has
/// replied with an error: a master that is unreachable or silent has sent no reply.
fn refusal(survey: &Survey) -> Option<String> {
    survey.masters.iter().find_map(|master| {
        let fault = master.seen.fault.as_ref()?;
        let is_answer = !matches!(
            fault,
            Fault::Down(_)
                | Fault::NoConnection(_)
                | Fault::Stalled
                | Fault::Timeout(_)
                | Fault::Disconnected(_)
        );
        let fault = fault.to_string();
        is_answer.then(|| format!("{}: {}", master.node, output::redact(&fault)))
    })
}

async fn marked(redlock: &Redlock, watch: bool) -> CommandResult {
    match redlock.mark_masters().await {
        Ok(survey) => {
            show(&survey)?;
            if watch {
                watched(redlock).await;
            } else if let Some(left) = still_guarded(redlock).await {
                output::mention(format!(
                    "clients count the votes of all masters when clients have been connected for another {}: to stay \
                     connected until then, run quorate masters mark --watch",
                    human(Duration::from_secs(left.as_secs() + 1))
                ));
            }
            done(
                "the masters are marked: check that each RUN ID and UPTIME above belongs to the intended server",
            )
        }
        Err(ChangeError::Missing(missing)) => {
            show(&redlock.survey().await.map_err(Failure::usage)?)?;
            refused(&missing)
        }
        Err(_) => Err(Failure::usage(
            "generation markers are supported only if all masters are Redis or Valkey servers",
        )),
    }
}

/// Stays connected to the masters until clients count the votes of every master that can be reached. The connections of
/// `redlock` raise the age records of the masters.
async fn watched(redlock: &Redlock) {
    loop {
        // The first request opens the connections.
        let _ = redlock.status("quorate-masters-mark").await;
        let Some(left) = still_guarded(redlock).await else {
            return;
        };
        output::mention(format!(
            "waiting {} until clients count the votes of all masters",
            human(left)
        ));
        tokio::time::sleep(left.min(Duration::from_secs(5))).await;
    }
}

/// The longest time for which the restart guard still ignores the votes of a master; `None` if all votes count.
async fn still_guarded(redlock: &Redlock) -> Option<Duration> {
    let masters = redlock.inspect().await;
    masters.iter().filter_map(|master| master.quarantined).max()
}

async fn begun(change: &MastersChange<'_>) -> CommandResult {
    let survey = taken(change, change.begin().await).await?;
    show(&survey)?;
    show_values(&survey)?;
    done("the change has begun: set next_masters for all clients, then run quorate masters close")
}

async fn closed(change: &MastersChange<'_>) -> CommandResult {
    let survey = taken(change, change.close().await).await?;
    show(&survey)?;
    show_values(&survey)?;
    let ended: usize = survey.masters.iter().map(|master| master.seen.ended).sum();
    done(&format!(
        "the old masters are closed: they refuse clients without next_masters from now on ({ended} connections closed); next, run quorate masters open"
    ))
}

async fn opened(change: &MastersChange<'_>) -> CommandResult {
    if change.survey().await.stage() >= ChangeStage::Open {
        // An earlier `quorate masters open` has opened a majority of the next masters. Open the rest of them.
        let survey = taken(change, change.open_again().await).await?;
        show(&survey)?;
        return done(
            "the next masters are already open: for all clients, set masters to the next masters, remove next_masters, and increase masters_generation by 1; then run quorate masters finish",
        );
    }
    let before = taken(change, change.closed().await).await?;
    wait(change.wait()).await;
    let survey = taken(change, change.open(&before).await).await?;
    show(&survey)?;
    show_values(&survey)?;
    done(
        "the next masters are open: for all clients, set masters to the next masters, remove next_masters, and increase masters_generation by 1; then run quorate masters finish",
    )
}

async fn finished(change: &MastersChange<'_>) -> CommandResult {
    let survey = taken(change, change.finish().await).await?;
    show(&survey)?;
    let left: Vec<String> = survey
        .masters
        .iter()
        .filter(|master| !master.is_next)
        .map(|master| master.node.to_string())
        .collect();
    if !left.is_empty() {
        output::print(&format!(
            "stop these servers for good: {}\n",
            left.join(", ")
        ))?;
    }
    done("finished: the next masters have replaced the old masters")
}

async fn left(change: &MastersChange<'_>) -> CommandResult {
    let survey = change.survey().await;
    show(&survey)?;
    match survey.stage() {
        ChangeStage::Untouched | ChangeStage::Begun => {
            done("no master is closed: to abandon the change, remove next_masters from all clients")
        }
        _ => Err(Failure::new(
            exit::FINDINGS,
            "the change cannot be abandoned, because masters are closed: run all steps up to finish; to return to the \
             old masters, replace the masters again",
        )),
    }
}

/// Returns the state of the masters after a step of the change. `step` is the result of that step in the library.
///
/// If the library refused the step, prints the state of all masters and the reasons, and returns a failure.
async fn taken(
    change: &MastersChange<'_>,
    step: Result<Survey, ChangeError>,
) -> Result<Survey, Failure> {
    match step {
        Ok(survey) => Ok(survey),
        Err(ChangeError::Missing(missing)) => {
            show(&change.survey().await)?;
            refused(&missing)
        }
        Err(error) => Err(Failure::usage(error)),
    }
}

/// Prints the unmet conditions of a refused step, one per line, and returns the failure.
fn refused<T>(missing: &[String]) -> Result<T, Failure> {
    for missing in missing {
        output::say(missing);
    }
    Err(Failure::new(
        exit::FINDINGS,
        "the step was not done: the messages above say what is missing",
    ))
}

/// Waits for `time`, and prints the remaining time every five seconds.
async fn wait(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        output::mention(format!(
            "waiting {} until all locks of clients without next_masters have expired",
            human(left)
        ));
        tokio::time::sleep(left.min(Duration::from_secs(5))).await;
    }
}

fn done(line: &str) -> CommandResult {
    output::print(&format!("{GREEN}{line}{GREEN:#}\n"))?;
    Ok(exit::OK)
}

fn what_next(survey: &Survey) -> &'static str {
    if !survey.is_change() && survey.refuses() && !survey.is_marked() {
        return "too few masters have a generation marker for this configuration: set masters, masters_generation and masters_name to the current values, or run quorate masters mark if the masters were never marked with this name";
    }
    if !survey.is_change() && survey.refuses() {
        return "these masters refuse this configuration: set masters and masters_generation to the current values";
    }
    if !survey.is_change() && !survey.is_marked() {
        return "next_masters is not set: this configuration has no change in progress\nnot all masters have a generation marker: run quorate masters mark";
    }
    if !survey.is_change() {
        return "next_masters is not set: this configuration has no change in progress";
    }
    match survey.stage() {
        ChangeStage::Untouched => "the change has not begun: next, run quorate masters begin",
        ChangeStage::Begun => {
            "the change has begun: set next_masters for all clients, then run quorate masters close; after that, the masters refuse clients without next_masters"
        }
        ChangeStage::PartlyClosed => {
            "too few of the old masters are closed: run quorate masters close again"
        }
        ChangeStage::Closed => "the old masters are closed: next, run quorate masters open",
        ChangeStage::Open => {
            "the next masters are open: for all clients, set masters to the next masters, remove next_masters, and increase masters_generation by 1; then run quorate masters finish"
        }
        ChangeStage::Finished => {
            "the change is finished: set masters to the next masters, remove next_masters, and increase masters_generation by 1"
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

/// Prints one line for each stored value (quota or once-per-period record) that was copied to the next masters. Then
/// prints the advice of the library to the operator.
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
    let set = survey::set(master, is_change).unwrap_or("-");
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

/// The cell with the numbers of clients connected to this master, for example `3 at step 4, 1 unknown`:
///
/// - for each step number: the quorate clients that use the masters of this step
/// - `without marker`: the quorate clients that do not check the key `quorate:masters`
/// - `unknown`: the clients that are not quorate clients
fn clients(master: &MasterSeen) -> Cell {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for client in &master.seen.clients {
        let kind = match client.kind {
            ClientKind::AtStep(step, _) => format!("step {step}"),
            ClientKind::Untold => "without marker".to_owned(),
            ClientKind::Unknown => "unknown".to_owned(),
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
        .replace("at without marker", "without marker")
        .replace("at unknown", "unknown");
    match (text.is_empty(), known) {
        (true, _) => "-".to_owned().into(),
        (_, true) => text.into(),
        _ => Cell::styled(text, YELLOW),
    }
}
