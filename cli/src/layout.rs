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
const WIDEST: usize = 100;
/// Minimum width of a help text, in columns. A terminal that is narrower breaks the lines itself.
const NARROWEST: usize = 32;

/// A no-break space. During the wrapping, it replaces each space at which a line must not be broken.
const HARD: char = '\u{a0}';

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
    Words(String),
}

/// Splits a help page into its blocks.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let texts = page.split("\n\n").filter(|text| !text.trim().is_empty());
    texts.map(block).collect()
}

fn block(text: &str) -> Block {
    let is_inside = |line: &&str| line.starts_with("    ");
    let head: Vec<&str> = text.lines().filter(|line| !is_inside(line)).collect();
    let inside: Vec<&str> = text.lines().filter(is_inside).collect();
    let column = second_column(&inside);
    let mut lines: Vec<Line> = Vec::new();
    for line in inside {
        let words = line.trim().to_owned();
        lines.push(match column {
            _ if line.starts_with("        ") => Line::Words(words),
            Some(at) => {
                let (left, right) =
                    line.split_at(line.char_indices().nth(at).map_or(line.len(), |(at, _)| at));
                Line::Pair(left.trim().to_owned(), right.trim().to_owned())
            }
            None => Line::Command(words),
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
    let own = lines.iter().filter(|line| !line.starts_with("        "));
    let own: Vec<Vec<char>> = own.map(|line| line.chars().collect()).collect();
    let longest = own.iter().map(Vec::len).max()?;
    (6..longest).find(|&at| {
        let begins =
            |line: &Vec<char>| line.get(at).is_some_and(|c| *c != ' ') && line[at - 1] == ' ';
        own.iter().all(begins) && own.iter().any(|line| line[at - 2] == ' ')
    })
}

/// Wraps a help page at `width` columns.
pub(crate) fn page(text: &str, width: usize) -> String {
    let blocks = blocks(text);
    let texts: Vec<String> = blocks.iter().map(|block| laid_out(block, width)).collect();
    texts.join("\n\n")
}

fn laid_out(block: &Block, width: usize) -> String {
    let left = block.lines.iter().map(|line| match line {
        Line::Pair(left, _) => left.chars().count(),
        _ => 0,
    });
    let left = left.max().unwrap_or(0);
    let mut lines = vec![fill(&block.head, width, "")];
    for line in &block.lines {
        lines.push(match line {
            Line::Pair(name, words) => {
                let first = format!("    {name:left$} {words}");
                fill(&first, width, &" ".repeat(4 + left + 1))
            }
            Line::Words(words) => fill(&format!("        {words}"), width, "        "),
            Line::Command(words) => broken(words, width),
        });
    }
    lines.join("\n")
}

/// Breaks a command into several lines that end in a backslash, so that it can be copied into a shell.
fn broken(words: &str, width: usize) -> String {
    let whole = format!("    {words}");
    if visible(&whole) <= width {
        return whole;
    }
    // Do not break a line inside quotes.
    let mut quote = None;
    let whole = whole.chars().map(|letter| match (quote, letter) {
        (None, '\'' | '"') => {
            quote = Some(letter);
            letter
        }
        (Some(open), _) if letter == open => {
            quote = None;
            letter
        }
        (Some(_), ' ') => HARD,
        _ => letter,
    });
    let lines = fill(
        &whole.collect::<String>(),
        width.saturating_sub(2),
        "        ",
    );
    lines.replace('\n', " \\\n").replace(HARD, " ")
}

/// Breaks a line between words if it is longer than `width`, and indents the continuation lines by `indent`.
pub(crate) fn fill(line: &str, width: usize, indent: &str) -> String {
    if visible(line) <= width {
        return line.to_owned();
    }
    let lead = line.len() - line.trim_start_matches(' ').len();
    let mut text = String::new();
    let mut at = 0;
    let mut is_new = true;
    // Keep the spaces before each word, because several spaces separate columns.
    let mut rest = &line[lead..];
    text.push_str(&line[..lead]);
    at += lead;
    while !rest.is_empty() {
        let blanks = rest.len() - rest.trim_start_matches(' ').len();
        let word = rest[blanks..].split(' ').next().unwrap_or_default();
        let length = visible(word);
        if !is_new && at + blanks + length > width {
            text.push('\n');
            text.push_str(indent);
            at = visible(indent);
        } else {
            text.push_str(&rest[..blanks]);
            at += blanks;
        }
        text.push_str(word);
        at += length;
        is_new = false;
        rest = &rest[blanks + word.len()..];
    }
    text
}

/// The number of columns that a text takes on a terminal, without its colour sequences.
pub(crate) fn visible(text: &str) -> usize {
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
pub(crate) fn columns(of: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(of).ok()?;
    let columns = usize::from(size.ws_col);
    (columns > 0).then(|| columns.max(NARROWEST))
}

/// The width of a help text: at least [`NARROWEST`] and at most [`WIDEST`] columns. Within these limits, it is the
/// first of these values that is known:
///
/// 1. the width of the terminal on stdout
/// 2. the value of the variable `COLUMNS`
/// 3. the width of the controlling terminal
/// 4. [`WIDEST`]
pub(crate) fn page_width() -> usize {
    let named = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    let terminal = || columns(File::open("/dev/tty").ok()?);
    let width = columns(std::io::stdout()).or_else(named).or_else(terminal);
    width.map_or(WIDEST, |width: usize| width.clamp(NARROWEST, WIDEST))
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
        let narrow = page(PAGE, 40);
        assert_eq!(
            narrow,
            "One paragraph that goes on over two\nlines.\n\n\
             Examples:\n    quorate run --wait 5m --max-hold \\\n        1h deploy:web -- make deploy\n    \
             quorate demo\n        Needs no masters and no\n        configuration file.\n\n\
             Exit codes:\n    0     success\n    128+n signal n ended the command,\n          the wait for the \
             lock, or a\n          measurement"
        );
        for width in [32, 60, 80, 100, 200] {
            for line in page(PAGE, width).lines() {
                assert!(visible(line) <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn quoted_text_is_not_split_over_lines() {
        let text = page("Examples:\n    quorate run name --shell 'a | b; c d' x", 32);
        let expected = "Examples:\n    quorate run name --shell \\\n        'a | b; c d' x";
        assert_eq!(text, expected);
    }

    #[test]
    fn second_help_column_is_recognized_even_after_a_single_space() {
        let block = block("Checks:\n    login      is accepted\n    long names are accepted");
        let pairs = [("login", "is accepted"), ("long names", "are accepted")];
        let pairs = pairs.map(|(left, right)| Line::Pair(left.into(), right.into()));
        assert_eq!(block.lines, pairs);
    }

    #[test]
    fn colour_sequences_do_not_count_as_text_width() {
        assert_eq!(visible("\x1b[1mab\x1b[0m"), 2);
        assert_eq!(
            fill("\x1b[1mab\x1b[0m cd ef", 5, "  "),
            "\x1b[1mab\x1b[0m cd\n  ef"
        );
        assert_eq!(fill("longerthanthat", 5, ""), "longerthanthat");
    }
}
