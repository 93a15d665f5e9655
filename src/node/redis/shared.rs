//! The state that the handle, the actor and the inspections of one master share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::address::Address;
use super::lookup::Lookup;
#[cfg(any(test, feature = "testing"))]
use crate::node::Dial;
use crate::node::Subscriber;
use crate::node::actor::mailbox::Mailbox;
use crate::node::actor::markers::Markers;
use crate::node::actor::trust::{Acquaintance, Roster};
use crate::protocol::marker::Configuration;
use crate::settings::RestartGuard;

/// The settings that all masters of one `Redlock` share.
pub(crate) struct NodeOptions {
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) restart_guard: RestartGuard,
    /// The last part of each connection's name, after the part that describes the configuration.
    pub(crate) name: Box<str>,
    /// The set of masters that the client is configured with, and the client's step of a replacement of the masters.
    pub(crate) configuration: Configuration,
    /// The generation markers on the masters, as last seen.
    pub(crate) markers: Markers,
    /// The server behind each address, by which two addresses of the same server are detected.
    pub(crate) roster: Arc<Roster>,
    /// Opens simulated streams in place of TCP connections.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) dial: Option<Dial>,
    #[cfg(feature = "tls-rustls")]
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl NodeOptions {
    /// The name of a connection in `CLIENT LIST` that checks the generation marker:
    /// `quorate/STEP/FINGERPRINT:HOST:PID`.
    pub(super) fn full_name(&self) -> String {
        format!("quorate/{}:{}", self.configuration.tag(), self.name)
    }

    /// The name of a connection that cannot check the generation marker: `quorate:HOST:PID`, as in versions without
    /// markers.
    pub(super) fn plain_name(&self) -> String {
        format!("quorate:{}", self.name)
    }
}

/// The state that the handle and the actor of one master share.
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) options: Arc<NodeOptions>,
    pub(super) mailbox: Mailbox,
    pub(super) acquaintance: Acquaintance,
    pub(super) lookup: Lookup,
    /// The receiver of the wake-ups. Unset if no client of this process queues.
    pub(super) subscriber: OnceLock<Subscriber>,
}

impl Shared {
    pub(super) fn new(address: Address, options: Arc<NodeOptions>) -> Self {
        Self {
            address,
            options,
            mailbox: Mailbox::new(),
            acquaintance: Acquaintance::default(),
            lookup: Lookup::default(),
            subscriber: OnceLock::new(),
        }
    }

    /// How much longer the master's votes may not count because it has lost its generation marker; the longest time
    /// that is possible. `None` if the votes are not doubted.
    pub(super) fn doubted_for(&self) -> Option<Duration> {
        let options = &self.options;
        let guards = options.restart_guard != RestartGuard::Off;
        (guards && options.markers.doubts(self.address.name())).then_some(options.max_ttl)
    }

    /// Returns a copy of this state for an additional connection, which does not replace the link's connection. The
    /// copy contains the server runs that were seen so far.
    pub(super) fn beside(&self) -> Self {
        Self {
            acquaintance: self.acquaintance.beside(),
            ..Self::new(self.address.clone(), self.options.clone())
        }
    }
}
