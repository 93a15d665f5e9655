//! The settings of a client, from a dictionary.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use quorate_bindings::client_settings::ClientSettings;
use quorate_bindings::quorate::{Order, RestartGuard};

use crate::errors::exception;
use crate::memory::Memory;
use crate::times;

fn order(text: &str) -> PyResult<Order> {
    match text {
        "fair" => Ok(Order::Fair),
        "unordered" => Ok(Order::Unordered),
        other => Err(PyValueError::new_err(format!(
            "order {other:?}: use \"fair\" or \"unordered\""
        ))),
    }
}

fn restart_guard(text: &str) -> PyResult<RestartGuard> {
    match text {
        "on" => Ok(RestartGuard::On),
        "after_first_contact" | "after-first-contact" => Ok(RestartGuard::AfterFirstContact),
        "off" => Ok(RestartGuard::Off),
        other => {
            let text =
                format!("restart_guard {other:?}: use \"on\", \"after_first_contact\" or \"off\"");
            Err(PyValueError::new_err(text))
        }
    }
}

fn set(client_settings: &mut ClientSettings, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let settings = &mut client_settings.settings;
    match name {
        "memory" => {
            client_settings.memory = Some(value.extract::<PyRef<'_, Memory>>()?.masters.clone());
        }
        "masters" => settings.masters = value.extract()?,
        "next_masters" => settings.next_masters = value.extract()?,
        "masters_generation" => settings.masters_generation = Some(value.extract()?),
        "masters_name" => settings.masters_name = Some(value.extract()?),
        "node_timeout" => settings.node_timeout = Some(times::duration(value.extract()?)?),
        "connect_timeout" => settings.connect_timeout = Some(times::duration(value.extract()?)?),
        "max_ttl" => settings.max_ttl = Some(times::duration(value.extract()?)?),
        "prefix" => settings.prefix = Some(value.extract()?),
        "restart_guard" => {
            settings.restart_guard = Some(restart_guard(&value.extract::<String>()?)?);
        }
        "fencing" => settings.fencing = Some(value.extract()?),
        "order" => settings.order = Some(order(&value.extract::<String>()?)?),
        "ca_file" => settings.ca_file = Some(value.extract()?),
        "client_cert" => settings.client_cert = Some(value.extract()?),
        "client_key" => settings.client_key = Some(value.extract()?),
        "wait" => settings.wait = Some(times::wait(value.extract()?)?),
        "ttl" => settings.ttl = Some(times::duration(value.extract()?)?),
        "max_hold" => settings.max_hold = Some(times::duration(value.extract()?)?),
        "note" => settings.note = Some(value.extract()?),
        other => {
            return Err(PyTypeError::new_err(format!(
                "there is no setting {other:?}"
            )));
        }
    }
    Ok(())
}

/// The settings of the environment if `from_env` is set, and the given settings above them.
pub(crate) fn client_settings(
    given: &Bound<'_, PyDict>,
    from_env: bool,
) -> PyResult<ClientSettings> {
    let mut settings = if from_env {
        ClientSettings::from_env().map_err(|error| exception(given.py(), &error))?
    } else {
        ClientSettings::default()
    };
    for (name, value) in given {
        set(&mut settings, &name.extract::<String>()?, &value)?;
    }
    Ok(settings)
}
