//! What the handle, the actor and the inspections of one master share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::address::Address;
use super::lookup::Lookup;
#[cfg(any(test, feature = "testing"))]
use crate::node::Dial;
use crate::node::Subscriber;
use crate::node::actor::mailbox::Mailbox;
use crate::node::actor::marks::Marks;
use crate::node::actor::trust::{Acquaintance, Roster};
use crate::protocol::mark::Configuration;
use crate::settings::RestartGuard;

/// What every master of one `Redlock` goes by.
pub(crate) struct NodeOptions {
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) restart_guard: RestartGuard,
    /// What each connection calls itself, behind what says which masters it goes by.
    pub(crate) name: Box<str>,
    /// Which masters the client goes by.
    pub(crate) configuration: Configuration,
    /// What stands on the masters, as far as this client has seen.
    pub(crate) marks: Marks,
    /// Which server each master is.
    pub(crate) roster: Arc<Roster>,
    /// Opens connections in place of TCP.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) dial: Option<Dial>,
    #[cfg(feature = "tls-rustls")]
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl NodeOptions {
    /// The name of a connection in `CLIENT LIST` that minds the mark: `quorate/STEP/FINGERPRINT:HOST:PID`.
    pub(super) fn full_name(&self) -> String {
        format!("quorate/{}:{}", self.configuration.tag(), self.name)
    }

    /// The name of one that cannot: `quorate:HOST:PID`, as before there were marks.
    pub(super) fn plain_name(&self) -> String {
        format!("quorate:{}", self.name)
    }
}

/// What handle and actor share.
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) options: Arc<NodeOptions>,
    pub(super) mailbox: Mailbox,
    pub(super) acquaintance: Acquaintance,
    pub(super) lookup: Lookup,
    /// Who hears the wake-ups; unset where nobody waits in order.
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

    /// For how much longer at most its votes do not count because it has lost its mark.
    pub(super) fn doubted_for(&self) -> Option<Duration> {
        let options = &self.options;
        let guards = options.restart_guard != RestartGuard::Off;
        (guards && options.marks.doubts(self.address.name())).then_some(options.max_ttl)
    }

    /// The same master for a connection beside the link: it takes no connection over, and counts
    /// restarts from the same first contact.
    pub(super) fn beside(&self) -> Self {
        Self {
            acquaintance: self.acquaintance.beside(),
            ..Self::new(self.address.clone(), self.options.clone())
        }
    }
}
