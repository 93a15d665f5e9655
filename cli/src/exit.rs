//! The exit codes of `quorate`, modelled on `sysexits.h`, and the failure that each subcommand can return.

use std::fmt;

use nix::sys::signal::Signal;

/// Exit code: the command succeeded.
pub(crate) const OK: u8 = 0;
/// Exit code: `doctor` found a problem, a step of `quorate masters` was not done, or a quota has fewer units than
/// requested.
pub(crate) const FINDINGS: u8 = 1;
/// Exit code: the command line, a variable, the configuration file or the resource name is wrong.
pub(crate) const USAGE: u8 = 64;
/// Exit code: fewer than a majority of the masters answered.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Exit code for an internal failure: for example, a process could not be started, or a result could not be written.
pub(crate) const SOFTWARE: u8 = 70;
/// Exit code: `quorate` lost the lock before the command had ended, or `quorate check` found that a token is not
/// current.
pub(crate) const LOST: u8 = 74;
/// Exit code: another client held the lock for the whole time that this command waited for it.
pub(crate) const HELD: u8 = 75;
/// Exit code: the masters refuse the configuration of this client, for example because it names replaced masters.
pub(crate) const CONFIG: u8 = 78;
/// Exit code: the command to run was found, but could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// Exit code: the command to run was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// An exit code as help texts show it, for example `75` or `128+n`, and its meaning.
pub(crate) type Meaning = (&'static str, &'static str);

/// Exit codes of all commands, with their meanings. All help texts are built from this table, and tests compare the
/// pages in `docs/` with it.
const TABLE: [Meaning; 11] = [
    ("0", "success (run: the command's own exit code)"),
    (
        "1",
        "doctor found problems, a step of quorate masters was not done, or a quota had too few units",
    ),
    (
        "64",
        "wrong usage: an argument, a variable, or the configuration file",
    ),
    (
        "69",
        "no quorum: fewer than a majority of the masters answered",
    ),
    ("70", "an internal failure"),
    (
        "74",
        "the lock was lost, or quorate check found a stale token",
    ),
    ("75", "another client held the lock for the whole wait"),
    (
        "78",
        "refused configuration: the masters accept another list of masters, generation or name",
    ),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    (
        "128+n",
        "signal number n ended the command, the wait for the lock, or a measurement",
    ),
];

/// Formats the table of all exit codes for a help text.
pub(crate) fn table() -> String {
    table_of(&TABLE)
}

/// Formats the table of the exit codes of one command. `codes` contains pairs of a code and its meaning. An empty
/// meaning stands for the meaning in [`TABLE`].
pub(crate) fn table_of(codes: &[Meaning]) -> String {
    let mut text = "Exit codes:".to_owned();
    for (code, own) in codes {
        let common = TABLE.iter().find(|(other, _)| other == code);
        let meaning = match (own, common) {
            (&"", Some((_, common))) => common,
            (own, _) => own,
        };
        text += &format!("\n    {code:<7} {meaning}");
    }
    text
}

/// The text below the options in the help of a command: `help`, followed by the table of the exit codes in `codes`.
pub(crate) fn help_with_codes(help: &str, codes: &[Meaning]) -> String {
    format!("{help}\n\n{}", table_of(codes))
}

/// The exit code that shells report for a process that was killed by signal number `n`: 128 + `n`.
pub(crate) fn code_of_signal(n: i32) -> u8 {
    u8::try_from(128 + n).unwrap_or(u8::MAX)
}

/// A failure that `main` reports: the exit code and the message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// The signal that interrupted this `quorate` process; `None` if no signal did. After the cleanup, `quorate` kills
    /// itself with this signal, so that its parent process sees the signal.
    pub(crate) signal: Option<Signal>,
    /// True if this failure is an expected outcome, for example because another client holds the lock. With `-q`, its
    /// message is not printed.
    pub(crate) is_expected: bool,
}

/// The result of every subcommand of `quorate`: the exit code, or a failure that `main` reports.
pub(crate) type CommandResult = Result<u8, Failure>;

impl Failure {
    /// Creates a failure with this exit code. `message` names the cause and the remedy.
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            signal: None,
            is_expected: false,
        }
    }

    /// Creates the failure for wrong usage (exit code 64).
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }

    /// Appends the text `suffix` to the message of this failure.
    pub(crate) fn with_suffix(mut self, suffix: &str) -> Self {
        self.message.push_str(suffix);
        self
    }

    /// Marks this failure as an expected outcome, whose message `-q` suppresses.
    pub(crate) fn into_expected(self) -> Self {
        Self {
            is_expected: true,
            ..self
        }
    }

    /// Replaces the exit code [`HELD`] with `code`. Leaves all other exit codes unchanged.
    pub(crate) fn with_conflict_code(self, code: u8) -> Self {
        let is_conflict = self.code == HELD;
        Self {
            code: if is_conflict { code } else { self.code },
            ..self
        }
    }

    /// Creates an internal failure (exit code 70).
    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Self::new(SOFTWARE, message)
    }

    /// Creates the failure of a subcommand that `signal` has interrupted.
    pub(crate) fn interrupted(signal: Signal, message: impl fmt::Display) -> Self {
        Self {
            signal: Some(signal),
            ..Self::new(
                code_of_signal(signal as i32),
                format!("{signal}: {message}"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_for_a_signal_is_128_plus_its_number() {
        assert_eq!(
            (code_of_signal(9), code_of_signal(15), code_of_signal(2)),
            (137, 143, 130)
        );
    }

    #[test]
    fn documented_exit_codes_of_run_match_the_table_in_the_code() {
        let page = |name| {
            let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).expect("the page")
        };
        let operations = page("docs/operations.md");
        let (_, run) = operations
            .split_once("## `quorate run`\n")
            .expect("a section");
        let (_, rows) = run.split_once("|---|---|\n").expect("its table");
        let rows: Vec<&str> = rows
            .lines()
            .take_while(|message| !message.is_empty())
            .collect();
        for (code, words) in run_codes() {
            let row = rows
                .iter()
                .find(|row| row.starts_with(&format!("| {code} | ")));
            let row =
                row.unwrap_or_else(|| panic!("a row must show the exit code {code}: {rows:#?}"));
            let brief = words.split([':', ',']).next().expect("a meaning");
            assert!(
                row.contains(brief),
                "the row of exit code {code} must contain {brief:?}: {row:?}"
            );
        }
        assert_eq!(
            rows.len(),
            run_codes().count() + 1,
            "the table must have one row per exit code, and a row for the command's own exit code"
        );
        let readme = page("README.md");
        let (_, codes) = readme.split_once("Exit codes:").expect("the codes");
        let codes = codes.split("\n## ").next().expect("its text");
        for (code, _) in run_codes().filter(|(code, _)| !matches!(*code, "70" | "128+n")) {
            assert!(
                codes.contains(code),
                "the README must list the exit code {code}"
            );
        }
    }

    /// The exit codes for failures of `quorate run` itself. `quorate run` exits with 1 only if the command that it ran
    /// exited with 1.
    fn run_codes() -> impl Iterator<Item = &'static Meaning> {
        TABLE.iter().filter(|(code, _)| !matches!(*code, "0" | "1"))
    }
}
