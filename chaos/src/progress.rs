//! Displays the progress of a run on the terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::recorder::Totals;

/// The progress display on standard error. On a terminal, it updates one line. Otherwise, it prints a new line every 10
/// s.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    rewrites: bool,
    phase: String,
    last: Option<Instant>,
}

impl Progress {
    /// A display that shows progress on standard error.
    pub fn shown() -> Self {
        Self {
            shown: true,
            rewrites: std::io::stderr().is_terminal(),
            phase: "faults".into(),
            last: None,
        }
    }

    /// A display that shows nothing.
    pub fn hidden() -> Self {
        Self {
            shown: false,
            rewrites: false,
            phase: String::new(),
            last: None,
        }
    }

    /// Begins to display a new phase of the run.
    pub fn phase(&mut self, name: &str) {
        name.clone_into(&mut self.phase);
        self.last = None;
    }

    /// Displays which part of the run is in progress, e.g. the step of a change of masters.
    pub fn place(&mut self, place: &str) {
        if self.phase != place {
            place.clone_into(&mut self.phase);
        }
    }

    /// Prints a line that stays on the screen above the display.
    pub fn say(&mut self, text: &str) {
        if self.shown {
            let clear = if self.rewrites { "\r\x1b[K" } else { "" };
            eprintln!("{clear}{text}");
        }
    }

    /// Updates the displayed totals: on a terminal at most every 200 ms, otherwise at most every 10 s.
    pub fn tick(&mut self, totals: Totals, left: Duration) {
        let every = Duration::from_millis(if self.rewrites { 200 } else { 10_000 });
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < every) {
            return;
        }
        self.last = Some(Instant::now());
        let text = format!(
            "{}: {} s left | {} locks obtained, {} not obtained, {} losses reported, {} stale writes refused | {} \
             faults took effect, {} failed",
            self.phase,
            left.as_secs(),
            totals.obtained,
            totals.missed,
            totals.notified,
            totals.refused,
            totals.landed,
            totals.failed
        );
        let mut out = std::io::stderr();
        let _ = if self.rewrites {
            write!(out, "\r\x1b[K{text}")
        } else {
            writeln!(out, "{text}")
        };
        let _ = out.flush();
    }

    /// Ends the display.
    pub fn done(&mut self) {
        if self.shown && self.rewrites {
            eprint!("\r\x1b[K");
        }
    }
}
