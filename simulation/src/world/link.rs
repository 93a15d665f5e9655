//! A link: one client's connection to one master, with the library's driver for this connection, or with a stream of an
//! operator (`stream.rs`).
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
use quorate_promises::ValueEvent;

use super::client_end::{ClientEnd, DriverCall};
use super::{Event, Shared, UnlockedWork, World};
use crate::facts::Fact;
use crate::history::Sender;
use crate::locker::place_of_key;
use crate::rng::Rng;

pub(crate) struct Link {
    pub(crate) client: usize,
    pub(super) master: usize,
    pub(super) end: ClientEnd,
    /// Whether the client process is dead. Nothing that a dead process sends reaches a master.
    pub(super) is_dead: bool,
    /// The connection that the driver uses, or that it is opening; `None` if there is none.
    pub(super) conn: Option<usize>,
    /// Whether a run of the link's actor is scheduled.
    is_actor_scheduled: bool,
    /// The true time at which the link's alarm fires, and the number of the alarm; `None` if no alarm is set.
    alarm_at: Option<(u64, u32)>,
    last_serial: u32,
    pub(super) rng: Rng,
}

impl Link {
    pub(crate) fn new(client: usize, master: usize, driver: Arc<Driver>, rng: Rng) -> Self {
        Self::with_end(client, master, ClientEnd::Driver(driver), rng)
    }

    pub(super) fn with_end(client: usize, master: usize, end: ClientEnd, rng: Rng) -> Self {
        Self {
            client,
            master,
            end,
            is_dead: false,
            conn: None,
            is_actor_scheduled: false,
            alarm_at: None,
            last_serial: 0,
            rng,
        }
    }
}

impl Shared {
    /// Sends a request over a link: puts the request into the driver's mailbox, and schedules the actor.
    pub(crate) fn send(&self, index: usize, request: Request, reply: Reply) {
        let driver = {
            let mut world = self.world();
            if world.links[index].is_dead {
                return;
            }
            world.report_request(index, &request);
            world.schedule_actor(index);
            world.links[index].end.driver()
        };
        if let Some(driver) = driver {
            driver.send(request, reply);
        }
    }

    /// Calls the driver of a link, and then carries out the actions that the driver requests.
    pub(super) fn call_driver(&self, world: MutexGuard<'_, World>, index: usize, call: DriverCall) {
        let link = &world.links[index];
        if link.is_dead {
            return;
        }
        let clock = world.processes[link.client].clock;
        let now = Instant::from_nanos(clock.read(world.now));
        let Some(driver) = link.end.driver() else {
            return;
        };
        drop(world);
        match call {
            DriverCall::RunActor => {}
            DriverCall::Tick => driver.tick(now),
            DriverCall::Connected => driver.dialed(now),
            DriverCall::Receive(bytes) => driver.receive_bytes(&bytes, now),
            DriverCall::Disconnect(reason) => driver.cut(reason, now),
        }
        let Wants {
            stage,
            bytes,
            wake_at,
        } = driver.advance(now);
        let mut world = self.world();
        world.apply_driver_output(index, stage, bytes, wake_at);
        let (now, client) = (world.now, world.links[index].client);
        world.observer.check_after_event(now, Some(client));
    }
}

impl World {
    /// Schedules the actor of a link. It runs after all tasks that are ready at this time.
    fn schedule_actor(&mut self, index: usize) {
        if !std::mem::replace(&mut self.links[index].is_actor_scheduled, true) {
            let link = index as u32;
            self.schedule(self.now, Event::RunActor { link });
        }
    }

    /// Passes a change of a connection to the client's end of its link.
    pub(super) fn notify_client_end(
        &mut self,
        index: usize,
        call: DriverCall,
    ) -> Option<UnlockedWork> {
        match &mut self.links[index].end {
            ClientEnd::Driver(_) => Some(UnlockedWork::CallDriver(index, call)),
            ClientEnd::Stream(stream) => stream.handle(call).map(UnlockedWork::Wake),
        }
    }

    pub(super) fn start_actor(&mut self, index: usize) -> DriverCall {
        self.links[index].is_actor_scheduled = false;
        DriverCall::RunActor
    }

    pub(super) fn fire_alarm(&mut self, index: usize, serial: u32) -> Option<DriverCall> {
        let link = &mut self.links[index];
        if link.alarm_at.is_none_or(|(_, alarm)| alarm != serial) {
            return None;
        }
        link.alarm_at = None;
        Some(DriverCall::Tick)
    }

    /// Called when a request is queued. Records the time of the process's first request. Reports to the checkers each
    /// write of a value, and the first request of each acquire attempt.
    pub(super) fn report_request(&mut self, index: usize, request: &Request) {
        let (client, task) = (self.links[index].client, self.polled_task);
        self.processes[client].first_request.get_or_insert(self.now);
        if let Some(history) = &mut self.observer.history {
            let process = &self.processes[client];
            let sender = Sender {
                client,
                step: process.present_step,
                reading: process.clock.read(self.now),
            };
            history.record_sent(self.now, &sender, self.links[index].master, request);
        }
        if let Request::Write { claim, token, .. } = request {
            let fact = Fact::Value {
                resource: place_of_key(claim.key()),
                operation: None,
                event: ValueEvent::Written(task as u64, *token),
            };
            self.observer.report_fact(self.now, &fact);
        }
        let Request::Acquire { claim, .. } = request else {
            return;
        };
        let latest_attempt = &mut self.processes[client].latest_attempt;
        if latest_attempt
            .as_ref()
            .is_some_and(|latest_attempt| Arc::ptr_eq(latest_attempt, claim))
        {
            return;
        }
        *latest_attempt = Some(claim.clone());
        let fact = Fact::AttemptStarted {
            client,
            task,
            claim,
        };
        self.observer.report_fact(self.now, &fact);
    }

    /// Carries out the actions that a driver has requested: connects, sends bytes, closes the connection, or sets an
    /// alarm.
    fn apply_driver_output(
        &mut self,
        index: usize,
        stage: Stage,
        bytes: Vec<u8>,
        alarm: Option<Instant>,
    ) {
        match stage {
            Stage::Dial => {
                let is_connecting = self.links[index]
                    .conn
                    .is_some_and(|conn| self.is_connecting(conn));
                if !is_connecting {
                    self.close_link(index);
                    self.open_connection(index);
                }
            }
            Stage::Transfer => {
                if let Some(conn) = self.links[index].conn
                    && !bytes.is_empty()
                {
                    self.send_to_master(conn, bytes);
                }
            }
            Stage::Pause | Stage::End => self.close_link(index),
        }
        let Some(alarm) = alarm else { return };
        let link = &self.links[index];
        let clock = self.processes[link.client].clock;
        let Some(alarm_time) = clock.time_of_reading(alarm.as_nanos()) else {
            return;
        }; // Replace the alarm of the link only if the new alarm is earlier, as the real actor does.
        let fires_at = alarm_time.max(self.now);
        if link.alarm_at.is_none_or(|(present, _)| present > fires_at) {
            let link = &mut self.links[index];
            link.last_serial += 1;
            let serial = link.last_serial;
            link.alarm_at = Some((fires_at, serial));
            let link = index as u32;
            self.schedule(fires_at, Event::Alarm { link, serial });
        }
    }

    /// Closes all connections of a process that is killed. Bytes in flight may still arrive.
    pub(crate) fn close_links_of_process(&mut self, client: usize) {
        for index in 0..self.links.len() {
            if self.links[index].client == client && !self.links[index].is_dead {
                self.close_link(index);
                self.links[index].is_dead = true;
            }
        }
    }
}
