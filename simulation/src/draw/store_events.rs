//! Lets some stores notice lost memory as PostgreSQL or etcd does, and adds the events that only such stores have.
//!
//! About half of the scenarios stay as they are.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::kind::Kind;
use crate::scenario::{Disk, Refusal, StoreEvent};
use crate::store_plan::RunRule;

/// The events at a store whose run clients count.
const COUNTED_EVENTS: [StoreEvent; 6] = [
    StoreEvent::BackendCrash,
    StoreEvent::BackendCrash,
    StoreEvent::CleanRestart,
    StoreEvent::Promotion,
    StoreEvent::OldCopy,
    StoreEvent::EmptiedTable,
];

impl Scenario {
    /// Gives most stores of some scenarios other rules: clients count the runs of stores with a clock, as in PostgreSQL;
    /// stores without a clock number their changes, as in etcd.
    pub(super) fn draw_run_rules(&mut self, rng: &mut Rng) {
        let drawn = rng.pick(&[
            (true, false),
            (false, true),
            (true, true),
            (false, false),
            (false, false),
            (false, false),
        ]);
        // Scenarios with values or notes are rare.
        let is_certain = self.is_rare() && rng.chance(800_000);
        let (counts, numbers) = if is_certain { (true, true) } else { drawn };
        for master in &mut self.masters {
            let is_drawn = rng.chance(800_000);
            let Some(plan) = master.store.as_mut().filter(|_| is_drawn) else {
                continue;
            };
            if plan.clocked && counts {
                // A notification is sent once.
                (plan.run, plan.repeats_wakes) = (RunRule::Counted, false);
            }
            if !plan.clocked && numbers {
                // All reads are linearizable, a date has whole seconds, and a watch misses nothing.
                plan.run = RunRule::Numbered;
                plan.date_grain = 1_000 * MS;
                (plan.lagging_reads_ppm, plan.disturbed_wakes_ppm) = (0, 0);
                master.disk = Disk::Always;
            }
        }
    }

    fn is_rare(&self) -> bool {
        self.has_values() || self.has_notes()
    }

    /// Lets masters refuse requests or lose their scripts in some of the scenarios with values or notes. Such scenarios
    /// are rare, so the other draws seldom do this.
    pub(super) fn refuse_rare_kinds(&mut self, rng: &mut Rng) {
        if self.faults.is_empty() || !self.is_rare() || !rng.chance(400_000) {
            return;
        }
        let masters = self.masters.len() as u64;
        let is_redis = |master: &u8| self.masters[usize::from(*master)].store.is_none();
        let redis_masters: Vec<u8> = (0..masters as u8).filter(is_redis).collect();
        for _ in 0..rng.range(3, 8) {
            let at = rng.below(self.heal_at - 10 * MS);
            let remaining = (self.heal_at - at) / MS;
            let master = rng.below(masters) as u8;
            let lasts = rng.range(1, 300).min(remaining) * MS;
            let how = rng.pick(&[Refusal::OutOfMemory, Refusal::Denied]);
            let kind = if redis_masters.is_empty() || rng.chance(500_000) {
                FaultKind::Refuse { master, how, lasts }
            } else {
                let master = rng.pick(&redis_masters);
                FaultKind::FlushScripts { master }
            };
            self.faults.push(Fault { at, kind });
        }
    }

    fn masters_with(&self, is_sought: impl Fn(RunRule) -> bool) -> Vec<u8> {
        let masters = self.masters.iter().enumerate();
        masters
            .filter(|(_, plan)| plan.store.is_some_and(|plan| is_sought(plan.run)))
            .map(|(master, _)| master as u8)
            .collect()
    }

    /// Adds a fault, unless the library then no longer promises exclusion or rising tokens. Returns whether it was added.
    fn add_if_harmless(&mut self, fault: Fault) -> bool {
        let before = self.promises();
        self.faults.push(fault);
        let after = self.promises();
        let is_harmless = before.exclusion <= after.exclusion && before.tokens <= after.tokens;
        if !is_harmless {
            self.faults.pop();
        }
        is_harmless
    }

    /// Adds events to most stores whose runs clients count, if the scenario has faults.
    pub(super) fn add_store_events(&mut self, rng: &mut Rng) {
        if self.faults.is_empty() {
            return;
        }
        for master in self.masters_with(|rule| rule == RunRule::Counted) {
            let events = if rng.chance(600_000) {
                rng.range(1, 3)
            } else {
                0
            };
            for _ in 0..events {
                let at = rng.below(self.heal_at - 10 * MS);
                let remaining = (self.heal_at - at) / MS;
                let event = rng.pick(&COUNTED_EVENTS);
                let down = rng.range(1, 800).min(remaining) * MS;
                let age = rng.range(1, 1_000) * MS;
                let kind = |event: StoreEvent| FaultKind::StoreEvent {
                    master,
                    event,
                    down,
                    age,
                };
                let added = self.add_if_harmless(Fault {
                    at,
                    kind: kind(event),
                });
                if !added {
                    let kind = kind(StoreEvent::BackendCrash);
                    self.faults.push(Fault { at, kind });
                }
            }
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Sets one store back in some of the scenarios that have faults, if all client processes can notice it: no
    /// process starts later. The connections are reset shortly before, because some clients read the number of the
    /// latest change only at the beginning of a session.
    pub(super) fn set_store_back(&mut self, rng: &mut Rng) {
        let masters =
            self.masters_with(|rule| matches!(rule, RunRule::Counted | RunRule::Numbered));
        let has_several = self.has_kind(|kind| matches!(kind, Kind::Several(_)));
        let ppm = if self.is_rare() || has_several {
            700_000
        } else {
            350_000
        };
        if self.faults.is_empty() || masters.is_empty() || !rng.chance(ppm) {
            return;
        }
        let master = rng.pick(&masters);
        let at = rng.range(self.heal_at / 4 / MS, self.heal_at * 3 / 4 / MS) * MS;
        let plan = self.masters[usize::from(master)].store;
        let is_numbered = plan.is_some_and(|plan| plan.run == RunRule::Numbered);
        // If few changes are lost, the numbers of the lost changes are soon given again.
        let age = if is_numbered && rng.chance(600_000) {
            rng.range(1, 60) * MS
        } else {
            rng.range(100, 1_000) * MS
        };
        let remaining = (self.heal_at - at) / MS;
        let event = FaultKind::StoreEvent {
            master,
            event: StoreEvent::SetBack,
            down: rng.range(1, 300).min(remaining) * MS,
            age,
        };
        let faults_before = self.faults.clone();
        self.faults.retain(|fault| match fault.kind {
            FaultKind::Kill { down, .. } | FaultKind::UnusedDays { down, .. } => {
                fault.at + down < at
            }
            // A later crash would replace the snapshot.
            FaultKind::Crash { master: other, .. }
            | FaultKind::StoreEvent { master: other, .. } => other != master,
            _ => true,
        });
        if !self.add_if_harmless(Fault { at, kind: event }) {
            self.faults = faults_before;
            return;
        }
        self.faults.push(Fault {
            at: at - age.min(at) / 2,
            kind: FaultKind::ResetConnections { master },
        });
        self.faults.sort_by_key(|fault| fault.at);
    }
}
