//! The manual pages, generated from the command line.

use std::io;
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::exit::{self, CommandResult, Failure};
use crate::help::{self, TOPICS, Topic};
use crate::layout::{self, Block, Line};
use crate::output;
use crate::variables::FOR_THE_COMMAND;

/// The first part of the text below the options of `quorate --help`. The exit codes follow this part.
const AFTER_HELP: &str = "\
Examples:
    quorate demo
        Watch it work, without any setup.
    export QUORATE_MASTERS=redis://a,redis://b,redis://c
    quorate doctor
        Check whether these masters are fit to hold locks.
    quorate run nightly-report -- ./report.sh --full
        Run the report on one machine at a time.
    quorate run --try --keep-for 30s cron:rotate -- rotate-logs
        From cron on many machines: one of them rotates, the others exit with 75.
    quorate once --per 24h --wait 10m nightly-report -- ./report.sh
        From cron on many machines: one of them runs it, at most once a day.
    quorate status nightly-report
        Show who holds the lock, and for how long.

Durations need a unit: 500ms, 10s, 5m, 1h 30m. Results go to stdout, messages to stderr. NO_COLOR turns colours off.
quorate man and quorate completions print manual pages and completion scripts.";

/// The text below the options of `quorate --help`.
pub(crate) fn after_help() -> String {
    format!("{AFTER_HELP}\n\n{}\n\n{}", help::topics(), exit::table())
}

/// Environment variables that quorate reads and that correspond to no option: name and meaning.
const OTHERS: [(&str, &str); 3] = [
    (
        "RUST_LOG",
        "the log levels of the library on stderr if neither -q nor -v is given, for example quorate=debug",
    ),
    ("NO_COLOR", "turns colours off if set"),
    (
        "COLUMNS",
        "the width of help texts if stdout is not a terminal",
    ),
];

/// Environment variables with the paths of the servers that `demo` and `bench` start: name and meaning.
const SERVERS: [(&str, &str); 2] = [
    (
        "QUORATE_SERVER",
        "the path of the redis-server or valkey-server that demo and bench start",
    ),
    (
        "QUORATE_ZOOKEEPER",
        "the folder with the ZooKeeper jars that demo and bench use",
    ),
];

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write one page per command into this directory instead of printing the main page
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the main manual page, or writes all manual pages to a directory.
pub(crate) fn man(args: &ManArgs, mut commands: clap::Command) -> CommandResult {
    commands = commands.disable_help_subcommand(true);
    commands.build();
    if let Some(dir) = &args.out {
        let failed = |error| {
            Failure::usage(format!(
                "cannot write manual pages to {}: {error}",
                dir.display()
            ))
        };
        std::fs::create_dir_all(dir).map_err(failed)?;
        for (file, page) in pages(&commands).map_err(failed)? {
            std::fs::write(dir.join(file), page).map_err(failed)?;
        }
        for topic in &TOPICS {
            let page = topic_page(topic).map_err(failed)?;
            let file = format!("{}.{TOPIC_SECTION}", topic.manual_name());
            std::fs::write(dir.join(file), page).map_err(failed)?;
        }
    } else {
        let page = page(&commands).map_err(Failure::internal)?;
        output::print_raw(&page)?;
    }
    Ok(exit::OK)
}

/// Generates the manual pages of this command and of its subcommands. Returns pairs of file name and content.
fn pages(command: &clap::Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = vec![(format!("{}.1", name(command)), page(command)?)];
    for below in command.get_subcommands() {
        all.extend(pages(below)?);
    }
    Ok(all)
}

fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let man = Man::new(command.clone().override_usage(usage));
    let mut page = head(&man)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let help = command.get_after_long_help().or(command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut blocks = layout::blocks(&help);
    let mut taken = |is: &dyn Fn(&str) -> bool| -> Vec<Block> {
        blocks.extract_if(.., |block| is(&block.head)).collect()
    };
    let codes = taken(&|head| head == "Exit codes:");
    let examples = taken(&|head| head == "Examples:");
    let json = taken(&|head| head.starts_with("JSON fields"));
    page.extend(text(&blocks).into_bytes());
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = String::new();
    section(&mut rest, "EXIT STATUS", &lines(&codes));
    section(&mut rest, "ENVIRONMENT", &environment(command));
    section(&mut rest, "EXAMPLES", &lines(&examples));
    section(&mut rest, "JSON", &text(&json));
    section(&mut rest, "SEE ALSO", &see_also(command));
    page.extend(rest.into_bytes());
    Ok(page)
}

/// The title and the section NAME of a manual page.
fn head(man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    // Turn off hyphenation, because the pages contain many commands that readers copy.
    page.extend_from_slice(b".nr HY 0\n.nh\n.ad l\n");
    man.render_name_section(&mut page)?;
    Ok(page)
}

/// The section of the manual for pages on topics.
const TOPIC_SECTION: &str = "7";

/// Generates the manual page of a topic of `quorate help`.
fn topic_page(topic: &Topic) -> io::Result<Vec<u8>> {
    let mut command = topic.page().display_name(topic.manual_name());
    command.build();
    let man = Man::new(command.clone()).section(TOPIC_SECTION);
    let mut page = head(&man)?;
    let text_below = command.get_after_help().map(ToString::to_string);
    let mut blocks = layout::blocks(&text_below.unwrap_or_default());
    let examples: Vec<Block> = blocks
        .extract_if(.., |block| block.head == "Examples:")
        .collect();
    let mut rest = String::new();
    section(&mut rest, "DESCRIPTION", &text(&blocks));
    page.extend(rest.into_bytes());
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut page)?;
    }
    let mut rest = String::new();
    section(&mut rest, "EXAMPLES", &lines(&examples));
    section(&mut rest, "SEE ALSO", "\\fBquorate\\fR(1)\n");
    page.extend(rest.into_bytes());
    Ok(page)
}

fn section(page: &mut String, title: &str, text: &str) {
    if !text.is_empty() {
        page.push_str(&format!(".SH \"{title}\"\n{text}"));
    }
}

/// Formats blocks of a help text in roff: the paragraph or heading of each block, followed by its indented lines.
fn text(blocks: &[Block]) -> String {
    let paragraph = |block: &Block| {
        let below = lines(std::slice::from_ref(block));
        format!(".PP\n{}\n{below}", escaped(&block.head))
    };
    blocks.iter().map(paragraph).collect()
}

/// Formats only the indented lines of blocks in roff, without the headings.
fn lines(blocks: &[Block]) -> String {
    let line = |line: &Line| match line {
        Line::Pair(name, words) => pair(name, words),
        Line::Command(words) => format!(".PP\n.RS 4\n.EX\n{}\n.EE\n.RE\n", escaped(words)),
        Line::Words(words) => format!(".RS 8\n{}\n.RE\n", escaped(words)),
    };
    let lines = blocks.iter().flat_map(|block| &block.lines);
    lines.map(line).collect()
}

fn pair(name: &str, words: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", escaped(name), escaped(words))
}

/// The section ENVIRONMENT. It lists the variables that set options, the other variables that quorate reads, and the
/// variables that quorate sets for the command to run.
fn environment(command: &clap::Command) -> String {
    let options = command.get_arguments().filter_map(|arg| {
        let variable = arg.get_env()?.to_str()?;
        Some(pair(variable, &format!("as --{}", arg.get_long()?)))
    });
    let mut text: String = options.collect();
    if command.has_subcommands() {
        text.push_str(".PP\nThe page of each command lists the variables of its options.\n");
    }
    text.extend(OTHERS.map(|(name, words)| pair(name, words)));
    if matches!(command.get_name(), "quorate" | "bench" | "demo") {
        text.extend(SERVERS.map(|(name, words)| pair(name, words)));
    }
    let runs = |arg: &clap::Arg| arg.get_id() == "command";
    if command.get_arguments().any(runs) {
        text.push_str(".PP\nThe environment of the command contains:\n");
        text.extend(FOR_THE_COMMAND.map(|(name, words)| pair(name, words)));
    }
    text
}

fn see_also(command: &clap::Command) -> String {
    let own = command.get_subcommands().map(name);
    let mut pages: Vec<String> = own
        .map(|name| format!("\\fB{}\\fR(1)", escaped(name)))
        .collect();
    if !command.has_subcommands() {
        pages.push("\\fBquorate\\fR(1)".to_owned());
    }
    pages.extend(TOPICS.iter().map(|topic| {
        let name = escaped(&topic.manual_name());
        format!("\\fB{name}\\fR({TOPIC_SECTION})")
    }));
    format!("{}\n", pages.join(",\n"))
}

/// Escapes a text for roff. Otherwise roff would replace characters such as `-` and `'` by typographic ones, and users
/// could not copy commands.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    if text.starts_with(['.', '\'']) {
        escaped.push_str("\\&");
    }
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\(rs"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            '\n' => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_roff_interprets_are_escaped() {
        assert_eq!(
            escaped("a --b 'c' \\ `d` ~"),
            r"a \-\-b \(aqc\(aq \(rs \(gad\(ga \(ti"
        );
        assert_eq!(escaped(".x"), "\\&.x");
    }
}
