//! Wraps help texts, so that columns stay aligned and examples can still be copied.
//!
//! A help page consists of blocks, separated by empty lines. A block is one of these:
//!
//! - a paragraph
//! - a heading, followed by lines with two columns, indented by four spaces
//! - a heading, followed by commands: each command is indented by four spaces, and its description in the next line by
//!   eight

use std::fs::File;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Maximum width of a help text in columns. Longer lines are hard to read on any terminal.
const MAX_WIDTH: usize = 100;
/// Minimum width of a help text, in columns. A terminal that is narrower breaks the lines itself.
const MIN_WIDTH: usize = 32;

/// A no-break space. During the wrapping, it replaces each space at which a line must not be broken.
const HARD_SPACE: char = '\u{a0}';

/// A paragraph, or a heading with its lines: the text between two empty lines of a help page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The text of a paragraph, or the heading in front of the indented lines.
    pub(crate) head: String,
    /// The indented lines below the heading; empty for a paragraph.
    pub(crate) lines: Vec<Line>,
}

/// One indented line of a block of a help text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line with two columns of text.
    Pair(String, String),
    /// A command that users can copy.
    Command(String),
    /// A description of the command in the preceding line.
    Text(String),
}

/// Splits a help page into its blocks.
pub(crate) fn parse_blocks(lay_out_page: &str) -> Vec<Block> {
    let texts = lay_out_page
        .split("\n\n")
        .filter(|text| !text.trim().is_empty());
    texts.map(parse_block).collect()
}

fn parse_block(text: &str) -> Block {
    let is_indented = |line: &&str| line.starts_with("    ");
    let head: Vec<&str> = text.lines().filter(|line| !is_indented(line)).collect();
    let indented_lines: Vec<&str> = text.lines().filter(is_indented).collect();
    let column = second_column(&indented_lines);
    let mut lines: Vec<Line> = Vec::new();
    for line in indented_lines {
        let text = line.trim().to_owned();
        lines.push(match column {
            _ if line.starts_with("        ") => Line::Text(text),
            Some(at) => {
                let (left, right) =
                    line.split_at(line.char_indices().nth(at).map_or(line.len(), |(at, _)| at));
                Line::Pair(left.trim().to_owned(), right.trim().to_owned())
            }
            None => Line::Command(text),
        });
    }
    Block {
        head: head.join(" ").trim().to_owned(),
        lines,
    }
}

/// Returns the position at which the second column of these lines starts; `None` if there is only one column.
///
/// At this position, a word begins in every line. In at least one line, this word follows two spaces.
fn second_column(lines: &[&str]) -> Option<usize> {
    let candidates = lines.iter().filter(|line| !line.starts_with("        "));
    let candidates: Vec<Vec<char>> = candidates.map(|line| line.chars().collect()).collect();
    let longest = candidates.iter().map(Vec::len).max()?;
    (6..longest).find(|&column| {
        let begins_column = |line: &Vec<char>| {
            line.get(column).is_some_and(|c| *c != ' ') && line[column - 1] == ' '
        };
        candidates.iter().all(begins_column)
            && candidates.iter().any(|line| line[column - 2] == ' ')
    })
}

/// Wraps a help page at `width` columns.
pub(crate) fn lay_out_page(text: &str, width: usize) -> String {
    let parse_blocks = parse_blocks(text);
    let texts: Vec<String> = parse_blocks
        .iter()
        .map(|block| lay_out(block, width))
        .collect();
    texts.join("\n\n")
}

fn lay_out(block: &Block, width: usize) -> String {
    let name_widths = block.lines.iter().map(|line| match line {
        Line::Pair(name, _) => name.chars().count(),
        _ => 0,
    });
    let name_width = name_widths.max().unwrap_or(0);
    let mut lines = vec![wrap(&block.head, width, "")];
    for line in &block.lines {
        lines.push(match line {
            Line::Pair(name, text) => {
                let first = format!("    {name:name_width$} {text}");
                wrap(&first, width, &" ".repeat(4 + name_width + 1))
            }
            Line::Text(text) => wrap(&format!("        {text}"), width, "        "),
            Line::Command(text) => break_command(text, width),
        });
    }
    lines.join("\n")
}

/// Breaks a command into several lines that end in a backslash, so that it can be copied into a shell.
fn break_command(command: &str, width: usize) -> String {
    let whole = format!("    {command}");
    if visible_width(&whole) <= width {
        return whole;
    }
    // Do not break a line inside quotes.
    let mut quote = None;
    let whole = whole.chars().map(|letter| match (quote, letter) {
        (None, '\'' | '"') => {
            quote = Some(letter);
            letter
        }
        (Some(opening_quote), _) if letter == opening_quote => {
            quote = None;
            letter
        }
        (Some(_), ' ') => HARD_SPACE,
        _ => letter,
    });
    let lines = wrap(
        &whole.collect::<String>(),
        width.saturating_sub(2),
        "        ",
    );
    lines.replace('\n', " \\\n").replace(HARD_SPACE, " ")
}

/// Breaks a line between words if it is longer than `width`, and indents the continuation lines by `indent`.
pub(crate) fn wrap(line: &str, width: usize, indent: &str) -> String {
    if visible_width(line) <= width {
        return line.to_owned();
    }
    let indent_length = line.len() - line.trim_start_matches(' ').len();
    let mut text = String::new();
    let mut column = 0;
    let mut is_line_start = true;
    // Keep the spaces before each word, because several spaces separate columns.
    let mut rest = &line[indent_length..];
    text.push_str(&line[..indent_length]);
    column += indent_length;
    while !rest.is_empty() {
        let blanks = rest.len() - rest.trim_start_matches(' ').len();
        let word = rest[blanks..].split(' ').next().unwrap_or_default();
        let length = visible_width(word);
        if !is_line_start && column + blanks + length > width {
            text.push('\n');
            text.push_str(indent);
            column = visible_width(indent);
        } else {
            text.push_str(&rest[..blanks]);
            column += blanks;
        }
        text.push_str(word);
        column += length;
        is_line_start = false;
        rest = &rest[blanks + word.len()..];
    }
    text
}

/// The number of columns that a text takes on a terminal, without its colour sequences.
pub(crate) fn visible_width(text: &str) -> usize {
    let mut count = 0;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '\x1b' {
            letters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            count += 1;
        }
    }
    count
}

/// The width of the terminal in columns; `None` if the stream is not a terminal.
pub(crate) fn columns(fd: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(fd).ok()?;
    let columns = usize::from(size.ws_col);
    (columns > 0).then(|| columns.max(MIN_WIDTH))
}

/// The width of a help text: at least [`MIN_WIDTH`] and at most [`MAX_WIDTH`] columns. Within these limits, it is the
/// first of these values that is known:
///
/// 1. the width of the terminal on stdout
/// 2. the value of the variable `COLUMNS`
/// 3. the width of the controlling terminal
/// 4. [`MAX_WIDTH`]
pub(crate) fn page_width() -> usize {
    let from_variable = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    let from_terminal = || columns(File::open("/dev/tty").ok()?);
    let width = columns(std::io::stdout())
        .or_else(from_variable)
        .or_else(from_terminal);
    width.map_or(MAX_WIDTH, |width: usize| width.clamp(MIN_WIDTH, MAX_WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
One paragraph that goes on
over two lines.

Examples:
    quorate run --wait 5m --max-hold 1h deploy:web -- make deploy
    quorate demo
        Needs no masters and no configuration file.

Exit codes:
    0       success
    128+n   signal n ended the command, the wait for the lock, or a measurement";

    #[test]
    fn help_page_is_wrapped_at_the_given_width() {
        let narrow = lay_out_page(PAGE, 40);
        assert_eq!(
            narrow,
            "One paragraph that goes on over two\nlines.\n\n\
             Examples:\n    quorate run --wait 5m --max-hold \\\n        1h deploy:web -- make deploy\n    \
             quorate demo\n        Needs no masters and no\n        configuration file.\n\n\
             Exit codes:\n    0     success\n    128+n signal n ended the command,\n          the wait for the \
             lock, or a\n          measurement"
        );
        for width in [32, 60, 80, 100, 200] {
            for line in lay_out_page(PAGE, width).lines() {
                assert!(visible_width(line) <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn quoted_text_is_not_split_over_lines() {
        let text = lay_out_page("Examples:\n    quorate run name --shell 'a | b; c d' x", 32);
        let expected = "Examples:\n    quorate run name --shell \\\n        'a | b; c d' x";
        assert_eq!(text, expected);
    }

    #[test]
    fn second_help_column_is_recognized_even_after_a_single_space() {
        let block = parse_block("Checks:\n    login      is accepted\n    long names are accepted");
        let pairs = [("login", "is accepted"), ("long names", "are accepted")];
        let pairs = pairs.map(|(left, right)| Line::Pair(left.into(), right.into()));
        assert_eq!(block.lines, pairs);
    }

    #[test]
    fn colour_sequences_do_not_count_as_text_width() {
        assert_eq!(visible_width("\x1b[1mab\x1b[0m"), 2);
        assert_eq!(
            wrap("\x1b[1mab\x1b[0m cd ef", 5, "  "),
            "\x1b[1mab\x1b[0m cd\n  ef"
        );
        assert_eq!(wrap("longerthanthat", 5, ""), "longerthanthat");
    }
}
