//! Exit codes, after `sysexits.h`: what they mean, and what a command that fails hands up.

use std::fmt;

use nix::sys::signal::Signal;

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
/// The masters have been changed, and this configuration names others.
pub(crate) const CONFIG: u8 = 78;
/// The command was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// A code as it is shown, and what it means.
pub(crate) type Meaning = (&'static str, &'static str);

/// What every code means. All help texts are made of it, and the pages are compared with it.
const TABLE: [Meaning; 11] = [
    ("0", "success (run: the command's own exit code)"),
    ("1", "the check or step found a problem"),
    (
        "64",
        "wrong usage: an argument, a variable, or the configuration file",
    ),
    ("69", "no quorum of masters"),
    ("70", "an internal failure"),
    ("74", "the lock was lost while the command ran"),
    ("75", "another client held the lock for the whole wait"),
    (
        "78",
        "outdated configuration: the masters have been replaced",
    ),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    (
        "128+n",
        "signal n ended the command, the wait for the lock, or a measurement",
    ),
];

/// The whole table, for a help text.
pub(crate) fn table() -> String {
    table_of(&TABLE)
}

/// The table of one command: the codes that it ends with, each in its own words, or (`""`) in those of the
/// whole table.
pub(crate) fn table_of(codes: &[Meaning]) -> String {
    let mut text = "Exit codes:".to_owned();
    for (code, own) in codes {
        let common = TABLE.iter().find(|(other, _)| other == code);
        let words = match (own, common) {
            (&"", Some((_, common))) => common,
            (own, _) => own,
        };
        text += &format!("\n    {code:<7} {words}");
    }
    text
}

/// A help text with the table of one command below.
pub(crate) fn below(help: &str, codes: &[Meaning]) -> String {
    format!("{help}\n\n{}", table_of(codes))
}

/// The code for a process that was ended by signal number `n`.
pub(crate) fn signalled(n: i32) -> u8 {
    u8::try_from(128 + n).unwrap_or(u8::MAX)
}

/// A failure on its way to `main`: the code to exit with and the line to say.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) line: String,
    /// The signal that cut it short: whoever waits for us is to see that we died of it.
    pub(crate) signal: Option<Signal>,
    /// Nothing is wrong: `-q` leaves the line out.
    pub(crate) is_usual: bool,
}

/// What every command returns: the code to exit with.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    /// A failure with any code. The line names the culprit and what would be right.
    pub(crate) fn new(code: u8, line: impl fmt::Display) -> Self {
        Self {
            code,
            line: line.to_string(),
            signal: None,
            is_usual: false,
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

    /// The same, where nothing is wrong.
    pub(crate) fn usual(self) -> Self {
        Self {
            is_usual: true,
            ..self
        }
    }

    /// The same, with another code where the lock is held by another.
    pub(crate) fn on_conflict(self, code: u8) -> Self {
        let is_conflict = self.code == HELD;
        Self {
            code: if is_conflict { code } else { self.code },
            ..self
        }
    }

    /// A failure of the machinery itself.
    pub(crate) fn internal(line: impl fmt::Display) -> Self {
        Self::new(SOFTWARE, line)
    }

    /// A signal came, and all has been put away.
    pub(crate) fn cut_short(signal: Signal, line: impl fmt::Display) -> Self {
        Self {
            signal: Some(signal),
            ..Self::new(signalled(signal as i32), format!("{signal}: {line}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_map_to_128_plus_n() {
        assert_eq!((signalled(9), signalled(15), signalled(2)), (137, 143, 130));
    }

    #[test]
    fn the_pages_say_of_each_code_what_the_table_says() {
        let page = |name| {
            let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).expect("the page")
        };
        let operations = page("docs/operations.md");
        let (_, run) = operations.split_once("## `quorate run`\n").expect("run");
        let (_, rows) = run.split_once("|---|---|\n").expect("its table");
        let rows: Vec<&str> = rows.lines().take_while(|line| !line.is_empty()).collect();
        for (code, words) in run_codes() {
            let row = rows
                .iter()
                .find(|row| row.starts_with(&format!("| {code} | ")));
            let row = row.unwrap_or_else(|| panic!("{code} is not in {rows:#?}"));
            let brief = words.split([':', ',']).next().expect("words");
            assert!(row.contains(brief), "{code}: {brief:?} is not in {row:?}");
        }
        assert_eq!(rows.len(), run_codes().count() + 1, "and the command's own");
        let readme = page("README.md");
        let (_, codes) = readme.split_once("Exit codes:").expect("the codes");
        let codes = codes.split("\n## ").next().expect("its text");
        for (code, _) in run_codes().filter(|(code, _)| !matches!(*code, "70" | "128+n")) {
            assert!(codes.contains(code), "{code} is not in the README");
        }
    }

    /// Of the whole table what `run` ends with: success is the command's own code, and 1 is doctor's.
    fn run_codes() -> impl Iterator<Item = &'static Meaning> {
        TABLE.iter().filter(|(code, _)| !matches!(*code, "0" | "1"))
    }
}
