//! Makes connections, contexts and generation markers from the settings of a builder, for simulations and contract
//! tests.

use std::sync::Arc;

use super::RedlockBuilder;
use crate::error::BuildError;
#[cfg(feature = "testing")]
use crate::node::note::Identity;
use crate::node::redis::driver::Driver;
use crate::node::{Context, Node};
use crate::runtime::Tokio;

impl RedlockBuilder {
    /// The masters as [`Driver`]s, for simulations. The simulation runs the drivers itself, without Tokio tasks.
    pub(crate) fn drivers(&self, seed: u64) -> Result<Vec<Driver>, BuildError> {
        // The runtime and the name are fixed, so that each simulation run can be repeated exactly.
        let runtime = self.runtime.clone();
        let context = self.context(runtime.unwrap_or_else(|| Arc::new(Tokio::default())));
        let sets = self.sets()?;
        let timeout = self.settings.node_timeout();
        let options = self.node_options(timeout, "quorate", &sets, &context)?;
        let seeded_addresses = sets.addresses.into_iter().zip(seed..);
        let new_driver = |(address, seed)| Driver::new(address, options.clone(), seed);
        Ok(seeded_addresses.map(new_driver).collect())
    }

    /// The connection to the only master that this builder names, for contract tests.
    pub(crate) fn single_node(self) -> Result<Arc<dyn Node>, BuildError> {
        let context = self.context(Arc::new(Tokio::default()));
        let members = self.redis_nodes(self.settings.node_timeout(), &context)?;
        members
            .nodes
            .into_iter()
            .next()
            .ok_or(BuildError::NoMasters)
    }
}

/// The masters of a builder as [`Driver`]s, for simulations. `seed` determines the random part of the pauses between
/// attempts to connect.
///
/// # Errors
///
/// Those of [`RedlockBuilder::build`].
pub fn drivers(settings: &RedlockBuilder, seed: u64) -> Result<Vec<Driver>, BuildError> {
    settings.drivers(seed)
}

/// The text of the generation marker with the number `number`, for the masters in `settings`. `None` if `settings` are
/// not valid, or if neither the current nor the next masters use `number`.
#[cfg(feature = "testing")]
pub fn mark(settings: &RedlockBuilder, number: u64) -> Option<String> {
    let configuration = settings.sets().ok()?.configuration;
    let generation_marker = crate::protocol::marker::Marker {
        number,
        print: configuration.print_at(number)?,
        name: configuration.name(),
    };
    Some(generation_marker.to_string())
}

/// Sets the host, pid and process name that notes contain. By default, notes contain those of the real process.
#[cfg(feature = "testing")]
pub fn known_as(
    mut settings: RedlockBuilder,
    host: &str,
    pid: u32,
    process: &str,
) -> RedlockBuilder {
    settings.identity = Some(Identity::new(host, pid, process));
    settings
}

/// The [`Context`] that a `Redlock` with these settings would pass to its masters, for contract tests of one master.
pub fn context(settings: &RedlockBuilder) -> Context {
    settings.context(Arc::new(Tokio::default()))
}

/// Creates the [`Node`] of the Redis or Valkey master at `url`, for contract tests. `settings` must not name a master.
///
/// # Errors
///
/// Those of [`RedlockBuilder::build`].
pub fn connect(url: &str, settings: &RedlockBuilder) -> Result<Arc<dyn Node>, BuildError> {
    settings.clone().master(url).single_node()
}
