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
pub(crate) struct Talk {
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
/// `RUST_LOG` sets it. Without this variable, the level is `usual`, the default level of the command.
pub(crate) fn start(talk: Talk, usual: LevelFilter) {
    output::be_quiet(talk.quiet);
    let library = |level| Targets::new().with_target("quorate", level);
    let wanted = match talk {
        Talk { quiet: true, .. } => library(LevelFilter::OFF),
        Talk { verbose: 0, .. } => from_environment().unwrap_or_else(|| library(usual)),
        Talk { verbose: 1, .. } => library(LevelFilter::DEBUG),
        Talk { .. } => library(LevelFilter::TRACE),
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .event_format(Plain)
        .with_writer(|| Lines)
        .finish()
        .with(wanted);
    // The call fails if this process already has a subscriber for events. That subscriber stays.
    let _ = tracing::subscriber::set_global_default(lines);
}

/// The log levels that the variable `RUST_LOG` sets. An empty variable counts as unset.
fn from_environment() -> Option<Targets> {
    let wanted = std::env::var("RUST_LOG").ok()?;
    if wanted.trim().is_empty() {
        return None;
    }
    match wanted.parse() {
        Ok(targets) => Some(targets),
        Err(why) => {
            output::say(format!(
                "ignoring RUST_LOG: {why}; for example, RUST_LOG=quorate=debug is valid"
            ));
            None
        }
    }
}

/// Formats each event of the library as its severity, its message and its fields.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
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
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        waiting::above(|| output::say_in_passing(output::bytes(event.trim_ascii())));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
