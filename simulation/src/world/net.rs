//! Connections between clients and Redis masters. A connection is two streams of bytes, one in each direction. The
//! bytes stay in order. They may be split into packets anywhere and be delayed, and a stream may end in the middle of a
//! message.

use std::collections::VecDeque;
use std::sync::Arc;

use super::link::Call;
use super::{Event, World};
use crate::clock::BEGIN;
use crate::rng::Rng;
use crate::scenario::{FaultKind, Scenario};

/// One connection. It exists from the moment at which the client sends the first packet.
pub(super) struct Conn {
    pub(super) link: usize,
    pub(super) master: usize,
    /// The number of restarts of the server when it accepted the connection. The connection ends when the server
    /// process ends.
    pub(super) run: u32,
    state: State,
    /// Whether the connection is open on the client's side.
    client: bool,
    /// Whether the connection is open on the server's side.
    pub(super) server: bool,
    /// Whether the connection is broken in the network. Bytes that the client sends on a broken connection are lost.
    broken: bool,
    /// The bytes in flight to the server, as packets in the order of sending. Each arrival takes the first packet, so
    /// the order of the bytes is kept.
    to: VecDeque<Vec<u8>>,
    /// The bytes in flight to the client, as packets in the order of sending.
    from: VecDeque<Vec<u8>>,
    /// The arrival time (true time) of the last packet to the server.
    last_to: u64,
    /// The arrival time (true time) of the last packet to the client.
    last_from: u64,
    /// The bytes of an incomplete command: the server has received them and waits for the rest of the command.
    pub(super) unread: Vec<u8>,
    /// The id of the client process that has subscribed to wake-ups on this connection; `None` if none has.
    pub(super) subscriber: Option<String>,
    /// The lock keys of the elections whose new leaders are announced on this connection.
    pub(super) watches: Vec<Arc<[u8]>>,
    /// The number of lock requests that the server has executed on this connection.
    pub(super) served: u64,
    /// Whether the next reply of the server is malformed.
    pub(super) garbled: bool,
    /// The name that the client has given to the connection.
    pub(super) name: String,
    /// Whether an operator has closed the connection at the server. The server then executes no further command from
    /// this connection.
    pub(super) ended: bool,
}

#[derive(PartialEq, Eq)]
enum State {
    Dialing,
    Open,
}

/// The direction of a packet: `To` the server, or `From` the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    To,
    From,
}

/// The route of one packet through the network: its client, its master and its direction.
pub(super) struct Trip {
    pub(super) client: usize,
    pub(super) master: usize,
    pub(super) way: Way,
    /// The longest time that the packet takes if it is sent after all faults have ended, in nanoseconds.
    pub(super) healed_within: u64,
}

impl Trip {
    /// Draws the true time of arrival of a packet that is sent at `now`. Each loss delays the packet by the
    /// retransmission time, and increases `lost` by one. A partition delays the packet until the partition ends.
    pub(super) fn ends(&self, scenario: &Scenario, now: u64, rng: &mut Rng, lost: &mut u64) -> u64 {
        let net = scenario.net;
        let takes = net.delay + rng.below(net.jitter + 1);
        if now >= BEGIN + scenario.heal_at {
            return now + takes.min(self.healed_within);
        }
        let mut at = now + takes;
        while rng.chance(net.loss_ppm) {
            *lost += 1;
            at += net.again;
        }
        while let Some(end) = self.cut_until(scenario, now, at) {
            at = end + net.delay + rng.below(net.again);
        }
        at
    }

    /// Returns the end of the partition that blocks the packet; `None` if no partition blocks it. The packet is sent at
    /// `now`, and would arrive at `at` without the partition.
    fn cut_until(&self, scenario: &Scenario, now: u64, at: u64) -> Option<u64> {
        scenario.faults.iter().find_map(|fault| match fault.kind {
            FaultKind::Partition {
                clients,
                masters,
                to,
                from,
                lasts,
            } => {
                let (begin, end) = (BEGIN + fault.at, BEGIN + fault.at + lasts);
                let here = clients >> self.client & 1 == 1 && masters >> self.master & 1 == 1;
                let blocks = if self.way == Way::To { to } else { from };
                (here && blocks && now < end && at >= begin && at < end).then_some(end)
            }
            _ => None,
        })
    }
}

impl Conn {
    /// Whether bytes that the server sends reach the client.
    pub(super) fn is_heard(&self) -> bool {
        self.client && self.server
    }
}

impl World {
    /// Draws the true time of arrival of a packet that is sent now. The packet arrives after all earlier packets of
    /// this connection in the same direction, so the bytes stay in order.
    fn travel(&mut self, conn: usize, way: Way) -> u64 {
        let (link, master) = (self.conns[conn].link, self.conns[conn].master);
        let trip = Trip {
            client: self.links[link].client,
            master,
            way,
            // After the faults have healed, a packet takes at most a third of the node timeout. So a round trip fits
            // into the node timeout.
            healed_within: self.scenario.settings.node_timeout / 3,
        };
        let (rng, lost) = (
            &mut self.links[link].rng,
            &mut self.watch.coverage.lost_packets,
        );
        let at = trip.ends(&self.scenario, self.now, rng, lost);
        let conn = &mut self.conns[conn];
        let last = match way {
            Way::To => &mut conn.last_to,
            Way::From => &mut conn.last_from,
        };
        *last = at.max(*last + 1);
        *last
    }

    /// Sends the first packet of a new connection.
    pub(super) fn dial(&mut self, index: usize) {
        let conn = self.conns.len();
        self.conns.push(Conn {
            link: index,
            master: self.links[index].master,
            run: 0,
            state: State::Dialing,
            client: true,
            server: false,
            broken: false,
            to: VecDeque::new(),
            from: VecDeque::new(),
            last_to: 0,
            last_from: 0,
            unread: Vec::new(),
            subscriber: None,
            watches: Vec::new(),
            served: 0,
            garbled: false,
            name: String::new(),
            ended: false,
        });
        self.links[index].conn = Some(conn);
        let at = self.travel(conn, Way::To);
        let conn = conn as u32;
        self.at(at, Event::Accept { conn });
    }

    pub(super) fn is_dialing(&self, conn: usize) -> bool {
        self.conns[conn].state == State::Dialing
    }

    /// Handles the arrival of a connection's first packet at the master. The kernel accepts the connection even if the
    /// server process stalls.
    pub(super) fn accept(&mut self, conn: usize) {
        let master = &self.masters[self.conns[conn].master];
        let (up, run) = (master.up, master.run);
        let taken = &mut self.conns[conn];
        taken.server = up;
        taken.run = run;
        let at = self.travel(conn, Way::From);
        let conn = conn as u32;
        self.at(at, Event::Dialed { conn });
    }

    /// Called when the client receives the reply to the first packet of a connection. Returns whether the server
    /// accepted or refused the connection; `None` if the client has already closed it.
    pub(super) fn dialed(&mut self, conn: usize) -> Option<Call> {
        let dialed = &mut self.conns[conn];
        if !dialed.client {
            return None;
        }
        dialed.state = State::Open;
        if !dialed.server {
            return Some(Call::Cut("connection refused"));
        }
        self.watch.coverage.reconnects += 1;
        Some(Call::Dialed)
    }

    /// Sends bytes to the master, in one packet or several. Afterwards, the connection sometimes breaks.
    pub(super) fn say_to_master(&mut self, conn: usize, bytes: Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.conns[conn].broken {
            let behind = rest.split_off(self.piece(conn, rest.len()));
            self.conns[conn].to.push_back(rest);
            rest = behind;
            let at = self.travel(conn, Way::To);
            let conn = conn as u32;
            self.at(at, Event::Arrive { conn });
        }
        let net = self.scenario.net;
        let resets = !self.healed() && self.rng_of(conn).chance(net.reset_ppm);
        if resets {
            self.cut(conn, true);
        }
    }

    /// Sends bytes to the client, unless the connection is broken.
    pub(super) fn say_to_client(&mut self, conn: usize, bytes: Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() && self.conns[conn].is_heard() && !self.conns[conn].broken {
            let behind = rest.split_off(self.piece(conn, rest.len()));
            self.conns[conn].from.push_back(rest);
            rest = behind;
            let at = self.travel(conn, Way::From);
            let conn = conn as u32;
            self.at(at, Event::Receive { conn });
        }
    }

    fn rng_of(&mut self, conn: usize) -> &mut crate::rng::Rng {
        &mut self.links[self.conns[conn].link].rng
    }

    /// Draws the number of bytes in the next packet.
    fn piece(&mut self, conn: usize, len: usize) -> usize {
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
    pub(super) fn arrive(&mut self, conn: usize) {
        let stalled_until = self.masters[self.conns[conn].master].stalled_until;
        if stalled_until > self.now && self.conns[conn].server {
            let conn = conn as u32;
            self.at(stalled_until, Event::Arrive { conn });
            return;
        }
        let open = &mut self.conns[conn];
        let piece = open.to.pop_front();
        if let (Some(piece), true) = (piece, open.server) {
            open.unread.extend_from_slice(&piece);
            self.serve(conn);
        }
        // If the client has closed the connection and the server has received all bytes, the server closes the
        // connection too.
        let open = &mut self.conns[conn];
        if !open.client && open.to.is_empty() {
            open.server = false;
        }
    }

    /// Called when the next packet in flight reaches the client. Returns the index of the connection's `Link`, and the
    /// bytes of the packet. Returns `None` if no packet is in flight, or if the client has closed the connection.
    pub(super) fn receive(&mut self, conn: usize) -> Option<(usize, Call)> {
        let open = &mut self.conns[conn];
        let piece = open.from.pop_front()?;
        open.client.then_some((open.link, Call::Hear(piece)))
    }

    /// Returns the index of the connection's `Link`, and a notification for the client: the server has closed the
    /// connection. Returns `None` if the client has already closed it.
    pub(super) fn closed(&mut self, conn: usize) -> Option<(usize, Call)> {
        let ended = &self.conns[conn];
        ended
            .client
            .then_some((ended.link, Call::Cut("connection closed")))
    }

    /// Closes the client's side of a connection; `index` is the index of its `Link`. Packets that are in flight to the
    /// server may still arrive.
    pub(super) fn close(&mut self, index: usize) {
        let Some(conn) = self.links[index].conn.take() else {
            return;
        };
        if !std::mem::replace(&mut self.conns[conn].client, false) {
            return;
        }
        self.conns[conn].from.clear();
        self.strand(conn);
    }

    /// Drops the packets in flight to the server: all of them, or all except the first few.
    fn strand(&mut self, conn: usize) {
        let ppm = self.scenario.net.leftover_ppm;
        let under_way = self.conns[conn].to.len();
        let rng = self.rng_of(conn);
        let live = if under_way > 0 && rng.chance(ppm) {
            rng.range(1, under_way as u64) as usize
        } else {
            0
        };
        self.watch.coverage.leftovers += live as u64;
        let open = &mut self.conns[conn];
        open.to.truncate(live);
        if live == 0 {
            open.server = false;
        }
    }

    /// Breaks a connection in the network, possibly in the middle of a message. If `alive` is true, the server keeps
    /// running, and packets that are in flight to it may still arrive.
    pub(super) fn cut(&mut self, conn: usize, alive: bool) {
        if !self.conns[conn].is_heard() || self.conns[conn].broken {
            return;
        }
        self.conns[conn].broken = true;
        self.watch.coverage.resets += 1;
        let answers = self.conns[conn].from.len() as u64;
        let heard = self.rng_of(conn).below(answers + 1) as usize;
        let torn = self.rng_of(conn).draw();
        let open = &mut self.conns[conn];
        open.from.truncate(heard);
        if let Some(last) = open.from.back_mut() {
            let keep = torn as usize % (last.len() + 1);
            last.truncate(keep);
        }
        if alive {
            self.strand(conn);
        } else {
            self.conns[conn].to.clear();
            self.conns[conn].server = false;
        }
        let at = self.travel(conn, Way::From);
        let conn = conn as u32;
        self.at(at, Event::Closed { conn });
    }

    pub(super) fn cut_all(&mut self, master: usize, alive: bool) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].master == master {
                self.cut(conn, alive);
                if !alive {
                    self.conns[conn].server = false;
                }
            }
        }
    }

    /// Closes a connection at the server. The server never reads the bytes in flight on this connection.
    pub(super) fn hang_up(&mut self, conn: usize) {
        let heard = self.conns[conn].is_heard();
        let open = &mut self.conns[conn];
        open.server = false;
        open.to.clear();
        open.unread.clear();
        if heard {
            let at = self.travel(conn, Way::From);
            let conn = conn as u32;
            self.at(at, Event::Closed { conn });
        }
    }

    /// Ends all connections of a master on the server's side, without notifying the clients. Real servers and
    /// network devices sometimes do this.
    pub(super) fn forget(&mut self, master: usize) {
        for conn in &mut self.conns {
            if conn.master == master {
                conn.server = false;
            }
        }
    }
}
