//! Messages on stderr, and results on stdout: lines, tables, JSON.
//!
//! Colours are used only if the stream is a terminal and `NO_COLOR` is not set. Without colours, the text has the same
//! information. Everything that is printed on stderr goes through [`redact`], so that no message contains a password.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
pub(crate) use quorate::printable::{hex, json_name, printable, shell_word};
pub(crate) use quorate::redact::redact;
use serde::Serialize;

use crate::exit::Failure;
use crate::layout;

/// Style of a good state.
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
/// Style of a state that the user has to check.
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
/// Style of a bad state.
pub(crate) const RED: Style = AnsiColor::Red.on_default();
/// Style of headings.
pub(crate) const BOLD: Style = Style::new().bold();

/// Time between two checks whether stdout still has a reader.
const POLL_PAUSE: Duration = Duration::from_millis(250);

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// If `quiet` is true, [`print_notice`] prints nothing from this call on.
pub(crate) fn be_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints one line on stderr.
pub(crate) fn print_message(message: impl Display) {
    let message = message.to_string();
    let _ = writeln!(
        anstream::stderr(),
        "quorate: {}",
        one_line(&redact(&message))
    );
}

/// Prints one line on stderr. Prints nothing if `--quiet` was given.
pub(crate) fn print_notice(message: impl Display) {
    if !is_quiet() {
        print_message(message);
    }
}

/// Prints one line on stderr. Drops the line if the write would block, because a blocked process cannot renew its lock.
pub(crate) fn print_message_if_writable(message: impl Display) {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut fds, PollTimeout::ZERO) != Ok(0) {
        print_message(message);
    }
}

/// Prints an error on stderr.
pub(crate) fn print_error(message: &str) {
    let _ = writeln!(
        anstream::stderr(),
        "{RED}quorate:{RED:#} {}",
        one_line(&redact(message))
    );
}

/// Prints a result on stdout. If stdout is a closed pipe, drops the text; this is not an error.
///
/// # Errors
///
/// If stdout cannot be written for another reason.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints text for people on stdout. On a terminal, long lines are broken between words.
///
/// # Errors
///
/// The errors of [`print()`].
pub(crate) fn print_page(text: &str) -> Result<(), Failure> {
    let Some(width) = layout::columns(io::stdout()) else {
        return print(text);
    };
    let lines = text.lines().map(|line| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        layout::wrap(line, width, &" ".repeat(indent + 4)) + "\n"
    });
    print(&lines.collect::<String>())
}

/// Prints one line on stdout. Returns false if stdout is a closed pipe.
pub(crate) fn print_line(line: &str) -> Result<bool, Failure> {
    let mut out = anstream::stdout().lock();
    let result = writeln!(out, "{line}").and_then(|()| out.flush());
    let is_closed = matches!(&result, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
    ignore_broken_pipe(result).map(|()| !is_closed)
}

/// Resolves when stdout is a pipe and the reader of the pipe has closed it. A command that prints rarely would
/// otherwise notice this only at its next output.
pub(crate) async fn wait_until_unread() {
    loop {
        let stdout = io::stdout();
        // `poll` always reports a closed pipe, so request no events.
        let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
        if poll(&mut fds, PollTimeout::ZERO) == Ok(1)
            && fds[0]
                .revents()
                .is_some_and(|events| events.intersects(closed))
        {
            return;
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

/// Writes bytes to stdout without any change.
///
/// # Errors
///
/// The errors of [`print()`].
pub(crate) fn print_raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    ignore_broken_pipe(out.write_all(bytes).and_then(|()| out.flush()))
}

fn ignore_broken_pipe(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::internal(format!(
            "cannot write to stdout: {error}"
        ))),
        _ => Ok(()),
    }
}

/// Writes one JSON document to stdout.
///
/// # Errors
///
/// The errors of [`print()`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    text.push('\n');
    print(&text)
}

/// A cell of a table: its text and its style.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            style: Style::new(),
        }
    }
}

impl Cell {
    /// Creates a cell whose text is printed in this style.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self {
            text: text.into(),
            style,
        }
    }
}

/// Formats a table with a bold heading and two spaces between columns. If the terminal is too narrow for the table,
/// puts each cell on a line of its own.
pub(crate) fn table(heading: &[&str], rows: &[Vec<Cell>]) -> String {
    let aligned = aligned_table(heading, rows);
    let is_too_wide = |width: &usize| {
        aligned
            .lines()
            .any(|line| layout::visible_width(line) > *width)
    };
    match layout::columns(io::stdout()).filter(is_too_wide) {
        Some(width) => stacked_table(heading, rows, width),
        None => aligned,
    }
}

/// Formats each row as several lines of at most `width` columns. Each cell begins a line, except cells with the text
/// `-`, which are left out.
fn stacked_table(heading: &[&str], rows: &[Vec<Cell>], width: usize) -> String {
    let label_widths = heading
        .iter()
        .skip(1)
        .map(|name| layout::visible_width(name));
    let label_width = label_widths.max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let mut cells = row.iter().zip(heading);
        if let Some((Cell { text: first, .. }, _)) = cells.next() {
            text += &format!("{BOLD}{first}{BOLD:#}\n");
        }
        for (cell, name) in cells.filter(|(cell, _)| cell.text != "-") {
            let style = cell.style;
            let line = format!("  {name:label_width$}  {style}{}{style:#}", cell.text);
            text += &layout::wrap(&line, width, &" ".repeat(label_width + 4));
            text.push('\n');
        }
    }
    text
}

fn aligned_table(heading: &[&str], rows: &[Vec<Cell>]) -> String {
    let heading: Vec<Cell> = heading.iter().map(|&h| Cell::styled(h, BOLD)).collect();
    let width = |text: &str| text.chars().count();
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| {
            std::iter::once(&heading)
                .chain(rows)
                .filter_map(|row| row.get(column))
                .map(|cell| width(&cell.text))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in std::iter::once(&heading).chain(rows) {
        for (column, cell) in row.iter().enumerate() {
            let style = cell.style;
            text += &format!("{style}{}{style:#}", cell.text);
            if column + 1 < row.len() {
                text.push_str(&" ".repeat(widths[column] - width(&cell.text) + 2));
            }
        }
        text.push('\n');
    }
    text
}

/// Formats a duration for people, rounded down:
///
/// - to whole seconds, if the duration is 1 min or more
/// - to whole milliseconds, if the duration is between 1 ms and 1 min
/// - to whole microseconds, if the duration is below 1 ms
pub(crate) fn human(duration: Duration) -> String {
    let rounded = if duration >= Duration::from_secs(60) {
        Duration::from_secs(duration.as_secs())
    } else if duration >= Duration::from_millis(1) {
        Duration::from_millis(duration.as_millis() as u64)
    } else {
        Duration::from_micros(duration.as_micros() as u64)
    };
    humantime::format_duration(rounded).to_string()
}

fn one_line(text: &str) -> String {
    text.trim().replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let rows = vec![
            vec![Cell::from("a"), Cell::from("first")],
            vec![Cell::from("longer"), Cell::from("ünd")],
        ];
        let plain = anstream::adapter::strip_str(&table(&["name", "what"], &rows)).to_string();
        assert_eq!(plain, "name    what\na       first\nlonger  ünd\n");
    }

    #[test]
    fn table_too_wide_for_the_terminal_is_printed_with_one_cell_per_line() {
        let rows = vec![
            vec![
                Cell::from("a"),
                Cell::from("-"),
                Cell::from("one two three"),
            ],
            vec![Cell::from("b"), Cell::from("up"), Cell::from("-")],
        ];
        let narrow = stacked_table(&["MASTER", "STATE", "WHY"], &rows, 17);
        let plain = anstream::adapter::strip_str(&narrow).to_string();
        let expected = "a\n  WHY    one two\n         three\nb\n  STATE  up\n";
        assert_eq!(plain, expected);
    }

    #[test]
    fn duration_in_a_message_is_rounded() {
        assert_eq!(human(Duration::from_micros(9_872_123)), "9s 872ms");
        assert_eq!(human(Duration::from_nanos(412_345)), "412us");
        assert_eq!(human(Duration::from_millis(61_500)), "1m 1s");
    }
}
