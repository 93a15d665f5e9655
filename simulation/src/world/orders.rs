//! Orders that operators send to masters. An order or its reply may be late or lost. A master may execute an order even
//! after the operator has stopped waiting for the reply.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorate::ChangeSeen;

use super::markers::number_in_marker;
use super::master::run_id;
use super::net::{Direction, PacketRoute};
use super::{Event, Shared, World};
use crate::clock::{EPOCH_US, MS, RUN_START};
use crate::facts::LockState;
use crate::flaw::Flaw;
use crate::happening::Happening;
use crate::locker::{PLACES, key_of_place};
use crate::scenario::Refusal;

/// A fencing counter: its key and its value.
pub(crate) type Counter = (Vec<u8>, u64);

/// A fencing counter is roughly a time in microseconds. The seeded bugs `CarryBeforeClose` and `CarryMinority` do not
/// copy counters that are behind the master's clock by more than this time.
const COUNTER_LIFETIME: Duration = Duration::from_secs(86_400);

/// An order of an operator to a master. The master executes it and sends a reply ([`OrderReply`]).
#[derive(Clone, Debug)]
pub(crate) enum OrderKind {
    /// Write a generation marker, unless the master's marker has a larger number. The fields are the number, the
    /// fingerprint (it shows for which set of masters the number was written), and whether the order restores a lost
    /// marker.
    RaiseMarker(u64, Arc<str>, bool),
    /// List the connections of clients.
    ListClients,
    /// Close the connection with this id.
    KillConnection(u64),
    /// List the fencing counters, except those that are behind the master's clock by more than this time.
    ListCounters(Duration),
    /// List the keys of the locks that have a stored value (quota or once-per-period record).
    ListValues,
    /// Raise each of these fencing counters to the given number; never lower a counter. Skip the counter of a lock that
    /// an owner (`quorate::Owner`) holds.
    RaiseCounters(Arc<[Counter]>),
    /// Report the state of the master.
    ReadState,
}

/// The reply of a master to an order.
#[derive(Debug)]
pub(crate) enum OrderReply {
    Done,
    Clients(String),
    Killed(bool),
    Counters(Vec<Counter>),
    /// The keys of the locks that have a stored value.
    Values(Vec<Vec<u8>>),
    /// The fencing counters that the master did not raise, because an owner (`quorate::Owner`) holds their lock. Each
    /// pair is the key of the counter and the value of the lock key.
    Owned(Vec<(Vec<u8>, Vec<u8>)>),
    /// The state of the master, and its list of connections.
    State(Box<ChangeSeen>, String),
    Refused(Refusal),
    /// The operator's connection has ended.
    Disconnected,
}

/// An order on its way to a master, or its reply on the way back.
pub(super) struct OperatorOrder {
    pub(super) client: usize,
    master: usize,
    /// The number of restarts that the server had when the order's connection was made. `None` if the order opens a new
    /// connection.
    restarts: Option<u32>,
    kind: OrderKind,
    reply: Option<(OrderReply, u32)>,
    waker: Option<Waker>,
    is_reply_delivered: bool,
}

impl Shared {
    /// Sends an order to a master, and waits for the reply. Returns the reply, and the number of restarts of the server
    /// that executed the order.
    ///
    /// `restarts` is the number of restarts that the server had when the connection was made. If the server has
    /// restarted since then, the reply is [`OrderReply::Disconnected`]. If `restarts` is `None`, the order opens a new
    /// connection.
    pub(crate) async fn send_order(
        &self,
        client: usize,
        (master, restarts): (usize, Option<u32>),
        kind: OrderKind,
    ) -> (OrderReply, u32) {
        let order = self
            .world()
            .schedule_order(client, (master, restarts), kind);
        std::future::poll_fn(|cx| self.poll_order(order, cx)).await
    }

    fn poll_order(&self, order: usize, cx: &Context<'_>) -> Poll<(OrderReply, u32)> {
        let mut world = self.world();
        let Some(order) = world.orders.get_mut(order) else {
            return Poll::Pending;
        };
        if order.is_reply_delivered
            && let Some(reply) = order.reply.take()
        {
            return Poll::Ready(reply);
        }
        let previous_waker = order.waker.replace(cx.waker().clone());
        drop(world);
        drop(previous_waker);
        Poll::Pending
    }
}

impl World {
    fn schedule_order(
        &mut self,
        client: usize,
        (master, restarts): (usize, Option<u32>),
        kind: OrderKind,
    ) -> usize {
        let arrival = self.draw_order_arrival(client, master, Direction::ToMaster);
        let order = self.orders.len();
        self.orders.push(OperatorOrder {
            client,
            master,
            restarts,
            kind,
            reply: None,
            waker: None,
            is_reply_delivered: false,
        });
        let index = order as u32;
        self.schedule(arrival, Event::OrderReachesMaster { order: index });
        order
    }

    fn draw_order_arrival(&mut self, client: usize, master: usize, direction: Direction) -> u64 {
        let route = PacketRoute {
            client,
            master,
            direction,
            healed_within: self.scenario.settings.node_timeout / 3,
        };
        let coverage = &mut self.observer.coverage;
        route.draw_arrival(&self.scenario, self.now, &mut self.rng, coverage)
    }

    /// Delivers an order to its master. The master executes the order and sends the reply.
    pub(super) fn deliver_order(&mut self, index: usize) {
        let OperatorOrder {
            client,
            master,
            restarts,
            ..
        } = self.orders[index];
        let target = &self.masters[master];
        if target.up && target.stalled_until > self.now {
            let (arrival, order) = (target.stalled_until, index as u32);
            return self.schedule(arrival, Event::OrderReachesMaster { order });
        }
        let restarts_now = target.restarts;
        let reply = if !target.up || restarts.is_some_and(|restarts| restarts != restarts_now) {
            OrderReply::Disconnected
        } else {
            let kind = self.orders[index].kind.clone();
            self.execute_order(client, master, &kind)
        };
        self.orders[index].reply = Some((reply, restarts_now));
        let arrival = self.draw_order_arrival(client, master, Direction::FromMaster);
        let order = index as u32;
        self.schedule(arrival, Event::ReplyReachesOperator { order });
    }

    /// Delivers to the operator the reply to the order with this index. Returns the waker of the task that waits for
    /// the reply.
    pub(super) fn deliver_reply(&mut self, index: usize) -> Option<Waker> {
        let order = &mut self.orders[index];
        order.is_reply_delivered = true;
        order.waker.take()
    }

    fn execute_order(&mut self, client: usize, master: usize, kind: &OrderKind) -> OrderReply {
        let refusal = self.masters[master]
            .refusal
            .filter(|(until, _)| self.now < *until);
        if let (Some((_, how)), OrderKind::RaiseMarker(..) | OrderKind::RaiseCounters(_)) =
            (refusal, kind)
        {
            return if how == Refusal::HangUp {
                OrderReply::Disconnected
            } else {
                OrderReply::Refused(how)
            };
        }
        if self.flaw == Some(Flaw::CarryBeforeClose) && self.early_counters[master].is_none() {
            self.early_counters[master] = Some(self.counters_of(master, COUNTER_LIFETIME));
        }
        match kind {
            OrderKind::RaiseMarker(number, fingerprint, is_restoring) => {
                self.raise_marker(master, (*number, fingerprint), *is_restoring);
                OrderReply::Done
            }
            OrderKind::ListClients => OrderReply::Clients(self.client_list(master)),
            OrderKind::KillConnection(id) => {
                let killed = self.kill_connection(master, *id);
                if killed {
                    self.conns[*id as usize - 1].is_killed_by_operator = true;
                    self.observer.coverage.closed_outdated += 1;
                    self.trace_line(|| format!("master {master}: connection {id} is closed"));
                }
                OrderReply::Killed(killed)
            }
            OrderKind::ListCounters(within) => {
                let early_counters = self.early_counters[master].clone();
                let counters = early_counters.unwrap_or_else(|| self.counters_of(master, *within));
                let is_read =
                    self.flaw != Some(Flaw::CarryMinority) || self.has_smallest_counters(master);
                OrderReply::Counters(if is_read { counters } else { Vec::new() })
            }
            OrderKind::ListValues if self.flaw == Some(Flaw::ValuesLeftBehind) => {
                OrderReply::Values(Vec::new())
            }
            OrderKind::ListValues => OrderReply::Values(self.values_of(master)),
            OrderKind::RaiseCounters(_) if self.flaw == Some(Flaw::NoCarry) => {
                OrderReply::Owned(Vec::new())
            }
            OrderKind::RaiseCounters(counters) if !self.has_room_for(master, counters) => {
                self.observer.coverage.out_of_memory_refusals += 1;
                self.report_shortage(master);
                OrderReply::Refused(Refusal::OutOfMemory)
            }
            OrderKind::RaiseCounters(counters) => {
                OrderReply::Owned(self.raise_counters(master, counters))
            }
            OrderKind::ReadState => {
                let seen = self.master_state(client, master);
                OrderReply::State(Box::new(seen), self.client_list(master))
            }
        }
    }

    fn raise_marker(
        &mut self,
        index: usize,
        (number, fingerprint): (u64, &str),
        is_restoring: bool,
    ) {
        let now_us = self.masters[index].clock_us(self.now);
        let marker = self.masters[index].marker(now_us);
        let new_marker = format!("{number} {fingerprint}");
        if marker.is_some() && number_in_marker(marker) >= number {
            return;
        }
        if marker.is_none() {
            self.start_age_record(index, is_restoring);
        }
        let coverage = &mut self.observer.coverage;
        match number % 4 {
            1 => coverage.closed_masters += 1,
            2 => coverage.opened_masters += 1,
            _ if number == 0 => coverage.begin_markers += 1,
            _ => coverage.finish_markers += 1,
        }
        self.masters[index].set_marker(now_us, &new_marker);
        self.record_marker(index, true);
        self.trace_line(|| format!("master {index}: its generation marker is raised to {number}"));
        self.report_happening(Happening::MastersChanged);
        self.update_outdated_markers(index);
        if self.flaw == Some(Flaw::MarkLostOnRestart) && number % 4 == 2 {
            self.restart_removed_masters(number / 4);
        }
    }

    /// For the seeded bug `MarkLostOnRestart`: restarts the masters that the change with the index `change` removes. In
    /// this restart they lose their generation markers.
    fn restart_removed_masters(&mut self, change: u64) {
        let plan = self.scenario.change.as_ref();
        let sets = plan.map(|plan| plan.masters_at(2 * change as u8 + 1).sets());
        let [old, next] = sets.unwrap_or_default();
        for master in (0..self.masters.len()).filter(|master| (old & !next) >> master & 1 == 1) {
            self.crash(master, 20 * MS);
        }
    }

    /// Returns the list of connections in the form in which a server reports it.
    fn client_list(&self, master: usize) -> String {
        let restarts = self.masters[master].restarts;
        let open_connections = self.conns.iter().enumerate().filter(|(_, conn)| {
            conn.is_server_open && (conn.master, conn.restarts) == (master, restarts)
        });
        let format_line = |(index, conn): (usize, &super::net::Conn)| {
            let client = self.links[conn.link].client;
            let subscriptions = u8::from(conn.subscriber.is_some());
            format!(
                "id={} addr=10.0.0.{client}:1 name={} db=0 sub={subscriptions} cmd=ping\n",
                index + 1,
                conn.name
            )
        };
        open_connections.map(format_line).collect()
    }

    fn counters_of(&self, master: usize, within: Duration) -> Vec<Counter> {
        let master = &self.masters[master];
        let now_us = master.clock_us(self.now);
        let smallest = now_us.saturating_sub(within.as_micros() as u64);
        let counter = |place: usize| {
            let key = key_of_place(place as u8);
            let number = master.memory.peek(now_us, key.as_bytes()).counter?;
            (number >= smallest).then(|| (format!("quorate:fence:{key}").into_bytes(), number))
        };
        (0..PLACES).filter_map(counter).collect()
    }

    /// Whether the fencing counters on this master have the smallest sum among all old masters. The seeded bug
    /// `CarryMinority` reads only the counters of this master.
    fn has_smallest_counters(&self, master: usize) -> bool {
        let sum = |master: usize| {
            let counters = self.counters_of(master, COUNTER_LIFETIME);
            counters.iter().map(|(_, number)| *number).sum::<u64>()
        };
        let old_masters = self.scenario.masters_at(0).all_masters();
        old_masters.into_iter().min_by_key(|master| sum(*master)) == Some(master)
    }

    /// Returns the keys of the locks for which this master stores a value (quota or once-per-period record).
    fn values_of(&self, master: usize) -> Vec<Vec<u8>> {
        let master = &self.masters[master];
        let now_us = master.clock_us(self.now);
        let is_stored = |place: &usize| {
            let key = format!("quorate:value:{}", key_of_place(*place as u8));
            master.memory.peek(now_us, key.as_bytes()).holder.is_some()
        };
        let places = (0..PLACES).filter(is_stored);
        places
            .map(|place| key_of_place(place as u8).into())
            .collect()
    }

    /// Raises fencing counters. Returns the counters that were not raised because an owner holds the lock.
    fn raise_counters(&mut self, index: usize, counters: &[Counter]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let master = &mut self.masters[index];
        let now_us = master.clock_us(self.now);
        let (mut owned, mut raised) = (Vec::new(), 0);
        master.record_all_lock_states(self.now);
        let states_before = master.lock_states;
        for (key, number) in counters {
            match master.owner_below(now_us, key, *number) {
                Some(owner) => owned.push((key.clone(), owner)),
                None => raised += u64::from(master.raise_counter(now_us, key, *number)),
            }
        }
        master.record_all_lock_states(self.now);
        if let Some(history) = &mut self.observer.history {
            let states = [states_before, master.lock_states];
            let [before, after] = states.map(|states| states.map(LockState::to_model));
            history.record_raised(self.now, index, &before, &after);
        }
        self.observer.coverage.carried_counters += raised;
        self.trace_line(|| format!("master {index}: {raised} fencing counters are raised"));
        owned
    }

    fn master_state(&self, client: usize, index: usize) -> ChangeSeen {
        let master = &self.masters[index];
        let now_us = master.clock_us(self.now);
        let client_time_us = (EPOCH_US + (self.now - RUN_START) / 1_000)
            .saturating_add_signed(self.processes[client].wall_us.load(Ordering::Relaxed));
        let mut state = ChangeSeen::default();
        state.mark = master.marker(now_us).map(str::to_owned);
        state.run_id = Some(run_id(index, master.restarts));
        state.values = self.values_of(index).len();
        let uptime = u64::try_from(self.uptime(index)).ok();
        state.uptime = Some(Duration::from_secs(uptime.unwrap_or(0)));
        state.is_uptime_impossible = uptime.is_none();
        state.clock_offset_ms = Some((now_us as i64 - client_time_us as i64) / 1_000);
        state
    }
}
