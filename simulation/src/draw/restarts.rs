//! Draws scenarios in which masters restart, and their wall clocks jump before, during and after the restarts. All
//! masters have generation markers. Clients restore lost markers, and many clients start between the restarts.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::change_plan::ChangePlan;
use crate::scenario::Disk;

/// By how much clocks jump, in microseconds: seconds, an hour, or 30 days.
const JUMPS_US: [i64; 4] = [4_000_000, 3_600_000_000, 3_600_000_000, 30 * 86_400_000_000];

impl Scenario {
    /// Draws a scenario from this seed. In the scenario, the clocks of masters jump around restarts.
    pub fn draw_clocks(seed: u64) -> Self {
        let rng = &mut Rng::stream(seed, 17);
        let masters = rng.pick(&[3_u8, 3, 3, 5]);
        let (mut scenario, resources) = Self::draw_base(seed, Some(masters));
        if scenario.settings.fencing {
            scenario.add_lock_kinds(&mut Rng::stream(seed, 4), resources);
            scenario.add_permits(&mut Rng::stream(seed, 8));
        }
        let is_kept = |fault: &Fault| {
            !matches!(
                fault.kind,
                FaultKind::ClockJump { .. }
                    | FaultKind::Crash { .. }
                    | FaultKind::ForceRelease { .. }
            )
        };
        scenario.faults.retain(is_kept);
        scenario.lengthen(rng);
        scenario.restart_with_wrong_clocks(rng);
        scenario.start_clients_often(rng);
        scenario.faults.sort_by_key(|fault| fault.at);
        let all_masters = (1 << masters) - 1;
        scenario.change = Some(ChangePlan {
            // No operator replaces the masters in this plan. It only gives them generation markers.
            sets: vec![all_masters, all_masters >> 1],
            initial_number: Some(0),
            goal: 0,
            operators: 0,
            longest_pause: 20 * MS,
            steps: vec![(0, 0); scenario.clients.len()],
            counters_ahead_us: None,
            stops_replaced: false,
        });
        scenario
    }

    /// Moves the end of the faults to a later time, shortens the restart guard, and lets clients hold few locks for
    /// long.
    fn lengthen(&mut self, rng: &mut Rng) {
        let old_end_ms = self.heal_at / MS;
        self.heal_at = rng.range(4_000, 9_000) * MS;
        for fault in &mut self.faults {
            fault.at = fault.at / old_end_ms * (self.heal_at / MS);
        }
        self.settings.guard = true;
        self.tasks = self.tasks.min(3);
        let max_ttl = rng.pick(&[0, 600, 1_000, 1_500, 2_500]) * MS;
        self.settings.max_ttl = max_ttl.max(self.settings.ttl);
        let is_one_resource = rng.chance(700_000);
        for step in self.clients.iter_mut().flat_map(|client| &mut client.steps) {
            step.think = rng.below(300 * MS);
            step.hold = rng.below(self.settings.ttl / MS * 3 / 2) * MS;
            step.resource = if is_one_resource { 0 } else { step.resource };
        }
    }

    /// Adds restarts. Around most restarts, the clock of the master jumps back, and later forward again by the same
    /// amount, while the master has no vote.
    fn restart_with_wrong_clocks(&mut self, rng: &mut Rng) {
        for master in &mut self.masters {
            master.disk = rng.pick(&[Disk::None, Disk::None, Disk::Stale, Disk::Always]);
        }
        // The time from which each master may crash again.
        let mut may_crash_at = vec![0; self.masters.len()];
        let guard_nanos = self.settings.max_ttl;
        let mut at = rng.range(50, 1_500) * MS;
        loop {
            let master = rng.below(self.masters.len() as u64) as usize;
            let down = rng.range(5, 600) * MS;
            let restart = at + down;
            if restart + guard_nanos >= self.heal_at {
                return;
            }
            if may_crash_at[master] <= at {
                let age = rng.range(1, 400) * MS;
                let kind = FaultKind::Crash {
                    master: master as u8,
                    down,
                    age,
                };
                self.faults.push(Fault { at, kind });
                if rng.chance(800_000) {
                    self.jump_around((may_crash_at[master], at, restart), master as u8, rng);
                }
                may_crash_at[master] = restart + guard_nanos;
            }
            at += rng.below(3 * guard_nanos / MS) * MS + MS;
        }
    }

    /// Adds two jumps of a master's clock that cancel each other out, around the crash at `at` and the restart at
    /// `restart`. The first jump is not before `from`.
    fn jump_around(
        &mut self,
        (earliest, crash_at, restart_at): (u64, u64, u64),
        master: u8,
        rng: &mut Rng,
    ) {
        let by_us = rng.pick(&JUMPS_US);
        let guard_nanos = self.settings.max_ttl / 100 * 95;
        let back_at = if rng.chance(400_000) {
            crash_at - rng.below((crash_at - earliest).min(1_000 * MS) + 1)
        } else {
            crash_at + rng.below(restart_at - crash_at)
        };
        let forward_at = if rng.chance(150_000) {
            back_at.max(crash_at) + rng.below(restart_at - back_at.max(crash_at))
        } else {
            restart_at + rng.below(guard_nanos)
        };
        for (at, by_us) in [(back_at, -by_us), (forward_at, by_us)] {
            let kind = FaultKind::ClockJump { master, by_us };
            self.faults.push(Fault { at, kind });
        }
    }

    /// Lets most client processes end and start again several times. A process that has just started knows nothing
    /// about earlier runs of the masters.
    fn start_clients_often(&mut self, rng: &mut Rng) {
        let first_client_stays = rng.chance(500_000);
        for client in usize::from(first_client_stays)..self.clients.len() {
            for _ in 0..rng.below(8) {
                let kind = FaultKind::Kill {
                    client: client as u8,
                    down: rng.below(300 * MS),
                };
                let at = rng.below(self.heal_at - 10 * MS);
                self.faults.push(Fault { at, kind });
            }
        }
    }
}
