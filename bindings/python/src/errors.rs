//! Errors as exceptions. The classes are in `quorate/_errors.py`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use quorate_bindings::error::{CallError, ErrorKind};
use quorate_bindings::quorate::{LossCause, NodeReport};

use crate::answers;

/// A report as a tuple: master, outcome as one word, text, seconds until the reply.
pub(crate) type ReportTuple = (String, &'static str, String, Option<f64>);

fn report(report: &NodeReport) -> ReportTuple {
    let latency = report.latency.map(|latency| latency.as_secs_f64());
    (
        report.node.to_string(),
        report.outcome.as_str(),
        report.to_string(),
        latency,
    )
}

pub(crate) fn reports(reports: &[NodeReport]) -> Vec<ReportTuple> {
    reports.iter().map(report).collect()
}

fn attributes<'py>(py: Python<'py>, error: &CallError) -> PyResult<Bound<'py, PyDict>> {
    let attributes = PyDict::new(py);
    attributes.set_item("details", &error.details)?;
    attributes.set_item("resource", &error.resource)?;
    attributes.set_item("waited", error.waited.as_secs_f64())?;
    attributes.set_item("attempts", error.attempts)?;
    attributes.set_item("held_here", error.held_here)?;
    attributes.set_item("foreign", error.foreign)?;
    attributes.set_item("holder", error.holder.as_deref().map(answers::note))?;
    attributes.set_item("reports", reports(&error.reports))?;
    attributes.set_item("cause", error.cause.map(LossCause::as_str))?;
    if let ErrorKind::Value(reason) = error.kind {
        attributes.set_item("reason", reason)?;
    }
    Ok(attributes)
}

/// The exception for an error.
pub(crate) fn exception(py: Python<'_>, error: &CallError) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || {
        let import = || Ok::<_, PyErr>(py.import("quorate._errors")?.getattr("make")?.unbind());
        let make = MAKE.get_or_try_init(py, import)?;
        make.bind(py)
            .call1((error.kind.as_str(), &error.message, attributes(py, error)?))
    };
    match make() {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
