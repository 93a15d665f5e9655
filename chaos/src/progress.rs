//! Displays the progress of a run on the terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::recorder::Totals;

/// The progress display on standard error. On a terminal, it updates one line. Otherwise, it prints a new line every 10
/// s.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    rewrites_line: bool,
    phase: String,
    last_update: Option<Instant>,
}

impl Progress {
    /// A display that shows progress on standard error.
    pub fn shown() -> Self {
        Self {
            shown: true,
            rewrites_line: std::io::stderr().is_terminal(),
            phase: "faults".into(),
            last_update: None,
        }
    }

    /// A display that shows nothing.
    pub fn hidden() -> Self {
        Self {
            shown: false,
            rewrites_line: false,
            phase: String::new(),
            last_update: None,
        }
    }

    /// Begins to display a new phase of the run.
    pub fn phase(&mut self, name: &str) {
        name.clone_into(&mut self.phase);
        self.last_update = None;
    }

    /// Displays which part of the run is in progress, e.g. the step of a change of masters.
    pub fn show_part(&mut self, part: &str) {
        if self.phase != part {
            part.clone_into(&mut self.phase);
        }
    }

    /// Prints a line that stays on the screen above the display.
    pub fn print_line(&mut self, text: &str) {
        if self.shown {
            let clear = if self.rewrites_line { "\r\x1b[K" } else { "" };
            eprintln!("{clear}{text}");
        }
    }

    /// Updates the displayed totals: on a terminal at most every 200 ms, otherwise at most every 10 s.
    pub fn tick(&mut self, totals: Totals, remaining: Duration) {
        let interval = Duration::from_millis(if self.rewrites_line { 200 } else { 10_000 });
        if !self.shown
            || self
                .last_update
                .is_some_and(|last_update| last_update.elapsed() < interval)
        {
            return;
        }
        self.last_update = Some(Instant::now());
        let line = format!(
            "{}: {} s left | {} locks obtained, {} not obtained, {} losses reported, {} stale writes refused | {} \
             faults took effect, {} failed",
            self.phase,
            remaining.as_secs(),
            totals.obtained,
            totals.missed,
            totals.notified,
            totals.refused,
            totals.landed,
            totals.failed
        );
        let mut out = std::io::stderr();
        let _ = if self.rewrites_line {
            write!(out, "\r\x1b[K{line}")
        } else {
            writeln!(out, "{line}")
        };
        let _ = out.flush();
    }

    /// Ends the display.
    pub fn finish(&mut self) {
        if self.shown && self.rewrites_line {
            eprint!("\r\x1b[K");
        }
    }
}
