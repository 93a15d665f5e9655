//! Seconds of Python as durations.

use std::time::{Duration, SystemTime};

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use quorate_bindings::quorate::Wait;

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map_err(|error| {
        PyValueError::new_err(format!("{seconds} is not a time in seconds: {error}"))
    })
}

pub(crate) fn optional_duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds.map(duration).transpose()
}

/// A time to wait. Below 0 means for ever, and 0 means a single attempt.
pub(crate) fn wait(seconds: f64) -> PyResult<Wait> {
    Ok(match seconds {
        seconds if seconds < 0.0 => Wait::Forever,
        0.0 => Wait::None,
        seconds => Wait::For(duration(seconds)?),
    })
}

pub(crate) fn optional_wait(seconds: Option<f64>) -> PyResult<Option<Wait>> {
    seconds.map(wait).transpose()
}

/// The seconds since 1970, as `datetime.fromtimestamp` takes them.
pub(crate) fn timestamp(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

pub(crate) fn system_time(timestamp: f64) -> PyResult<SystemTime> {
    Ok(SystemTime::UNIX_EPOCH + duration(timestamp)?)
}
