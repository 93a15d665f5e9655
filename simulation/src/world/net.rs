//! Connections between clients and Redis masters. A connection is two streams of bytes, one in each direction. The
//! bytes stay in order. They may be split into packets anywhere and be delayed, and a stream may end in the middle of a
//! message.

use std::collections::VecDeque;
use std::sync::Arc;

use super::client_end::DriverCall;
use super::{Event, World};
use crate::clock::RUN_START;
use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::scenario::{FaultKind, Scenario};

/// One connection. It exists from the moment at which the client sends the first packet.
pub(super) struct Conn {
    pub(super) link: usize,
    pub(super) master: usize,
    /// The number of restarts of the server when it accepted the connection. The connection ends when the server
    /// process ends.
    pub(super) restarts: u32,
    state: ConnState,
    /// Whether the connection is open on the client's side.
    is_client_open: bool,
    /// Whether the connection is open on the server's side.
    pub(super) is_server_open: bool,
    /// Whether the connection is broken in the network. Bytes that the client sends on a broken connection are lost.
    is_broken: bool,
    /// The bytes in flight to the server, as packets in the order of sending. Each arrival takes the first packet, so
    /// the order of the bytes is kept.
    to_server: VecDeque<Vec<u8>>,
    /// The bytes in flight to the client, as packets in the order of sending.
    to_client: VecDeque<Vec<u8>>,
    /// The arrival time (true time) of the last packet to the server.
    last_arrival_at_server: u64,
    /// The arrival time (true time) of the last packet to the client.
    last_arrival_at_client: u64,
    /// The bytes of an incomplete command: the server has received them and waits for the rest of the command.
    pub(super) unread: Vec<u8>,
    /// The id of the client process that has subscribed to wake-ups on this connection; `None` if none has.
    pub(super) subscriber: Option<String>,
    /// The lock keys of the elections whose new leaders are announced on this connection.
    pub(super) watched_elections: Vec<Arc<[u8]>>,
    /// The number of lock requests that the server has executed on this connection.
    pub(super) served_requests: u64,
    /// Whether the next reply of the server is malformed.
    pub(super) is_next_reply_malformed: bool,
    /// The name that the client has given to the connection.
    pub(super) name: String,
    /// Whether an operator has closed the connection at the server. The server then executes no further command from
    /// this connection.
    pub(super) is_killed_by_operator: bool,
}

#[derive(PartialEq, Eq)]
enum ConnState {
    Dialing,
    Open,
}

/// The direction of a packet: to the master, or from the master.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToMaster,
    FromMaster,
}

/// The route of one packet through the network: its client, its master and its direction.
pub(super) struct PacketRoute {
    pub(super) client: usize,
    pub(super) master: usize,
    pub(super) direction: Direction,
    /// The longest time that the packet takes if it is sent after all faults have ended, in nanoseconds.
    pub(super) healed_within: u64,
}

impl PacketRoute {
    /// Draws the true time of arrival of a packet that is sent at `now`. Each loss delays the packet by the
    /// retransmission time. A partition delays the packet until the partition ends. Counts both in `coverage`.
    pub(super) fn draw_arrival(
        &self,
        scenario: &Scenario,
        now: u64,
        rng: &mut Rng,
        coverage: &mut Coverage,
    ) -> u64 {
        let net = scenario.net;
        let travel_time = net.delay + rng.below(net.jitter + 1);
        if now >= RUN_START + scenario.heal_at {
            return now + travel_time.min(self.healed_within);
        }
        let mut arrival = now + travel_time;
        while rng.chance(net.loss_ppm) {
            coverage.lost_packets += 1;
            arrival += net.again;
        }
        while let Some(partition_end) = self.end_of_partition(scenario, now, arrival) {
            coverage.partitions += 1;
            arrival = partition_end + net.delay + rng.below(net.again);
        }
        arrival
    }

    /// Returns the end of the partition that blocks the packet; `None` if no partition blocks it. The packet is sent at
    /// `now`, and would arrive at `arrival` without the partition.
    fn end_of_partition(&self, scenario: &Scenario, now: u64, arrival: u64) -> Option<u64> {
        scenario.faults.iter().find_map(|fault| match fault.kind {
            FaultKind::Partition {
                clients,
                masters,
                to,
                from,
                lasts,
            } => {
                let (begins_at, ends_at) = (RUN_START + fault.at, RUN_START + fault.at + lasts);
                let is_concerned =
                    clients >> self.client & 1 == 1 && masters >> self.master & 1 == 1;
                let is_blocked = if self.direction == Direction::ToMaster {
                    to
                } else {
                    from
                };
                (is_concerned
                    && is_blocked
                    && now < ends_at
                    && arrival >= begins_at
                    && arrival < ends_at)
                    .then_some(ends_at)
            }
            _ => None,
        })
    }
}

impl Conn {
    /// Whether bytes that the server sends reach the client.
    pub(super) fn is_open(&self) -> bool {
        self.is_client_open && self.is_server_open
    }
}

impl World {
    /// Draws the true time of arrival of a packet that is sent now. The packet arrives after all earlier packets of
    /// this connection in the same direction, so the bytes stay in order.
    fn draw_packet_arrival(&mut self, conn: usize, direction: Direction) -> u64 {
        let (link, master) = (self.conns[conn].link, self.conns[conn].master);
        let route = PacketRoute {
            client: self.links[link].client,
            master,
            direction,
            // After the faults have healed, a packet takes at most a third of the node timeout. So a round trip fits
            // into the node timeout.
            healed_within: self.scenario.settings.node_timeout / 3,
        };
        let (rng, coverage) = (&mut self.links[link].rng, &mut self.observer.coverage);
        let arrival = route.draw_arrival(&self.scenario, self.now, rng, coverage);
        let conn = &mut self.conns[conn];
        let last_arrival = match direction {
            Direction::ToMaster => &mut conn.last_arrival_at_server,
            Direction::FromMaster => &mut conn.last_arrival_at_client,
        };
        *last_arrival = arrival.max(*last_arrival + 1);
        *last_arrival
    }

    /// Sends the first packet of a new connection.
    pub(super) fn open_connection(&mut self, index: usize) {
        let conn = self.conns.len();
        self.conns.push(Conn {
            link: index,
            master: self.links[index].master,
            restarts: 0,
            state: ConnState::Dialing,
            is_client_open: true,
            is_server_open: false,
            is_broken: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            last_arrival_at_server: 0,
            last_arrival_at_client: 0,
            unread: Vec::new(),
            subscriber: None,
            watched_elections: Vec::new(),
            served_requests: 0,
            is_next_reply_malformed: false,
            name: String::new(),
            is_killed_by_operator: false,
        });
        self.links[index].conn = Some(conn);
        let at = self.draw_packet_arrival(conn, Direction::ToMaster);
        let conn = conn as u32;
        self.schedule(at, Event::ConnectReachesMaster { conn });
    }

    pub(super) fn is_connecting(&self, conn: usize) -> bool {
        self.conns[conn].state == ConnState::Dialing
    }

    /// Handles the arrival of a connection's first packet at the master. The kernel accepts the connection even if the
    /// server process stalls.
    pub(super) fn handle_connect(&mut self, conn: usize) {
        let master = &self.masters[self.conns[conn].master];
        let (up, restarts) = (master.up, master.restarts);
        let connection = &mut self.conns[conn];
        connection.is_server_open = up;
        connection.restarts = restarts;
        let at = self.draw_packet_arrival(conn, Direction::FromMaster);
        let conn = conn as u32;
        self.schedule(at, Event::ConnectAnswered { conn });
    }

    /// Called when the client receives the reply to the first packet of a connection. Returns whether the server
    /// accepted or refused the connection; `None` if the client has already closed it.
    pub(super) fn handle_connect_answer(&mut self, conn: usize) -> Option<DriverCall> {
        let connection = &mut self.conns[conn];
        if !connection.is_client_open {
            return None;
        }
        connection.state = ConnState::Open;
        if !connection.is_server_open {
            return Some(DriverCall::Disconnect("connection refused"));
        }
        self.observer.coverage.reconnects += u64::from(!self.is_of_operator(conn));
        Some(DriverCall::Connected)
    }

    /// Sends bytes to the master, in one packet or several. Afterwards, the connection sometimes breaks.
    pub(super) fn send_to_master(&mut self, conn: usize, bytes: Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.conns[conn].is_broken {
            let rest_after = rest.split_off(self.draw_packet_size(conn, rest.len()));
            self.conns[conn].to_server.push_back(rest);
            rest = rest_after;
            let at = self.draw_packet_arrival(conn, Direction::ToMaster);
            let conn = conn as u32;
            self.schedule(at, Event::BytesReachMaster { conn });
        }
        let net = self.scenario.net;
        let is_reset = !self.faults_have_ended() && self.rng_of(conn).chance(net.reset_ppm);
        if is_reset {
            self.break_connection(conn, true);
        }
    }

    /// Sends bytes to the client, unless the connection is broken.
    pub(super) fn send_to_client(&mut self, conn: usize, bytes: Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() && self.conns[conn].is_open() && !self.conns[conn].is_broken {
            let rest_after = rest.split_off(self.draw_packet_size(conn, rest.len()));
            self.conns[conn].to_client.push_back(rest);
            rest = rest_after;
            let at = self.draw_packet_arrival(conn, Direction::FromMaster);
            let conn = conn as u32;
            self.schedule(at, Event::BytesReachClient { conn });
        }
    }

    fn rng_of(&mut self, conn: usize) -> &mut crate::rng::Rng {
        &mut self.links[self.conns[conn].link].rng
    }

    /// Draws the number of bytes in the next packet.
    fn draw_packet_size(&mut self, conn: usize, len: usize) -> usize {
        let cut_ppm = self.scenario.net.cut_ppm;
        let rng = self.rng_of(conn);
        if len > 1 && rng.chance(cut_ppm) {
            rng.range(1, len as u64 - 1) as usize
        } else {
            len
        }
    }

    /// Called when the next packet in flight reaches the server. Executes the commands that are then complete. If the
    /// server stalls, the packet is delayed until the stall ends.
    pub(super) fn deliver_to_master(&mut self, conn: usize) {
        let stalled_until = self.masters[self.conns[conn].master].stalled_until;
        if stalled_until > self.now && self.conns[conn].is_server_open {
            self.observer.coverage.stalls += 1;
            let conn = conn as u32;
            self.schedule(stalled_until, Event::BytesReachMaster { conn });
            return;
        }
        let connection = &mut self.conns[conn];
        let packet = connection.to_server.pop_front();
        if let (Some(packet), true) = (packet, connection.is_server_open) {
            let is_ended = !connection.is_client_open || connection.is_broken;
            self.observer.coverage.leftovers += u64::from(is_ended);
            connection.unread.extend_from_slice(&packet);
            self.execute_received(conn);
        }
        // If the client has closed the connection and the server has received all bytes, the server closes the
        // connection too.
        let connection = &mut self.conns[conn];
        if !connection.is_client_open && connection.to_server.is_empty() {
            connection.is_server_open = false;
        }
    }

    /// Called when the next packet in flight reaches the client. Returns the index of the connection's `Link`, and the
    /// bytes of the packet. Returns `None` if no packet is in flight, or if the client has closed the connection.
    pub(super) fn deliver_to_client(&mut self, conn: usize) -> Option<(usize, DriverCall)> {
        let connection = &mut self.conns[conn];
        let packet = connection.to_client.pop_front()?;
        connection
            .is_client_open
            .then_some((connection.link, DriverCall::Receive(packet)))
    }

    /// Returns the index of the connection's `Link`, and a notification for the client: the server has closed the
    /// connection. Returns `None` if the client has already closed it.
    pub(super) fn deliver_close(&mut self, conn: usize) -> Option<(usize, DriverCall)> {
        let connection = &self.conns[conn];
        connection
            .is_client_open
            .then_some((connection.link, DriverCall::Disconnect("connection closed")))
    }

    /// Closes the client's side of a connection; `index` is the index of its `Link`. Packets that are in flight to the
    /// server may still arrive.
    pub(super) fn close_link(&mut self, index: usize) {
        let Some(conn) = self.links[index].conn.take() else {
            return;
        };
        if !std::mem::replace(&mut self.conns[conn].is_client_open, false) {
            return;
        }
        self.conns[conn].to_client.clear();
        self.drop_packets_to_server(conn);
    }

    /// Drops the packets in flight to the server: all of them, or all except the first few.
    fn drop_packets_to_server(&mut self, conn: usize) {
        let leftover_ppm = self.scenario.net.leftover_ppm;
        let in_flight = self.conns[conn].to_server.len();
        let rng = self.rng_of(conn);
        let kept = if in_flight > 0 && rng.chance(leftover_ppm) {
            rng.range(1, in_flight as u64) as usize
        } else {
            0
        };
        let connection = &mut self.conns[conn];
        connection.to_server.truncate(kept);
        if kept == 0 {
            connection.is_server_open = false;
        }
    }

    /// Breaks a connection in the network, possibly in the middle of a message. If `is_server_alive` is true, the
    /// server keeps running, and packets that are in flight to it may still arrive.
    pub(super) fn break_connection(&mut self, conn: usize, is_server_alive: bool) {
        if !self.conns[conn].is_open() || self.conns[conn].is_broken {
            return;
        }
        self.conns[conn].is_broken = true;
        self.observer.coverage.resets += 1;
        let packets = self.conns[conn].to_client.len() as u64;
        let kept_packets = self.rng_of(conn).below(packets + 1) as usize;
        let random = self.rng_of(conn).draw();
        let connection = &mut self.conns[conn];
        connection.to_client.truncate(kept_packets);
        if let Some(last) = connection.to_client.back_mut() {
            let kept_bytes = random as usize % (last.len() + 1);
            last.truncate(kept_bytes);
        }
        if is_server_alive {
            self.drop_packets_to_server(conn);
        } else {
            self.conns[conn].to_server.clear();
            self.conns[conn].is_server_open = false;
        }
        let at = self.draw_packet_arrival(conn, Direction::FromMaster);
        let conn = conn as u32;
        self.schedule(at, Event::ConnectionClosed { conn });
    }

    pub(super) fn break_all_connections(&mut self, master: usize, is_server_alive: bool) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].master == master {
                self.break_connection(conn, is_server_alive);
                if !is_server_alive {
                    self.conns[conn].is_server_open = false;
                }
            }
        }
    }

    /// Closes a connection at the server. The server never reads the bytes in flight on this connection.
    pub(super) fn hang_up(&mut self, conn: usize) {
        let was_open = self.conns[conn].is_open();
        let connection = &mut self.conns[conn];
        connection.is_server_open = false;
        connection.to_server.clear();
        connection.unread.clear();
        if was_open {
            let at = self.draw_packet_arrival(conn, Direction::FromMaster);
            let conn = conn as u32;
            self.schedule(at, Event::ConnectionClosed { conn });
        }
    }

    /// Ends all connections of a master on the server's side, without notifying the clients. Real servers and
    /// network devices sometimes do this.
    pub(super) fn forget_connections(&mut self, master: usize) {
        for conn in &mut self.conns {
            if conn.master == master {
                let was_open = conn.is_open() && !conn.is_broken;
                conn.is_server_open = false;
                self.observer.coverage.half_open += u64::from(was_open);
            }
        }
    }
}
