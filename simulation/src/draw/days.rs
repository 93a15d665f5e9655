//! Adds "unused days" to scenarios: a time of several days in which nobody uses the masters. In many of these
//! scenarios, the clock of a master shows a wrong date for some time before the unused days. The master may still have
//! fencing counters and locks that it wrote under the wrong date.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::scenario::Disk;

/// The probability that a scenario has unused days, in parts per million.
const WORLDS_PPM: u32 = 60_000;
/// The probability of unused days in a scenario with values or leaders, in parts per million. It is higher than
/// `WORLDS_PPM`, because scenarios with values or leaders are rare.
const RARE_PPM: u32 = 200_000;

const HOUR: u64 = 3_600_000 * MS;

/// The possible lengths of the unused days, in hours. A scenario draws one of them. Masters keep fencing counters for
/// 24 hours.
const HOURS: [u64; 6] = [20, 25, 25, 30, 100, 1_000];

/// The possible differences between a wrong date and the true date, in hours. A scenario draws one of them.
const WRONG: [i64; 4] = [30, 720, 720, 9_600];

/// Draws the difference of a wrong date from the true date, in microseconds. Most wrong dates are in the future.
pub(super) fn wrong_date_us(rng: &mut Rng) -> i64 {
    let hours = rng.pick(&WRONG) * if rng.chance(800_000) { 1 } else { -1 };
    hours * (HOUR / 1_000) as i64
}

impl Scenario {
    /// Adds unused days to some scenarios. If `dates` is true, the clock of a master may show a wrong date before the
    /// unused days. `rng` is a separate random stream, so these draws do not change the scenario's other draws.
    pub(super) fn idle_for_days(&mut self, rng: &mut Rng, dates: bool) {
        let rare = self.has_values() || self.has_notes();
        if !rng.chance(if rare { RARE_PPM } else { WORLDS_PPM }) {
            return;
        }
        let heal = self.heal_at / MS;
        let at = rng.range(heal / 2, heal * 4 / 5) * MS;
        let left = (self.heal_at - at) / MS;
        let (by, down) = (rng.pick(&HOURS) * HOUR, rng.range(1, 50) * MS);
        let mut faults = vec![(at, FaultKind::Skip { by, down })];
        // A lock that a master grants under a date in the future blocks this master for a long time. With more than two
        // masters, the others are still a majority.
        if dates && self.masters.len() > 2 && rng.chance(700_000) {
            for master in &mut self.masters {
                // Keep all data on disk. If restarts lose data and clocks jump, fencing tokens may repeat or fall.
                master.disk = Disk::Always;
            }
            let masters = self.masters.len() as u64;
            let wrong = rng.below(masters);
            let others = (masters - 1).div_ceil(2);
            let by_us = wrong_date_us(rng);
            let (from, to) = (rng.below(heal / 4), rng.range(heal / 4, heal / 2));
            let away = |master: u64, from: u64, to: u64| {
                let lasts = (to - from) * MS;
                let master = (master % masters) as u8;
                (from * MS, FaultKind::Stall { master, lasts })
            };
            let jump = |at: u64, by_us: i64| {
                let master = wrong as u8;
                (at * MS, FaultKind::Jump { master, by_us })
            };
            faults.extend([jump(from, by_us), jump(to, -by_us)]);
            if rng.chance(600_000) {
                // Stall other masters, so that every majority must include the master with the wrong date.
                faults.extend((1..=others).map(|other| away(wrong + other, from, to)));
            }
            if rng.chance(700_000) {
                faults.push(away(wrong, at / MS, at / MS + left));
            }
        }
        let faults = faults.into_iter().map(|(at, kind)| Fault { at, kind });
        self.faults.extend(faults);
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Gives some clients a wrong date. This happens only in scenarios with unused days and with stores that have no
    /// clock: such stores use the dates of their clients.
    pub(super) fn mistake_dates(&mut self, rng: &mut Rng) {
        let skips = |fault: &Fault| matches!(fault.kind, FaultKind::Skip { .. });
        if !self.has_clockless() || !self.faults.iter().any(skips) {
            return;
        }
        for client in &mut self.clients {
            if rng.chance(400_000) {
                client.wall_us += rng.pick(&WRONG) * (HOUR / 1_000) as i64 * rng.pick(&[-1, -1, 1]);
            }
        }
    }
}
