//! `quorate lead`: campaigns, runs the command while this machine is the leader, and campaigns again after it has lost
//! leadership.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::{Args, ValueHint};
use nix::sys::signal::Signal;
use quorate::{Election, Leadership, LockGuard, Redlock, Wait};

use crate::config::{self, MasterOptions};
use crate::deadline::Deadline;
use crate::errors::acquire_failure;
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::kind::{Kind, LockSpace};
use crate::lock::renewal_errors;
use crate::output::{self, human};
use crate::process::{self, CommandOutcome, Fate, Job, Signals};
use crate::run::{self, DEFAULT_GRACE, command_line, with_final_release};
use crate::settings;
use crate::waiting::WaitDisplay;

/// The text below the options of `quorate lead --help`.
pub(crate) const AFTER_HELP: &str = "\
Start quorate lead with the same name on several machines. One of them is the leader and runs the command. The others
wait, first come, first served.

The environment of the command has QUORATE_RESOURCE and QUORATE_FENCING_TOKEN. The token is the term of the leader. It
is larger than the token of every earlier leader. Pass it to the resource that the command writes to. The resource
should reject smaller tokens.

If leadership is lost, quorate stops the command (quorate help command), and tries to become the leader again. If the
command fails, quorate resigns, so that another machine can lead. After one second, quorate tries again.

If the command exits with 0, or cannot be started, quorate ends. quorate forwards SIGTERM, SIGINT and SIGQUIT to the
command. After such a signal, quorate ends as soon as the command ends.

If the command starts an inner quorate for the same lock, the inner quorate exits with 75 immediately. Otherwise it
would wait forever. For the same reason, quorate lead exits with 75 if the command of an outer quorate starts it and the
outer quorate holds the lock.

The leader holds the exclusive lock of the election's name: `quorate status` shows the lock, and `quorate watch` prints
each change of leader.

Examples:
    quorate lead scheduler --note \"$(hostname):9000\" -- ./scheduler
    quorate lead feed --shell './read-feed | ./store'
    quorate watch scheduler --json | jq .note.text";

/// The exit codes of `quorate lead`, with their meanings.
pub(crate) const CODES: [Meaning; 9] = [
    (
        "0",
        "the command exited with 0 while this machine was the leader",
    ),
    ("64", "wrong usage; nothing was locked"),
    ("69", ""),
    ("70", ""),
    (
        "74",
        "leadership was lost, and the command could not be stopped",
    ),
    (
        "75",
        "an outer quorate process holds the lock, and waits for this command to end",
    ),
    ("126", ""),
    ("127", ""),
    (
        "128+n",
        "signal number n ended the command, or ended the wait for the lock",
    ),
];

/// How long this machine waits before it campaigns again after its command has failed: 1 s. In that time another
/// machine can become the leader.
const RESIGN_PAUSE: Duration = Duration::from_secs(1);

/// Arguments of `lead`.
#[derive(Debug, Args)]
pub(crate) struct LeadArgs {
    /// The name of the election: any text that all candidates agree on
    name: OsString,

    /// The command to run while this machine leads, with its arguments
    ///
    /// If an argument of COMMAND looks like an option of quorate, put `--` before COMMAND.
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "shell",
        conflicts_with = "shell",
        value_name = "COMMAND",
        value_hint = ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,

    /// Run this line with `sh -c` instead of COMMAND, for example 'a | b'
    #[arg(long, value_name = "LINE", help_heading = run::HEADING)]
    shell: Option<OsString>,

    /// Text about this machine that others can read while it leads, for example its address; at most 1 KiB
    #[arg(long, value_name = "TEXT", env = "QUORATE_NOTE")]
    note: Option<String>,

    /// Time until another machine can lead after the leader has crashed [default: 10s]
    #[arg(long, value_name = "TIME", env = "QUORATE_TTL", value_parser = config::duration)]
    ttl: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when leadership ends [default: 5s; at most half of the ttl]
    #[arg(long, value_name = "TIME", env = "QUORATE_GRACE", help_heading = run::HEADING, hide_short_help = true, value_parser = config::duration)]
    grace: Option<Duration>,

    /// Remove the masters, whose URLs may contain passwords, from the environment of the command
    #[arg(long, env = "QUORATE_HIDE_MASTERS", help_heading = run::HEADING, hide_short_help = true, value_parser = clap::builder::BoolishValueParser::new())]
    hide_masters: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

impl LeadArgs {
    /// The words of the command to run, as the user typed them.
    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }
}

/// Campaigns, and runs the command each time this machine becomes the leader, until `lead` ends.
pub(crate) fn run(mut args: LeadArgs) -> CommandResult {
    let (mut masters, mut file) = std::mem::take(&mut args.masters).complete()?;
    config::fill!(args from file: grace);
    args.command = command_line(args.shell.take(), std::mem::take(&mut args.command));
    process::check_ready().map_err(Failure::internal)?;
    masters.settings_mut().ttl = args.ttl.or(file.settings.ttl);
    let ttl = masters.settings().ttl();
    let redlock = config::redlock(&masters, Some(ttl))?;
    let lock_space = LockSpace::new(&redlock, &masters);
    Kind::Exclusive.check_ancestors(&lock_space, &args.name, Wait::Forever)?;
    let deadline = Deadline::new(ttl, args.grace.unwrap_or(DEFAULT_GRACE));
    let work = lead(&redlock, &args, &lock_space, deadline);
    let end = config::block_on(with_final_release(
        &redlock,
        masters.release_timeout(),
        work,
    ))?;
    Ok(match end {
        ExitWith::Code(code) => code,
        ExitWith::Signal(sig) => process::die_of(sig),
    })
}

/// How `quorate lead` ends if it reports no failure.
enum ExitWith {
    /// `quorate lead` exits with this code, which is the exit code of the command.
    Code(u8),
    /// `quorate lead` ends itself with this signal: a signal that it received, or the signal that ended the command.
    Signal(Signal),
}

/// The next action of `lead` after a term. A term begins when this machine becomes the leader, and ends when it loses
/// or resigns leadership.
enum TermEnd {
    /// `lead` ends now.
    Final(ExitWith),
    /// Leadership was lost: campaign again without a pause.
    Lost,
    /// The command failed: campaign again after [`RESIGN_PAUSE`].
    Failed,
}

async fn lead(
    redlock: &Redlock,
    args: &LeadArgs,
    lock_space: &LockSpace,
    deadline: Deadline,
) -> Result<ExitWith, Failure> {
    let mut signals = Signals::receive_and_reap().map_err(Failure::internal)?;
    loop {
        let interrupted_text = "stopped while waiting to become the leader; no lock is held";
        let leadership = tokio::select! {
            leadership = campaign(redlock, args) => leadership?,
            sig = signals.next_ending_signal() => return Err(Failure::interrupted(sig, interrupted_text)),
        };
        let mut variables = environment(&leadership, args);
        variables.extend(Kind::Exclusive.environment(lock_space, &args.name, None));
        let term = run_command(
            &leadership,
            &args.command,
            &variables,
            deadline,
            &mut signals,
        )
        .await;
        leadership.resign().await;
        match term? {
            TermEnd::Final(end) => return Ok(end),
            TermEnd::Lost => {}
            TermEnd::Failed => tokio::select! {
                () = tokio::time::sleep(RESIGN_PAUSE) => {}
                sig = signals.next_ending_signal() => return Err(Failure::interrupted(sig, interrupted_text)),
            },
        }
    }
}

async fn campaign(redlock: &Redlock, args: &LeadArgs) -> Result<Leadership, Failure> {
    let name = args.name.as_bytes();
    let display = WaitDisplay::new(name);
    let election: Election = redlock.election(name);
    let election = election.waiting(move |waiting| display.update(waiting));
    let note = args.note.as_deref().unwrap_or_default();
    let leadership = election.campaign(note).await.map_err(acquire_failure)?;
    // Dropping `election` removes its progress line from the terminal.
    drop(election);
    output::print_notice(format!(
        "leading '{}', term {}",
        output::printable(name),
        leadership.term()
    ));
    Ok(leadership)
}

/// The environment variables to set (`Some`) or to remove (`None`) for the command.
fn environment(leadership: &Leadership, args: &LeadArgs) -> Vec<(&'static str, Option<OsString>)> {
    let token = leadership.guard().token().to_string();
    let term = leadership.term().to_string();
    let mut env = vec![
        ("QUORATE_RESOURCE", Some(args.name.clone())),
        ("QUORATE_TOKEN", Some(token.into())),
        ("QUORATE_FENCING_TOKEN", Some(term.into())),
    ];
    if args.hide_masters {
        env.extend(settings::secret_variables().map(|name| (name, None)));
    }
    env
}

/// Runs the command during one term of leadership, and returns what `lead` does afterwards.
async fn run_command(
    leadership: &Leadership,
    argv: &[OsString],
    env: &[(&'static str, Option<OsString>)],
    deadline: Deadline,
    signals: &mut Signals,
) -> Result<TermEnd, Failure> {
    let guard = leadership.guard();
    let output = None;
    let job = Job { argv, env, output };
    let command_end = process::supervise(job, guard, deadline, signals).await;
    match command_end {
        Ok(CommandOutcome::ByItself {
            code,
            signal,
            survivors,
        }) => {
            if let Some(survivors) = survivors {
                output::print_message(format!(
                    "the command has ended, but {survivors} of its process group {} still running, without leadership",
                    survivors.verb("is", "are")
                ));
            }
            Ok(match signal {
                Some(sig) => TermEnd::Final(ExitWith::Signal(sig)),
                None => term_end(code, signals.end_signal().is_some()),
            })
        }
        Ok(CommandOutcome::Lost { cause, fate }) => {
            after_loss(guard, &cause, &fate, signals.end_signal())
        }
        Err(error) if error.kind() == std::io::ErrorKind::ArgumentListTooLong => {
            Err(Failure::new(exit::NOT_EXECUTABLE, error))
        }
        Err(error) => Err(Failure::internal(format!(
            "cannot run the command: {error}"
        ))),
    }
}

/// The next action of `lead` after the command ended by itself with this exit code. `asked_to_end` is true if `lead`
/// has received a signal that asks it to end.
fn term_end(code: u8, asked_to_end: bool) -> TermEnd {
    // If the command could not be started (126 or 127), end: another start would fail as well.
    if asked_to_end || matches!(code, exit::OK | exit::NOT_EXECUTABLE | exit::NOT_FOUND) {
        return TermEnd::Final(ExitWith::Code(code));
    }
    output::print_message(format!(
        "the command failed with exit code {code}; resigned, campaigning again in {}",
        human(RESIGN_PAUSE)
    ));
    TermEnd::Failed
}

/// The next action of `lead` after leadership was lost.
fn after_loss(
    guard: &LockGuard,
    cause: &str,
    fate: &Fate,
    asked_to_end: Option<Signal>,
) -> Result<TermEnd, Failure> {
    let errors = renewal_errors(guard);
    if let Fate::StillRunning(_) = fate {
        return Err(Failure::new(
            exit::LOST,
            format!("leadership was lost: {cause}; {fate} without leadership{errors}"),
        ));
    }
    let next_action = match asked_to_end {
        None => ", campaigning again".to_owned(),
        Some(sig) => format!("; quorate ends, because it has received {sig}"),
    };
    output::print_message(format!(
        "leadership was lost: {cause}; {fate}{next_action}{errors}"
    ));
    Ok(asked_to_end.map_or(TermEnd::Lost, |sig| TermEnd::Final(ExitWith::Signal(sig))))
}
