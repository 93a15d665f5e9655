//! A Redis or Valkey master: one actor with a socket and a timer, around a link that knows all else.
//!
//! The connection is our own: what is asked of a master is written straight into the buffer that goes
//! out, and its answer is read where it lies. Of the `redis` crate only the reading of URLs is used,
//! and nothing outside this folder names it.

mod actor;
mod address;
mod buffers;
mod conversation;
mod dial;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod driver;
mod handshake;
mod inspect;
mod link;
pub(crate) mod needs;
mod online;
mod raised;
mod resp;
mod socket;
mod trust;
mod wire;

pub(crate) use address::Address;
pub(crate) use trust::Roster;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use self::dial::Lookup;
use self::trust::Acquaintance;
use super::actor::mailbox::{Letter, Mailbox};
use super::{Ear, Fault, Node, NodeName, Reply, Request};
use crate::builder::RestartGuard;
use crate::inspection::{Inspection, Scope};
use crate::runtime::BoxFuture;

/// What every master of one `Redlock` goes by.
pub(crate) struct NodeOptions {
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) restart_guard: RestartGuard,
    /// Which server each master is.
    pub(crate) roster: Roster,
    /// Opens connections in place of TCP.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) dial: Option<super::Dial>,
    #[cfg(feature = "tls-rustls")]
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

/// The handle of one master. Dropping it closes the queue; the actor sends what is left and ends.
pub(crate) struct RedisNode {
    shared: Arc<Shared>,
}

/// What handle and actor share.
struct Shared {
    address: Address,
    options: Arc<NodeOptions>,
    mailbox: Mailbox,
    acquaintance: Acquaintance,
    lookup: Lookup,
    /// Who hears the wake-ups; unset where nobody waits in order.
    ear: OnceLock<Ear>,
}

impl Shared {
    fn new(address: Address, options: Arc<NodeOptions>) -> Self {
        Self {
            address,
            options,
            mailbox: Mailbox::new(),
            acquaintance: Acquaintance::default(),
            lookup: Lookup::default(),
            ear: OnceLock::new(),
        }
    }

    /// The same master for a connection beside the link: it takes no connection over, and counts
    /// restarts from the same first contact.
    fn beside(&self) -> Self {
        Self {
            acquaintance: self.acquaintance.beside(),
            ..Self::new(self.address.clone(), self.options.clone())
        }
    }
}

impl RedisNode {
    pub(crate) fn new(address: Address, options: Arc<NodeOptions>) -> Self {
        let shared = Arc::new(Shared::new(address, options));
        Self { shared }
    }
}

impl Node for RedisNode {
    fn name(&self) -> &NodeName {
        self.shared.address.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        let mailbox = &self.shared.mailbox;
        match mailbox.push(Letter::new(request, reply)) {
            Ok(false) => {}
            // Nobody reads the mailbox yet, or its reader went down with its runtime.
            Ok(true) => match Handle::try_current() {
                Ok(runtime) => {
                    runtime.spawn(actor::run(self.shared.clone()));
                }
                Err(_) => mailbox.fail(&Fault::Down("no tokio runtime is running".into())),
            },
            Err(letter) => letter.answer(Err(Fault::Overloaded)),
        }
    }

    fn listen(&self, ear: Ear) {
        // A second ear is ignored, as the contract says.
        let _ = self.shared.ear.set(ear);
    }

    fn idle(&self) -> BoxFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.mailbox.idle().await })
    }

    fn inspect(&self, scope: &Scope) -> BoxFuture<Inspection> {
        let (shared, scope) = (self.shared.beside(), scope.clone());
        Box::pin(async move {
            if Handle::try_current().is_err() {
                let mut found = Inspection::new(shared.address.name().clone());
                found.fault = Some(Fault::Down("no tokio runtime is running".into()));
                return found;
            }
            inspect::inspect(&Arc::new(shared), &scope).await
        })
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        self.shared.mailbox.close();
    }
}
