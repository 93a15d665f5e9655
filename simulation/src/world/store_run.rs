//! The runs of stores: the row of a run whose age clients count, and the events after which a store may have forgotten
//! locks.

use std::time::Duration;

use super::event::Event;
use super::run_row::{Place, RowChange, RunRow, StoreState};
use super::{Records, World};
use crate::clock::RUN_START;
use crate::facts::Fact;
use crate::happening::Happening;
use crate::scenario::{Disk, StoreEvent};
use crate::store_plan::RunRule;

/// The statements of clients.
impl World {
    /// Writes the rows that stores have at the beginning of the run. Clients have counted the age of their runs for a day.
    pub(super) fn write_initial_rows(&mut self) {
        for master in 0..self.masters.len() {
            let plan = self.scenario.masters[master].store;
            if plan.is_some_and(|plan| plan.run == RunRule::Counted) {
                let place = self.store_state(master).place;
                self.stores[master].run = Some(RunRow {
                    id: format!("{master}.run"),
                    place,
                    aged: Duration::from_secs(86_400),
                });
            }
        }
    }

    pub(super) fn store_state(&self, master: usize) -> StoreState {
        StoreState {
            identity: self.masters[master].identity,
            place: Place {
                file: self.stores[master].file,
                started_us: self.masters[master].started_us,
            },
            number: self.stores[master].last_change(),
            run: self.stores[master].run.as_ref().map(|row| row.id.clone()),
        }
    }

    /// Executes a statement about the row of the run, and returns the row that then exists.
    pub(super) fn change_row(&mut self, master: usize, change: &RowChange) -> Option<RunRow> {
        let runs = self.masters[master].runs;
        let new_row = |place: Place| RunRow {
            id: format!("{master}.run{runs}"),
            place,
            aged: Duration::ZERO,
        };
        let coverage = &mut self.observer.coverage;
        let row = self.stores[master].run.as_ref();
        let begun = match (change, row) {
            (RowChange::Insert(place), None) => {
                coverage.begun_runs += 1;
                Some(new_row(*place))
            }
            (RowChange::Replace(place), Some(row)) if row.place != *place => {
                coverage.replaced_runs += 1;
                Some(new_row(*place))
            }
            (RowChange::BeginAgain(old), Some(row)) if row.id == *old => {
                coverage.runs_begun_again += 1;
                Some(new_row(row.place))
            }
            _ => None,
        };
        let store = &mut self.stores[master];
        match (begun, change, &mut store.run) {
            (Some(begun), ..) => {
                self.masters[master].runs += 1;
                let id = begun.id.clone();
                store.run = Some(begun);
                self.trace_line(|| format!("store {master}: the run {id} begins"));
            }
            (None, RowChange::Raise(id, age), Some(row)) if row.id == *id && row.aged < *age => {
                row.aged = *age;
                coverage.raised_ages += 1;
            }
            _ => {}
        }
        self.stores[master].run.clone()
    }

    /// Notes the number of the latest change that a client process has seen on a store.
    pub(crate) fn note_seen_number(&mut self, client: usize, master: usize, number: u64) {
        let seen = self.seen_numbers.entry((client, master)).or_default();
        *seen = number.max(*seen);
    }

    /// Notes that a client process has started, and has seen nothing of a store yet.
    pub(crate) fn forget_seen_number(&mut self, client: usize, master: usize) {
        self.seen_numbers.remove(&(client, master));
    }

    pub(crate) fn count_refused_number(&mut self) {
        self.observer.coverage.refused_numbers += 1;
    }

    pub(crate) fn count_ended_session(&mut self) {
        self.observer.coverage.ended_sessions += 1;
    }
}

/// The events.
impl World {
    pub(super) fn begin_store_event(&mut self, master: usize, event: StoreEvent, down: u64) {
        if !self.masters[master].up {
            return;
        }
        if event == StoreEvent::EmptiedTable {
            return self.empty_table(master);
        }
        self.masters[master].event = Some(event);
        self.stop(master, down);
    }

    fn empty_table(&mut self, master: usize) {
        if self.stores[master].last_change() == 0 {
            return;
        }
        self.observer.coverage.emptied_tables += 1;
        self.stores[master].empty();
        self.forget_released_values(master);
        self.trace_line(|| format!("store {master}: the table of records is emptied"));
        self.report_happening(Happening::NewRun);
        self.report_restart(master, true);
    }

    /// Starts the server of a store again after the event that has stopped it.
    pub(super) fn restart_after_event(&mut self, index: usize, event: StoreEvent) {
        let master = &mut self.masters[index];
        (master.up, master.stalled_until) = (true, 0);
        master.restarts += 1;
        master.leaders += 1;
        self.trace_line(|| format!("store {index} starts again after the event {event:?}"));
        self.apply_store_event(index, event);
    }

    fn apply_store_event(&mut self, master: usize, event: StoreEvent) {
        let disk = self.store_disks[master].clone();
        let is_older = disk.last_change() < self.stores[master].last_change();
        let now_us = self.masters[master].clock_us(self.now);
        let coverage = &mut self.observer.coverage;
        match event {
            StoreEvent::BackendCrash => {
                let row = self.stores[master].run.take();
                coverage.backend_crashes += u64::from(row.is_some());
            }
            StoreEvent::CleanRestart | StoreEvent::EmptiedTable => {
                coverage.clean_restarts += 1;
                self.masters[master].started_us = now_us;
            }
            StoreEvent::Promotion => {
                coverage.promotions += u64::from(is_older);
                self.stores[master] = disk;
                self.stores[master].run = None;
                // The standby was started long ago: a day before.
                self.masters[master].started_us = now_us - 86_400_000_000;
            }
            StoreEvent::OldCopy => {
                coverage.old_copies += u64::from(is_older && disk.run.is_some());
                self.stores[master] = disk;
                self.masters[master].started_us = now_us;
            }
            StoreEvent::SetBack => return self.set_back(master, disk),
        }
        self.report_happening(Happening::NewRun);
        self.report_restart(master, event != StoreEvent::BackendCrash && is_older);
    }

    /// Sets a store back to an earlier state. Does nothing if a running client process would not notice it.
    fn set_back(&mut self, master: usize, disk: Records) {
        let number = disk.last_change();
        let notices = |client: usize| {
            let seen = self.seen_numbers.get(&(client, master));
            self.processes[client].is_done || seen.is_some_and(|seen| *seen > number)
        };
        if !(0..self.processes.len()).all(notices) {
            return;
        }
        self.trace_line(|| format!("store {master} is set back to its change {number}"));
        if let Some(row) = &disk.run {
            self.masters[master].started_us = row.place.started_us;
        }
        self.stores[master] = disk;
        self.report_happening(Happening::SetBack);
        self.report_restart(master, true);
        let plan = self.scenario.masters[master].store;
        if plan.is_some_and(|plan| plan.run == RunRule::Numbered) {
            self.observer.coverage.restored_snapshots += 1;
            let now = self.now;
            let fact = Fact::StoreUnusable { master };
            self.observer.report_fact(now, &fact);
            let remaining = (RUN_START + self.scenario.heal_at).saturating_sub(now);
            let longest_delay = remaining.min(self.scenario.settings.max_ttl);
            let delay = self.rng.below(longest_delay + 1);
            self.schedule(now + delay, Event::StoreRepaired(master as u8));
        } else {
            self.observer.coverage.machines_set_back += 1;
        }
    }

    /// An administrator gives another identity to a store that was set back, so that clients use it again.
    pub(super) fn repair_store(&mut self, master: usize) {
        self.masters[master].identity += 1;
        // Each request of an earlier session names the earlier identity, and so has no effect.
        self.break_all_sessions(master, true);
        self.observer.coverage.repaired_stores += 1;
        self.trace_line(|| format!("store {master} has another identity"));
        self.report_restart(master, true);
    }

    fn report_restart(&mut self, master: usize, lost_data: bool) {
        let fact = Fact::MasterRestarted { master, lost_data };
        self.observer.report_fact(self.now, &fact);
    }

    /// Called at a restart after a crash. The server loses the row of the run. If its disk is outdated, the numbers of
    /// its changes fall as well.
    pub(super) fn crash_counted_store(&mut self, master: usize) {
        let plan = self.scenario.masters[master].store;
        if !plan.is_some_and(|plan| plan.run == RunRule::Counted) {
            return;
        }
        if self.scenario.masters[master].disk == Disk::Stale {
            self.stores[master] = self.store_disks[master].clone();
        }
        self.stores[master].run = None;
        self.report_happening(Happening::NewRun);
    }
}
