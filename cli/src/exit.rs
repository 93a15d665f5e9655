//! Exit codes, after `sysexits.h`, and the one line on stderr that goes with a failure.

use std::fmt;
use std::process::ExitCode;

/// Everything is well.
pub(crate) const OK: u8 = 0;
/// `doctor` found something to put right.
pub(crate) const FINDINGS: u8 = 1;
/// The command line, a variable, the configuration file or the resource name is wrong.
pub(crate) const USAGE: u8 = 64;
/// No quorum of masters answered.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Something failed that should not: a process could not be started, a result could not be written.
pub(crate) const SOFTWARE: u8 = 70;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 74;
/// Somebody else held the lock until the wait was over.
pub(crate) const HELD: u8 = 75;
/// The command was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit-code table, as the help texts show it.
pub(crate) const TABLE: &str = "\
Exit codes:
    0       success (run: the command's own code, whatever it is)
    1       doctor found something to put right
    64      wrong usage: an argument, a variable, the configuration file
    69      no quorum of masters
    70      an internal failure
    74      the lock was lost while the command ran
    75      held by somebody else until the wait was over
    126     the command cannot be executed
    127     the command was not found
    128+n   signal n ended the command, or the wait for the lock";

/// The code for a process that was ended by signal number `n`.
pub(crate) fn signalled(n: i32) -> u8 {
    u8::try_from(128 + n).unwrap_or(u8::MAX)
}

/// A failure on its way to `main`: the code to exit with and the line to say.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    line: String,
}

/// What every command returns: the code to exit with.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    /// A failure with any code. The line names the culprit and what would be right.
    pub(crate) fn new(code: u8, line: impl fmt::Display) -> Self {
        Self {
            code,
            line: line.to_string(),
        }
    }

    /// Wrong usage.
    pub(crate) fn usage(line: impl fmt::Display) -> Self {
        Self::new(USAGE, line)
    }

    /// The same, with more to say.
    pub(crate) fn with(mut self, more: &str) -> Self {
        self.line.push_str(more);
        self
    }

    /// A failure of the machinery itself.
    pub(crate) fn internal(line: impl fmt::Display) -> Self {
        Self::new(SOFTWARE, line)
    }
}

/// Says what failed, if anything did, and turns the outcome into the exit code.
pub(crate) fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            crate::output::complain(&failure.line);
            ExitCode::from(failure.code)
        }
    }
}

/// Ends on an error of the argument parser: help and version as they are, anything else as one line
/// and [`USAGE`].
pub(crate) fn from_clap(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            crate::output::complain(&one_line(&error.render().to_string(), origin(error)));
            ExitCode::from(USAGE)
        }
    }
}

/// The variable a wrong value came from, when it was not typed on the command line.
fn origin(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = argument.split_whitespace().next()?;
    let name = flag.strip_prefix("--")?;
    let variable = format!("QUORATE_{}", name.replace('-', "_").to_uppercase());
    let typed = std::env::args_os().any(|arg| {
        arg.to_str()
            .is_some_and(|arg| arg == flag || arg.starts_with(&format!("{flag}=")))
    });
    (!typed && std::env::var_os(&variable).is_some()).then_some(variable)
}

/// Folds a parser message into one line: the statement, the hints, no usage block.
fn one_line(rendered: &str, origin: Option<String>) -> String {
    let mut parts = Vec::new();
    for line in rendered.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if !line.is_empty() {
            parts.push(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let mut text = parts.join(" ");
    if let Some(variable) = origin {
        text += &format!(" (from {variable})");
    }
    text.push_str("; see --help");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_message_becomes_one_line_without_the_usage_block() {
        let rendered = "error: the following required arguments were not provided:\n  <RESOURCE>\n\n\
                        Usage: quorate run <RESOURCE> -- <COMMAND>...\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(rendered, None),
            "the following required arguments were not provided: <RESOURCE>; see --help"
        );
    }

    #[test]
    fn a_wrong_variable_is_named() {
        assert_eq!(
            one_line(
                "error: invalid value 'x' for '--ttl <TIME>': no\n",
                Some("QUORATE_TTL".into())
            ),
            "invalid value 'x' for '--ttl <TIME>': no (from QUORATE_TTL); see --help"
        );
    }

    #[test]
    fn signals_map_to_128_plus_n() {
        assert_eq!((signalled(9), signalled(15), signalled(2)), (137, 143, 130));
    }
}
