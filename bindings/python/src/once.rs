//! Work that runs once per period.

use pyo3::prelude::*;
use quorate_bindings::once::{self, Period};

use crate::call::Call;
use crate::core::Core;
use crate::times;

/// Work that runs once per period.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct OnceOptions {
    options: once::OnceOptions,
}

#[pymethods]
impl OnceOptions {
    /// `period` is a length in seconds, or the start and the end of a period in seconds since 1970.
    #[new]
    fn new(
        name: Vec<u8>,
        period: PeriodArgument,
        wait: Option<f64>,
        note: String,
    ) -> PyResult<Self> {
        let options = once::OnceOptions {
            name,
            period: period.period()?,
            wait: times::optional_wait(wait)?,
            note,
        };
        Ok(Self { options })
    }

    fn create(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.create(client))
    }

    fn remove(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.remove(client))
    }

    fn read(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.read(client))
    }

    fn at_most_once(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.at_most_once(client))
    }

    fn at_least_once(&self, py: Python<'_>, core: &Core) -> PyResult<Call> {
        core.call(py, |client| self.options.at_least_once(client))
    }
}

#[derive(FromPyObject)]
enum PeriodArgument {
    Length(f64),
    Range(f64, f64),
}

impl PeriodArgument {
    fn period(self) -> PyResult<Period> {
        Ok(match self {
            Self::Length(seconds) => Period::Every(times::duration(seconds)?),
            Self::Range(start, end) => {
                Period::One(times::system_time(start)?..times::system_time(end)?)
            }
        })
    }
}
