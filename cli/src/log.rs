//! Prints the events of the library on stderr: warnings by default, more with `-v`, nothing with `-q`.
//!
//! Each event is one line without escape sequences, line breaks or passwords.

use std::fmt;
use std::io;

use clap::{ArgAction, Args};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use crate::output;
use crate::waiting;

/// The options for how much is printed on stderr. Every command has them.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Verbosity {
    /// Print only the final error on stderr
    ///
    /// Exception: one warning if no majority answers.
    #[arg(short, long, global = true, display_order = 900, env = "QUORATE_QUIET", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) quiet: bool,

    /// Print debug events on stderr; -vv prints all events
    ///
    /// The variable RUST_LOG, for example quorate=debug, applies if neither -q nor -v is given.
    #[arg(short, long, global = true, display_order = 901, action = ArgAction::Count, env = "QUORATE_VERBOSE")]
    pub(crate) verbose: u8,
}

/// Starts to print events of the library. The flags `-q` and `-v` set the log level. Without these flags, the variable
/// `RUST_LOG` sets it. Without this variable, the level is `default_level`, the default level of the command.
pub(crate) fn start(verbosity: Verbosity, default_level: LevelFilter) {
    output::be_quiet(verbosity.quiet);
    let library_targets = |level| Targets::new().with_target("quorate", level);
    let targets = match verbosity {
        Verbosity { quiet: true, .. } => library_targets(LevelFilter::OFF),
        Verbosity { verbose: 0, .. } => {
            from_environment().unwrap_or_else(|| library_targets(default_level))
        }
        Verbosity { verbose: 1, .. } => library_targets(LevelFilter::DEBUG),
        Verbosity { .. } => library_targets(LevelFilter::TRACE),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .event_format(PlainFormat)
        .with_writer(|| LogWriter)
        .finish()
        .with(targets);
    // The call fails if this process already has a subscriber for events. That subscriber stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// The log levels that the variable `RUST_LOG` sets. An empty variable counts as unset.
fn from_environment() -> Option<Targets> {
    let filter = std::env::var("RUST_LOG").ok()?;
    if filter.trim().is_empty() {
        return None;
    }
    match filter.parse() {
        Ok(targets) => Some(targets),
        Err(error) => {
            output::print_message(format!(
                "ignoring RUST_LOG: {error}; for example, RUST_LOG=quorate=debug is valid"
            ));
            None
        }
    }
}

/// Formats each event of the library as its severity, its message and its fields.
struct PlainFormat;

impl<S, N> FormatEvent<S, N> for PlainFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let severity = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(writer, "{severity}: ")?;
        context.format_fields(writer.by_ref(), event)
    }
}

/// Prints events on stderr. Each call of `write` gets one event and prints one line.
struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        waiting::write_above_spinner(|| {
            output::print_message_if_writable(output::printable(event.trim_ascii()));
        });
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
