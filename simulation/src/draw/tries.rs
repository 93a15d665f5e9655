//! Draws scenarios with stores without a clock, in which every client process takes one step: most of them try once to
//! take a lock. Holders and waiters die, leaders of the stores change, and clocks are wrong.

use super::stores::StoreTraits;
use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::scenario::{Disk, LARGEST_RIGHT_OFFSET_US};
use crate::store_plan::RunRule;

/// By how many microseconds a wrong clock is ahead or behind: 3 s or an hour. Different clocks are often wrong by the
/// same time.
const WRONG_CLOCK_US: [i64; 4] = [3_000_000, -3_000_000, 3_600_000_000, -3_600_000_000];

impl Scenario {
    /// Draws a scenario from this seed. In the scenario, at least one master is a store without a clock, and each
    /// client process takes only one step.
    pub fn draw_tries(seed: u64) -> Self {
        let rng = &mut Rng::stream(seed, 17);
        let masters = rng.pick(&[1u8, 1, 1, 2, 3, 3, 5]);
        let mut scenario = Self::draw_with_kinds(seed, Some(masters), false);
        (scenario.one_step_per_process, scenario.tasks) = (true, 1);
        let store_traits = StoreTraits {
            stores_percent: rng.pick(&[100, 100, 60]),
            clocked_percent: rng.pick(&[0, 0, 30]),
            may_forget: false,
            ..StoreTraits::draw(rng, scenario.faults.is_empty())
        };
        for master in 0..usize::from(masters) {
            if master == 0 || rng.below(100) < store_traits.stores_percent {
                let mut disk = Disk::Always;
                let mut plan = store_traits.plan(rng, &scenario, master, &mut disk);
                if master == 0 {
                    (plan.clocked, plan.date_grain) = (false, MS);
                }
                // The clock of a store without a clock may jump, and must then not decide how long the store has run.
                if !plan.clocked {
                    plan.run = RunRule::Durable;
                }
                scenario.masters[master].disk = disk;
                scenario.masters[master].store = Some(plan);
            }
        }
        scenario.shorten_waits(rng);
        scenario.kill_clients(rng);
        scenario.set_clocks(rng);
        let rng = &mut Rng::stream(seed, 18);
        scenario.draw_run_rules(rng);
        scenario.add_store_events(rng);
        scenario.faults.sort_by_key(|fault| fault.at);
        scenario
    }

    /// Lets most steps try once, and some wait for less than the TTL.
    fn shorten_waits(&mut self, rng: &mut Rng) {
        let ttl = self.settings.ttl;
        for step in self.clients.iter_mut().flat_map(|client| &mut client.steps) {
            match rng.below(10) {
                0..7 => step.wait = 0,
                7..9 => step.wait = rng.range(1, ttl / MS) * MS,
                _ => {}
            }
        }
    }

    /// Kills clients often, so that holders and waiters die.
    fn kill_clients(&mut self, rng: &mut Rng) {
        for _ in 0..rng.range(1, 8) {
            let at = rng.below(self.heal_at - 10 * MS);
            let remaining = (self.heal_at - at) / MS;
            let kind = FaultKind::Kill {
                client: rng.below(self.clients.len() as u64) as u8,
                down: rng.range(1, 200).min(remaining) * MS,
            };
            self.faults.push(Fault { at, kind });
        }
    }

    /// Lets leaders change. In addition, either the clocks of leaders jump, or the wall clocks of clients are wrong.
    fn set_clocks(&mut self, rng: &mut Rng) {
        let changes_clock = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::ClockJump { .. } | FaultKind::WallClockJump { .. }
            )
        };
        self.faults.retain(|fault| !changes_clock(fault));
        let has_jumps = rng.chance(400_000);
        for client in &mut self.clients {
            client.wall_us = if has_jumps {
                rng.around(LARGEST_RIGHT_OFFSET_US)
            } else {
                rng.around(LARGEST_RIGHT_OFFSET_US) + rng.pick(&[0, 1]) * rng.pick(&WRONG_CLOCK_US)
            };
        }
        let clockless: Vec<u8> = (0..self.masters.len())
            .filter(|master| {
                self.masters[*master]
                    .store
                    .is_some_and(|plan| !plan.clocked)
            })
            .map(|master| master as u8)
            .collect();
        let heal_at = self.heal_at;
        let mut add_faults =
            |rng: &mut Rng, limit: u64, kind: &dyn Fn(&mut Rng, i64) -> FaultKind| {
                for _ in 0..rng.below(limit) {
                    let at = rng.below(heal_at - 10 * MS);
                    let by_us = rng.pick(&WRONG_CLOCK_US);
                    let kind = kind(rng, by_us);
                    self.faults.push(Fault { at, kind });
                }
            };
        let election = |rng: &mut Rng, by_us: i64| FaultKind::LeaderChange {
            master: rng.pick(&clockless),
            by_us,
        };
        add_faults(rng, 4, &election);
        let clients = self.clients.len() as u64;
        if has_jumps {
            let jump = |rng: &mut Rng, by_us: i64| FaultKind::ClockJump {
                master: rng.pick(&clockless),
                by_us,
            };
            add_faults(rng, 5, &jump);
        } else {
            let date = |rng: &mut Rng, by_us: i64| FaultKind::WallClockJump {
                client: rng.below(clients) as u8,
                by_us,
            };
            add_faults(rng, 4, &date);
        }
    }
}
