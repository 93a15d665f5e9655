//! Masters in memory.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quorate_bindings::quorate::testing::{Condition, Masters, MemoryNode};

/// Masters in memory, for tests without servers. Several `Redlock` objects that share them act as separate processes.
#[pyclass(frozen, module = "quorate")]
pub(crate) struct Memory {
    pub(crate) masters: Masters,
}

impl Memory {
    fn master(&self, number: usize) -> PyResult<&MemoryNode> {
        let count = self.masters.len();
        let master = self.masters.get(number);
        master.ok_or_else(|| {
            PyValueError::new_err(format!(
                "there is no master {number}: there are {count}, from 0"
            ))
        })
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (masters = 3))]
    fn new(masters: usize) -> PyResult<Self> {
        if !(1..=64).contains(&masters) {
            return Err(PyValueError::new_err(format!(
                "1 to 64 masters are possible, not {masters}"
            )));
        }
        let masters = Masters::new(masters);
        Ok(Self { masters })
    }

    /// Sets the condition of a master: "up" (the default), "down" (refuses connections) or "mute" (executes requests,
    /// but never answers).
    fn set(&self, master: usize, condition: &str) -> PyResult<()> {
        let condition = match condition {
            "up" => Condition::Up,
            "down" => Condition::Down,
            "mute" => Condition::Mute,
            other => {
                let text =
                    format!("{other:?} is not a condition: use \"up\", \"down\" or \"mute\"");
                return Err(PyValueError::new_err(text));
            }
        };
        self.master(master)?.set_condition(condition);
        Ok(())
    }

    /// Makes a master lose all its data, as a restart without persistence does.
    fn forget(&self, master: usize) -> PyResult<()> {
        self.master(master)?.forget();
        Ok(())
    }
}
