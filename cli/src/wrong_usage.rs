//! Turns an error of the argument parser into one line that names the wrong argument.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use quorate::redact;

use crate::exit::{self, CommandResult, Failure};
use crate::{output, variables};

/// Prints help or version if the user asked for it. Turns every other error of the argument parser into a one-line
/// error about wrong usage. `commands` is the whole command line interface.
pub(crate) fn explain(error: &clap::Error, commands: &clap::Command) -> CommandResult {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Ok(exit::OK)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(exit::USAGE)
        }
        _ => {
            let message = unknown_word_message(error, commands)
                .unwrap_or_else(|| one_line(&error.render().to_string(), variable_of(error)));
            Err(Failure::usage(output::redact(&conceal(message))))
        }
    }
}

/// Hides what the user has typed, or has set in a variable of quorate, if it may contain a password: the message may
/// quote any of it, as a whole or a part between commas.
fn conceal(mut message: String) -> String {
    let arguments = std::env::args_os().skip(1);
    let variables =
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUORATE_"));
    let texts: Vec<String> = arguments
        .chain(variables.map(|(_, value)| value))
        .map(|text| text.to_string_lossy().into_owned())
        .collect();
    let after_flag = |text: &'_ String| text.split_once('=').map(|(_, value)| value.to_owned());
    let mut parts: Vec<String> = texts.iter().filter_map(after_flag).collect();
    parts.extend(texts.iter().cloned());
    let pieces: Vec<String> = parts
        .iter()
        .flat_map(|text| text.split(','))
        .map(str::to_owned)
        .collect();
    parts.extend(pieces);
    // The longest first, so that no part of a longer text is left.
    parts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    for part in parts {
        let redacted = redact::value(&part);
        if redacted != part {
            let escaped = part.escape_debug().to_string();
            let mut option_name = "";
            // Keep the name of an option, which is no secret.
            if let Some((option, _)) = part.split_once('=')
                && option.starts_with("--")
                && option
                    .bytes()
                    .all(|byte| byte == b'-' || byte.is_ascii_lowercase())
            {
                option_name = option;
            }
            let redacted = if option_name.is_empty() {
                redacted.into_owned()
            } else {
                format!("{option_name}=***")
            };
            for quoted in [part.as_str(), part.trim(), &escaped] {
                message = message.replace(quoted, &redacted);
            }
        }
    }
    message
}

/// The message for an unknown option or command, with a suggestion if a known name is similar. `None` for all other
/// kinds of errors.
fn unknown_word_message(error: &clap::Error, commands: &clap::Command) -> Option<String> {
    let (problem, word, suggestion) = match error.kind() {
        ErrorKind::UnknownArgument => {
            let word = text_of(error, ContextKind::InvalidArg)?;
            let suggestion = text_of(error, ContextKind::SuggestedArg);
            let suggestion = suggestion.or_else(|| nearest(&word, commands));
            ("unexpected argument", word, suggestion)
        }
        ErrorKind::InvalidSubcommand => {
            let word = text_of(error, ContextKind::InvalidSubcommand)?;
            let suggestion = text_of(error, ContextKind::SuggestedSubcommand);
            (
                "unrecognized command",
                word.clone(),
                current_name(&word).or(suggestion),
            )
        }
        _ => return None,
    };
    Some(match suggestion {
        Some(suggestion) => format!("{problem} '{word}': did you mean {suggestion}? See --help"),
        None => format!("{problem} '{word}'; see --help"),
    })
}

/// Former names of commands and subcommands: the parent command, the former name, and the current name. The parent is
/// empty for commands of `quorate` itself.
const FORMER_NAMES: [(&str, &str, &str); 3] = [
    ("", "list", "status"),
    ("", "prepare", "prepare-server"),
    ("masters", "prepare", "begin"),
];

/// The current name of the command or subcommand that the user typed as `word`; `None` if `word` is not a former name.
fn current_name(word: &str) -> Option<String> {
    let typed = std::env::args_os().skip(1);
    let typed = typed.filter_map(|word| word.into_string().ok());
    let parent_command = typed.take_while(|typed| typed != word);
    let parent_command = parent_command.filter(|word| !word.starts_with('-')).last();
    let parent_command = parent_command.unwrap_or_default();
    let mut former = FORMER_NAMES.iter();
    let former = former.find(|(parent, name, _)| *parent == parent_command && *name == word);
    former.map(|(_, _, current)| (*current).to_owned())
}

/// Returns the text that a parser error stores for `kind`. If there are several texts, returns the last one, which is
/// the parser's best suggestion.
fn text_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.last().cloned(),
        _ => None,
    }
}

/// Returns the option of the typed command that is most similar to `word`; `None` if no option is similar.
///
/// This complements the parser, which makes no suggestion for short words such as `--tyr`.
fn nearest(word: &str, commands: &clap::Command) -> Option<String> {
    let word = word.strip_prefix("--")?;
    let typed = std::env::args_os().skip(1);
    let typed: Vec<String> = typed.filter_map(|word| word.into_string().ok()).collect();
    let mut command = commands;
    let mut options: Vec<&str> = commands
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .collect();
    for name in typed.iter().filter(|word| !word.starts_with('-')) {
        let Some(subcommand) = command.find_subcommand(name) else {
            break;
        };
        command = subcommand;
        options.extend(command.get_arguments().filter_map(clap::Arg::get_long));
    }
    let suggestion = variables::nearest_of(word, options.into_iter(), |option| option)?;
    Some(format!("--{suggestion}"))
}

/// The environment variable that the wrong value came from; `None` if the value was typed on the command line.
fn variable_of(error: &clap::Error) -> Option<String> {
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
    fn clap_error_is_shortened_to_one_line_without_usage() {
        let rendered = "error: the following required arguments were not provided:\n  <RESOURCE>\n\n\
                        Usage: quorate run <RESOURCE> -- <COMMAND>...\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(rendered, None),
            "the following required arguments were not provided: <RESOURCE>; see --help"
        );
    }

    #[test]
    fn error_about_an_invalid_environment_variable_names_the_variable() {
        assert_eq!(
            one_line(
                "error: invalid value 'x' for '--ttl <TIME>': no\n",
                Some("QUORATE_TTL".into())
            ),
            "invalid value 'x' for '--ttl <TIME>': no (from QUORATE_TTL); see --help"
        );
    }
}
