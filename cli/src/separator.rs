//! Checks that a command line shows clearly where the command to run begins. If this is clear, the separator `--` is
//! optional.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::output;

/// The word that separates the options of quorate from the command to run.
const SEPARATOR: &str = "--";

/// Checks that the command line shows clearly where `command` begins.
///
/// - `typed`: the command line without the program name. It ends with `command`.
/// - `is_quorate_option`: returns true for an option of quorate.
///
/// # Errors
///
/// - The name of the lock is missing, or begins with `-`.
/// - An argument of `command` is `--` or an option of quorate, but `--` is missing before `command`.
pub(crate) fn check(
    typed_words: &[OsString],
    command: &[OsString],
    is_quorate_option: impl Fn(&OsStr) -> bool,
) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    let head = typed_words.len().saturating_sub(command.len());
    let (head, _) = typed_words.split_at(head);
    match head.iter().position(|word| word == SEPARATOR) {
        Some(index) if index + 1 == head.len() => return Ok(()),
        Some(index) if head[index + 1].as_bytes().starts_with(b"-") => {
            return Err(format!(
                "{}: the name of a lock must not begin with '-'",
                shell_text(&head[index + 1])
            ));
        }
        Some(index) => {
            let words_before = &head[..index];
            return Err(format!(
                "<RESOURCE> is missing: put the name of the lock before {SEPARATOR}: {}",
                corrected_line(
                    &[words_before, &["RESOURCE".into()]].concat(),
                    &typed_words[index + 1..]
                )
            ));
        }
        None => {}
    }
    let ambiguous = arguments
        .iter()
        .position(|word| word == SEPARATOR || is_quorate_option(word));
    let Some(index) = ambiguous else {
        return Ok(());
    };
    let word = shell_text(&arguments[index]);
    let program = shell_text(program);
    let corrected = corrected_line(head, command);
    Err(if arguments[index] == SEPARATOR {
        format!(
            "it is unclear whether the command begins with {program} or after the {SEPARATOR}: if it begins with \
             {program}, write {corrected}"
        )
    } else {
        format!(
            "{word} could be an option of quorate or of {program}: write {corrected} to pass {word} to the command, \
             or put {word} before the name of the lock"
        )
    })
}

/// The corrected command line: `head`, `--`, `command`.
fn corrected_line(head: &[OsString], command: &[OsString]) -> String {
    let mut words = vec!["quorate".to_owned()];
    words.extend(head.iter().map(|word| shell_text(word)));
    words.push(SEPARATOR.to_owned());
    words.extend(command.iter().map(|word| shell_text(word)));
    format!("`{}`", words.join(" "))
}

/// The word as a user types it in a shell: in quotes if it needs them.
fn shell_text(word: &OsStr) -> String {
    let text = output::printable(word.as_bytes());
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls [`check`] with the arguments in `line`. A `|` in `line` marks where the command begins, and is removed
    /// before the call. Example: `run x | make deploy`.
    fn check_line(line: &str) -> Result<(), String> {
        let (head, command) = line
            .split_once('|')
            .expect("a bar must separate the words of quorate from the command");
        let words =
            |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        let command = words(command);
        let typed = [words(head), command.clone()].concat();
        check(&typed, &command, |word| word == "--ttl" || word == "-q")
    }

    #[test]
    fn unambiguous_command_line_is_accepted() {
        for line in [
            "run x | make -j4 deploy",
            "run --ttl 5s x | ./report.sh --full",
            "run x -- | make --ttl 5s",
            "run x -- | git log -- file",
            "run --note=a x | true",
        ] {
            assert_eq!(check_line(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn error_about_an_ambiguous_command_line_shows_the_corrected_line() {
        for (line, corrected) in [
            ("run -- -x | true", "-x: the name of a lock"),
            (
                "run x | ./a --ttl 5s",
                "--ttl could be an option of quorate or of ./a: write `quorate run x -- ./a --ttl 5s`",
            ),
            (
                "run x | grep -q it's",
                r"`quorate run x -- grep -q 'it'\''s'`",
            ),
            (
                "run x | git log -- file",
                "if it begins with git, write `quorate run x -- git log -- file`",
            ),
            ("run a | b -- make", "`quorate run a -- b -- make`"),
            (
                "run -- ./a | -f",
                "put the name of the lock before --: `quorate run RESOURCE -- ./a -f`",
            ),
        ] {
            let error = check_line(line).expect_err(line);
            assert!(error.contains(corrected), "{line}: {error}");
        }
    }
}
