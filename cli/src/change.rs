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
use crate::run::with_final_release;
use crate::survey::{self, SurveyStatus};

/// The largest ttl of the locks that the step `open` holds while it copies quotas and once-only jobs to the next
/// masters.
const MAX_LOCK_TTL: Duration = Duration::from_secs(5);

const INTERRUPTED: &str = "the step may be only partly done: run the step again";

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
    Close(CloseOrOpenArgs),
    /// Open the next masters, after the locks of clients refused by close have expired
    Open(CloseOrOpenArgs),
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
struct CloseOrOpenArgs {
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
        Step::Close(gate) | Step::Open(gate) => (&gate.step, gate.allow_unknown_clients),
        Step::Status(status) => (&status.step, false),
        Step::Mark(mark) => (&mark.step, false),
        Step::Begin(step) | Step::Finish(step) | Step::BackOut(step) => (step, false),
    };
    let (masters, _) = step.masters.clone().complete()?;
    let ttl = masters.settings().max_ttl().min(MAX_LOCK_TTL);
    let redlock = config::redlock(&masters, Some(ttl))?;
    let work = take_step(&args, &redlock, allow_unknown_clients);
    let work = process::interruptible(work, INTERRUPTED);
    config::block_on(with_final_release(
        &redlock,
        masters.release_timeout(),
        work,
    ))
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
        Step::Status(args) => run_status(redlock, args.json).await,
        Step::Mark(mark) => run_mark(redlock, mark.watch).await,
        Step::Begin(_) => run_begin(&change()?).await,
        Step::Close(_) => run_close(&change()?).await,
        Step::Open(_) => run_open(&change()?).await,
        Step::Finish(_) => run_finish(&change()?).await,
        Step::BackOut(_) => run_back_out(&change()?).await,
    }
}

async fn run_status(redlock: &Redlock, json: bool) -> CommandResult {
    let survey = redlock.survey().await.map_err(Failure::usage)?;
    if json {
        output::print_json(&SurveyStatus::new(&survey))?;
    } else {
        print_masters(&survey)?;
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
        output::print(&format!("{}\n", next_step_text(&survey)))?;
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
        let has_answered = !matches!(
            fault,
            Fault::Down(_)
                | Fault::NoConnection(_)
                | Fault::Stalled
                | Fault::Timeout(_)
                | Fault::Disconnected(_)
        );
        let fault = fault.to_string();
        has_answered.then(|| format!("{}: {}", master.node, output::redact(&fault)))
    })
}

async fn run_mark(redlock: &Redlock, watch: bool) -> CommandResult {
    match redlock.mark_masters().await {
        Ok(survey) => {
            print_masters(&survey)?;
            if watch {
                wait_until_unguarded(redlock).await;
            } else if let Some(remaining) = longest_quarantine(redlock).await {
                output::print_notice(format!(
                    "clients count the votes of all masters when clients have been connected for another {}: to stay \
                     connected until then, run quorate masters mark --watch",
                    human(Duration::from_secs(remaining.as_secs() + 1))
                ));
            }
            print_done(
                "the masters are marked: check that each RUN ID and UPTIME above belongs to the intended server",
            )
        }
        Err(ChangeError::Missing(missing)) => {
            print_masters(&redlock.survey().await.map_err(Failure::usage)?)?;
            report_missing(&missing)
        }
        Err(_) => Err(Failure::usage(
            "generation markers are supported only if all masters are Redis or Valkey servers",
        )),
    }
}

/// Stays connected to the masters until clients count the votes of every master that can be reached. The connections of
/// `redlock` raise the age records of the masters.
async fn wait_until_unguarded(redlock: &Redlock) {
    loop {
        // The first request opens the connections.
        let _ = redlock.status("quorate-masters-mark").await;
        let Some(remaining) = longest_quarantine(redlock).await else {
            return;
        };
        output::print_notice(format!(
            "waiting {} until clients count the votes of all masters",
            human(remaining)
        ));
        tokio::time::sleep(remaining.min(Duration::from_secs(5))).await;
    }
}

/// The longest time for which the restart guard still ignores the votes of a master; `None` if all votes count.
async fn longest_quarantine(redlock: &Redlock) -> Option<Duration> {
    let masters = redlock.inspect().await;
    masters.iter().filter_map(|master| master.quarantined).max()
}

async fn run_begin(change: &MastersChange<'_>) -> CommandResult {
    let survey = survey_or_failure(change, change.begin().await).await?;
    print_masters(&survey)?;
    print_values(&survey)?;
    print_done(
        "the change has begun: set next_masters for all clients, then run quorate masters close",
    )
}

async fn run_close(change: &MastersChange<'_>) -> CommandResult {
    let survey = survey_or_failure(change, change.close().await).await?;
    print_masters(&survey)?;
    print_values(&survey)?;
    let closed_connections: usize = survey.masters.iter().map(|master| master.seen.ended).sum();
    print_done(&format!(
        "the old masters are closed: they refuse clients without next_masters from now on ({closed_connections} connections closed); next, run quorate masters open"
    ))
}

async fn run_open(change: &MastersChange<'_>) -> CommandResult {
    if change.survey().await.stage() >= ChangeStage::Open {
        // An earlier `quorate masters open` has opened a majority of the next masters. Open the rest of them.
        let survey = survey_or_failure(change, change.open_again().await).await?;
        print_masters(&survey)?;
        return print_done(
            "the next masters are already open: for all clients, set masters to the next masters, remove next_masters, and increase masters_generation by 1; then run quorate masters finish",
        );
    }
    let before = survey_or_failure(change, change.closed().await).await?;
    wait_for_expiry(change.wait()).await;
    let survey = survey_or_failure(change, change.open(&before).await).await?;
    print_masters(&survey)?;
    print_values(&survey)?;
    print_done(
        "the next masters are open: for all clients, set masters to the next masters, remove next_masters, and increase masters_generation by 1; then run quorate masters finish",
    )
}

async fn run_finish(change: &MastersChange<'_>) -> CommandResult {
    let survey = survey_or_failure(change, change.finish().await).await?;
    print_masters(&survey)?;
    let replaced_masters: Vec<String> = survey
        .masters
        .iter()
        .filter(|master| !master.is_next)
        .map(|master| master.node.to_string())
        .collect();
    if !replaced_masters.is_empty() {
        output::print(&format!(
            "stop these servers for good: {}\n",
            replaced_masters.join(", ")
        ))?;
    }
    print_done("finished: the next masters have replaced the old masters")
}

async fn run_back_out(change: &MastersChange<'_>) -> CommandResult {
    let survey = change.survey().await;
    print_masters(&survey)?;
    match survey.stage() {
        ChangeStage::Untouched | ChangeStage::Begun => print_done(
            "no master is closed: to abandon the change, remove next_masters from all clients",
        ),
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
async fn survey_or_failure(
    change: &MastersChange<'_>,
    step: Result<Survey, ChangeError>,
) -> Result<Survey, Failure> {
    match step {
        Ok(survey) => Ok(survey),
        Err(ChangeError::Missing(missing)) => {
            print_masters(&change.survey().await)?;
            report_missing(&missing)
        }
        Err(error) => Err(Failure::usage(error)),
    }
}

/// Prints the unmet conditions of a refused step, one per line, and returns the failure.
fn report_missing<T>(missing: &[String]) -> Result<T, Failure> {
    for missing in missing {
        output::print_message(missing);
    }
    Err(Failure::new(
        exit::FINDINGS,
        "the step was not done: the messages above say what is missing",
    ))
}

/// Waits for `time`, and prints the remaining time every five seconds.
async fn wait_for_expiry(time: Duration) {
    let ends_at = Instant::now() + time;
    loop {
        let remaining = ends_at.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return;
        }
        output::print_notice(format!(
            "waiting {} until all locks of clients without next_masters have expired",
            human(remaining)
        ));
        tokio::time::sleep(remaining.min(Duration::from_secs(5))).await;
    }
}

fn print_done(text: &str) -> CommandResult {
    output::print(&format!("{GREEN}{text}{GREEN:#}\n"))?;
    Ok(exit::OK)
}

fn next_step_text(survey: &Survey) -> &'static str {
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

fn print_masters(survey: &Survey) -> Result<(), Failure> {
    let row = |master| row(master, survey.is_change());
    let rows: Vec<Vec<Cell>> = survey.masters.iter().map(row).collect();
    output::print(&output::table(
        &["MASTER", "SET", "MARK", "UPTIME", "RUN ID", "CLIENTS"],
        &rows,
    ))
}

/// Prints one line for each stored value (quota or once-per-period record) that was copied to the next masters. Then
/// prints the advice of the library to the operator.
fn print_values(survey: &Survey) -> Result<(), Failure> {
    for value in &survey.carried {
        output::print(&format!("{value}\n"))?;
    }
    for advice in survey.advice() {
        output::print_message(advice);
    }
    Ok(())
}

fn row(master: &MasterSeen, is_change: bool) -> Vec<Cell> {
    let state = &master.seen;
    let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
    let set = survey::set_name(master, is_change).unwrap_or("-");
    let clients = match &state.fault {
        Some(fault) => Cell::styled(output::redact(&fault.to_string()).into_owned(), RED),
        None => clients_cell(master),
    };
    vec![
        master.node.to_string().into(),
        set.into(),
        or_dash(state.mark.clone()),
        or_dash(state.uptime.map(human)),
        or_dash(state.run_id.as_ref().map(|id| id.chars().take(8).collect())),
        clients,
    ]
}

/// The cell with the numbers of clients connected to this master, for example `3 at step 4, 1 unknown`:
///
/// - for each step number: the quorate clients that use the masters of this step
/// - `without marker`: the quorate clients that do not check the key `quorate:masters`
/// - `unknown`: the clients that are not quorate clients
fn clients_cell(master: &MasterSeen) -> Cell {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for client in &master.seen.clients {
        let kind = match client.kind {
            ClientKind::AtStep(step, _) => format!("step {step}"),
            ClientKind::Untold => "without marker".to_owned(),
            ClientKind::Unknown => "unknown".to_owned(),
        };
        *counts.entry(kind).or_default() += 1;
    }
    let are_all_known = counts.keys().all(|kind| kind.starts_with("step"));
    let text: Vec<String> = counts
        .iter()
        .map(|(kind, n)| format!("{n} at {kind}"))
        .collect();
    let text = text
        .join(", ")
        .replace("at without marker", "without marker")
        .replace("at unknown", "unknown");
    match (text.is_empty(), are_all_known) {
        (true, _) => "-".to_owned().into(),
        (_, true) => text.into(),
        _ => Cell::styled(text, YELLOW),
    }
}
