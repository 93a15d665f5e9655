//! A call that Python starts, and waits for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quorate_bindings::blocking_call::BlockingCall;
use quorate_bindings::call;

use crate::answers;

/// How often a waiting thread looks for signals, for example Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// How long an interrupted thread waits until the future of its call was dropped.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(350);

/// A call that has not been started.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct Call {
    call: Mutex<Option<call::Call>>,
}

impl Call {
    pub(crate) fn new(call: call::Call) -> Self {
        let call = Mutex::new(Some(call));
        Self { call }
    }

    /// Takes out the call to start it.
    pub(crate) fn take(&self) -> PyResult<call::Call> {
        let call = self
            .call
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        call.ok_or_else(|| PyRuntimeError::new_err("this call was started before"))
    }
}

#[pymethods]
impl Call {
    /// Starts the call, and waits for its result without the interpreter lock. Ctrl-C ends the wait.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let running = BlockingCall::start(self.take()?);
        loop {
            if let Some(reply) = py.detach(|| running.wait(SIGNAL_INTERVAL)) {
                return answers::reply(py, reply);
            }
            if let Err(interrupt) = py.check_signals() {
                py.detach(|| running.cancel(CANCEL_TIMEOUT));
                return Err(interrupt);
            }
        }
    }
}
