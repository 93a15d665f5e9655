//! `quorate`: runs commands under a Redlock quorum lock, and operates the masters.

#![allow(
    clippy::format_push_string,
    reason = "messages are built once per command, so an extra allocation does not matter"
)]

mod ancestry;
mod args;
mod bench;
mod break_;
mod calendar;
mod change;
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
mod kind;
mod last_run;
mod layout;
mod lead;
mod list;
mod lock;
mod log;
mod manual;
mod masters;
mod metrics;
mod once;
mod output;
mod patience;
mod period;
mod prepare;
mod process;
mod progress;
mod quota;
mod records;
mod relying;
mod run;
mod separator;
mod settings;
mod spawned;
mod status;
mod survey;
mod variables;
mod waiting;
mod watch;
mod wrong_usage;

use std::process::ExitCode;

use args::Command;
use exit::{Failure, Outcome};

fn main() -> ExitCode {
    if let Err(error) = process::repair_inherited() {
        return finish(Err(Failure::internal(error)));
    }
    // If another `quorate` has started this process as a helper, do only the helper's work.
    if let Some(code) = process::helper::main() {
        return code;
    }
    let (command, talk) = match args::parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => return finish(wrong_usage::explain(&error, &args::description())),
    };
    log::start(talk, command.usual());
    if !matches!(
        command,
        Command::Completions(_) | Command::Man(_) | Command::Help(_)
    ) {
        variables::warn_of_unknown(&args::description());
    }
    finish(match command {
        Command::Run(args) => run::run(args),
        Command::Hold(args) => hold::run(args),
        Command::Status(args) if args.is_list() => list::run(args),
        Command::Status(args) => status::run(args),
        Command::Break(args) => break_::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::PrepareServer(args) => prepare::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Quota(args) => quota::run(args),
        Command::Once(args) => once::run(args),
        Command::Completions(args) => completion::run(&args, args::description()),
        Command::Lead(args) => lead::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Masters(args) => change::run(args),
        Command::Help(args) => explain(args),
        Command::Man(args) => manual::man(&args, args::description()),
    })
}

/// Prints the page of a topic, or the help of a command.
fn explain(args: help::HelpArgs) -> Outcome {
    if let Some(topic) = args.topic() {
        return topic.print();
    }
    match args::parse(args.command_line()) {
        Ok(_) => Ok(exit::OK),
        Err(error) => wrong_usage::explain(&error, &args::description()),
    }
}

/// Prints the failure, if there is one, and returns the exit code.
fn finish(outcome: Outcome) -> ExitCode {
    ExitCode::from(match outcome {
        Ok(code) => code,
        Err(failure) => {
            if !(failure.is_usual && output::is_quiet()) {
                output::complain(&failure.line);
            }
            failure.signal.map_or(failure.code, process::die_of)
        }
    })
}
