//! A quota.

use pyo3::prelude::*;
use quorate_bindings::quota;

use crate::call::Call;
use crate::core::Core;
use crate::times;

/// A quota with its time to wait.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct QuotaOptions {
    options: quota::QuotaOptions,
}

#[pymethods]
impl QuotaOptions {
    #[new]
    fn new(name: Vec<u8>, wait: Option<f64>) -> PyResult<Self> {
        let wait = times::optional_wait(wait)?;
        let options = quota::QuotaOptions { name, wait };
        Ok(Self { options })
    }

    fn create(&self, py: Python<'_>, core: &Core, units: u64) -> PyResult<Call> {
        core.call(py, |client| self.options.create(client, units))
    }

    fn take(&self, py: Python<'_>, core: &Core, units: u64) -> PyResult<Call> {
        core.call(py, |client| self.options.take(client, units))
    }

    fn left(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.left(client))
    }

    fn remove(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.remove(client))
    }
}
