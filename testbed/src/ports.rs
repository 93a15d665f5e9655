//! Ports for servers that are killed and restarted.
//!
//! A restarted server needs its old port again. The kernel gives ports of the ephemeral range to outgoing connections,
//! so the testbed chooses a random port from 10,000 up to the start of the ephemeral range. If these are fewer than
//! 2,000 ports, the kernel chooses the port instead.
//!
//! Ports are not locked against other processes. If another process takes a port before the server binds it, the server
//! is started again on a different port.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rand::RngExt;

/// The ports that servers of this process use or will use again after a restart.
static LEASED_PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// One port, reserved within this process until it is dropped.
#[derive(Debug)]
pub(crate) struct PortLease(u16);

impl PortLease {
    /// Reserves a port that is free at this moment.
    pub(crate) fn take() -> io::Result<Self> {
        let mut rng: rand::rngs::StdRng = rand::make_rng();
        let range = stable_range();
        for _ in 0..200 {
            let wanted_port = range
                .as_ref()
                .map_or(0, |ports| rng.random_range(ports.clone()));
            let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted_port)) else {
                continue;
            };
            let port = listener.local_addr()?.port();
            if with_leased_ports(|set| set.insert(port)) {
                return Ok(Self(port));
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "none of the 200 ports that were tried is free",
        ))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        with_leased_ports(|set| set.remove(&self.0));
    }
}

fn with_leased_ports<T>(change: impl FnOnce(&mut BTreeSet<u16>) -> T) -> T {
    change(&mut LEASED_PORTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The ports from 10,000 up to the start of the ephemeral range. `None` if these are fewer than 2,000 ports.
fn stable_range() -> Option<Range<u16>> {
    const FIRST_PORT: u16 = 10_000;
    const MIN_COUNT: u16 = 2_000;
    let ephemeral_start = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768_u16);
    (ephemeral_start >= FIRST_PORT + MIN_COUNT).then_some(FIRST_PORT..ephemeral_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_port_leases_never_share_a_port() {
        let leases: Vec<_> = (0..50).map(|_| PortLease::take().unwrap()).collect();
        let ports: BTreeSet<_> = leases.iter().map(PortLease::port).collect();
        assert_eq!(ports.len(), leases.len());
    }
}
