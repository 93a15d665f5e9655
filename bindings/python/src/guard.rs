//! A held lock.

use pyo3::prelude::*;
use quorate_bindings::call;
use quorate_bindings::error::CallError;
use quorate_bindings::guard;
use quorate_bindings::quorate::LossCause;

use crate::call::Call;
use crate::errors;
use crate::risk::RiskWatcher;
use crate::times;

/// A held lock. `quorate/_guard.py` has the classes for users.
#[pyclass(frozen, weakref, module = "quorate._quorate")]
pub(crate) struct Guard {
    guard: guard::Guard,
}

impl Guard {
    pub(crate) fn new(guard: guard::Guard) -> Self {
        Self { guard }
    }
}

fn call(py: Python<'_>, call: Result<call::Call, CallError>) -> PyResult<Call> {
    call.map(Call::new)
        .map_err(|error| errors::exception(py, &error))
}

#[pymethods]
impl Guard {
    #[getter]
    fn fencing_token(&self) -> Option<u64> {
        self.guard.fencing_token()
    }

    #[getter]
    fn slot(&self) -> Option<usize> {
        self.guard.permit()
    }

    #[getter]
    fn token(&self) -> &str {
        self.guard.token()
    }

    #[getter]
    fn resources(&self) -> Vec<Vec<u8>> {
        self.guard.resources().to_vec()
    }

    #[getter]
    fn remaining(&self) -> f64 {
        self.guard.remaining().as_secs_f64()
    }

    #[getter]
    fn lost(&self) -> Option<&'static str> {
        self.guard.loss().map(LossCause::as_str)
    }

    fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    fn is_released(&self) -> bool {
        self.guard.is_released()
    }

    fn reports(&self) -> Vec<(String, &'static str, String, Option<f64>)> {
        errors::reports(&self.guard.reports())
    }

    fn release(&self, py: Python<'_>) -> PyResult<Call> {
        call(py, self.guard.release())
    }

    fn extend(&self, py: Python<'_>, ttl: f64) -> PyResult<Call> {
        call(py, self.guard.extend(times::duration(ttl)?))
    }

    fn wait_lost(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Call> {
        call(py, self.guard.wait_lost(times::optional_duration(timeout)?))
    }

    fn at_risk(&self, py: Python<'_>, margin: f64) -> PyResult<RiskWatcher> {
        let watcher = self.guard.at_risk(times::duration(margin)?);
        let watcher = watcher.map_err(|error| errors::exception(py, &error))?;
        Ok(RiskWatcher { watcher })
    }

    fn record(&self, py: Python<'_>) -> PyResult<Call> {
        call(py, self.guard.record())
    }
}
