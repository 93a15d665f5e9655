//! Which of the requests that are about to be written go to the master as one call.
//!
//! Only what is there already goes together: nobody waits for company. Of requests that touch the same
//! lock the order stays, whatever they are; others may pass each other. So the releases that have come
//! together stand before the acquires, and both are closed by a request that would have to stand between.

use std::time::Duration;

/// The most releases in one call: about as long at the master as ten by themselves.
const MOST_RELEASES: usize = 32;

/// The most acquires in one call.
const MOST_ACQUIRES: usize = 16;

/// The fewest releases that are cheaper together.
const LEAST_RELEASES: usize = 2;

/// What a request may go together with: with others of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With nothing.
    Single,
    /// Of locks that have lines, or of locks that have none.
    Release { lines: bool },
    /// As well, all for the same time.
    Acquire { lines: bool, ttl: Duration },
}

/// What runs are made of.
pub(super) trait Member {
    fn kind(&self) -> Kind;

    /// The lock that it touches; none where that is not one.
    fn key(&self) -> Option<&[u8]>;
}

/// A request in its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed<T> {
    pub(super) member: T,
    /// How many of those behind it go in the same call.
    pub(super) along: usize,
}

/// Requests of one kind, no two of the same lock.
struct Run<T> {
    kind: Kind,
    members: Vec<T>,
    /// A bit of each lock: most that are not here are known by it.
    bits: u64,
}

impl<T: Member> Run<T> {
    fn new() -> Self {
        Self {
            kind: Kind::Single,
            members: Vec::new(),
            bits: 0,
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.bits & bit(key) != 0 && self.members.iter().any(|one| one.key() == Some(key))
    }

    fn takes(&self, kind: Kind) -> bool {
        self.members.is_empty() || self.kind == kind
    }

    fn push(&mut self, kind: Kind, bit: u64, member: T) {
        self.kind = kind;
        self.bits |= bit;
        self.members.push(member);
    }

    /// Places all, as one call where they are enough.
    fn close(&mut self, least: usize, into: &mut Vec<Placed<T>>) {
        self.bits = 0;
        let count = self.members.len();
        let together = count >= least;
        let members = self.members.drain(..).enumerate();
        into.extend(members.map(|(at, member)| {
            let along = if together && at == 0 { count - 1 } else { 0 };
            Placed { member, along }
        }));
    }
}

/// A bit that names differ by most of the time: their ends do.
fn bit(key: &[u8]) -> u64 {
    let end = &key[key.len().saturating_sub(6)..];
    let mix = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add(u32::from(*byte));
    1 << (end.iter().fold(0, mix) % 64)
}

/// Arranges requests.
pub(super) struct Runs<T> {
    releases: Run<T>,
    acquires: Run<T>,
    /// Some acquire has to stand behind one of the releases.
    behind: bool,
    /// The fewest acquires that are cheaper together: that depends on the server.
    least_acquires: usize,
}

impl<T: Member> Runs<T> {
    pub(super) fn new(least_acquires: usize) -> Self {
        Self {
            releases: Run::new(),
            acquires: Run::new(),
            behind: false,
            least_acquires,
        }
    }

    /// Takes the next request in; what has its place now is put into `into`.
    pub(super) fn add(&mut self, member: T, into: &mut Vec<Placed<T>>) {
        let Some(key) = member.key() else {
            self.close(into);
            into.push(Placed { member, along: 0 });
            return;
        };
        let (kind, bit) = (member.kind(), bit(key));
        let (released, acquired) = (self.releases.has(key), self.acquires.has(key));
        match kind {
            Kind::Single => {
                if released || acquired {
                    self.close(into);
                }
                into.push(Placed { member, along: 0 });
            }
            Kind::Release { .. } => {
                if acquired {
                    self.close(into);
                } else if released || !self.releases.takes(kind) {
                    self.close_releases(into);
                }
                self.releases.push(kind, bit, member);
                if self.releases.members.len() == MOST_RELEASES {
                    self.close_releases(into);
                }
            }
            Kind::Acquire { .. } => {
                if acquired || !self.acquires.takes(kind) {
                    self.close_acquires(into);
                }
                self.behind |= released && !self.releases.members.is_empty();
                self.acquires.push(kind, bit, member);
                if self.acquires.members.len() == MOST_ACQUIRES {
                    self.close_acquires(into);
                }
            }
        }
    }

    /// Nothing more will come: all that is left has its place.
    pub(super) fn close(&mut self, into: &mut Vec<Placed<T>>) {
        self.close_releases(into);
        self.close_acquires(into);
    }

    fn close_releases(&mut self, into: &mut Vec<Placed<T>>) {
        self.behind = false;
        self.releases.close(LEAST_RELEASES, into);
    }

    fn close_acquires(&mut self, into: &mut Vec<Placed<T>>) {
        if self.behind {
            self.close_releases(into);
        }
        self.acquires.close(self.least_acquires, into);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Asked {
        number: usize,
        kind: Kind,
        key: Option<Vec<u8>>,
    }

    impl Member for Asked {
        fn kind(&self) -> Kind {
            self.kind
        }

        fn key(&self) -> Option<&[u8]> {
            self.key.as_deref()
        }
    }

    fn kind(letter: char) -> Kind {
        let ttl = Duration::from_secs(1);
        match letter {
            'r' => Kind::Release { lines: true },
            'R' => Kind::Release { lines: false },
            'a' => Kind::Acquire { lines: true, ttl },
            'A' => Kind::Acquire {
                lines: true,
                ttl: 2 * ttl,
            },
            _ => Kind::Single,
        }
    }

    /// Words like `a7`: a letter for the kind and the key behind it.
    fn asked((number, word): (usize, &str)) -> Asked {
        let (letter, key) = word.split_at(1);
        Asked {
            number,
            kind: kind(letter.chars().next().expect("a letter")),
            key: (!key.is_empty()).then(|| key.as_bytes().to_vec()),
        }
    }

    fn arranged(all: impl Iterator<Item = Asked>) -> Vec<Placed<Asked>> {
        let (mut runs, mut placed) = (Runs::new(3), Vec::new());
        for one in all {
            runs.add(one, &mut placed);
        }
        runs.close(&mut placed);
        placed
    }

    /// The calls, those of many in brackets.
    fn calls(words: &str) -> String {
        let mut text = String::new();
        let mut left = 0;
        let words: Vec<&str> = words.split(' ').collect();
        for placed in arranged(words.iter().copied().enumerate().map(asked)) {
            if placed.along > 0 {
                text.push('[');
                left = placed.along + 1;
            }
            text.push_str(words[placed.member.number]);
            if left == 1 {
                text.push(']');
            }
            left = left.saturating_sub(1);
            text.push(' ');
        }
        text.trim_end().to_owned()
    }

    #[test]
    fn what_is_of_one_kind_goes_together_and_releases_stand_first() {
        for (words, wanted) in [
            ("a1", "a1"),
            ("r1", "r1"),
            ("r1 r2", "[r1 r2]"),
            ("a1 a2", "a1 a2"),
            ("a1 r2 a3 r4 a5", "[r2 r4] [a1 a3 a5]"),
            // Other times, other lines.
            ("a1 a2 a3 A4 A5", "[a1 a2 a3] A4 A5"),
            ("r1 r2 R3 R4", "[r1 r2] [R3 R4]"),
            // Others pass by where they touch other locks.
            ("a1 s9 a2 a3", "s9 [a1 a2 a3]"),
            ("a1 a2 a3 s a4 a5 a6", "[a1 a2 a3] s [a4 a5 a6]"),
        ] {
            assert_eq!(calls(words), wanted, "{words}");
        }
    }

    #[test]
    fn of_one_lock_the_order_stays() {
        for (words, wanted) in [
            ("a1 r1", "a1 r1"),
            ("a1 a2 a3 r1 r4", "[a1 a2 a3] [r1 r4]"),
            ("r1 a1 a2 a3", "r1 [a1 a2 a3]"),
            ("a1 a2 a1 a3", "a1 a2 a1 a3"),
            ("r1 r2 r1", "[r1 r2] r1"),
            ("a1 a2 a3 s2 r4 r5", "[a1 a2 a3] s2 [r4 r5]"),
            // An acquire behind a release of its lock goes, so that goes before.
            ("r1 a1 a2 a1", "r1 a1 a2 a1"),
        ] {
            assert_eq!(calls(words), wanted, "{words}");
        }
    }

    #[test]
    fn no_call_is_longer_than_it_may_be() {
        for (letter, most) in [('a', MOST_ACQUIRES), ('r', MOST_RELEASES)] {
            let mut words = String::new();
            for n in 0..=2 * most {
                write!(words, "{letter}{n} ").expect("a string takes everything");
            }
            let all = words.split_whitespace().enumerate().map(asked);
            let along: Vec<usize> = arranged(all).iter().map(|placed| placed.along).collect();
            let mut wanted = vec![0; 2 * most + 1];
            wanted[0] = most - 1;
            wanted[most] = most - 1;
            assert_eq!(along, wanted);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_passes_what_touches_its_lock(
            words in prop::collection::vec(("[rRaAs]", 0..40_usize), 0..200),
        ) {
            let one = |(number, (letter, key)): (usize, &(String, usize))| Asked {
                number,
                kind: kind(letter.chars().next().expect("a letter")),
                key: (*key > 0).then(|| key.to_string().into_bytes()),
            };
            let all: Vec<Asked> = words.iter().enumerate().map(one).collect();
            let placed = arranged(all.iter().cloned());
            prop_assert_eq!(placed.len(), all.len());
            for (at, first) in placed.iter().enumerate() {
                for second in &placed[at + 1..] {
                    let (first, second) = (&first.member, &second.member);
                    let touch = first.key.is_none() || second.key.is_none() || first.key == second.key;
                    prop_assert!(!touch || first.number < second.number, "{first:?} {second:?}");
                }
                let run = &placed[at..=at + first.along];
                for one in run {
                    prop_assert_eq!(one.member.kind, first.member.kind);
                    let same = run.iter().filter(|other| other.member.key == one.member.key);
                    prop_assert!(same.count() == 1 || first.along == 0);
                }
            }
        }
    }
}
