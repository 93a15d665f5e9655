//! `quorate`: runs commands under a Redlock quorum lock, and operates the masters.

#![allow(
    clippy::format_push_string,
    reason = "messages are built once per command, so an extra allocation does not matter"
)]

mod ancestry;
mod args;
mod backends;
mod bench;
mod break_;
mod calendar;
mod change;
mod check;
mod completion;
mod config;
mod deadline;
mod demo;
mod doctor;
mod errors;
mod exit;
mod exporter;
mod file;
mod finding;
mod findings;
mod help;
mod hold;
mod input;
mod job_period;
mod job_record;
mod kind;
mod last_run;
mod layout;
mod lead;
mod list;
mod lock;
mod log;
mod manual;
mod metrics;
mod once;
mod output;
#[cfg(feature = "page")]
mod page;
mod patience;
mod prepare;
mod process;
mod progress;
mod quota;
mod relying;
mod run;
mod separator;
mod settings;
mod status;
mod survey;
mod variables;
mod waiting;
mod watch;
mod wrong_usage;

use std::process::ExitCode;

use args::Command;
use exit::CommandResult;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_panic));
    let code = std::panic::catch_unwind(run_command);
    code.unwrap_or_else(|_| ExitCode::from(exit::SOFTWARE))
}

/// Prints one line about a panic. Prints nothing if the library reports the panic as an error of a master.
fn report_panic(info: &std::panic::PanicHookInfo<'_>) {
    if quorate::catches_panics() {
        return;
    }
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("a panic without a text");
    // The rest of the text may show values, for example a password.
    let text = text.split([':', '\n']).next().unwrap_or_default();
    let location = info.location().map_or_else(String::new, |location| {
        format!(" ({}:{})", location.file(), location.line())
    });
    output::print_error(&format!(
        "internal failure, please report it: {text}{location}"
    ));
}

fn run_command() -> ExitCode {
    if let Err(error) = process::repair_inherited() {
        return exit_code(Err(config::start_failure(error)));
    }
    // If another `quorate` has started this process as a helper, do only the helper's work.
    if let Some(code) = process::helper::main() {
        return code;
    }
    let (command, verbosity) = match args::parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => return exit_code(wrong_usage::explain(&error, &args::description())),
    };
    log::start(verbosity, command.default_log_level());
    if !matches!(
        command,
        Command::Completions(_) | Command::Man(_) | Command::Help(_)
    ) {
        variables::warn_of_unknown(&args::description());
    }
    exit_code(match command {
        Command::Run(args) => run::run(args),
        Command::Hold(args) => hold::run(args),
        Command::Status(args) if args.is_list() => list::run(args),
        Command::Status(args) => status::run(args),
        Command::Check(args) => check::run(args),
        Command::Break(args) => break_::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::PrepareServer(args) => prepare::run(args),
        #[cfg(feature = "page")]
        Command::Page(args) => page::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Quota(args) => quota::run(args),
        Command::Once(args) => once::run(args),
        Command::Completions(args) => completion::run(&args, args::description()),
        Command::Lead(args) => lead::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Masters(args) => change::run(args),
        Command::Help(args) => show_help(args),
        Command::Man(args) => manual::run(&args, args::description()),
    })
}

/// Prints the page of a topic, or the help of a command.
fn show_help(args: help::HelpArgs) -> CommandResult {
    if let Some(topic) = args.topic() {
        return topic.print();
    }
    match args::parse(args.command_line()) {
        Ok(_) => Ok(exit::OK),
        Err(error) => wrong_usage::explain(&error, &args::description()),
    }
}

/// Prints the failure, if there is one, and returns the exit code.
fn exit_code(result: CommandResult) -> ExitCode {
    ExitCode::from(match result {
        Ok(code) => code,
        Err(failure) => {
            if !(failure.is_expected && output::is_quiet()) {
                output::print_error(&failure.message);
            }
            failure.signal.map_or(failure.code, process::die_of)
        }
    })
}
