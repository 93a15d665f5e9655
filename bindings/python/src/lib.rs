//! The native half of the Python package `quorate`.
//!
//! No native thread ever enters the interpreter. The reply of a call is put into a queue, and a thread of Python takes
//! it out and turns it into objects. So a Python thread that keeps the interpreter busy prevents no renewal.

mod answers;
mod bridge;
mod call;
mod core;
mod errors;
mod guard;
mod lock_options;
mod logs;
mod memory;
mod observer;
mod once;
mod quota;
mod risk;
mod settings;
mod times;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;

/// Releases all locks that are still held, and waits until the releases were sent, at most 400 ms. Returns how many
/// there were.
#[pyfunction]
fn close_all_clients(py: Python<'_>) -> usize {
    py.detach(quorate_bindings::exit::close_all_clients)
}

#[pymodule]
fn _quorate(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<bridge::Bridge>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<core::Core>()?;
    module.add_class::<guard::Guard>()?;
    module.add_class::<lock_options::LockOptions>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<observer::Observer>()?;
    module.add_class::<once::OnceOptions>()?;
    module.add_class::<quota::QuotaOptions>()?;
    module.add_class::<risk::RiskWatcher>()?;
    module.add_function(wrap_pyfunction!(close_all_clients, module)?)?;
    module.add_function(wrap_pyfunction!(logs::logs_start, module)?)?;
    module.add_function(wrap_pyfunction!(logs::logs_wait, module)?)?;
    module.add_function(wrap_pyfunction!(logs::logs_end, module)?)
}
