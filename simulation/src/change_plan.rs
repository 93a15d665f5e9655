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
    /// Each change raises this number by 4. So the run begins in the change with the index `begins / 4` (at most the
    /// index of the last change). At the beginning, only the old and the new masters of this change have markers.
    pub begins: Option<u64>,
    /// The number that the generation markers must reach. The operators then stop.
    pub goal: u64,
    /// The number of operators, which are the clients with the lowest numbers. Operators take no locks.
    pub operators: u8,
    /// The longest pause of an operator between two steps of a change, in nanoseconds.
    pub pause: u64,
    /// For each client, its first and its last step. The top of this file explains the steps.
    pub steps: Vec<(u8, u8)>,
    /// How far the fencing counters are ahead of the masters' clocks at the beginning, in microseconds; `None` if the
    /// masters have no counters.
    ///
    /// The old masters have counters. The new masters have counters only if the run begins in the second half of a
    /// change (`begins % 4` is 2 or 3).
    pub ahead: Option<u64>,
    /// Whether masters that have been replaced are stopped for the rest of the run.
    pub retires: bool,
}

/// The old and the new set of masters (bit n is master n). If a client uses only one set, the two sets are equal.
pub(crate) type Sets = [u16; 2];

/// Whether the masters in `masters` (bit n is master n) are a majority of each set.
pub(crate) fn is_majority(masters: u16, sets: Sets) -> bool {
    let most = |set: u16| (masters & set).count_ones() > set.count_ones() / 2;
    sets.into_iter().all(most)
}

/// Returns the masters of a set, in ascending order.
fn listed(set: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |master| set >> master & 1 == 1)
}

/// Whether a master whose generation marker has the number `mark` votes for clients at this step.
pub(crate) fn admits(mark: u64, step: u8) -> bool {
    let step = u64::from(step);
    (2 * step).saturating_sub(2) <= mark && mark <= 2 * step
}

/// The masters with which a client is configured, and their generation.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    old: Vec<usize>,
    next: Vec<usize>,
    generation: u64,
}

/// The names of the masters, by number.
pub(crate) const NAMES: [&str; 9] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"];

impl Named {
    /// The configuration of a client whose masters, number 0 to `masters - 1`, are never replaced.
    pub(crate) fn all(masters: usize) -> Self {
        Self {
            old: (0..masters).collect(),
            next: Vec::new(),
            generation: 0,
        }
    }

    /// The configuration of a client that uses only the masters of `set`. The generation is 0, as if no masters were
    /// ever replaced.
    pub(crate) fn unmarked(set: u16) -> Self {
        Self {
            old: listed(set).collect(),
            next: Vec::new(),
            generation: 0,
        }
    }

    /// Returns the masters that the client asks: first the old masters, then the new masters that are not in the old
    /// set.
    pub(crate) fn asked(&self) -> Vec<usize> {
        let new = self.next.iter().filter(|master| !self.old.contains(master));
        self.old.iter().chain(new).copied().collect()
    }

    /// Returns the old and the new set of masters of this client. The client needs a majority of each set.
    pub(crate) fn sets(&self) -> Sets {
        let bits = |all: &[usize]| all.iter().fold(0, |bits, master| bits | 1 << master);
        let old = bits(&self.old);
        if self.next.is_empty() {
            [old, old]
        } else {
            [old, bits(&self.next)]
        }
    }

    /// Sets these masters and their generation in the settings of a client.
    pub(crate) fn in_settings(&self, settings: RedlockBuilder) -> RedlockBuilder {
        let urls = |all: &[usize]| -> Vec<String> {
            let url = |master: &usize| format!("redis://{}", NAMES[*master]);
            all.iter().map(url).collect()
        };
        let settings = settings.masters(urls(&self.old));
        let settings = settings.next_masters(urls(&self.next));
        settings.masters_generation(self.generation)
    }
}

impl ChangePlan {
    /// Returns the masters in the configuration of a client at `step`. The top of this file explains the steps.
    pub(crate) fn named(&self, step: u8) -> Named {
        let set = |index: usize| listed(self.sets[index]).collect();
        let at = usize::from(step / 2);
        Named {
            old: set(at),
            next: if step % 2 == 1 {
                set(at + 1)
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
