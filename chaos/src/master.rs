//! One master of a run: a server, a ZooKeeper ensemble, or an etcd cluster.

use std::any::type_name;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use quorate_testbed::{ServerOptions, TestServer};

use crate::node::{Gauge, Login, NodeKind};

/// One master. It dereferences to its server, so `kill`, `stop` and the other methods of [`TestServer`] work.
#[derive(Clone, Debug)]
pub struct Master {
    kind: NodeKind,
    server: Arc<dyn TestServer>,
}

impl Master {
    /// Starts a master, and creates the tables or znodes that clients need. Only Redis uses `options`, and only
    /// databases use `login`.
    ///
    /// # Errors
    ///
    /// If the server does not start. No process is left running in that case.
    pub fn start(kind: NodeKind, options: ServerOptions, login: Login<'_>) -> anyhow::Result<Self> {
        let server = (kind.start)(options, login)?;
        Ok(Self { kind, server })
    }

    /// The kind of server of this master.
    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    /// The server of this master, for another thread.
    pub fn shared(&self) -> Arc<dyn TestServer> {
        Arc::clone(&self.server)
    }

    /// The server of this master as its own type, for what only this kind of server can do.
    ///
    /// # Errors
    ///
    /// If the server of this master is of another type.
    pub fn concrete<T: TestServer>(&self) -> anyhow::Result<&T> {
        self.server.downcast_ref().with_context(|| {
            let wanted_type = type_name::<T>();
            format!(
                "the server of this master is {}, not a {wanted_type}",
                self.kind
            )
        })
    }

    /// The URL of a master at the addresses `addresses`, e.g. the addresses of proxies. `None` for a Redis master.
    pub fn store_url(
        &self,
        addresses: &[SocketAddr],
        login: Login<'_>,
        timeout: Duration,
    ) -> Option<String> {
        (self.kind.url)(addresses, login, timeout)
    }

    /// The resources that this master uses. `None` if the master does not answer.
    pub fn gauge(&self, login: Login<'_>) -> Option<Gauge> {
        (self.kind.gauge)(&*self.server, login)
    }

    /// Whether any server of this master answers within `patience`.
    pub fn answers(&self, patience: Duration) -> bool {
        self.addrs().into_iter().any(|address| {
            let probe = (self.kind.probe)(address, patience);
            probe.and_then(|mut probe| probe.ask()).is_ok()
        })
    }
}

impl Deref for Master {
    type Target = dyn TestServer;

    fn deref(&self) -> &Self::Target {
        &*self.server
    }
}
