//! Injects the faults of a scenario at their times.

use std::sync::atomic::Ordering;

use super::event::Event;
use super::{Todo, World};
use crate::facts::Fact;
use crate::happening::Happening;
use crate::scenario::FaultKind;
use crate::seeded_bugs::Flaw;

impl World {
    pub(super) fn fault(&mut self, index: usize) -> Option<Todo> {
        let fault = self.scenario.faults[index];
        self.say(|| format!("FAULT {:?}", fault.kind));
        if let Some((what, client, resource)) = Happening::of(fault.kind) {
            self.tell_happened(what, client, resource);
        }
        let now = self.now;
        match fault.kind {
            FaultKind::Crash { master, down, .. } => self.crash(master.into(), down),
            FaultKind::Stall { master, lasts } => {
                self.watch.coverage.stalls += 1;
                let master = &mut self.masters[usize::from(master)];
                master.stalled_until = master.stalled_until.max(now + lasts);
            }
            FaultKind::Jump { master, by_us } => {
                self.watch.coverage.jumps += 1;
                self.jump(master.into(), by_us * 1_000);
            }
            FaultKind::Elect { master, by_us } => self.elect(master.into(), by_us),
            FaultKind::Date { client, by_us } => {
                self.watch.coverage.dates += 1;
                let process = &self.processes[usize::from(client)];
                process.wall_us.fetch_add(by_us, Ordering::Relaxed);
            }
            // Only count the partition. Each packet checks the scenario's partitions itself (`Trip::ends`).
            FaultKind::Partition { .. } => self.watch.coverage.partitions += 1,
            FaultKind::Reset { master } => {
                self.cut_all(master.into(), true);
                self.cut_sessions(master.into(), true);
            }
            FaultKind::Forget { master } => {
                self.watch.coverage.half_open += 1;
                self.forget(master.into());
                self.forget_sessions(master.into());
            }
            FaultKind::Refuse { master, how, lasts } => {
                self.masters[usize::from(master)].refusing = Some((now + lasts, how));
            }
            FaultKind::Fill {
                master,
                resource,
                lasts,
            } => self.masters[usize::from(master)].full = Some((now + lasts, resource.into())),
            FaultKind::Flush { master } => self.masters[usize::from(master)].scripts.clear(),
            FaultKind::Break { resource, missed } => {
                self.break_lock(resource, missed);
                return Some(Todo::Break(self.breaks_at_stores(resource, missed)));
            }
            FaultKind::ForeignKey {
                master,
                resource,
                lasts,
            } => self.put_foreign_key(master, resource, lasts),
            FaultKind::Garble { master } => {
                for conn in &mut self.conns {
                    conn.garbled |= conn.master == usize::from(master);
                }
                self.garble_sessions(master.into());
            }
            FaultKind::Pause { client, lasts } => self.pause(client, lasts),
            FaultKind::Kill { client, down } => self.kill_process(client, down),
            FaultKind::Skip { down, .. } => self.leave_alone(index, down),
            FaultKind::Tell { client, step, down } => {
                self.tell_masters(index as u32, (client, step), down);
            }
        }
        None
    }

    fn elect(&mut self, master: usize, by_us: i64) {
        self.watch.coverage.elections += 1;
        self.masters[master].leaders += 1;
        self.jump(master, by_us * 1_000);
    }

    fn pause(&mut self, client: u8, lasts: u64) {
        self.watch.coverage.pauses += 1;
        let process = &mut self.processes[usize::from(client)];
        let until = process.paused_until.max(self.now + lasts);
        process.paused_until = until;
        self.watch.awake_since[usize::from(client)] = until;
        self.at(until, Event::Resume(client));
    }

    /// Handles the fault `Skip`: kills all client processes, schedules the jump of all clocks, and starts the processes
    /// again after `down` nanoseconds.
    fn leave_alone(&mut self, fault: usize, down: u64) {
        for client in 0..self.processes.len() {
            self.kill_process(client as u8, down);
        }
        self.at(self.now, Event::Skipped(fault as u32));
    }

    /// Advances all clocks by the time `by` of the fault `Skip`. `fault` is the index of this fault in the scenario.
    pub(super) fn skip(&mut self, fault: usize) {
        let FaultKind::Skip { by, .. } = self.scenario.faults[fault].kind else {
            return;
        };
        self.watch.coverage.skips += 1;
        let now = self.now;
        for master in 0..self.masters.len() {
            self.jump(master, by as i64);
        }
        if self.flaw == Some(Flaw::CounterForADay) {
            self.forget_counters();
        }
        for process in &mut self.processes {
            process.clock.jump(now, by as i64);
            process
                .wall_us
                .fetch_add((by / 1_000) as i64, Ordering::Relaxed);
        }
        for fallen in self.fallen.iter_mut().flatten() {
            fallen.1 = now;
        }
        for until in self.reopened.iter_mut().flatten() {
            *until = now.min(*until);
        }
        self.judge_marks();
        self.happened(Happening::Unused);
    }

    /// Moves the clock of a master by `by` nanoseconds, and reports the jump to the checkers.
    fn jump(&mut self, index: usize, by: i64) {
        let now = self.now;
        let fact = Fact::ClockJumps {
            master: index,
            shown_us: self.masters[index].micros(now),
        };
        self.watch.fact(now, &fact);
        let master = &mut self.masters[index];
        master.clock.jump(now, by);
        master.look_at_all(now);
    }

    /// Ends a client process, and starts a new one for the client's next step.
    pub(crate) fn ends(&mut self, client: usize) {
        self.at(self.now, Event::Ends(client as u8));
    }

    pub(super) fn kill_process(&mut self, client: u8, down: u64) {
        let process = &mut self.processes[usize::from(client)];
        if !process.done && !process.killed {
            self.watch.coverage.kills += 1;
            process.killed = true;
            process.paused_until = 0;
            self.at(self.now + down, Event::Boot(client));
        }
    }

    /// Saves the state of a master. A stale disk restores this state at the next restart.
    pub(super) fn snapshot(&mut self, index: usize) {
        self.masters[index].snapshot();
        if self.scenario.masters[index].store.is_some() {
            self.store_disks[index] = self.stores[index].clone();
        }
    }

    pub(super) fn resume(&mut self, client: usize) {
        let process = &mut self.processes[client];
        if process.paused_until > self.now {
            return;
        }
        for event in std::mem::take(&mut process.parked) {
            self.at(self.now, event);
        }
        self.say(|| format!("client {client} resumes"));
    }

    /// Reports an interfering event to the checkers. The event concerns all clients and all resources.
    pub(super) fn happened(&mut self, what: Happening) {
        self.tell_happened(what, None, None);
    }

    fn tell_happened(&mut self, what: Happening, client: Option<usize>, resource: Option<usize>) {
        let now = self.now;
        let fact = Fact::Happened {
            what,
            client,
            resource,
        };
        self.watch.fact(now, &fact);
    }
}
