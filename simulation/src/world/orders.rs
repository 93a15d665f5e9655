//! Orders that operators send to masters. An order or its reply may be late or lost. A master may execute an order even
//! after the operator has stopped waiting for the reply.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorate::ChangeSeen;

use super::marks::number_of;
use super::master::run_id;
use super::net::{Trip, Way};
use super::{Event, Shared, World};
use crate::clock::{BEGIN, EPOCH_US, MS};
use crate::happening::Happening;
use crate::locker::{PLACES, name};
use crate::scenario::Refusal;
use crate::seeded_bugs::Flaw;

/// A fencing counter: its key and its value.
pub(crate) type Counter = (Vec<u8>, u64);

/// A fencing counter is roughly a time in microseconds. The seeded bugs `CarryBeforeClose` and `CarryMinority` do not
/// copy counters that are behind the master's clock by more than this time.
const DAY: Duration = Duration::from_secs(86_400);

/// An order of an operator to a master. The master executes it and sends a reply ([`Heard`]).
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// Write a generation marker, unless the master's marker has a larger number. The fields are the number, the
    /// fingerprint (it shows for which set of masters the number was written), and whether the order restores a lost
    /// marker.
    Raise(u64, Arc<str>, bool),
    /// List the connections of clients.
    Clients,
    /// Close the connection with this id.
    Kill(u64),
    /// List the fencing counters, except those that are behind the master's clock by more than this time.
    Counters(Duration),
    /// List the keys of the locks that have a stored value (quota or once-per-period record).
    Values,
    /// Raise each of these fencing counters to the given number; never lower a counter. Skip the counter of a lock that
    /// an owner (`quorate::Owner`) holds.
    Carry(Arc<[Counter]>),
    /// Report the state of the master.
    Look,
}

/// The reply of a master to an order.
#[derive(Debug)]
pub(crate) enum Heard {
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
    Seen(Box<ChangeSeen>, String),
    Refused(Refusal),
    /// The operator's connection has ended.
    Gone,
}

/// An order on its way to a master, or its reply on the way back.
pub(super) struct Order {
    pub(super) client: usize,
    master: usize,
    /// The number of restarts that the server had when the order's connection was made. `None` if the order opens a new
    /// connection.
    run: Option<u32>,
    word: Word,
    heard: Option<(Heard, u32)>,
    waker: Option<Waker>,
    obeyed: bool,
}

impl Shared {
    /// Sends an order to a master, and waits for the reply. Returns the reply, and the number of restarts of the server
    /// that executed the order.
    ///
    /// `run` is the number of restarts that the server had when the connection was made. If the server has restarted
    /// since then, the reply is [`Heard::Gone`]. If `run` is `None`, the order opens a new connection.
    pub(crate) async fn say_order(
        &self,
        client: usize,
        (master, run): (usize, Option<u32>),
        word: Word,
    ) -> (Heard, u32) {
        let order = self.world().order(client, (master, run), word);
        std::future::poll_fn(|cx| self.poll_order(order, cx)).await
    }

    fn poll_order(&self, order: usize, cx: &Context<'_>) -> Poll<(Heard, u32)> {
        let mut world = self.world();
        let Some(order) = world.orders.get_mut(order) else {
            return Poll::Pending;
        };
        if order.obeyed
            && let Some(heard) = order.heard.take()
        {
            return Poll::Ready(heard);
        }
        let old = order.waker.replace(cx.waker().clone());
        drop(world);
        drop(old);
        Poll::Pending
    }
}

impl World {
    fn order(&mut self, client: usize, (master, run): (usize, Option<u32>), word: Word) -> usize {
        let at = self.trip(client, master, Way::To);
        let order = self.orders.len();
        self.orders.push(Order {
            client,
            master,
            run,
            word,
            heard: None,
            waker: None,
            obeyed: false,
        });
        let index = order as u32;
        self.at(at, Event::Ordered { order: index });
        order
    }

    fn trip(&mut self, client: usize, master: usize, way: Way) -> u64 {
        let trip = Trip {
            client,
            master,
            way,
            healed_within: self.scenario.settings.node_timeout / 3,
        };
        let lost = &mut self.watch.coverage.lost_packets;
        trip.ends(&self.scenario, self.now, &mut self.rng, lost)
    }

    /// Delivers an order to its master. The master executes the order and sends the reply.
    pub(super) fn ordered(&mut self, index: usize) {
        let Order {
            client,
            master,
            run,
            ..
        } = self.orders[index];
        let there = &self.masters[master];
        if there.up && there.stalled_until > self.now {
            let (at, order) = (there.stalled_until, index as u32);
            return self.at(at, Event::Ordered { order });
        }
        let here = there.run;
        let heard = if !there.up || run.is_some_and(|run| run != here) {
            Heard::Gone
        } else {
            let word = self.orders[index].word.clone();
            self.obey(client, master, &word)
        };
        self.orders[index].heard = Some((heard, here));
        let at = self.trip(client, master, Way::From);
        let order = index as u32;
        self.at(at, Event::Obeyed { order });
    }

    /// Delivers to the operator the reply to the order with this index. Returns the waker of the task that waits for
    /// the reply.
    pub(super) fn obeyed(&mut self, index: usize) -> Option<Waker> {
        let order = &mut self.orders[index];
        order.obeyed = true;
        order.waker.take()
    }

    fn obey(&mut self, client: usize, master: usize, word: &Word) -> Heard {
        let refusing = self.masters[master]
            .refusing
            .filter(|(until, _)| self.now < *until);
        if let (Some((_, how)), Word::Raise(..) | Word::Carry(_)) = (refusing, word) {
            return if how == Refusal::HangUp {
                Heard::Gone
            } else {
                Heard::Refused(how)
            };
        }
        if self.flaw == Some(Flaw::CarryBeforeClose) && self.counted[master].is_none() {
            self.counted[master] = Some(self.counters_of(master, DAY));
        }
        match word {
            Word::Raise(number, print, restores) => {
                self.raise_mark(master, (*number, print), *restores);
                Heard::Done
            }
            Word::Clients => Heard::Clients(self.client_list(master)),
            Word::Kill(id) => {
                let killed = self.kill_connection(master, *id);
                if killed {
                    self.conns[*id as usize - 1].ended = true;
                    self.watch.coverage.ended += 1;
                    self.say(|| format!("master {master}: connection {id} is closed"));
                }
                Heard::Killed(killed)
            }
            Word::Counters(within) => {
                let early = self.counted[master].clone();
                let counters = early.unwrap_or_else(|| self.counters_of(master, *within));
                let read = self.flaw != Some(Flaw::CarryMinority) || self.has_least(master);
                Heard::Counters(if read { counters } else { Vec::new() })
            }
            Word::Values if self.flaw == Some(Flaw::ValuesLeftBehind) => Heard::Values(Vec::new()),
            Word::Values => Heard::Values(self.values_of(master)),
            Word::Carry(_) if self.flaw == Some(Flaw::NoCarry) => Heard::Owned(Vec::new()),
            Word::Carry(counters) if !self.has_room_for(master, counters) => {
                self.watch.coverage.full += 1;
                Heard::Refused(Refusal::OutOfMemory)
            }
            Word::Carry(counters) => Heard::Owned(self.carry_to(master, counters)),
            Word::Look => {
                let seen = self.seen_of(client, master);
                Heard::Seen(Box::new(seen), self.client_list(master))
            }
        }
    }

    fn raise_mark(&mut self, index: usize, (number, print): (u64, &str), restores: bool) {
        let now_us = self.masters[index].micros(self.now);
        let mark = self.masters[index].mark(now_us);
        let raised = format!("{number} {print}");
        if mark.is_some() && number_of(mark) >= number {
            return;
        }
        if mark.is_none() {
            self.begin_age(index, restores);
        }
        let coverage = &mut self.watch.coverage;
        match number % 4 {
            1 => coverage.closed += 1,
            2 => coverage.opened += 1,
            _ if number == 0 => coverage.begun += 1,
            _ => coverage.finished += 1,
        }
        self.masters[index].set_mark(now_us, &raised);
        self.say(|| format!("master {index}: its generation marker is raised to {number}"));
        self.happened(Happening::Change);
        self.raised(index);
        if self.flaw == Some(Flaw::MarkLostOnRestart) && number % 4 == 2 {
            self.restart_left_over(number / 4);
        }
    }

    /// For the seeded bug `MarkLostOnRestart`: restarts the masters that the change with the index `change` removes. In
    /// this restart they lose their generation markers.
    fn restart_left_over(&mut self, change: u64) {
        let plan = self.scenario.change.as_ref();
        let sets = plan.map(|plan| plan.named(2 * change as u8 + 1).sets());
        let [old, next] = sets.unwrap_or_default();
        for master in (0..self.masters.len()).filter(|master| (old & !next) >> master & 1 == 1) {
            self.crash(master, 20 * MS);
        }
    }

    /// Returns the list of connections in the form in which a server reports it.
    fn client_list(&self, master: usize) -> String {
        let run = self.masters[master].run;
        let here = self.conns.iter().enumerate();
        let here = here.filter(|(_, conn)| conn.server && (conn.master, conn.run) == (master, run));
        let line = |(index, conn): (usize, &super::net::Conn)| {
            let client = self.links[conn.link].client;
            let sub = u8::from(conn.subscriber.is_some());
            format!(
                "id={} addr=10.0.0.{client}:1 name={} db=0 sub={sub} cmd=ping\n",
                index + 1,
                conn.name
            )
        };
        here.map(line).collect()
    }

    fn counters_of(&self, master: usize, within: Duration) -> Vec<Counter> {
        let master = &self.masters[master];
        let now_us = master.micros(self.now);
        let least = now_us.saturating_sub(within.as_micros() as u64);
        let counter = |place: usize| {
            let key = name(place as u8);
            let number = master.memory.peek(now_us, key.as_bytes()).counter?;
            (number >= least).then(|| (format!("quorate:fence:{key}").into_bytes(), number))
        };
        (0..PLACES).filter_map(counter).collect()
    }

    /// Whether the fencing counters on this master have the smallest sum among all old masters. The seeded bug
    /// `CarryMinority` reads only the counters of this master.
    fn has_least(&self, master: usize) -> bool {
        let sum = |master: usize| {
            let counters = self.counters_of(master, DAY);
            counters.iter().map(|(_, number)| *number).sum::<u64>()
        };
        let old = self.scenario.named(0).asked();
        old.into_iter().min_by_key(|master| sum(*master)) == Some(master)
    }

    /// Returns the keys of the locks for which this master stores a value (quota or once-per-period record).
    fn values_of(&self, master: usize) -> Vec<Vec<u8>> {
        let master = &self.masters[master];
        let now_us = master.micros(self.now);
        let kept = |place: &usize| {
            let key = format!("quorate:value:{}", name(*place as u8));
            master.memory.peek(now_us, key.as_bytes()).holder.is_some()
        };
        let names = (0..PLACES).filter(kept);
        names.map(|place| name(place as u8).into()).collect()
    }

    /// Raises fencing counters. Returns the counters that were not raised because an owner holds the lock.
    fn carry_to(&mut self, index: usize, counters: &[Counter]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let master = &mut self.masters[index];
        let now_us = master.micros(self.now);
        let mut owned = Vec::new();
        let mut raised = 0;
        for (key, number) in counters {
            match master.owner_below(now_us, key, *number) {
                Some(owner) => owned.push((key.clone(), owner)),
                None => raised += u64::from(master.raise_counter(now_us, key, *number)),
            }
        }
        master.look_at_all(self.now);
        self.watch.coverage.carried += raised;
        self.say(|| format!("master {index}: {raised} fencing counters are raised"));
        owned
    }

    fn seen_of(&self, client: usize, index: usize) -> ChangeSeen {
        let master = &self.masters[index];
        let now_us = master.micros(self.now);
        let ours = (EPOCH_US + (self.now - BEGIN) / 1_000)
            .saturating_add_signed(self.processes[client].wall_us.load(Ordering::Relaxed));
        let mut seen = ChangeSeen::default();
        seen.mark = master.mark(now_us).map(str::to_owned);
        seen.run_id = Some(run_id(index, master.run));
        seen.values = self.values_of(index).len();
        let uptime = u64::try_from(self.uptime(index)).ok();
        seen.uptime = Some(Duration::from_secs(uptime.unwrap_or(0)));
        seen.is_uptime_impossible = uptime.is_none();
        seen.clock_offset_ms = Some((now_us as i64 - ours as i64) / 1_000);
        seen
    }
}
