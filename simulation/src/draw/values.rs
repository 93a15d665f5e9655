//! Adds values under locks to some scenarios, and makes these scenarios longer. So masters that have lost their data,
//! and do not vote for some time after their restart, vote again before the end.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::kind::{Kind, ValueStep};
use crate::scenario::{Disk, Step};

/// The resource whose lock guards a quota.
const QUOTA_RESOURCE: u8 = 0;
/// The resource whose lock guards a once-per-period record (the last period in which clients have done some work).
const RECORD_RESOURCE: u8 = 1;

/// The probability that a scenario has values under locks, in parts per million.
const VALUES_PPM: u32 = 70_000;

/// In scenarios with values: the largest number of tasks per client, and the largest number of steps per client.
const LIMITS: (u8, usize) = (2, 20);

impl Scenario {
    /// Adds values to some scenarios. `rng` is a separate random stream, so these draws do not change the scenario's
    /// other draws.
    pub(super) fn add_values(&mut self, rng: &mut Rng) {
        if rng.chance(VALUES_PPM) {
            self.slow_down(rng);
            self.crash_by_turns(rng);
            self.use_values(rng);
        }
    }

    /// Lets some steps use values, which the first client creates at the beginning.
    pub(super) fn use_values(&mut self, rng: &mut Rng) {
        self.period = rng.pick(&[300 * MS, 1_000 * MS, 3_000 * MS, 60_000 * MS]);
        let (uses_quota, uses_record) = match rng.below(4) {
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        let largest_take = rng.pick(&[1, 1, 2, 3]);
        let ttl = self.settings.ttl;
        for step in self.clients.iter_mut().flat_map(|client| &mut client.steps) {
            let choice = rng.below(12);
            let (resource, verb) = match choice {
                0..=4 if uses_quota => (
                    QUOTA_RESOURCE,
                    ValueStep::Take(rng.range(1, largest_take) as u8),
                ),
                5 if uses_quota => (QUOTA_RESOURCE, ValueStep::ReadRemaining),
                6 | 7 if uses_record => (RECORD_RESOURCE, ValueStep::AtMostOnce),
                8..=10 if uses_record => (RECORD_RESOURCE, ValueStep::SeparateCalls),
                _ => continue,
            };
            (step.resource, step.kind) = (resource, Kind::Value(verb));
            if verb == ValueStep::SeparateCalls {
                // The client reads the value, waits for half of `step.hold`, and then writes the value. The lock may
                // expire during the wait.
                step.hold = rng.below(2 * ttl);
                step.renew = rng.chance(300_000);
                step.cut = None;
            }
        }
        let units = rng.range(2, 40) as u8;
        let kinds = [
            (QUOTA_RESOURCE, units, uses_quota),
            (RECORD_RESOURCE, 0, uses_record),
        ];
        for (resource, units, is_used) in kinds.into_iter().rev() {
            self.insert_creation(resource, units, is_used);
        }
    }

    /// Makes up to two changes to a scenario with values. Some steps do their work of a period at least once instead of
    /// at most once. The first client removes a value and creates it again.
    ///
    /// `rng` is a separate random stream, so these draws do not change the other draws.
    pub(super) fn add_removals(&mut self, rng: &mut Rng) {
        if !self.has_values() {
            return;
        }
        let (has_at_least_once, has_removal) = (rng.chance(500_000), rng.chance(300_000));
        for step in self.clients.iter_mut().flat_map(|client| &mut client.steps) {
            if has_at_least_once
                && step.kind == Kind::Value(ValueStep::AtMostOnce)
                && rng.chance(600_000)
            {
                step.kind = Kind::Value(ValueStep::AtLeastOnce);
                step.hold = rng.below(2 * self.settings.ttl);
                step.drop = rng.chance(100_000);
            }
        }
        let steps = &mut self.clients[0].steps;
        let is_creation = |step: &&Step| matches!(step.kind, Kind::Value(ValueStep::Create(_)));
        let creations: Vec<Step> = steps.iter().filter(is_creation).copied().collect();
        if !has_removal || creations.is_empty() {
            return;
        }
        let mut creation = creations[rng.below(creations.len() as u64) as usize];
        let is_record = creation.kind == Kind::Value(ValueStep::Create(0));
        let remove = Step {
            think: rng.below(500) * MS,
            kind: Kind::Value(ValueStep::Remove { record: is_record }),
            ..creation
        };
        creation.think = rng.below(500) * MS;
        if !is_record {
            creation.kind = Kind::Value(ValueStep::Create(rng.range(2, 40) as u8));
        }
        let index = rng.range(creations.len() as u64, steps.len() as u64) as usize;
        steps.splice(index..index, [remove, creation]);
    }

    /// If `is_used`, inserts a new first step for the first client, which creates the value of the resource.
    fn insert_creation(&mut self, resource: u8, units: u8, is_used: bool) {
        let steps = &mut self.clients[0].steps;
        if let Some(first) = steps.first().copied().filter(|_| is_used) {
            let creation = Step {
                think: MS,
                resource,
                wait: 1_000 * MS,
                cut: None,
                kind: Kind::Value(ValueStep::Create(units)),
                ..first
            };
            steps.insert(0, creation);
        }
    }

    pub(super) fn slow_down(&mut self, rng: &mut Rng) {
        self.tasks = self.tasks.min(LIMITS.0);
        for client in &mut self.clients {
            client.steps.truncate(LIMITS.1);
        }
        let settings = &mut self.settings;
        settings.ttl = rng.range(200, 500) * MS;
        settings.node_timeout = settings.ttl / rng.range(5, 12);
        settings.max_ttl = rng.pick(&[3_200 * MS, 4_000 * MS]);
        // Double all times of the scenario, and add 5 to 15 s at its end.
        self.heal_at = 300 * MS + 2 * self.heal_at + rng.range(5_000, 15_000) * MS;
        self.net.again = self.net.again.min(settings.ttl / 2);
        for fault in &mut self.faults {
            fault.at = 300 * MS + fault.at * 2;
        }
        let factor = rng.range(5, 14);
        for step in self.clients.iter_mut().flat_map(|client| &mut client.steps) {
            step.think *= factor;
            step.extend = step.extend.map(|_| settings.ttl);
        }
    }

    /// Lets masters crash one after another, and restart with the data on their disks.
    pub(super) fn crash_by_turns(&mut self, rng: &mut Rng) {
        if self.faults.is_empty() || rng.chance(400_000) {
            return;
        }
        for master in &mut self.masters {
            master.disk = rng.pick(&[Disk::None, Disk::Stale, Disk::Stale]);
        }
        let interval = rng.range(800, 6_000) * MS;
        let may_crash_together = rng.chance(300_000);
        let masters = self.masters.len() as u64;
        let mut at = 500 * MS + rng.below(interval);
        while at + 200 * MS < self.heal_at {
            let first_master = rng.below(masters);
            // Sometimes a majority of the masters crashes at the same time.
            let count = if may_crash_together && rng.chance(400_000) {
                masters / 2 + 1
            } else {
                1
            };
            for master in first_master..first_master + count {
                let kind = FaultKind::Crash {
                    master: (master % masters) as u8,
                    down: rng.range(1, 100) * MS,
                    age: rng.range(1, 2_000) * MS,
                };
                self.faults.push(Fault { at, kind });
            }
            at += rng.range(interval / 2, 2 * interval);
        }
        self.faults.sort_by_key(|fault| fault.at);
    }
}
