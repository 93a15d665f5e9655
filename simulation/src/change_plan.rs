//! The plan of a simulation run in which operators replace masters while clients take locks.
//!
//! The sets of masters are numbered from 0. A client uses one set, or two sets during a change. Its configuration has a
//! number, the step, which determines the sets:
//!
//! - At an even step `s`, the client uses only the set `s / 2`.
//! - At an odd step `s`, the client uses the two sets `(s - 1) / 2` and `(s + 1) / 2`.
//!
//! Each master stores a number, its generation marker. A master votes for a client at step `s` if the marker is
//! `2s - 2`, `2s - 1` or `2s`. The library uses the same steps and markers (`protocol::mark`).

use quorate::RedlockBuilder;

/// The plan of a run in which masters are replaced.
#[derive(Clone, Debug)]
pub struct ChangePlan {
    /// The sets of masters (bit n is master n), in order. Each change replaces one set by the next set in the list.
    pub sets: Vec<u16>,
    /// The number in the generation markers at the beginning of the run; `None` if no master has a marker.
    ///
    /// Each change raises this number by 4. So the run begins in the change with the index `initial_number / 4` (at
    /// most the index of the last change). At the beginning, only the old and the new masters of this change have
    /// markers.
    pub initial_number: Option<u64>,
    /// The number that the generation markers must reach. The operators then stop.
    pub goal: u64,
    /// The number of operators, which are the clients with the lowest numbers. Operators take no locks.
    pub operators: u8,
    /// The longest pause of an operator between two steps of a change, in nanoseconds.
    pub longest_pause: u64,
    /// For each client, its first and its last step. The top of this file explains the steps.
    pub steps: Vec<(u8, u8)>,
    /// How far the fencing counters are ahead of the masters' clocks at the beginning, in microseconds; `None` if the
    /// masters have no counters.
    ///
    /// The old masters have counters. The new masters have counters only if the run begins in the second half of a
    /// change (`initial_number % 4` is 2 or 3).
    pub counters_ahead_us: Option<u64>,
    /// Whether masters that have been replaced are stopped for the rest of the run.
    pub stops_replaced: bool,
}

/// The old and the new set of masters (bit n is master n). If a client uses only one set, the two sets are equal.
pub(crate) type Sets = [u16; 2];

/// Whether the masters in `masters` (bit n is master n) are a majority of each set.
pub(crate) fn is_majority(masters: u16, sets: Sets) -> bool {
    let has_majority_of = |set: u16| (masters & set).count_ones() > set.count_ones() / 2;
    sets.into_iter().all(has_majority_of)
}

/// Returns the masters of a set, in ascending order.
fn masters_of_set(set: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |master| set >> master & 1 == 1)
}

/// Whether a master whose generation marker has the number `marker_number` votes for clients at this step.
pub(crate) fn admits_step(marker_number: u64, step: u8) -> bool {
    let step = u64::from(step);
    (2 * step).saturating_sub(2) <= marker_number && marker_number <= 2 * step
}

/// The masters with which a client is configured, and their generation.
#[derive(Clone, Debug)]
pub(crate) struct ClientMasters {
    old_masters: Vec<usize>,
    next_masters: Vec<usize>,
    generation: u64,
}

/// The names of the masters, by number.
pub(crate) const MASTER_NAMES: [&str; 9] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"];

impl ClientMasters {
    /// The configuration of a client whose masters, number 0 to `masters - 1`, are never replaced.
    pub(crate) fn never_replaced(masters: usize) -> Self {
        Self {
            old_masters: (0..masters).collect(),
            next_masters: Vec::new(),
            generation: 0,
        }
    }

    /// The configuration of a client that uses only the masters of `set`. The generation is 0, as if no masters were
    /// ever replaced.
    pub(crate) fn of_one_set(set: u16) -> Self {
        Self {
            old_masters: masters_of_set(set).collect(),
            next_masters: Vec::new(),
            generation: 0,
        }
    }

    /// Returns the masters that the client asks: first the old masters, then the new masters that are not in the old
    /// set.
    pub(crate) fn all_masters(&self) -> Vec<usize> {
        let added = self
            .next_masters
            .iter()
            .filter(|master| !self.old_masters.contains(master));
        self.old_masters.iter().chain(added).copied().collect()
    }

    /// Returns the old and the new set of masters of this client. The client needs a majority of each set.
    pub(crate) fn sets(&self) -> Sets {
        let set_of = |masters: &[usize]| masters.iter().fold(0, |set, master| set | 1 << master);
        let old_set = set_of(&self.old_masters);
        if self.next_masters.is_empty() {
            [old_set, old_set]
        } else {
            [old_set, set_of(&self.next_masters)]
        }
    }

    /// Sets these masters and their generation in the settings of a client.
    pub(crate) fn configure(&self, settings: RedlockBuilder) -> RedlockBuilder {
        let urls = |masters: &[usize]| -> Vec<String> {
            let url = |master: &usize| format!("redis://{}", MASTER_NAMES[*master]);
            masters.iter().map(url).collect()
        };
        settings
            .masters(urls(&self.old_masters))
            .next_masters(urls(&self.next_masters))
            .masters_generation(self.generation)
    }
}

impl ChangePlan {
    /// Returns the masters in the configuration of a client at `step`. The top of this file explains the steps.
    pub(crate) fn masters_at(&self, step: u8) -> ClientMasters {
        let masters_of = |index: usize| masters_of_set(self.sets[index]).collect();
        let index = usize::from(step / 2);
        ClientMasters {
            old_masters: masters_of(index),
            next_masters: if step % 2 == 1 {
                masters_of(index + 1)
            } else {
                Vec::new()
            },
            generation: u64::from(step / 2),
        }
    }

    /// The number of changes in this plan. Each change replaces one set of masters by the next set.
    pub(crate) fn changes(&self) -> u8 {
        self.sets.len() as u8 - 1
    }

    pub(crate) fn is_operator(&self, client: usize) -> bool {
        client < usize::from(self.operators)
    }
}

impl ChangePlan {
    /// For the bugs that replace a master without an operator: returns the masters that a client uses at this step. At
    /// step 0, it uses the first set of masters, and later the second set.
    pub(crate) fn masters_without_operator(&self, step: u8) -> ClientMasters {
        ClientMasters::of_one_set(self.sets[usize::from(step > 0)])
    }

    /// Returns the number of the master that is replaced, if the plan's first change replaces exactly one of at least
    /// three masters; otherwise `None`.
    pub(crate) fn only_replaced_master(&self) -> Option<usize> {
        let [old, next] = [self.sets[0], self.sets[1]];
        let (removed, added) = (old & !next, next & !old);
        let is_single =
            removed.is_power_of_two() && added.is_power_of_two() && old.count_ones() > 2;
        is_single.then(|| removed.trailing_zeros() as usize)
    }
}
