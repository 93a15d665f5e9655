//! Messages of the library for the module `logging`. A thread of Python takes them out of a queue.

use pyo3::prelude::*;
use quorate_bindings::logs;
use tracing::Level;

/// The level of `logging` for a level of `tracing`.
fn python_level(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// Starts to collect messages of this level of `logging` and above. False if they are collected already.
#[pyfunction]
pub(crate) fn logs_start(level: u8) -> bool {
    logs::start(match level {
        40.. => Level::ERROR,
        30..40 => Level::WARN,
        20..30 => Level::INFO,
        10..20 => Level::DEBUG,
        _ => Level::TRACE,
    })
}

/// Waits for messages: their levels and texts, and how many did not fit into the queue. `None` at the end.
#[pyfunction]
pub(crate) fn logs_wait(py: Python<'_>) -> Option<(Vec<(u8, String)>, u64)> {
    let batch = py.detach(logs::wait)?;
    let messages = batch.messages.into_iter();
    let messages = messages.map(|message| (python_level(message.level), message.text));
    Some((messages.collect(), batch.dropped))
}

/// Ends the wait for messages.
#[pyfunction]
pub(crate) fn logs_end() {
    logs::end();
}
