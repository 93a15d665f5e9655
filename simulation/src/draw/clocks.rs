//! Lets clocks of masters and clients jump in scenarios in which masters are replaced.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::draw::days::wrong_date_us;
use crate::scenario::Disk;

/// The probability that clocks jump if masters are replaced, in parts per million.
const JUMPS_PPM: u32 = 150_000;

impl Scenario {
    /// In some scenarios, lets the clocks of masters jump, and jump back before the faults end. The jump back is
    /// needed, because an operator does not prepare a change while the masters' clocks differ. Sometimes also lets the
    /// wall clocks of clients and operators jump. `rng` is a separate random stream, so all other draws of the seed
    /// stay unchanged.
    pub(super) fn jump_clocks(&mut self, rng: &mut Rng, sets: &[u16]) {
        if self.faults.is_empty() || !rng.chance(JUMPS_PPM) {
            return;
        }
        if rng.chance(800_000) {
            // If clocks jump, fencing tokens are promised only if masters lose no data in a restart.
            for master in &mut self.masters {
                master.disk = Disk::Always;
            }
        }
        let heal = self.heal_at / MS;
        // At most one master shows a wrong date. Even so, two masters may refuse a lock for a long time:
        //
        // - the master with the wrong date, if it has granted a lock under a date in the future;
        // - a master that was down when the operator wrote the generation markers, and so has no marker.
        //
        // A set of fewer than five masters has no majority without these two masters. For such a set, all faults drawn
        // so far are removed, so every master gets its marker.
        let wrong = rng.below(self.masters.len() as u64) as u8;
        let masters = |set: &u16| (set >> wrong & 1 == 1).then(|| set.count_ones());
        let least = sets.iter().filter_map(masters).min().unwrap_or(5);
        let dates = least >= 3 && rng.chance(300_000);
        if dates && least < 5 {
            self.faults.clear();
        }
        if dates {
            // A server computes its uptime from its clock. If it restarts under a date in the future and the clock then
            // goes back, the uptime is too short, and its votes do not count. So this master must not restart.
            let restarts =
                |kind| matches!(kind, FaultKind::Crash { master, .. } if master == wrong);
            self.faults.retain(|fault| !restarts(fault.kind));
        }
        for number in 0..rng.range(1, 4) {
            let (master, by_us) = if number == 0 && dates {
                (wrong, wrong_date_us(rng))
            } else {
                let master = rng.below(self.masters.len() as u64) as u8;
                (master, rng.around(2_000_000))
            };
            let from = rng.below(heal - 30);
            let to = rng.range(from + 1, heal - 20);
            for (at, by_us) in [(from, by_us), (to, -by_us)] {
                let kind = FaultKind::Jump { master, by_us };
                self.faults.push(Fault { at: at * MS, kind });
            }
        }
        if rng.chance(500_000) {
            self.date_clients(rng);
        }
    }

    /// Lets the wall clock of a client or an operator jump.
    fn date_clients(&mut self, rng: &mut Rng) {
        for _ in 0..rng.range(1, 3) {
            let kind = FaultKind::Date {
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
