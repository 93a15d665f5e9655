//! Lets clocks of masters and clients jump in scenarios in which masters are replaced.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::draw::days::wrong_date_us;
use crate::scenario::Disk;

/// The probability that clocks jump if masters are replaced, in parts per million.
const JUMPS_PPM: u32 = 150_000;

impl Scenario {
    /// Lets clocks of masters jump in some scenarios. Each clock jumps back before the faults end, because an operator
    /// prepares no change while the masters' clocks differ. Sometimes, wall clocks of clients and operators jump too.
    /// `rng` is a separate random stream, so these draws do not change the scenario's other draws.
    pub(super) fn jump_clocks(&mut self, rng: &mut Rng, sets: &[u16]) {
        if self.faults.is_empty() || !rng.chance(JUMPS_PPM) {
            return;
        }
        if rng.chance(800_000) {
            // Keep all data on disk. If restarts lose data and clocks jump, fencing tokens may repeat or fall.
            for master in &mut self.masters {
                master.disk = Disk::Always;
            }
        }
        let end_ms = self.heal_at / MS;
        // A lock that a master grants under a wrong date may block this master for a long time. If the set has fewer
        // than five masters, a second fault could then leave no majority. So remove the other faults.
        let wrong_master = rng.below(self.masters.len() as u64) as u8;
        let set_size = |set: &u16| (set >> wrong_master & 1 == 1).then(|| set.count_ones());
        let smallest_set = sets.iter().filter_map(set_size).min().unwrap_or(5);
        let has_wrong_date = smallest_set >= 3 && rng.chance(300_000);
        if has_wrong_date && smallest_set < 5 {
            self.faults.clear();
        }
        if has_wrong_date {
            // Do not restart the master with the wrong date. The restart guard uses the master's uptime, which seems
            // shorter after its date is set back. The guard could then last too long.
            let is_restart =
                |kind| matches!(kind, FaultKind::Crash { master, .. } if master == wrong_master);
            self.faults.retain(|fault| !is_restart(fault.kind));
        }
        for index in 0..rng.range(1, 4) {
            let (master, by_us) = if index == 0 && has_wrong_date {
                (wrong_master, wrong_date_us(rng))
            } else {
                let master = rng.below(self.masters.len() as u64) as u8;
                (master, rng.around(2_000_000))
            };
            let from_ms = rng.below(end_ms - 30);
            let to_ms = rng.range(from_ms + 1, end_ms - 20);
            for (at, by_us) in [(from_ms, by_us), (to_ms, -by_us)] {
                let kind = FaultKind::ClockJump { master, by_us };
                self.faults.push(Fault { at: at * MS, kind });
            }
        }
        if rng.chance(500_000) {
            self.jump_wall_clocks(rng);
        }
    }

    /// Lets the wall clock of a client or an operator jump.
    fn jump_wall_clocks(&mut self, rng: &mut Rng) {
        for _ in 0..rng.range(1, 3) {
            let kind = FaultKind::WallClockJump {
                client: rng.below(self.clients.len() as u64) as u8,
                by_us: if rng.chance(500_000) {
                    wrong_date_us(rng)
                } else {
                    rng.around(5_000_000)
                },
            };
            let at = rng.below(self.heal_at - 10 * MS);
            self.faults.push(Fault { at, kind });
        }
    }
}
