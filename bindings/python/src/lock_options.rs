//! A lock to acquire.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quorate_bindings::lock_options::{self, LockKind};

use crate::times;

/// A lock to acquire. Times are in seconds; `None` takes the value of the client. A negative `wait` means for ever.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct LockOptions {
    pub(crate) options: lock_options::LockOptions,
}

fn lock_kind(kind: &str, permits: usize, owner: Option<String>) -> PyResult<LockKind> {
    Ok(match (kind, owner) {
        ("exclusive", _) => LockKind::Exclusive,
        ("shared", _) => LockKind::Shared,
        ("all", _) => LockKind::All,
        ("permit", _) => LockKind::Permit(permits),
        ("owner", Some(owner)) => LockKind::Owner(owner),
        (other, _) => {
            return Err(PyValueError::new_err(format!(
                "{other:?} is not a kind of lock"
            )));
        }
    })
}

#[pymethods]
impl LockOptions {
    #[new]
    #[pyo3(signature = (names, kind, *, ttl, wait, max_hold, renewal, note, permits = 0, owner = None))]
    #[allow(
        clippy::too_many_arguments,
        reason = "each is a keyword of the Python API"
    )]
    fn new(
        names: Vec<Vec<u8>>,
        kind: &str,
        ttl: Option<f64>,
        wait: Option<f64>,
        max_hold: Option<f64>,
        renewal: bool,
        note: Option<String>,
        permits: usize,
        owner: Option<String>,
    ) -> PyResult<Self> {
        let options = lock_options::LockOptions {
            names,
            kind: lock_kind(kind, permits, owner)?,
            ttl: times::optional_duration(ttl)?,
            wait: times::optional_wait(wait)?,
            max_hold: times::optional_duration(max_hold)?,
            renewal,
            note,
            is_anonymous: false,
        };
        Ok(Self { options })
    }
}
