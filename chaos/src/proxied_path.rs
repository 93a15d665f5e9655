//! The network path from one client to one master: a proxy in front of each server of the master. A ZooKeeper or etcd
//! master can have several servers.

use std::io;
use std::net::SocketAddr;

use quorate_testbed::{Fault, Injected, Proxy};

/// A proxy in front of each server of one master, for one client.
#[derive(Debug)]
pub struct ProxiedPath {
    proxies: Vec<Proxy>,
}

impl ProxiedPath {
    /// Starts a proxy to each of these addresses.
    ///
    /// # Errors
    ///
    /// If a proxy does not start.
    pub fn start(targets: &[SocketAddr], seed: u64) -> io::Result<Self> {
        let proxies = targets.iter().map(|target| Proxy::seeded(*target, seed));
        let proxies = proxies.collect::<io::Result<_>>()?;
        Ok(Self { proxies })
    }

    /// The addresses that the client connects to, one per server.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(Proxy::addr).collect()
    }

    /// The address that the client connects to for the first server.
    pub fn first_addr(&self) -> SocketAddr {
        self.proxies[0].addr()
    }

    /// Injects a fault into all proxies of this path.
    pub fn inject(&self, fault: &Fault) -> Vec<Injected> {
        self.proxies
            .iter()
            .map(|proxy| fault.inject(proxy))
            .collect()
    }

    /// Resets every existing connection of this path.
    pub fn reset_all(&self) {
        for proxy in &self.proxies {
            proxy.reset_all();
        }
    }
}
