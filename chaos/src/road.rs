//! The network path from one client to one master: a proxy in front of each server of the master. A ZooKeeper master
//! can have several servers.

use std::io;
use std::net::SocketAddr;

use quorate_testbed::{Fault, Injected, Proxy};

/// A proxy in front of each server of one master, for one client.
#[derive(Debug)]
pub struct Road {
    doors: Vec<Proxy>,
}

impl Road {
    /// Starts a proxy to each of these addresses.
    ///
    /// # Errors
    ///
    /// If a proxy does not start.
    pub fn open(targets: &[SocketAddr], seed: u64) -> io::Result<Self> {
        let doors = targets.iter().map(|target| Proxy::seeded(*target, seed));
        let doors = doors.collect::<io::Result<_>>()?;
        Ok(Self { doors })
    }

    /// The addresses that the client connects to, one per server.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.doors.iter().map(Proxy::addr).collect()
    }

    /// The address that the client connects to for the first server.
    pub fn first(&self) -> SocketAddr {
        self.doors[0].addr()
    }

    /// Injects a fault into all proxies of this path.
    pub fn inject(&self, fault: &Fault) -> Vec<Injected> {
        self.doors.iter().map(|door| fault.inject(door)).collect()
    }

    /// Resets every existing connection of this path.
    pub fn reset_all(&self) {
        for door in &self.doors {
            door.reset_all();
        }
    }
}
