//! Help texts on the screen:
//!
//! - `-h` shows the usual options of a command.
//! - `--help` shows all options of a command.
//! - `quorate help` also has pages on topics that concern several commands.

use std::ffi::OsString;

use clap::builder::{Resettable, StyledStr};
use clap::{Arg, Args, Command};

use crate::config::MasterOptions;
use crate::exit::{self, CommandResult};
use crate::settings::HEADING;
use crate::{layout, output, variables};

/// The options about masters that the help of a command shows. `quorate help masters` shows all options about masters.
const SHOWN_OPTIONS: [&str; 2] = ["masters", "config"];

/// The heading of the options about masters in the help of a command.
const SHOWN_HEADING: &str = "Masters (all options: quorate help masters)";

/// How detailed the help of a command is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The usual options, with one line for each: `-h`.
    Short,
    /// All options, explanations, examples and exit codes: `--help`.
    Full,
}

impl Detail {
    /// Returns `Full` if the command line `arguments` contains `--help`, otherwise `Short`.
    pub(crate) fn from_arguments(arguments: &[OsString]) -> Self {
        if arguments.iter().any(|argument| argument == "--help") {
            Self::Full
        } else {
            Self::Short
        }
    }
}

/// The command as its help shows it: wrapped at `width` columns, and with the options that `detail` selects. Manual
/// pages and completions do not use this function, because they always show all options.
pub(crate) fn help_for_screen(command: Command, width: usize, detail: Detail) -> Command {
    let wrap = |text: &StyledStr| layout::lay_out_page(&text.to_string(), width);
    let long = command.get_after_long_help().map(wrap);
    let after = command.get_after_help().map(wrap);
    let about = command.get_long_about().or(command.get_about()).cloned();
    let command = command
        .term_width(width)
        .mut_args(|arg| option_for_screen(arg, detail))
        .mut_subcommands(|command| help_for_screen(command, width, detail));
    match (detail, long, after) {
        (Detail::Short, Some(long), after) => command
            .after_help(after.unwrap_or_default())
            .after_long_help(long),
        (Detail::Short, None, Some(after)) => command.after_help("").after_long_help(after),
        (Detail::Short, None, None) => command,
        // With a long text, clap would print each option on several lines. So use only the short text.
        (Detail::Full, long, after) => command
            .about(about.unwrap_or_default())
            .long_about(Resettable::Reset)
            .after_help(long.or(after).unwrap_or_default())
            .after_long_help(Resettable::Reset),
    }
}

/// The option as the help of a command shows it: without its environment variable. Of the options about masters, `-h`
/// and `--help` show only the [`SHOWN_OPTIONS`] ones.
fn option_for_screen(arg: Arg, detail: Detail) -> Arg {
    let arg = arg.hide_env(true);
    let arg = if arg.get_help_heading() == Some(HEADING) {
        let is_expected = SHOWN_OPTIONS.contains(&arg.get_id().as_str());
        arg.help_heading(SHOWN_HEADING)
            .hide(!is_expected)
            .long_help(Resettable::Reset)
    } else {
        arg
    };
    if detail == Detail::Short {
        return arg;
    }
    with_full_help(arg)
}

/// The option with its whole help text as one paragraph. By default, clap prints several paragraphs for `--help`.
fn with_full_help(arg: Arg) -> Arg {
    let text = arg.get_long_help().or(arg.get_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let mut sentences: Vec<String> = text
        .split("\n\n")
        .map(|text| text.trim_end_matches('.').to_owned())
        .collect();
    let values = arg.get_possible_values();
    let values = values.iter().filter_map(|value| {
        let help = value.get_help()?;
        Some(format!("{}: {help}", value.get_name()))
    });
    let values: Vec<String> = values.collect();
    let has_values = !values.is_empty();
    sentences.extend(values);
    arg.hide_short_help(false)
        .hide_possible_values(has_values)
        .help(sentences.join(". "))
        .long_help(Resettable::Reset)
}

/// A page on a topic that concerns several commands.
pub(crate) struct Topic {
    name: &'static str,
    about: &'static str,
    /// Builds the text of the page, which follows the options if `has_options` is true.
    text: fn() -> String,
    /// Whether the page shows the options about masters.
    has_options: bool,
}

/// The topics of `quorate help`, each with a page.
pub(crate) const TOPICS: [Topic; 3] = [
    Topic {
        name: "masters",
        about: "The options about masters, their environment variables, and the configuration file",
        text: masters_text,
        has_options: true,
    },
    Topic {
        name: "command",
        about: "The command that quorate runs: its environment, and how it is stopped",
        text: command_text,
        has_options: false,
    },
    Topic {
        name: "kinds",
        about: "The kinds of locks, and nested quorate commands",
        text: kinds_text,
        has_options: false,
    },
];

const MASTERS_PAGE: &str = "\
Every command that connects to masters has the options of this page. A flag overrides its QUORATE_* variable, and the
variable overrides the configuration file. Most other options also have a variable: --max-hold has QUORATE_MAX_HOLD. The
manual page of a command lists its variables (man quorate-run). Durations need a unit: 500ms, 10s, 5m, 1h 30m.

quorate doctor checks the masters, and says where each setting comes from. To set up other masters than Redis and Valkey, see
quorate prepare-server --help. To replace masters while they are in use, see quorate masters --help.

Examples:
    export QUORATE_MASTERS=redis://a,redis://b,redis://c
    quorate doctor --config /etc/quorate.toml
    quorate run --masters redis://a,mysql://b/locks,zk://c/locks nightly-report -- ./report.sh";

fn masters_text() -> String {
    MASTERS_PAGE.to_owned()
}

const COMMAND_PAGE: &str = "\
This page is about the command that quorate run, once and lead start.

The command inherits the other variables of quorate, including QUORATE_MASTERS with its passwords. So the command can
call quorate. To hide the masters from the command, use --hide-masters, or name the masters in a configuration file
(--config) that the command cannot read.

The command should send QUORATE_FENCING_TOKEN with each write to a resource. The resource should reject a token that is
smaller than the largest token it has seen.

The command runs without a shell, in its own process group. quorate forwards the signals that it receives to this group.
With --shell LINE, quorate runs sh -c LINE. The exit code is that of the last command in LINE.

quorate needs the right to signal the command: write `sudo quorate run .. -- command`, not
`quorate run .. -- sudo command`. quorate reports the pids of processes of the group that it cannot stop, or that
still run after the command has ended.

If quorate cannot renew the lock, it sends SIGTERM to the group one grace period before the lock expires, and SIGKILL
just before the lock expires. If a majority of masters reports that the lock is gone, quorate sends SIGKILL to the group
immediately. If quorate is killed, its guard process kills the group immediately. If quorate is suspended, the guard
process kills the group before the lock expires. Processes that have left the group are not stopped.

If a signal to quorate ends the command, or ends the wait for the lock, quorate ends itself with the same signal. So
Ctrl-C also ends a shell loop around quorate.

If the command ignores Ctrl-C, press Ctrl-C again within 5 seconds: quorate sends SIGTERM, and SIGKILL after the grace
period. On a third Ctrl-C, quorate sends SIGKILL immediately.

If the command reads from the terminal, only the command gets Ctrl-C, and quorate does not see it. If such a command
ignores Ctrl-C, press Ctrl-\\. Or press Ctrl-Z, and type kill %1; fg in the shell. Or send SIGTERM to quorate from
another terminal: quorate forwards SIGTERM to the command.";

fn command_text() -> String {
    let (first, rest) = COMMAND_PAGE
        .split_once("\n\n")
        .unwrap_or((COMMAND_PAGE, ""));
    let variables = variables::table_text();
    format!("{first}\n\nThe environment of the command has:\n{variables}\n\n{rest}")
}

const KINDS_PAGE: &str = "\
By default a lock is exclusive. quorate run and quorate hold have options for other kinds:
    --also NAME    also locks the resource NAME: all resources or none
    --shared       takes a read lock, which several readers can hold at the same time
    --permits N    takes one of N permits of a semaphore, which is separate from the lock of the same name
    --owner ID     takes a lock that all processes with the same ID can hold at the same time
    --reenter      takes the lock with the ID of the outer quorate

If the command of an outer quorate starts an inner quorate for the same lock, the inner quorate exits with 75
immediately. Otherwise it would wait forever. To let the inner quorate take the lock, start the outer quorate with
--owner and the inner quorate with --reenter. If both are readers (--shared), the inner quorate needs no option.

quorate once NAME and quorate lead NAME take the exclusive lock NAME. Each change of a quota takes the exclusive lock
with the name of the quota.

Examples:
    quorate run account:1 --also account:2 -- transfer
    quorate run --shared catalogue -- ./export.sh
    quorate run --permits 5 api -- ./call.sh
    quorate run --owner deploy-17 web -- sh -c 'quorate run --reenter web -- ./step.sh'";

fn kinds_text() -> String {
    KINDS_PAGE.to_owned()
}

impl Topic {
    /// The name of the topic's manual page.
    pub(crate) fn manual_name(&self) -> String {
        format!("quorate-{}", self.name)
    }

    /// Prints the page of this topic.
    pub(crate) fn print(&self) -> CommandResult {
        let width = layout::page_width();
        let text = layout::lay_out_page(&(self.text)(), width);
        let page = self.page().mut_args(with_full_help);
        let mut page = page.term_width(width).after_help(text);
        output::print(&format!("{}\n", page.render_help().ansi()))?;
        Ok(exit::OK)
    }

    /// The topic as a command of the parser. The help of this command is the page of the topic.
    pub(crate) fn page(&self) -> Command {
        let page = Command::new(self.name)
            .disable_help_flag(true)
            .help_template("{about-with-newline}\n{all-args}{after-help}")
            .after_help((self.text)());
        let page = if self.has_options {
            MasterOptions::augment_args(page)
        } else {
            page
        };
        page.about(self.about).long_about(Resettable::Reset)
    }
}

/// The list of topics, for the help of `quorate` itself.
pub(crate) fn topics_text() -> String {
    let topic_line =
        |topic: &Topic| format!("\n    quorate help {:<9} {}", topic.name, topic.about);
    format!(
        "Topics:{}",
        TOPICS.iter().map(topic_line).collect::<String>()
    )
}

/// Arguments of `help`.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A topic or a command, for example quota take [default: quorate itself]
    #[arg(value_name = "TOPIC")]
    words: Vec<OsString>,
}

impl HelpArgs {
    /// The topic that the user has named; `None` if the words name a command.
    pub(crate) fn topic(&self) -> Option<&'static Topic> {
        TOPICS.iter().find(|topic| self.words == [topic.name])
    }

    /// The command line `quorate WORDS --help`, with the words that the user typed.
    pub(crate) fn command_line(self) -> Vec<OsString> {
        let arguments = std::iter::once("quorate".into()).chain(self.words);
        arguments.chain(["--help".into()]).collect()
    }
}
