//! The faults of a [`Proxy`](crate::Proxy): how it treats the bytes and connections that it carries.
//!
//! Injecting a fault returns a guard, and dropping the guard heals the fault. Several faults can be injected at the
//! same time: latencies add up, the slowest rate applies, and if one fault drops bytes and another holds them, they are
//! dropped.
//!
//! This file does no I/O. It combines the faults into rules, which `lane.rs` and `pipe.rs` apply.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::watch;

/// The direction of the bytes that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Requests: bytes from the client to the server.
    ToServer,
    /// Replies: bytes from the server to the client.
    ToClient,
    /// Requests and replies.
    Both,
}

impl Way {
    fn covers(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}

/// A fault of the network between a client and its server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every byte arrives later, in the original order.
    Latency {
        /// The affected direction.
        way: Way,
        /// The minimum delay; timers are exact to about a millisecond.
        base: Duration,
        /// The maximum additional delay. Each chunk of bytes that the proxy reads is delayed by a random share of this
        /// time. The proxy's seed determines the shares.
        jitter: Duration,
    },
    /// A partition that ends without loss. The proxy holds all events of a connection (bytes, close, reset), and
    /// delivers them in order when the fault is healed.
    ///
    /// If 16 MiB are held in one direction of a connection, the proxy stops reading from the sender.
    Hold(Way),
    /// A partition that loses data. The proxy discards all events of a connection (bytes, close, reset), including
    /// events that are in transit when the fault begins.
    ///
    /// If a connection continues after the fault is healed, bytes are missing in its stream, which never happens with
    /// TCP. To avoid this, call [`Proxy::reset_all`](crate::Proxy::reset_all).
    Drop(Way),
    /// A slow link.
    Rate {
        /// The affected direction.
        way: Way,
        /// Bytes per second for each connection; 0 means 1.
        bytes_per_second: u64,
    },
    /// Resets each connection when its client has received this number of bytes since the fault was injected. The last
    /// reply may be truncated. With 0, the client gets a reset instead of the next byte of a reply.
    ///
    /// If several such faults are injected, only the newest one applies.
    ResetAfter(u64),
    /// New connections are accepted and then closed immediately. Existing connections continue.
    Refuse,
    /// For each existing connection, the proxy closes its own connection to the server, but not the client's connection
    /// to the proxy. It discards all bytes that these clients send. New connections work.
    ///
    /// When the fault is healed, the proxy resets the connections of the clients that have sent bytes during the fault.
    /// It resets the connection of each other client when this client next sends bytes.
    HalfOpen,
    /// The proxy holds all events from the clients of existing connections (requests, close, reset), including events
    /// in transit. New connections work.
    ///
    /// When the fault is healed, the held requests arrive in order. The server may have received requests of newer
    /// connections before them.
    Strand,
    /// New connections lead to this address, as if a name or a route pointed to the wrong server.
    ///
    /// Connections stay where they are when the fault begins and when it is healed. To make clients reconnect, call
    /// [`Proxy::reset_all`](crate::Proxy::reset_all). If several such faults are injected, the newest one applies.
    Detour(SocketAddr),
    /// Every second new connection leads to this address, as if a name led to several servers in turn. Otherwise like
    /// [`Detour`](Self::Detour).
    InTurn(SocketAddr),
}

impl Fault {
    /// Creates a latency fault with a fixed delay, without jitter.
    pub fn latency(way: Way, base: Duration) -> Self {
        let jitter = Duration::ZERO;
        Self::Latency { way, base, jitter }
    }
}

/// The guard of an injected fault. Dropping the guard heals the fault.
#[derive(Debug)]
#[must_use = "dropping the guard heals the fault"]
pub struct Injected {
    pub(crate) rules: Weak<watch::Sender<Rules>>,
    pub(crate) id: u64,
}

impl Injected {
    /// Heals the fault. Dropping the guard does the same, but this call is easier to read.
    pub fn heal(self) {}

    /// Drops the guard without healing the fault, which then lasts until [`Proxy::heal`](crate::Proxy::heal) or until
    /// the proxy is dropped.
    pub fn keep(mut self) {
        self.rules = Weak::new();
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        if let Some(rules) = self.rules.upgrade() {
            rules.send_if_modified(|rules| rules.remove(self.id));
        }
    }
}

/// The rules for one direction, combined from all injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DirectionRules {
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
    pub(crate) rate: Option<u64>,
    pub(crate) hold: bool,
    pub(crate) drop: bool,
}

/// The rules for the whole proxy, combined from all injected faults.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    faults: BTreeMap<u64, Fault>,
    next_id: u64,
    pub(crate) to_server: DirectionRules,
    pub(crate) to_client: DirectionRules,
    pub(crate) refuse: bool,
    pub(crate) half_open: bool,
    strand: bool,
    /// The id and the number of bytes of the newest `ResetAfter` fault; `None` without such a fault. When another fault
    /// becomes the newest, each connection starts a new count of its bytes.
    pub(crate) reset_after: Option<(u64, u64)>,
    /// The address to which new connections lead, and whether only every second of them leads there. `None` if all lead
    /// to the proxy's own target.
    pub(crate) detour: Option<(SocketAddr, bool)>,
    pub(crate) era: Era,
    pub(crate) closed: bool,
}

/// Counts the events that affect all connections existing at that time, with one counter for each kind: `HalfOpen`, a
/// reset of all connections, and `Strand`. Each connection stores a copy of the counters when it is accepted. The
/// connection is affected if a counter is now larger than in this copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Era {
    pub(crate) severed: u64,
    pub(crate) reset: u64,
    pub(crate) stranded: u64,
}

impl Era {
    /// Whether a connection may continue: no event has ended it since it was accepted in the era `accepted_in`.
    pub(crate) fn spares(self, accepted_in: Self) -> bool {
        self.severed == accepted_in.severed && self.reset == accepted_in.reset
    }

    /// Whether each counter of this era is at least as large as the same counter of `other`.
    pub(crate) fn reaches(self, other: Self) -> bool {
        self.severed >= other.severed
            && self.reset >= other.reset
            && self.stranded >= other.stranded
    }
}

impl Rules {
    pub(crate) fn insert(&mut self, fault: Fault) -> u64 {
        match fault {
            Fault::HalfOpen => self.era.severed += 1,
            Fault::Strand => self.era.stranded += 1,
            _ => {}
        }
        self.next_id += 1;
        self.faults.insert(self.next_id, fault);
        self.combine_faults();
        self.next_id
    }

    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let existed = self.faults.remove(&id).is_some();
        self.combine_faults();
        existed
    }

    pub(crate) fn clear(&mut self) {
        self.faults.clear();
        self.combine_faults();
    }

    /// The rules for one direction of a connection. `accepted_in` is the era in which the connection was made.
    pub(crate) fn direction_rules(&self, way: Way, accepted_in: Era) -> DirectionRules {
        match way {
            Way::ToServer => DirectionRules {
                hold: self.to_server.hold
                    || self.strand && accepted_in.stranded < self.era.stranded,
                ..self.to_server
            },
            Way::ToClient | Way::Both => self.to_client,
        }
    }

    fn combine_faults(&mut self) {
        self.to_server = self.combine_direction(Way::ToServer);
        self.to_client = self.combine_direction(Way::ToClient);
        self.refuse = self.faults.values().any(|fault| *fault == Fault::Refuse);
        self.half_open = self.faults.values().any(|fault| *fault == Fault::HalfOpen);
        self.strand = self.faults.values().any(|fault| *fault == Fault::Strand);
        self.reset_after = self
            .faults
            .iter()
            .rev()
            .find_map(|(id, fault)| match fault {
                Fault::ResetAfter(bytes) => Some((*id, *bytes)),
                _ => None,
            });
        self.detour = self.faults.values().rev().find_map(|fault| match fault {
            Fault::Detour(address) => Some((*address, false)),
            Fault::InTurn(address) => Some((*address, true)),
            _ => None,
        });
    }

    fn combine_direction(&self, direction: Way) -> DirectionRules {
        let mut rules = DirectionRules::default();
        for fault in self.faults.values() {
            match *fault {
                Fault::Latency { way, base, jitter } if way.covers(direction) => {
                    rules.latency = rules.latency.saturating_add(base);
                    rules.jitter = rules.jitter.saturating_add(jitter);
                }
                Fault::Rate {
                    way,
                    bytes_per_second,
                } if way.covers(direction) => {
                    let rate = bytes_per_second.max(1);
                    rules.rate = Some(rules.rate.map_or(rate, |other| other.min(rate)));
                }
                Fault::Hold(way) if way.covers(direction) => rules.hold = true,
                Fault::Drop(way) if way.covers(direction) => rules.drop = true,
                _ => {}
            }
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combined_faults_apply_the_sum_of_the_latencies_of_unhealed_faults() {
        let ms = Duration::from_millis;
        let mut rules = Rules::default();
        rules.insert(Fault::latency(Way::Both, ms(5)));
        let second_id = rules.insert(Fault::latency(Way::ToClient, ms(7)));
        rules.insert(Fault::Hold(Way::ToServer));
        assert_eq!(rules.to_server.latency, ms(5));
        assert_eq!(rules.to_client.latency, ms(12));
        assert!(rules.remove(second_id));
        assert!(!rules.remove(second_id));
        assert_eq!(
            rules.to_client,
            DirectionRules {
                latency: ms(5),
                ..DirectionRules::default()
            }
        );
        assert!(rules.to_server.hold);
        rules.clear();
        assert_eq!(rules.to_server, DirectionRules::default());
    }

    #[test]
    fn only_the_slowest_rate_fault_and_the_newest_reset_fault_apply() {
        let mut rules = Rules::default();
        for bytes_per_second in [9, 0, 5] {
            rules.insert(Fault::Rate {
                way: Way::Both,
                bytes_per_second,
            });
        }
        rules.insert(Fault::ResetAfter(1));
        let latest = rules.insert(Fault::ResetAfter(2));
        assert_eq!(rules.to_client.rate, Some(1));
        assert_eq!(rules.reset_after, Some((latest, 2)));
    }
}
