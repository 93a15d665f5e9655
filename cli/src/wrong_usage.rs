//! Turns an error of the argument parser into one line that names the wrong argument.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::{self, Failure, Outcome};

/// Prints help or version if the user asked for it. Every other error of the argument parser becomes a failure of wrong
/// usage.
pub(crate) fn explain(error: &clap::Error) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Ok(exit::OK)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(exit::USAGE)
        }
        _ => Err(Failure::usage(one_line(
            &error.render().to_string(),
            origin(error),
        ))),
    }
}

/// The environment variable that the wrong value came from; `None` if the value was typed on the command line.
fn origin(error: &clap::Error) -> Option<String> {
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

/// Joins the parser's message and its hints into one line, without the usage block.
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
    fn parser_message_becomes_one_line_without_the_usage_block() {
        let rendered = "error: the following required arguments were not provided:\n  <RESOURCE>\n\n\
                        Usage: quorate run <RESOURCE> -- <COMMAND>...\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(rendered, None),
            "the following required arguments were not provided: <RESOURCE>; see --help"
        );
    }

    #[test]
    fn wrong_value_from_a_variable_names_the_variable() {
        assert_eq!(
            one_line(
                "error: invalid value 'x' for '--ttl <TIME>': no\n",
                Some("QUORATE_TTL".into())
            ),
            "invalid value 'x' for '--ttl <TIME>': no (from QUORATE_TTL); see --help"
        );
    }
}
