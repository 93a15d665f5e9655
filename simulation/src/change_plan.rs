//! A change of masters in a run: which sets follow each other, who is told what, and how far the operators walk.
//!
//! The words are the library's (its `protocol::mark`): a client at step `s` goes by the set `s / 2`, with the one behind it
//! where `s` is odd; a mark of the number `m` lets it in where `2s - 2 <= m <= 2s`.

use quorate::RedlockBuilder;

/// A change of masters.
#[derive(Clone, Debug)]
pub struct ChangePlan {
    /// The sets of masters, as bits: each change leads from one to the next.
    pub sets: Vec<u16>,
    /// The mark that stands on all masters of its change from the beginning on.
    pub begins: Option<u64>,
    /// The mark that the operators walk to.
    pub goal: u64,
    /// How many of the clients, the first ones, are operators and take no locks.
    pub operators: u8,
    /// How long an operator pauses between two steps, at the most, in nanoseconds.
    pub pause: u64,
    /// The step of each client at the beginning, and at the end.
    pub steps: Vec<(u8, u8)>,
    /// How far the fencing counters of the first masters are ahead of their clocks at the beginning, in microseconds;
    /// none where there are no counters.
    pub ahead: Option<u64>,
    /// Masters that are left over are stopped for good.
    pub retires: bool,
}

/// Two sets of masters, as bits: the same where nothing is changed.
pub(crate) type Sets = [u16; 2];

/// Whether these masters are a majority of each set.
pub(crate) fn is_majority(masters: u16, sets: Sets) -> bool {
    let most = |set: u16| (masters & set).count_ones() > set.count_ones() / 2;
    sets.into_iter().all(most)
}

/// The masters of a set, in their order.
fn listed(set: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |master| set >> master & 1 == 1)
}

/// Whether a mark of this number gives votes to clients of a step.
pub(crate) fn admits(mark: u64, step: u8) -> bool {
    let step = u64::from(step);
    (2 * step).saturating_sub(2) <= mark && mark <= 2 * step
}

/// The masters of a client as it names them.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    old: Vec<usize>,
    next: Vec<usize>,
    generation: u64,
}

/// What masters are called.
pub(crate) const NAMES: [&str; 9] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"];

impl Named {
    /// All of so many, which are never changed.
    pub(crate) fn all(masters: usize) -> Self {
        Self {
            old: (0..masters).collect(),
            next: Vec::new(),
            generation: 0,
        }
    }

    /// Those of one set that nobody marks: as if it had been in force for ever.
    pub(crate) fn unmarked(set: u16) -> Self {
        Self {
            old: listed(set).collect(),
            next: Vec::new(),
            generation: 0,
        }
    }

    /// The masters that are asked, each once, in the order of the builder.
    pub(crate) fn asked(&self) -> Vec<usize> {
        let new = self.next.iter().filter(|master| !self.old.contains(master));
        self.old.iter().chain(new).copied().collect()
    }

    /// Which of them make a majority.
    pub(crate) fn sets(&self) -> Sets {
        let bits = |all: &[usize]| all.iter().fold(0, |bits, master| bits | 1 << master);
        let old = bits(&self.old);
        if self.next.is_empty() {
            [old, old]
        } else {
            [old, bits(&self.next)]
        }
    }

    /// Settings that name them.
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
    /// The masters of a client at a step.
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

    /// How many changes there are.
    pub(crate) fn changes(&self) -> u8 {
        self.sets.len() as u8 - 1
    }

    pub(crate) fn is_operator(&self, client: usize) -> bool {
        client < usize::from(self.operators)
    }
}
