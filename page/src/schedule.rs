//! Decides when the survey asks the masters again, so that it takes at most 1 % of a master's time in the long run.
//!
//! The time that an answer took is an upper bound of the time that a master worked for it. Half of the 1 % is for
//! finding names, half for reading known locks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// How much time of a master a job may take at once, in microseconds, if it took less than its part before. So the page
/// is quickly complete after its start.
const MAX_CREDIT_MICROS: u64 = 250_000;

/// The least time that a master needs to read one lock, in microseconds. The time of an answer minus the round trip can
/// be shorter than the truth.
const MIN_LOCK_MICROS: u64 = 10;

/// The most time that a master needs to read one lock, in microseconds. An answer can also be late because the machine of
/// the page is busy. The page must not stop reading locks then.
const MAX_LOCK_MICROS: u64 = 2_000;

/// How many times less often the page reads a lock at which nothing happens, if it follows many locks.
const COLD_FACTOR: u64 = 4;

/// Up to this number of locks, the page reads all of them equally often.
const FEW_LOCKS: usize = 200;

/// How much time of a master one kind of requests may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The part of a master's time: 1 of this number.
    part: u64,
    credit_micros: u64,
    debt_micros: u64,
    since_ms: u64,
}

impl Budget {
    /// A budget of `percent` of a master's time.
    pub(crate) fn new(percent: f64, now_ms: u64) -> Self {
        Self {
            part: (100.0 / percent.clamp(0.01, 100.0)).round() as u64,
            credit_micros: MAX_CREDIT_MICROS,
            debt_micros: 0,
            since_ms: now_ms,
        }
    }

    /// The pause after a request that took `took_micros`, in milliseconds.
    ///
    /// - `trip_micros`: a round trip, which is no work of a master
    /// - `locks`: how many locks the request read; 0 for a search for names
    /// - `shortest_ms`: the pause if there is credit left
    pub(crate) fn pause_ms(
        &mut self,
        answer_micros: u64,
        round_trip_micros: u64,
        locks: usize,
        shortest_ms: u64,
        now_ms: u64,
    ) -> u64 {
        let earned = now_ms.saturating_sub(self.since_ms).saturating_mul(1_000) / self.part;
        self.since_ms = now_ms;
        let cost = cost_micros(answer_micros.saturating_sub(round_trip_micros), locks);
        let credit = self
            .credit_micros
            .saturating_add(earned)
            .min(MAX_CREDIT_MICROS + self.debt_micros);
        let owed = self.debt_micros + cost;
        self.credit_micros = credit.saturating_sub(owed);
        self.debt_micros = owed.saturating_sub(credit);
        (self.debt_micros.saturating_mul(self.part) / 1_000).max(shortest_ms)
    }
}

/// The time that a master worked for an answer, in microseconds. `locks`: see [`Budget::pause_ms`].
fn cost_micros(answer_micros: u64, locks: usize) -> u64 {
    match locks as u64 {
        0 => answer_micros,
        locks => answer_micros.clamp(MIN_LOCK_MICROS * locks, MAX_LOCK_MICROS * locks),
    }
}

/// When each known lock is read next.
#[derive(Debug, Default)]
pub(crate) struct ReadSchedule {
    due: BTreeSet<(u64, Arc<str>)>,
    /// The time in `due` of each lock.
    times: HashMap<Arc<str>, u64>,
}

impl ReadSchedule {
    /// Plans to read a lock at the time `due_ms`, instead of the time that was planned before.
    pub(crate) fn plan(&mut self, id: &Arc<str>, due_ms: u64) {
        if let Some(before_ms) = self.times.insert(id.clone(), due_ms) {
            self.due.remove(&(before_ms, id.clone()));
        }
        self.due.insert((due_ms, id.clone()));
    }

    /// The locks to read now, at most `max`; those that have been due for longest first. The caller plans them again.
    pub(crate) fn take_due(&mut self, now_ms: u64, max: usize) -> Vec<Arc<str>> {
        let mut due_ids = Vec::new();
        while due_ids.len() < max
            && let Some((due_ms, _)) = self.due.first()
            && *due_ms <= now_ms
        {
            if let Some((_, id)) = self.due.pop_first() {
                self.times.remove(&id);
                due_ids.push(id);
            }
        }
        due_ids
    }

    /// When the next lock is due; `None` if no lock is known.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }
}

/// How long after a reading a lock is read again. `is_hot`: clients wait for the lock, or something happened to it.
pub(crate) fn reread_after_ms(interval_ms: u64, is_hot: bool, known_locks: usize) -> u64 {
    if is_hot || known_locks <= FEW_LOCKS {
        interval_ms
    } else {
        interval_ms * COLD_FACTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_half_a_percent_of_a_masters_time_in_the_long_run() {
        for (took, locks) in [(700, 0), (20_000, 0), (3_000_000, 0), (300, 64)] {
            let mut budget = Budget::new(0.5, 0);
            let (mut now_ms, mut spent) = (0, 0);
            while now_ms < 3_600_000 {
                spent += took.max(MIN_LOCK_MICROS * locks as u64);
                now_ms += took / 1_000 + budget.pause_ms(took, 0, locks, 5, now_ms);
            }
            let allowed = now_ms * 1_000 / 200 + MAX_CREDIT_MICROS + took;
            assert!(spent <= allowed, "{took} us: {spent} of {allowed}");
            assert!(
                spent * 10 >= allowed.min(now_ms * took / 5) * 8,
                "{took} us: only {spent} of {allowed}"
            );
        }
    }

    #[test]
    fn late_answer_about_one_lock_costs_no_more_than_a_master_can_work_for_it() {
        assert_eq!(cost_micros(500_000, 1), MAX_LOCK_MICROS);
        assert_eq!(cost_micros(0, 3), 3 * MIN_LOCK_MICROS);
        assert_eq!(cost_micros(500_000, 0), 500_000, "a search reads all keys");
    }

    #[test]
    fn request_that_costs_nothing_needs_only_the_shortest_pause() {
        let mut budget = Budget::new(0.5, 0);
        for now_ms in 0..2_000 {
            assert_eq!(budget.pause_ms(300, 300, 0, 1_000, now_ms), 1_000);
        }
        let mut budget = Budget::new(0.5, 0);
        assert_eq!(budget.pause_ms(MAX_CREDIT_MICROS, 0, 0, 5, 0), 5);
        assert_eq!(budget.pause_ms(10_000, 0, 0, 5, 0), 2_000);
    }

    #[test]
    fn locks_that_are_due_for_longest_are_read_first() {
        let mut read_schedule = ReadSchedule::default();
        for (id, due) in [("c", 30), ("a", 10), ("b", 20), ("d", 99)] {
            read_schedule.plan(&id.into(), due);
        }
        assert_eq!(read_schedule.next_due_ms(), Some(10));
        assert_eq!(
            read_schedule.take_due(50, 2),
            ["a".into(), "b".into()] as [Arc<str>; 2]
        );
        assert_eq!(read_schedule.take_due(50, 9), ["c".into()] as [Arc<str>; 1]);
        assert!(read_schedule.take_due(50, 9).is_empty());
        read_schedule.plan(&"d".into(), 40);
        assert_eq!(
            read_schedule.take_due(100, 9),
            ["d".into()] as [Arc<str>; 1],
            "planned once"
        );
    }

    #[test]
    fn among_many_locks_those_with_waiters_are_read_more_often() {
        assert_eq!(reread_after_ms(1_000, false, 10), 1_000);
        assert_eq!(reread_after_ms(1_000, false, 5_000), 4_000);
        assert_eq!(reread_after_ms(1_000, true, 5_000), 1_000);
    }
}
