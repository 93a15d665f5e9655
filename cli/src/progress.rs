//! Progress on stderr: lines, and on a terminal also a bar below them.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// The progress of a job with a known number of steps.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// The progress of the demo.
    pub(crate) fn new(steps: usize) -> Self {
        Self::of(steps, "sold")
    }

    /// The progress of a job; `what` names its steps.
    pub(crate) fn of(steps: usize, what: &str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            if let Ok(style) = ProgressStyle::with_template(&format!(
                "[{{bar:30}}] {{pos}}/{{len}} {what}, {{elapsed}} {{msg}}"
            )) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(std::time::Duration::from_millis(100));
            bar
        });
        Self { bar }
    }

    /// Prints a line.
    pub(crate) fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::say(line)),
            None => output::say(line),
        }
    }

    /// Prints a line, and advances the bar by one step.
    pub(crate) fn advance(&self, line: &str) {
        self.line(line);
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Advances the bar by one step, and shows these words next to it.
    pub(crate) fn step(&self, words: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(words.to_owned());
            bar.inc(1);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
