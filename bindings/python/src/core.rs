//! The client of a `Redlock` object.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quorate_bindings::client::Client;
use quorate_bindings::election::ElectionOptions;
use quorate_bindings::lazy_client::LazyClient;
use quorate_bindings::{call, queries};

use crate::call::Call;
use crate::errors::exception;
use crate::lock_options::LockOptions;
use crate::observer::Observer;
use crate::settings::client_settings;
use crate::times;

/// The settings of a `Redlock` object, and its client, which starts with the first call. A forked process gets a client
/// of its own.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct Core {
    client: LazyClient,
}

impl Core {
    fn client(&self, py: Python<'_>) -> PyResult<Arc<Client>> {
        let (client, is_new) = self.client.get().map_err(|error| exception(py, &error))?;
        if is_new {
            // After a fork, the thread that hands over messages does not run.
            py.import("quorate._logging")?
                .call_method0("start_thread")?;
        }
        Ok(client)
    }

    pub(crate) fn call(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&Arc<Client>) -> call::Call,
    ) -> PyResult<Call> {
        Ok(Call::new(make(&self.client(py)?)))
    }
}

fn election(name: Vec<u8>, ttl: Option<f64>, wait: Option<f64>) -> PyResult<ElectionOptions> {
    let ttl = times::optional_duration(ttl)?;
    let wait = times::optional_wait(wait)?;
    Ok(ElectionOptions { name, ttl, wait })
}

#[pymethods]
impl Core {
    #[new]
    fn new(py: Python<'_>, settings: &Bound<'_, PyDict>, from_env: bool) -> PyResult<Self> {
        let settings = client_settings(settings, from_env)?;
        let in_memory = settings.memory.is_some();
        let client = settings
            .builder()
            .and_then(|builder| LazyClient::new(builder, in_memory));
        let client = client.map_err(|error| exception(py, &error))?;
        Ok(Self { client })
    }

    fn acquire(&self, py: Python<'_>, options: &LockOptions) -> PyResult<Call> {
        self.call(py, |client| options.options.clone().acquire(client))
    }

    fn try_acquire(&self, py: Python<'_>, options: &LockOptions) -> PyResult<Call> {
        self.call(py, |client| options.options.clone().try_acquire(client))
    }

    fn status(&self, py: Python<'_>, name: Vec<u8>) -> PyResult<Call> {
        self.call(py, |client| queries::status(client, name))
    }

    fn list(&self, py: Python<'_>, prefix: Vec<u8>) -> PyResult<Call> {
        self.call(py, |client| queries::list(client, prefix))
    }

    fn inspect(&self, py: Python<'_>) -> PyResult<Call> {
        self.call(py, queries::inspect)
    }

    fn break_lock(&self, py: Python<'_>, name: Vec<u8>) -> PyResult<Call> {
        self.call(py, |client| queries::break_lock(client, name))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<Call> {
        self.call(py, queries::flush)
    }

    fn campaign(
        &self,
        py: Python<'_>,
        name: Vec<u8>,
        ttl: Option<f64>,
        wait: Option<f64>,
        note: Option<String>,
    ) -> PyResult<Call> {
        let election = election(name, ttl, wait)?;
        self.call(py, |client| election.campaign(client, note))
    }

    fn try_campaign(
        &self,
        py: Python<'_>,
        name: Vec<u8>,
        ttl: Option<f64>,
        note: Option<String>,
    ) -> PyResult<Call> {
        let election = election(name, ttl, None)?;
        self.call(py, |client| election.try_campaign(client, note))
    }

    fn observe(&self, py: Python<'_>, name: Vec<u8>, ttl: Option<f64>) -> PyResult<Observer> {
        let election = election(name, ttl, None)?;
        let observer = election.observe(&self.client(py)?);
        let observer = observer.map_err(|error| exception(py, &error))?;
        Ok(Observer { observer })
    }

    fn masters(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let client = self.client(py)?;
        Ok(client
            .redlock()
            .masters()
            .map(ToString::to_string)
            .collect())
    }

    /// Releases all locks that are still held, and ends the thread. Returns how many locks there were. The next call
    /// starts another client.
    fn close(&self, py: Python<'_>) -> usize {
        match self.client.take() {
            Some(client) if !client.is_forked() => py.detach(|| client.close()),
            _ => 0,
        }
    }
}
