//! Progress messages on stderr, and a progress bar below them if stderr is a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Shows the progress of a job with a known number of steps.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts to show the progress of `quorate demo`. `steps` is the number of prizes to sell.
    pub(crate) fn of_sales(steps: usize) -> Self {
        Self::with_unit(steps, "sold")
    }

    /// Starts to show the progress of a job. `unit` names the steps: with "turns", the bar shows "3/10 turns".
    pub(crate) fn with_unit(steps: usize, unit: &str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            if let Ok(style) = ProgressStyle::with_template(&format!(
                "[{{bar:30}}] {{pos}}/{{len}} {unit}, {{elapsed}} {{msg}}"
            )) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(std::time::Duration::from_millis(100));
            bar
        });
        Self { bar }
    }

    /// Prints a line above the bar.
    pub(crate) fn print_message(&self, print_message: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::print_message(print_message)),
            None => output::print_message(print_message),
        }
    }

    /// Prints a line above the bar, and advances the bar by one step.
    pub(crate) fn advance(&self, print_message: &str) {
        self.print_message(print_message);
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Advances the bar by one step, and shows `message` next to it.
    pub(crate) fn step(&self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.to_owned());
            bar.inc(1);
        }
    }

    /// Removes the bar from the terminal.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
