//! Injects the faults of a scenario at their times.

use std::sync::atomic::Ordering;

use super::event::Event;
use super::{UnlockedWork, World};
use crate::clock::MS;
use crate::facts::Fact;
use crate::happening::Happening;
use crate::scenario::FaultKind;

impl World {
    pub(super) fn inject_fault(&mut self, index: usize) -> Option<UnlockedWork> {
        let fault = self.scenario.faults[index];
        self.trace_line(|| format!("FAULT {:?}", fault.kind));
        if let Some((happening, client)) = Happening::from_fault(fault.kind)
            && self.takes_effect_now(fault.kind)
        {
            self.report_happening_to(happening, client, None);
        }
        let now = self.now;
        match fault.kind {
            FaultKind::Crash { master, down, .. } => self.crash(master.into(), down),
            FaultKind::StoreEvent {
                master,
                event,
                down,
                ..
            } => self.begin_store_event(master.into(), event, down),
            FaultKind::Stall { master, lasts } => {
                let master = &mut self.masters[usize::from(master)];
                master.stalled_until = master.stalled_until.max(now + lasts);
            }
            FaultKind::ClockJump { master, by_us } => {
                self.observer.coverage.jumps += 1;
                self.move_clock(master.into(), by_us * 1_000);
            }
            FaultKind::LeaderChange { master, by_us } => self.change_leader(master.into(), by_us),
            FaultKind::WallClockJump { client, by_us } => {
                let process = &self.processes[usize::from(client)];
                self.observer.coverage.wall_clock_jumps += u64::from(!process.is_done);
                process.wall_us.fetch_add(by_us, Ordering::Relaxed);
            }
            // Each packet checks the scenario's partitions itself (`PacketRoute::end_of_partition`).
            FaultKind::Partition { .. } => {}
            FaultKind::ResetConnections { master } => {
                self.break_all_connections(master.into(), true);
                self.break_all_sessions(master.into(), true);
            }
            FaultKind::ForgetConnections { master } => {
                self.forget_connections(master.into());
                self.forget_sessions(master.into());
            }
            FaultKind::Refuse { master, how, lasts } => {
                self.masters[usize::from(master)].refuse_until(now + lasts, how);
            }
            FaultKind::OutOfMemory {
                master,
                resource,
                lasts,
            } => self.masters[usize::from(master)].begin_shortage(now + lasts, resource),
            FaultKind::FlushScripts { master } => self.masters[usize::from(master)].scripts.clear(),
            FaultKind::ForceRelease { resource, missed } => {
                self.begin_force_release(resource, missed);
                let force_release = self.prepare_store_force_release(resource, missed);
                return Some(UnlockedWork::ForceRelease(force_release));
            }
            FaultKind::ForeignKey {
                master,
                resource,
                lasts,
            } => self.put_foreign_key(master, resource, lasts),
            FaultKind::MalformReplies { master } => self.malform_next_replies(master.into()),
            FaultKind::Pause { client, lasts } => self.pause(client, lasts),
            FaultKind::Kill { client, down } => self.kill_process(client, down),
            FaultKind::UnusedDays { down, .. } => self.begin_unused_days(index, down),
            FaultKind::Reconfigure { client, step, down } => {
                self.reconfigure_client(index as u32, (client, step), down);
            }
        }
        None
    }

    /// Whether a fault changes something at once. If it does not, it must not count as an event that a rule was checked
    /// after.
    fn takes_effect_now(&self, kind: FaultKind) -> bool {
        match kind {
            FaultKind::FlushScripts { master } => {
                let master = &self.masters[usize::from(master)];
                master.up && master.scripts.iter().any(|loaded| *loaded != 0)
            }
            FaultKind::Pause { client, .. } => {
                let process = &self.processes[usize::from(client)];
                !process.is_done && !process.is_killed
            }
            FaultKind::WallClockJump { client, .. } => !self.processes[usize::from(client)].is_done,
            _ => true,
        }
    }

    /// Reports to the checkers that a master refuses requests of clients, unless this refusal is known already.
    pub(super) fn report_refusal(&mut self, master: usize) {
        if let Some(happening) = self.masters[master].unreported_refusal.take() {
            self.report_happening(happening);
        }
    }

    /// Reports to the checkers that a master has no memory for the lock of one resource, unless this is known already.
    pub(super) fn report_shortage(&mut self, master: usize) {
        let master = &mut self.masters[master];
        if std::mem::take(&mut master.is_shortage_unreported)
            && let Some((_, resource)) = master.memory_shortage
        {
            self.report_happening_to(Happening::OutOfMemory, None, Some(resource));
        }
    }

    fn malform_next_replies(&mut self, master: usize) {
        for conn in &mut self.conns {
            conn.is_next_reply_malformed |= conn.master == master;
        }
        self.garble_sessions(master);
    }

    fn change_leader(&mut self, master: usize, by_us: i64) {
        let plan = self.scenario.masters[master].store;
        let gives_dates = plan.is_some_and(|plan| plan.date_grain > 0);
        self.observer.coverage.elections += u64::from(gives_dates && self.masters[master].up);
        self.masters[master].leaders += 1;
        self.move_clock(master, by_us * 1_000);
    }

    fn pause(&mut self, client: u8, lasts: u64) {
        let process = &mut self.processes[usize::from(client)];
        let until = process.paused_until.max(self.now + lasts);
        process.paused_until = until;
        self.observer.awake_since[usize::from(client)] = until;
        self.schedule(until, Event::ProcessResumes(client));
    }

    /// Handles the fault `UnusedDays`: kills all client processes, schedules the jump of all clocks, and starts the
    /// processes again after `down` nanoseconds.
    fn begin_unused_days(&mut self, fault: usize, down: u64) {
        for client in 0..self.processes.len() {
            self.kill_process(client as u8, down);
        }
        self.schedule(self.now, Event::ClocksAdvance(fault as u32));
    }

    /// Advances all clocks by the time `by` of the fault `UnusedDays`. `fault` is the index of this fault in the
    /// scenario.
    pub(super) fn advance_all_clocks(&mut self, fault: usize) {
        let FaultKind::UnusedDays { by, .. } = self.scenario.faults[fault].kind else {
            return;
        };
        self.observer.coverage.skipped_days += 1;
        let now = self.now;
        for master in 0..self.masters.len() {
            self.move_clock(master, by as i64);
        }
        for process in &mut self.processes {
            process.clock.jump(now, by as i64);
            process
                .wall_us
                .fetch_add((by / 1_000) as i64, Ordering::Relaxed);
        }
        for outdated in self.outdated_markers.iter_mut().flatten() {
            outdated.1 = now;
        }
        for guard_end in self.guard_ends.iter_mut().flatten() {
            *guard_end = now.min(*guard_end);
        }
        self.check_outdated_markers();
        self.report_happening(Happening::UnusedDays);
    }

    /// Moves the clock of a master by `by` nanoseconds, and reports the jump to the checkers.
    fn move_clock(&mut self, index: usize, by: i64) {
        let now = self.now;
        let fact = Fact::ClockJumps {
            master: index,
            reading_us: self.masters[index].clock_us(now),
        };
        self.observer.report_fact(now, &fact);
        let master = &mut self.masters[index];
        master.clock.jump(now, by);
        master.record_all_lock_states(now);
    }

    /// Ends a client process that has taken its only step.
    pub(super) fn end_process(&mut self, client: u8) {
        let process = &self.processes[usize::from(client)];
        let is_running = !process.is_done && !process.is_killed;
        self.observer.coverage.ended_processes += u64::from(is_running);
        self.kill_process(client, 2 * MS);
    }

    /// Ends a client process, and starts a new one for the client's next step.
    pub(crate) fn schedule_process_end(&mut self, client: usize) {
        self.schedule(self.now, Event::ProcessEnds(client as u8));
    }

    pub(super) fn kill_process(&mut self, client: u8, down: u64) {
        let process = &mut self.processes[usize::from(client)];
        if !process.is_done && !process.is_killed {
            self.observer.coverage.kills += 1;
            process.is_killed = true;
            process.paused_until = 0;
            self.schedule(self.now + down, Event::ProcessStarts(client));
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
        let was_disturbed =
            !process.postponed_events.is_empty() || !process.postponed_tasks.is_empty();
        self.observer.coverage.pauses += u64::from(was_disturbed);
        for event in std::mem::take(&mut process.postponed_events) {
            self.schedule(self.now, event);
        }
        self.trace_line(|| format!("client {client} resumes"));
    }

    /// Reports an interfering event to the checkers. The event concerns all clients and all resources.
    pub(super) fn report_happening(&mut self, happening: Happening) {
        self.report_happening_to(happening, None, None);
    }

    pub(super) fn report_happening_to(
        &mut self,
        happening: Happening,
        client: Option<usize>,
        resource: Option<usize>,
    ) {
        let now = self.now;
        let fact = Fact::Happened {
            happening,
            client,
            resource,
        };
        self.observer.report_fact(now, &fact);
    }
}
