//! Adds "unused days" to scenarios: a time of several days in which nobody uses the masters. In many of these
//! scenarios, the clock of a master shows a wrong date for some time before the unused days. The master may still have
//! fencing counters and locks that it wrote under the wrong date.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::scenario::Disk;

/// The probability that a scenario has unused days, in parts per million.
const DAYS_PPM: u32 = 60_000;
/// The probability of unused days in a scenario with values or leaders, in parts per million. It is higher than
/// `DAYS_PPM`, because scenarios with values or leaders are rare.
const RARE_PPM: u32 = 200_000;

const HOUR_NANOS: u64 = 3_600_000 * MS;

/// The possible lengths of the unused days, in hours. A scenario draws one of them. Masters keep fencing counters for
/// 24 hours.
const UNUSED_HOURS: [u64; 6] = [20, 25, 25, 30, 100, 1_000];

/// The possible differences between a wrong date and the true date, in hours. A scenario draws one of them.
const WRONG_DATE_HOURS: [i64; 4] = [30, 720, 720, 9_600];

/// Draws the difference of a wrong date from the true date, in microseconds. Most wrong dates are in the future.
pub(super) fn wrong_date_us(rng: &mut Rng) -> i64 {
    let hours = rng.pick(&WRONG_DATE_HOURS) * if rng.chance(800_000) { 1 } else { -1 };
    hours * (HOUR_NANOS / 1_000) as i64
}

impl Scenario {
    /// Adds unused days to some scenarios. If `has_wrong_dates` is true, the clock of a master may show a wrong date
    /// before the unused days. `rng` is a separate random stream, so these draws do not change the scenario's other
    /// draws.
    pub(super) fn idle_for_days(&mut self, rng: &mut Rng, has_wrong_dates: bool) {
        let is_rare = self.has_values() || self.has_notes();
        if !rng.chance(if is_rare { RARE_PPM } else { DAYS_PPM }) {
            return;
        }
        let end_ms = self.heal_at / MS;
        let at = rng.range(end_ms / 2, end_ms * 4 / 5) * MS;
        let remaining = (self.heal_at - at) / MS;
        let (by, down) = (rng.pick(&UNUSED_HOURS) * HOUR_NANOS, rng.range(1, 50) * MS);
        let mut faults = vec![(at, FaultKind::UnusedDays { by, down })];
        // A lock that a master grants under a date in the future blocks this master for a long time. With more than two
        // masters, the others are still a majority.
        if has_wrong_dates && self.masters.len() > 2 && rng.chance(700_000) {
            for master in &mut self.masters {
                // Keep all data on disk. If restarts lose data and clocks jump, fencing tokens may repeat or fall.
                master.disk = Disk::Always;
            }
            let masters = self.masters.len() as u64;
            let wrong_master = rng.below(masters);
            let others = (masters - 1).div_ceil(2);
            let by_us = wrong_date_us(rng);
            let (from_ms, to_ms) = (rng.below(end_ms / 4), rng.range(end_ms / 4, end_ms / 2));
            let stall = |master: u64, from_ms: u64, to_ms: u64| {
                let lasts = (to_ms - from_ms) * MS;
                let master = (master % masters) as u8;
                (from_ms * MS, FaultKind::Stall { master, lasts })
            };
            let jump = |at: u64, by_us: i64| {
                let master = wrong_master as u8;
                (at * MS, FaultKind::ClockJump { master, by_us })
            };
            faults.extend([jump(from_ms, by_us), jump(to_ms, -by_us)]);
            if rng.chance(600_000) {
                // Stall other masters, so that every majority must include the master with the wrong date.
                faults
                    .extend((1..=others).map(|other| stall(wrong_master + other, from_ms, to_ms)));
            }
            if rng.chance(700_000) {
                faults.push(stall(wrong_master, at / MS, at / MS + remaining));
            }
        }
        let faults = faults.into_iter().map(|(at, kind)| Fault { at, kind });
        self.faults.extend(faults);
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Gives some clients a wrong date. This happens only in scenarios with unused days and with stores that have no
    /// clock: such stores use the dates of their clients.
    pub(super) fn set_wrong_dates(&mut self, rng: &mut Rng) {
        let is_skip = |fault: &Fault| matches!(fault.kind, FaultKind::UnusedDays { .. });
        if !self.has_clockless() || !self.faults.iter().any(is_skip) {
            return;
        }
        for client in &mut self.clients {
            if rng.chance(400_000) {
                client.wall_us += rng.pick(&WRONG_DATE_HOURS)
                    * (HOUR_NANOS / 1_000) as i64
                    * rng.pick(&[-1, -1, 1]);
            }
        }
    }
}
