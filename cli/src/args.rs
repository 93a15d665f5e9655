//! The command line of quorate: all commands and their help texts.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use tracing_subscriber::filter::LevelFilter;

use crate::file::{self, FileOptions, FileSource};
use crate::help::{self, Detail};
use crate::log::Verbosity;
#[cfg(feature = "page")]
use crate::page;
use crate::{
    backends, bench, break_, change, check, completion, demo, doctor, exit, hold, layout, lead,
    manual, once, prepare, quota, run, separator, status, watch,
};

/// The purpose of `quorate`, in one sentence.
fn about() -> String {
    let servers = backends::servers();
    format!("Run commands under a lock that a majority of independent masters ({servers}) grants.")
}

/// The promises of `quorate`.
const PROMISES: &str = "\
        quorate renews the lock while the command runs, and stops the command when it is notified of a loss. What it \
        promises:\n\n\
        One holder. At most one client holds a lock at a time, as long as no clock jumps, clocks drift apart by at \
        most 1 % of the TTL plus 2 ms while one TTL passes, no master loses locks except by a restart, and nobody \
        force-releases the lock; a process that was paused for longer than its TTL still believes for a moment that it \
        holds the lock.\n\n\
        Rising tokens. Every later holder of a lock gets a larger fencing token, even if clocks are wrong, as long as \
        the masters keep their fencing counters; if a restart erases the counters, tokens still rise as long as the \
        restart guard is on and the masters' clocks differ by less than max_ttl.\n\n\
        A minority may fail. Locks are granted and renewed while a minority of the masters is dead, hung or \
        unreachable; if no majority answers, nobody gets a lock, and the error is \"no quorum\" instead of \"held by \
        another\".\n\n\
        Notice of a loss. If the masters stop answering, the holder is notified before its lock expires; if an \
        operator force-releases the lock, the holder is notified at its next renewal, a third of the TTL later at \
        most; a paused process is notified only when it continues.\n\n\
        The resource that the command writes to should reject every token that is smaller than the largest token it \
        has seen: only the resource can stop a process that was paused.";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "quorate",
    version,
    about = about(),
    long_about = format!("{}\n\n{PROMISES}", about()),
    after_help = "Try it without any setup:  quorate demo\n\nMost common use:           quorate run nightly-report -- ./report.sh",
    after_long_help = manual::after_help(),
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    verbosity: Verbosity,
}

/// The subcommand of quorate.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take a lock, run a command, release the lock
    #[command(
        override_usage = "quorate run [OPTIONS] <RESOURCE> [--] <COMMAND>...\n       quorate run [OPTIONS] <RESOURCE> --shell <LINE>",
        after_help = exit::help_with_codes(run::AFTER_HELP, &run::CODES)
    )]
    Run(run::RunArgs),
    /// Run a command at most (or at least) once per period across all machines
    #[command(
        override_usage = "quorate once --per <TIME> <RESOURCE> -- <COMMAND>...\n       quorate once --create|--status|--drop <RESOURCE>",
        after_help = exit::help_with_codes(once::AFTER_HELP, &once::CODES),
        mut_arg("command", |command| command.required(false).required_unless_present_any(["create", "drop", "status", "shell"]))
    )]
    Once(once::OnceArgs),
    /// Take a lock and hold it until Ctrl-C, a signal, or the end of standard input
    #[command(after_help = exit::help_with_codes(hold::AFTER_HELP, &hold::CODES))]
    Hold(hold::HoldArgs),
    /// Run a command while this machine is the leader, and campaign again after losing leadership
    #[command(
        override_usage = "quorate lead [OPTIONS] <NAME> [--] <COMMAND>...\n       quorate lead [OPTIONS] <NAME> --shell <LINE>",
        after_help = exit::help_with_codes(lead::AFTER_HELP, &lead::CODES)
    )]
    Lead(lead::LeadArgs),
    /// Print the leader of an election, and every change of the leader
    #[command(after_help = exit::help_with_codes(watch::AFTER_HELP, &watch::CODES))]
    Watch(watch::WatchArgs),
    /// Manage a quota, which hands out at most N units across all machines: create, take, left, drop
    #[command(after_help = exit::help_with_codes(quota::AFTER_HELP, &quota::CODES))]
    Quota(quota::QuotaArgs),
    /// List the locks that are held; with a name, show the state of that lock on each master
    #[command(after_help = exit::help_with_codes(status::AFTER_HELP, &status::CODES))]
    Status(status::StatusArgs),
    /// Tell whether a fencing token is still that of the holder: current, superseded, ended or unknown
    #[command(after_help = exit::help_with_codes(check::AFTER_HELP, &check::CODES))]
    Check(check::CheckArgs),
    /// Delete a lock on all masters, whoever holds it (last resort)
    #[command(after_help = exit::help_with_codes(break_::AFTER_HELP, &break_::CODES))]
    Break(break_::BreakArgs),
    /// Check whether the masters are fit to hold locks, and say what to change
    #[command(after_help = exit::help_with_codes(doctor::AFTER_HELP, &doctor::CODES))]
    Doctor(doctor::DoctorArgs),
    /// Serve a live page of all locks for a browser
    #[cfg(feature = "page")]
    #[command(after_help = exit::help_with_codes(page::AFTER_HELP, &page::CODES))]
    Page(page::PageArgs),
    /// Create what locks need on a server of any kind but Redis and Valkey, for example tables
    #[command(after_help = exit::help_with_codes(&prepare::after_help(), &prepare::CODES))]
    PrepareServer(prepare::PrepareArgs),
    /// Replace the masters while they are in use: status, mark, begin, close, open, finish, back-out
    #[command(after_help = exit::help_with_codes(change::AFTER_HELP, &change::CODES))]
    Masters(change::ChangeArgs),
    /// Measure the cost of a quorum by number or kind of masters, on your masters or on newly started servers
    #[command(after_help = exit::help_with_codes(bench::AFTER_HELP, &bench::CODES))]
    Bench(bench::BenchArgs),
    /// Show quorate at work: workers share one lock while masters are killed
    #[command(after_help = exit::help_with_codes(demo::AFTER_HELP, &demo::CODES))]
    Demo(demo::DemoArgs),
    /// Explain a topic (masters, command, kinds) or a command of quorate
    Help(help::HelpArgs),
    /// Print a completion script for a shell
    #[command(hide = true, after_help = completion::AFTER_HELP)]
    Completions(completion::CompletionArgs),
    /// Print or write the manual pages
    #[command(hide = true)]
    Man(manual::ManArgs),
}

impl Command {
    /// The words of the command that quorate runs under the lock, as the user typed them. Empty for subcommands that
    /// run no command.
    fn typed_command(&self) -> &[OsString] {
        match self {
            Self::Run(args) => args.job.command(),
            Self::Once(args) => args.command(),
            Self::Lead(args) => args.command(),
            _ => &[],
        }
    }

    /// The default log level for events of the library. `run`, `hold`, `once` and `lead` log warnings; the other
    /// commands log nothing.
    pub(crate) fn default_log_level(&self) -> LevelFilter {
        match self {
            Self::Run(_) | Self::Hold(_) | Self::Once(_) | Self::Lead(_) => LevelFilter::WARN,
            _ => LevelFilter::OFF,
        }
    }
}

/// Parses the command line `arguments`, which begins with the name of the program, and the `QUORATE_*` variables.
///
/// # Errors
///
/// The errors of the argument parser. A request for help or for the version is also returned as an error, which the
/// caller prints.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<(Command, Verbosity), clap::Error> {
    let command = help::help_for_screen(
        without_secret_variables(without_empty_variables(Cli::command())),
        layout::page_width(),
        Detail::from_arguments(&arguments),
    );
    let overridden_options = options_in_named_file(&command, &arguments);
    let matches =
        without_variables(command, &overridden_options).try_get_matches_from(&arguments)?;
    let Cli {
        mut command,
        mut verbosity,
    } = Cli::from_arg_matches(&matches)?;
    let conflict_text = "--quiet and --verbose exclude each other: give only one of them";
    if second_overrides_first(&matches, ["quiet", "verbose"], conflict_text)? {
        verbosity.quiet = false;
    }
    if let Some((name, _)) = matches.subcommand() {
        check_separator(name, &arguments, command.typed_command())?;
    }
    let lock_to_wait_for = match &mut command {
        Command::Run(run) => Some(&mut run.job.lock),
        Command::Hold(hold) => Some(hold.lock()),
        Command::Once(once) => Some(&mut once.job.lock),
        _ => None,
    };
    if let (Some(lock), Some((_, matches))) = (lock_to_wait_for, matches.subcommand()) {
        let conflict_text = "--try and --wait exclude each other: --try means --wait none";
        if second_overrides_first(matches, ["try_once", "wait"], conflict_text)? {
            lock.do_wait();
        }
    }
    Ok((command, verbosity))
}

/// Returns the options that the file named by `--config` sets. The file has priority over environment variables, so the
/// caller must ignore the variables of these options.
///
/// The result is empty if `--config` is missing, or if the file or the command line is invalid.
fn options_in_named_file(command: &clap::Command, arguments: &[OsString]) -> Vec<String> {
    let is_named = |argument: &OsString| argument.to_string_lossy().starts_with("--config");
    if !arguments.iter().any(is_named) {
        return Vec::new();
    }
    // A bad value in an environment variable is no error if the file sets the same option.
    let file_options: Vec<String> = file::KEYS
        .iter()
        .copied()
        .flat_map(option_ids_of_key)
        .collect();
    let command = without_variables(command.clone(), &file_options);
    let Ok(matches) = command.try_get_matches_from(arguments) else {
        return Vec::new();
    };
    let mut matches = &matches;
    while let Some((_, subcommand_matches)) = matches.subcommand() {
        matches = subcommand_matches;
    }
    let is_given = matches.try_contains_id("config").is_ok()
        && matches.value_source("config") == Some(ValueSource::CommandLine);
    let path = matches.try_get_one::<PathBuf>("config").ok().flatten();
    let path = path.filter(|_| is_given);
    let file = path.and_then(|path| FileOptions::load(path, FileSource::Named).ok());
    let keys = file.map(|file| file.keys).unwrap_or_default();
    keys.iter().flat_map(|key| option_ids_of_key(key)).collect()
}

/// The options that the key `key` of the configuration file sets. The key `wait` sets `--wait`. It also replaces
/// `--try`, because `--try` is short for `--wait none`.
fn option_ids_of_key(key: &str) -> Vec<String> {
    let mut option_ids = vec![key.to_owned()];
    if key == "wait" {
        option_ids.push("try_once".to_owned());
    }
    option_ids
}

/// Makes the parser ignore the environment variables of the options `ids`.
fn without_variables(command: clap::Command, ids: &[String]) -> clap::Command {
    command
        .mut_args(|arg| {
            if ids.iter().any(|id| arg.get_id() == id.as_str()) {
                arg.env(None::<&'static str>)
            } else {
                arg
            }
        })
        .mut_subcommands(|command| without_variables(command, ids))
}

/// Returns an error if a word may be an option of quorate or an argument of the command to run. `arguments` is the
/// whole command line. `command` contains the words that the parser regards as the command to run.
fn check_separator(
    name: &str,
    arguments: &[OsString],
    command: &[OsString],
) -> Result<(), clap::Error> {
    let mut root_command = Cli::command();
    root_command.build();
    let Some(subcommand) = root_command.find_subcommand(name) else {
        return Ok(());
    };
    let is_own_option = |argument: &OsStr| {
        let text = argument.to_string_lossy();
        let long = text
            .strip_prefix("--")
            .and_then(|long| long.split('=').next());
        let short = text.strip_prefix('-').and_then(|rest| rest.chars().next());
        subcommand.get_arguments().any(|arg| {
            arg.get_long().is_some_and(|name| long == Some(name))
                || arg.get_short().is_some_and(|name| short == Some(name))
        })
    };
    separator::check(&arguments[1..], command, is_own_option)
        .map_err(|arguments| Cli::command().error(ErrorKind::TooManyValues, arguments))
}

/// Returns true if the command line has the option `two[1]`. The caller must then ignore an environment variable that
/// sets `two[0]`, because the command line has priority.
///
/// # Errors
///
/// If the command line has both options. `error_text` is the error message.
fn second_overrides_first(
    matches: &ArgMatches,
    ids: [&str; 2],
    error_text: &str,
) -> Result<bool, clap::Error> {
    match ids.map(|id| matches.value_source(id) == Some(ValueSource::CommandLine)) {
        [true, true] => Err(Cli::command().error(ErrorKind::ArgumentConflict, error_text)),
        [first, second] => Ok(second && !first),
    }
}

/// Makes the parser treat an empty environment variable as unset, for every option. By default, the parser uses the
/// empty text as the value.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| {
            let is_empty = |name| std::env::var_os(name).is_some_and(|value| value.is_empty());
            if arg.get_env().is_some_and(is_empty) {
                arg.env(None::<&'static str>)
            } else {
                arg
            }
        })
        .mut_subcommands(without_empty_variables)
}

/// Makes the help leave out the values of variables that may contain a password, for example of a variable that was set
/// to the URL of a master by mistake.
fn without_secret_variables(command: clap::Command) -> clap::Command {
    let may_be_secret = |name: &OsStr| {
        std::env::var_os(name).is_some_and(|value| {
            let value = value.to_string_lossy();
            quorate::redact::value(&value) != value
        })
    };
    command
        .mut_args(|arg| match arg.get_env() {
            Some(name) if may_be_secret(name) => arg.hide_env_values(true),
            _ => arg,
        })
        .mut_subcommands(without_secret_variables)
}

/// The definition of the command line, from which completions and manual pages are generated.
pub(crate) fn description() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_of_the_command_line_passes_the_checks_of_clap() {
        description().debug_assert();
    }

    #[test]
    fn help_lists_every_positional_argument_under_the_heading_arguments() {
        fn check_positionals(command: &clap::Command) {
            for arg in command.get_positionals() {
                let heading = arg.get_help_heading();
                assert_eq!(heading, None, "{} {arg}", command.get_name());
            }
            command.get_subcommands().for_each(check_positionals);
        }
        check_positionals(&description());
    }

    #[test]
    fn every_option_with_a_value_has_an_environment_variable() {
        for command in description().get_subcommands() {
            if matches!(command.get_name(), "completions" | "man" | "help") {
                continue;
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
                let long = arg.get_long().unwrap_or_default();
                if matches!(
                    long,
                    "help"
                        | "version"
                        | "yes"
                        | "foreign"
                        | "create"
                        | "drop"
                        | "status"
                        | "print"
                        | "page"
                ) {
                    continue; // no variable: the user must type these on each call
                }
                if long == "shell" {
                    continue; // no variable: the value is the command to run, which each call must give
                }
                if matches!(
                    long,
                    "also"
                        | "starting-with"
                        | "terminate"
                        | "shared"
                        | "permits"
                        | "slot"
                        | "owner"
                        | "reenter"
                ) {
                    continue; // no variable: these describe one lock, and QUORATE_OWNER is set for nested processes
                }
                let variable = format!("QUORATE_{}", long.replace('-', "_").to_uppercase());
                assert_eq!(
                    arg.get_env().and_then(|env| env.to_str()),
                    Some(variable.as_str()),
                    "{} --{long}",
                    command.get_name()
                );
            }
        }
    }
}
