//! Chooses which of the queued requests are sent to the master in one call. The requests of one call are a run.
//!
//! - Only requests that are already queued are combined. No request waits for later requests.
//! - Requests for the same lock keep their order.
//! - Requests for different locks can change their order: queued releases are sent before queued acquires.
//! - A run contains at most one request for each lock.

use std::time::Duration;

/// The largest number of releases in one call. A call with this many releases takes the master about as long as ten
/// single releases.
const MOST_RELEASES: usize = 32;

/// The largest number of acquires in one call.
const MOST_ACQUIRES: usize = 32;

/// The smallest number of releases for which one combined call is faster than single calls.
const LEAST_RELEASES: usize = 2;

/// The kind of a request, which decides whether it can be combined: one call contains only requests of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request that is never combined with others.
    Single,
    /// A release; `lines` is true if the lock has a queue.
    Release { lines: bool },
    /// An acquire with this TTL; `lines` is true if the lock has a queue.
    Acquire { lines: bool, ttl: Duration },
}

/// A request that can be part of a run.
pub(super) trait Member {
    fn kind(&self) -> Kind;

    /// The lock key; `None` if the request is not about a single lock.
    fn key(&self) -> Option<&[u8]>;
}

/// A request whose position in the order of sending is final.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed<T> {
    pub(super) member: T,
    /// How many of the following requests are sent in the same call as this one.
    pub(super) along: usize,
}

/// Requests of one kind, for different locks, that can be sent in one call.
struct Run<T> {
    kind: Kind,
    members: Vec<T>,
    /// A Bloom filter of the lock keys in the run: each key sets one bit. A key whose bit is not set is not in the run.
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

    /// Ends the run: appends its requests to `into`. They are sent in one call if the run has at least `least`
    /// requests, and otherwise one by one.
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

/// The bit of a key in the Bloom filter. It depends only on the last six bytes of the key: keys differ mostly at their
/// end.
fn bit(key: &[u8]) -> u64 {
    let end = &key[key.len().saturating_sub(6)..];
    let mix = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add(u32::from(*byte));
    1 << (end.iter().fold(0, mix) % 64)
}

/// Arranges queued requests into one run of releases and one run of acquires.
pub(super) struct Runs<T> {
    releases: Run<T>,
    acquires: Run<T>,
    /// Whether one of the `acquires` was queued after a release of the same lock. If so, `releases` must be sent before
    /// `acquires`; otherwise either run may be sent first.
    behind: bool,
    /// The smallest number of acquires for which one combined call is faster than single calls on this server.
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

    /// Adds the next request, and appends to `into` all requests whose positions have become final.
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

    /// Ends both runs: appends all requests in them to `into`, in the order in which they are to be sent.
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

    /// Parses a word such as `a7`: a letter for the kind, and the key.
    fn asked((number, word): (usize, &str)) -> Asked {
        let (letter, key) = word.split_at(1);
        Asked {
            number,
            kind: kind(
                letter
                    .chars()
                    .next()
                    .expect("the word must begin with a letter"),
            ),
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

    /// The calls that result from these requests, as text. Brackets enclose the requests of one combined call.
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
    fn queued_requests_are_grouped_by_kind_into_combined_calls() {
        for (words, wanted) in [
            ("a1", "a1"),
            ("r1", "r1"),
            ("r1 r2", "[r1 r2]"),
            ("a1 a2", "a1 a2"),
            ("a1 r2 a3 r4 a5", "[r2 r4] [a1 a3 a5]"),
            // A call contains only acquires with the same TTL, and either only locks with a queue or only locks without
            // a queue.
            ("a1 a2 a3 A4 A5", "[a1 a2 a3] A4 A5"),
            ("r1 r2 R3 R4", "[r1 r2] [R3 R4]"),
            // A request that cannot be combined (`s`) does not end a run of requests for other locks.
            ("a1 s9 a2 a3", "s9 [a1 a2 a3]"),
            ("a1 a2 a3 s a4 a5 a6", "[a1 a2 a3] s [a4 a5 a6]"),
        ] {
            assert_eq!(calls(words), wanted, "{words}");
        }
    }

    #[test]
    fn requests_for_the_same_lock_are_sent_in_the_order_of_queueing() {
        for (words, wanted) in [
            ("a1 r1", "a1 r1"),
            ("a1 a2 a3 r1 r4", "[a1 a2 a3] [r1 r4]"),
            ("r1 a1 a2 a3", "r1 [a1 a2 a3]"),
            ("a1 a2 a1 a3", "a1 a2 a1 a3"),
            ("r1 r2 r1", "[r1 r2] r1"),
            ("a1 a2 a3 s2 r4 r5", "[a1 a2 a3] s2 [r4 r5]"),
            // An acquire must not be sent before an earlier release of the same lock.
            ("r1 a1 a2 a1", "r1 a1 a2 a1"),
        ] {
            assert_eq!(calls(words), wanted, "{words}");
        }
    }

    #[test]
    fn combined_calls_are_limited_in_length() {
        for (letter, most) in [('a', MOST_ACQUIRES), ('r', MOST_RELEASES)] {
            let mut words = String::new();
            for n in 0..=2 * most {
                write!(words, "{letter}{n} ").expect("writing to a string cannot fail");
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
        fn arranging_requests_into_calls_loses_none_and_keeps_the_order_of_each_lock(
            words in prop::collection::vec(("[rRaAs]", 0..40_usize), 0..200),
        ) {
            let one = |(number, (letter, key)): (usize, &(String, usize))| Asked {
                number,
                kind: kind(letter.chars().next().expect("the word must begin with a letter")),
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
