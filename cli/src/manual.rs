//! The manual pages, generated from the command line.

use std::io;
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::exit::{self, CommandResult, Failure};
use crate::help::{self, TOPICS, Topic};
use crate::layout::{self, Block, Line};
use crate::output;
use crate::variables::{COMMAND_VARIABLES, SERVER_VARIABLES};

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
    format!(
        "{AFTER_HELP}\n\n{}\n\n{}",
        help::topics_text(),
        exit::table()
    )
}

/// Environment variables that quorate reads and that correspond to no option: name and meaning.
const OTHER_VARIABLES: [(&str, &str); 3] = [
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

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write one page per command into this directory instead of printing the main page
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the main manual page, or writes all manual pages to a directory.
pub(crate) fn run(args: &ManArgs, mut commands: clap::Command) -> CommandResult {
    commands = commands.disable_help_subcommand(true);
    commands.build();
    if let Some(dir) = &args.out {
        let write_failure = |error| {
            Failure::usage(format!(
                "cannot write manual pages to {}: {error}",
                dir.display()
            ))
        };
        std::fs::create_dir_all(dir).map_err(write_failure)?;
        for (file, page) in pages_of(&commands).map_err(write_failure)? {
            std::fs::write(dir.join(file), page).map_err(write_failure)?;
        }
        for topic in &TOPICS {
            let page = topic_page(topic).map_err(write_failure)?;
            let file = format!("{}.{TOPIC_SECTION}", topic.manual_name());
            std::fs::write(dir.join(file), page).map_err(write_failure)?;
        }
    } else {
        let page = page_of(&commands).map_err(Failure::internal)?;
        output::print_raw(&page)?;
    }
    Ok(exit::OK)
}

/// Generates the manual pages of this command and of its subcommands. Returns pairs of file name and content.
fn pages_of(command: &clap::Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = vec![(format!("{}.1", display_name(command)), page_of(command)?)];
    for subcommand in command.get_subcommands() {
        pages.extend(pages_of(subcommand)?);
    }
    Ok(pages)
}

fn display_name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page_of(command: &clap::Command) -> io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let man = Man::new(command.clone().override_usage(usage));
    let mut page = page_head(&man)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let help = command.get_after_long_help().or(command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut blocks = layout::parse_blocks(&help);
    let mut extract_blocks = |has_head: &dyn Fn(&str) -> bool| -> Vec<Block> {
        blocks
            .extract_if(.., |block| has_head(&block.head))
            .collect()
    };
    let codes = extract_blocks(&|head| head == "Exit codes:");
    let examples = extract_blocks(&|head| head == "Examples:");
    let json = extract_blocks(&|head| head.starts_with("JSON fields"));
    page.extend(blocks_text(&blocks).into_bytes());
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut last_sections = String::new();
    section(&mut last_sections, "EXIT STATUS", &lines_text(&codes));
    section(&mut last_sections, "ENVIRONMENT", &environment(command));
    section(&mut last_sections, "EXAMPLES", &lines_text(&examples));
    section(&mut last_sections, "JSON", &blocks_text(&json));
    section(&mut last_sections, "SEE ALSO", &see_also(command));
    page.extend(last_sections.into_bytes());
    Ok(page)
}

/// The title and the section NAME of a manual page.
fn page_head(man: &Man) -> io::Result<Vec<u8>> {
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
    let mut page = page_head(&man)?;
    let text_below = command.get_after_help().map(ToString::to_string);
    let mut blocks = layout::parse_blocks(&text_below.unwrap_or_default());
    let examples: Vec<Block> = blocks
        .extract_if(.., |block| block.head == "Examples:")
        .collect();
    let mut sections_text = String::new();
    section(&mut sections_text, "DESCRIPTION", &blocks_text(&blocks));
    page.extend(sections_text.into_bytes());
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut page)?;
    }
    let mut sections_text = String::new();
    section(&mut sections_text, "EXAMPLES", &lines_text(&examples));
    section(&mut sections_text, "SEE ALSO", "\\fBquorate\\fR(1)\n");
    page.extend(sections_text.into_bytes());
    Ok(page)
}

fn section(page: &mut String, title: &str, text: &str) {
    if !text.is_empty() {
        page.push_str(&format!(".SH \"{title}\"\n{text}"));
    }
}

/// Formats blocks of a help text in roff: the paragraph or heading of each block, followed by its indented lines.
fn blocks_text(blocks: &[Block]) -> String {
    let paragraph = |block: &Block| {
        let lines = lines_text(std::slice::from_ref(block));
        format!(".PP\n{}\n{lines}", escape_roff(&block.head))
    };
    blocks.iter().map(paragraph).collect()
}

/// Formats only the indented lines of blocks in roff, without the headings.
fn lines_text(blocks: &[Block]) -> String {
    let line_text = |line: &Line| match line {
        Line::Pair(name, description) => tagged_paragraph(name, description),
        Line::Command(description) => {
            format!(".PP\n.RS 4\n.EX\n{}\n.EE\n.RE\n", escape_roff(description))
        }
        Line::Text(description) => format!(".RS 8\n{}\n.RE\n", escape_roff(description)),
    };
    let lines = blocks.iter().flat_map(|block| &block.lines);
    lines.map(line_text).collect()
}

fn tagged_paragraph(name: &str, description: &str) -> String {
    format!(
        ".TP\n\\fB{}\\fR\n{}\n",
        escape_roff(name),
        escape_roff(description)
    )
}

/// The section ENVIRONMENT. It lists the variables that set options, the other variables that quorate reads, and the
/// variables that quorate sets for the command to run.
fn environment(command: &clap::Command) -> String {
    let options = command.get_arguments().filter_map(|arg| {
        let variable = arg.get_env()?.to_str()?;
        Some(tagged_paragraph(
            variable,
            &format!("as --{}", arg.get_long()?),
        ))
    });
    let mut text: String = options.collect();
    if command.has_subcommands() {
        text.push_str(".PP\nThe page of each command lists the variables of its options.\n");
    }
    text.extend(OTHER_VARIABLES.map(|(name, description)| tagged_paragraph(name, description)));
    if matches!(command.get_name(), "quorate" | "bench" | "demo") {
        text.extend(
            SERVER_VARIABLES.map(|(name, description)| tagged_paragraph(name, description)),
        );
    }
    let is_command_argument = |arg: &clap::Arg| arg.get_id() == "command";
    if command.get_arguments().any(is_command_argument) {
        text.push_str(".PP\nThe environment of the command contains:\n");
        text.extend(
            COMMAND_VARIABLES.map(|(name, description)| tagged_paragraph(name, description)),
        );
    }
    text
}

fn see_also(command: &clap::Command) -> String {
    let names = command.get_subcommands().map(display_name);
    let mut pages: Vec<String> = names
        .map(|name| format!("\\fB{}\\fR(1)", escape_roff(name)))
        .collect();
    if !command.has_subcommands() {
        pages.push("\\fBquorate\\fR(1)".to_owned());
    }
    pages.extend(TOPICS.iter().map(|topic| {
        let name = escape_roff(&topic.manual_name());
        format!("\\fB{name}\\fR({TOPIC_SECTION})")
    }));
    format!("{}\n", pages.join(",\n"))
}

/// Escapes a text for roff. Otherwise roff would replace characters such as `-` and `'` by typographic ones, and users
/// could not copy commands.
fn escape_roff(text: &str) -> String {
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
            escape_roff("a --b 'c' \\ `d` ~"),
            r"a \-\-b \(aqc\(aq \(rs \(gad\(ga \(ti"
        );
        assert_eq!(escape_roff(".x"), "\\&.x");
    }
}
