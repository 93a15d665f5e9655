//! A link: one client's connection to one master, with the library's driver for this connection.
//!
//! The driver decides when to send, reconnect, or give up on a reply. This file calls the driver when a request is
//! queued, an alarm fires, or the connection changes.
//!
//! Do not call the driver while the mutex of `World` is locked: the driver delivers answers to callers, and these
//! lock the mutex.

use std::sync::{Arc, MutexGuard};

use quorate::Instant;
use quorate::node::{Node, Reply, Request};
use quorate::testing::{Driver, Stage, Wants};

use super::{Event, Shared, World};
use crate::facts::Fact;
use crate::locker::resource_of;
use crate::rng::Rng;

pub(crate) struct Link {
    pub(crate) client: usize,
    pub(super) master: usize,
    pub(super) driver: Arc<Driver>,
    /// Whether the client process is dead. Nothing that a dead process sends reaches a master.
    pub(super) dead: bool,
    /// The connection that the driver uses, or that it is opening; `None` if there is none.
    pub(super) conn: Option<usize>,
    /// Whether a run of the link's actor is scheduled.
    ringing: bool,
    /// The true time at which the link's alarm fires, and the number of the alarm; `None` if no alarm is set.
    armed: Option<(u64, u32)>,
    laps: u32,
    pub(super) rng: Rng,
}

/// A call to the driver. The mutex of `World` must not be locked during the call.
pub(super) enum Call {
    Turn,
    Tick,
    Dialed,
    Hear(Vec<u8>),
    Cut(&'static str),
}

impl Link {
    pub(crate) fn new(client: usize, master: usize, driver: Arc<Driver>, rng: Rng) -> Self {
        Self {
            client,
            master,
            driver,
            dead: false,
            conn: None,
            ringing: false,
            armed: None,
            laps: 0,
            rng,
        }
    }
}

impl Shared {
    /// Sends a request over a link: puts the request into the driver's mailbox, and schedules the actor.
    pub(crate) fn send(&self, index: usize, request: Request, reply: Reply) {
        let driver = {
            let mut world = self.world();
            if world.links[index].dead {
                return;
            }
            world.started(index, &request);
            world.ring(index);
            world.links[index].driver.clone()
        };
        driver.send(request, reply);
    }

    /// Calls the driver of a link, and then carries out the actions that the driver requests.
    pub(super) fn step_link(&self, world: MutexGuard<'_, World>, index: usize, call: Call) {
        let link = &world.links[index];
        if link.dead {
            return;
        }
        let clock = world.processes[link.client].clock;
        let now = Instant::from_nanos(clock.read(world.now));
        let driver = link.driver.clone();
        drop(world);
        match call {
            Call::Turn => {}
            Call::Tick => driver.tick(now),
            Call::Dialed => driver.dialed(now),
            Call::Hear(bytes) => driver.hear(&bytes, now),
            Call::Cut(why) => driver.cut(why, now),
        }
        let Wants {
            stage,
            bytes,
            wake_at,
        } = driver.turn(now);
        let mut world = self.world();
        world.sync(index, stage, bytes, wake_at);
        let (now, client) = (world.now, world.links[index].client);
        world.watch.after(now, Some(client));
    }
}

impl World {
    /// Schedules the actor of a link. It runs after all tasks that are ready at this time.
    fn ring(&mut self, index: usize) {
        if !std::mem::replace(&mut self.links[index].ringing, true) {
            let link = index as u32;
            self.at(self.now, Event::Turn { link });
        }
    }

    pub(super) fn turn(&mut self, index: usize) -> Call {
        self.links[index].ringing = false;
        Call::Turn
    }

    pub(super) fn alarm(&mut self, index: usize, lap: u32) -> Option<Call> {
        let link = &mut self.links[index];
        if link.armed.is_none_or(|(_, armed)| armed != lap) {
            return None;
        }
        link.armed = None;
        Some(Call::Tick)
    }

    /// Called when a request is queued. Records the time of the process's first request. Reports to the checkers each
    /// write of a value, and the first request of each acquire attempt.
    pub(super) fn started(&mut self, index: usize, request: &Request) {
        let (client, task) = (self.links[index].client, self.task);
        self.processes[client].first_request.get_or_insert(self.now);
        if let Request::Write { claim, token, .. } = request {
            let (resource, token) = (resource_of(claim.key()), *token);
            let fact = Fact::WriteSent {
                task,
                resource,
                token,
            };
            self.watch.fact(self.now, &fact);
        }
        let Request::Acquire { claim, .. } = request else {
            return;
        };
        let last = &mut self.processes[client].attempt;
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, claim)) {
            return;
        }
        *last = Some(claim.clone());
        let fact = Fact::Started {
            client,
            task,
            claim,
        };
        self.watch.fact(self.now, &fact);
    }

    /// Carries out the actions that a driver has requested: connects, sends bytes, closes the connection, or sets an
    /// alarm.
    fn sync(&mut self, index: usize, stage: Stage, bytes: Vec<u8>, alarm: Option<Instant>) {
        match stage {
            Stage::Dial => {
                let waits = self.links[index]
                    .conn
                    .is_some_and(|conn| self.is_dialing(conn));
                if !waits {
                    self.close(index);
                    self.dial(index);
                }
            }
            Stage::Talk => {
                if let Some(conn) = self.links[index].conn
                    && !bytes.is_empty()
                {
                    self.say_to_master(conn, bytes);
                }
            }
            Stage::Rest | Stage::Over => self.close(index),
        }
        let Some(alarm) = alarm else { return };
        let link = &self.links[index];
        let clock = self.processes[link.client].clock;
        let Some(at) = clock.when(alarm.as_nanos()) else {
            return;
        };
        // Replace the alarm of the link only if the new alarm is earlier, as the real actor does.
        let at = at.max(self.now);
        if link.armed.is_none_or(|(armed, _)| armed > at) {
            let link = &mut self.links[index];
            link.laps += 1;
            let lap = link.laps;
            link.armed = Some((at, lap));
            let link = index as u32;
            self.at(at, Event::Alarm { link, lap });
        }
    }

    /// Closes all connections of a process that is killed. Bytes in flight may still arrive.
    pub(crate) fn kill_links(&mut self, client: usize) {
        for index in 0..self.links.len() {
            if self.links[index].client == client && !self.links[index].dead {
                self.close(index);
                self.links[index].dead = true;
            }
        }
    }
}
