//! Watches a held lock for the notice that it may be lost soon.

use pyo3::prelude::*;
use quorate_bindings::risk;

use crate::call::Call;
use crate::errors::exception;

/// Watches a held lock.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct RiskWatcher {
    pub(crate) watcher: risk::RiskWatcher,
}

#[pymethods]
impl RiskWatcher {
    /// The call that waits until the lock is at risk.
    fn next(&self, py: Python<'_>) -> PyResult<Call> {
        let call = self.watcher.next();
        call.map(Call::new).map_err(|error| exception(py, &error))
    }
}
