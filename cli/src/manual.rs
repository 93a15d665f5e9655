//! Completions and manual pages, both made from the description of the command line.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::exit::{self, Failure, Outcome};
use crate::output;

/// The first part of it.
const AFTER_HELP: &str = "\
Examples:
    quorate demo
        See it work, with nothing prepared.
    export QUORATE_MASTERS=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
    quorate doctor
        Are these masters fit to hold locks?
    quorate run nightly-report -- ./report.sh --full
        Run the report, on one machine at a time.
    quorate run --try --keep-for 30s cron:rotate -- rotate-logs
        From cron on many machines: one of them rotates, the others exit with 75.
    quorate once --per 24h nightly-report -- ./report.sh
        From cron on many machines: one of them runs it, once a day.
    quorate status nightly-report
        Who holds it, and for how long?

Configuration: flags win over QUORATE_* variables, which win over the file that --config or
QUORATE_CONFIG names, or quorate.toml in the working directory. Durations are written with a unit:
500ms, 10s, 5m, 1h 30m. Data goes to stdout, talk to stderr. NO_COLOR turns colours off.";

/// What stands below `quorate --help`.
pub(crate) fn after_help() -> String {
    format!("{AFTER_HELP}\n\n{}", exit::table())
}

/// What stands below `quorate completions --help`.
pub(crate) const COMPLETIONS_HELP: &str = "\
Examples:
    quorate completions bash > ~/.local/share/bash-completion/completions/quorate
    quorate completions zsh > ~/.zfunc/_quorate
    quorate completions fish > ~/.config/fish/completions/quorate.fish";

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write one page per command into this directory instead of printing the main page
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints a completion script.
pub(crate) fn completions(args: &CompletionArgs, mut commands: clap::Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "quorate", &mut script);
    output::print_raw(&script)?;
    Ok(exit::OK)
}

/// Prints the main manual page, or writes all of them.
pub(crate) fn man(args: &ManArgs, commands: clap::Command) -> Outcome {
    if let Some(dir) = &args.out {
        let failed = |error| {
            Failure::usage(format!(
                "cannot write manual pages to {}: {error}",
                dir.display()
            ))
        };
        std::fs::create_dir_all(dir).map_err(failed)?;
        clap_mangen::generate_to(commands, dir).map_err(failed)?;
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(commands)
            .render(&mut page)
            .map_err(Failure::internal)?;
        output::print_raw(&page)?;
    }
    Ok(exit::OK)
}
