//! Ports for servers that are killed and restarted.
//!
//! A restarted server needs its old port again. The kernel gives ports of the ephemeral range to outgoing connections,
//! so the testbed chooses a random port from 10,000 up to the start of the ephemeral range. If these are fewer than
//! 2,000 ports, the kernel chooses the port instead.
//!
//! Each port in use is reserved by a UDP socket with the same number, also while its server is dead: otherwise a server of
//! another test process could take the port, and clients would count its votes. Programs other than the testbed do not
//! know this reservation. If one of them takes a port before the server binds it, the server is started again on a
//! different port.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;

use rand::RngExt;

/// One port, reserved until this value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct PortLease {
    port: u16,
    _reservation: UdpSocket,
}

impl PortLease {
    /// Reserves a port that is free at this moment.
    pub(crate) fn take() -> io::Result<Self> {
        let mut rng: rand::rngs::StdRng = rand::make_rng();
        let range = stable_range();
        for _ in 0..200 {
            let wanted_port = range
                .as_ref()
                .map_or(0, |ports| rng.random_range(ports.clone()));
            // Reserve the port first. The server of another process may be about to restart on a port that this process
            // only tries.
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, wanted_port)) else {
                continue;
            };
            let port = reservation.local_addr()?.port();
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(Self {
                    port,
                    _reservation: reservation,
                });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "none of the 200 ports that were tried is free",
        ))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_port_leases_never_share_a_port() {
        let leases: Vec<_> = (0..50).map(|_| PortLease::take().unwrap()).collect();
        let ports: BTreeSet<_> = leases.iter().map(PortLease::port).collect();
        assert_eq!(ports.len(), leases.len());
    }

    /// Another process cannot bind a UDP socket with this number either.
    #[test]
    fn port_stays_reserved_until_the_lease_is_dropped() {
        let lease = PortLease::take().unwrap();
        let port = lease.port();
        assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_err());
        drop(lease);
        assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
