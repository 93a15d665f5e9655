//! An observer of an election.

use pyo3::prelude::*;
use quorate_bindings::election;

use crate::call::Call;
use crate::errors::exception;

/// Observes which client leads.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct Observer {
    pub(crate) observer: election::Observer,
}

#[pymethods]
impl Observer {
    /// The call that waits until the leader changes.
    fn next(&self, py: Python<'_>) -> PyResult<Call> {
        let call = self.observer.next();
        call.map(Call::new).map_err(|error| exception(py, &error))
    }
}
