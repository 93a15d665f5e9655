//! Chooses which of the queued requests are sent to the master in one call. The requests of one call are a run.
//!
//! - Only requests that are already queued are combined. No request waits for later requests.
//! - Requests for the same lock keep their order.
//! - Requests for different locks can change their order: queued releases are sent before queued acquires.
//! - A run contains at most one request for each lock.

use std::time::Duration;

/// The largest number of releases in one call. A call with this many releases takes the master about as long as ten
/// single releases.
const MAX_RELEASES: usize = 32;

/// The largest number of acquires in one call.
const MAX_ACQUIRES: usize = 32;

/// The smallest number of releases for which one combined call is faster than single calls.
const MIN_RELEASES: usize = 2;

/// The kind of a request, which decides whether it can be combined: one call contains only requests of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunKind {
    /// A request that is never combined with others.
    Single,
    /// A release; `has_queue` is true if the lock has a queue.
    Release { has_queue: bool },
    /// An acquire with this TTL; `has_queue` is true if the lock has a queue.
    Acquire { has_queue: bool, ttl: Duration },
}

/// A request that can be part of a run.
pub(super) trait Member {
    fn kind(&self) -> RunKind;

    /// The lock key; `None` if the request is not about a single lock.
    fn key(&self) -> Option<&[u8]>;
}

/// A request whose position in the order of sending is final.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlacedRequest<T> {
    pub(super) member: T,
    /// How many of the following requests are sent in the same call as this one.
    pub(super) followers: usize,
}

/// Requests of one kind, for different locks, that can be sent in one call.
struct RequestRun<T> {
    kind: RunKind,
    members: Vec<T>,
    /// A Bloom filter of the lock keys in the run: each key sets one bit. A key whose bit is not set is not in the run.
    key_bits: u64,
}

impl<T: Member> RequestRun<T> {
    fn new() -> Self {
        Self {
            kind: RunKind::Single,
            members: Vec::new(),
            key_bits: 0,
        }
    }

    fn has_key(&self, key: &[u8]) -> bool {
        self.key_bits & key_bit(key) != 0
            && self.members.iter().any(|member| member.key() == Some(key))
    }

    fn push(&mut self, kind: RunKind, key_bit: u64, member: T) {
        self.kind = kind;
        self.key_bits |= key_bit;
        self.members.push(member);
    }

    /// Ends the run: appends its requests to `into`. They are sent in one call if the run has at least `min_count`
    /// requests, and otherwise one by one.
    fn close(&mut self, min_count: usize, into: &mut Vec<PlacedRequest<T>>) {
        self.key_bits = 0;
        let count = self.members.len();
        let is_combined = count >= min_count;
        let members = self.members.drain(..).enumerate();
        into.extend(members.map(|(index, member)| {
            let followers = if is_combined && index == 0 {
                count - 1
            } else {
                0
            };
            PlacedRequest { member, followers }
        }));
    }
}

/// The bit of a key in the Bloom filter. It depends only on the last six bytes of the key: keys differ mostly at their
/// end.
fn key_bit(key: &[u8]) -> u64 {
    let end = &key[key.len().saturating_sub(6)..];
    let mix = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add(u32::from(*byte));
    1 << (end.iter().fold(0, mix) % 64)
}

/// Arranges queued requests into one run of releases and one run of acquires.
pub(super) struct RequestRuns<T> {
    releases: RequestRun<T>,
    acquires: RequestRun<T>,
    /// Whether one of the `acquires` was queued after a release of the same lock. If so, `releases` must be sent before
    /// `acquires`; otherwise either run may be sent first.
    acquires_follow_releases: bool,
    /// The smallest number of acquires for which one combined call is faster than single calls on this server.
    min_acquires: usize,
}

impl<T: Member> RequestRuns<T> {
    pub(super) fn new(min_acquires: usize) -> Self {
        Self {
            releases: RequestRun::new(),
            acquires: RequestRun::new(),
            acquires_follow_releases: false,
            min_acquires,
        }
    }

    /// Adds the next request, and appends to `into` all requests whose positions have become final.
    pub(super) fn add(&mut self, member: T, into: &mut Vec<PlacedRequest<T>>) {
        let Some(key) = member.key() else {
            self.close(into);
            into.push(PlacedRequest {
                member,
                followers: 0,
            });
            return;
        };
        let (kind, key_bit) = (member.kind(), key_bit(key));
        let (released, acquired) = (self.releases.has_key(key), self.acquires.has_key(key));
        match kind {
            RunKind::Single => {
                if released || acquired {
                    self.close(into);
                }
                into.push(PlacedRequest {
                    member,
                    followers: 0,
                });
            }
            RunKind::Release { .. } => {
                if acquired {
                    self.close(into);
                } else if released || self.releases.kind != kind {
                    self.close_releases(into);
                }
                self.releases.push(kind, key_bit, member);
                if self.releases.members.len() == MAX_RELEASES {
                    self.close_releases(into);
                }
            }
            RunKind::Acquire { .. } => {
                if acquired || self.acquires.kind != kind {
                    self.close_acquires(into);
                }
                self.acquires_follow_releases |= released && !self.releases.members.is_empty();
                self.acquires.push(kind, key_bit, member);
                if self.acquires.members.len() == MAX_ACQUIRES {
                    self.close_acquires(into);
                }
            }
        }
    }

    /// Ends both runs: appends all requests in them to `into`, in the order in which they are to be sent.
    pub(super) fn close(&mut self, into: &mut Vec<PlacedRequest<T>>) {
        self.close_releases(into);
        self.close_acquires(into);
    }

    fn close_releases(&mut self, into: &mut Vec<PlacedRequest<T>>) {
        self.acquires_follow_releases = false;
        self.releases.close(MIN_RELEASES, into);
    }

    fn close_acquires(&mut self, into: &mut Vec<PlacedRequest<T>>) {
        if self.acquires_follow_releases {
            self.close_releases(into);
        }
        self.acquires.close(self.min_acquires, into);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct TestRequest {
        number: usize,
        kind: RunKind,
        key: Option<Vec<u8>>,
    }

    impl Member for TestRequest {
        fn kind(&self) -> RunKind {
            self.kind
        }

        fn key(&self) -> Option<&[u8]> {
            self.key.as_deref()
        }
    }

    fn kind(letter: char) -> RunKind {
        let ttl = Duration::from_secs(1);
        match letter {
            'r' => RunKind::Release { has_queue: true },
            'R' => RunKind::Release { has_queue: false },
            'a' => RunKind::Acquire {
                has_queue: true,
                ttl,
            },
            'A' => RunKind::Acquire {
                has_queue: true,
                ttl: 2 * ttl,
            },
            _ => RunKind::Single,
        }
    }

    /// Parses a word such as `a7`: a letter for the kind, and the key.
    fn test_request((number, word): (usize, &str)) -> TestRequest {
        let (letter, key) = word.split_at(1);
        TestRequest {
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

    fn arranged(requests: impl Iterator<Item = TestRequest>) -> Vec<PlacedRequest<TestRequest>> {
        let (mut runs, mut placed) = (RequestRuns::new(3), Vec::new());
        for request in requests {
            runs.add(request, &mut placed);
        }
        runs.close(&mut placed);
        placed
    }

    /// The calls that result from these requests, as text. Brackets enclose the requests of one combined call.
    fn calls(words: &str) -> String {
        let mut text = String::new();
        let mut remaining = 0;
        let words: Vec<&str> = words.split(' ').collect();
        for placed in arranged(words.iter().copied().enumerate().map(test_request)) {
            if placed.followers > 0 {
                text.push('[');
                remaining = placed.followers + 1;
            }
            text.push_str(words[placed.member.number]);
            if remaining == 1 {
                text.push(']');
            }
            remaining = remaining.saturating_sub(1);
            text.push(' ');
        }
        text.trim_end().to_owned()
    }

    #[test]
    fn queued_requests_are_grouped_by_kind_into_combined_calls() {
        for (words, expected) in [
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
            assert_eq!(calls(words), expected, "{words}");
        }
    }

    #[test]
    fn requests_for_the_same_lock_are_sent_in_the_order_of_queueing() {
        for (words, expected) in [
            ("a1 r1", "a1 r1"),
            ("a1 a2 a3 r1 r4", "[a1 a2 a3] [r1 r4]"),
            ("r1 a1 a2 a3", "r1 [a1 a2 a3]"),
            ("a1 a2 a1 a3", "a1 a2 a1 a3"),
            ("r1 r2 r1", "[r1 r2] r1"),
            ("a1 a2 a3 s2 r4 r5", "[a1 a2 a3] s2 [r4 r5]"),
            // An acquire must not be sent before an earlier release of the same lock.
            ("r1 a1 a2 a1", "r1 a1 a2 a1"),
            // The acquires of the later run follow no release, so the later releases can still be combined.
            ("r1 a1 a1 r2 a1 r3", "r1 a1 a1 [r2 r3] a1"),
            ("r2 a1 a1 r3", "a1 [r2 r3] a1"),
        ] {
            assert_eq!(calls(words), expected, "{words}");
        }
    }

    #[test]
    fn combined_calls_are_limited_in_length() {
        for (letter, max_members) in [('a', MAX_ACQUIRES), ('r', MAX_RELEASES)] {
            let mut words = String::new();
            for n in 0..=2 * max_members {
                write!(words, "{letter}{n} ").expect("writing to a string cannot fail");
            }
            let requests = words.split_whitespace().enumerate().map(test_request);
            let followers: Vec<usize> = arranged(requests)
                .iter()
                .map(|placed| placed.followers)
                .collect();
            let mut expected = vec![0; 2 * max_members + 1];
            expected[0] = max_members - 1;
            expected[max_members] = max_members - 1;
            assert_eq!(followers, expected);
        }
    }

    proptest! {
        #[test]
        fn arranging_requests_into_calls_loses_none_and_keeps_the_order_of_each_lock(
            words in prop::collection::vec(("[rRaAs]", 0..40_usize), 0..200),
        ) {
            let to_request = |(number, (letter, key)): (usize, &(String, usize))| TestRequest {
                number,
                kind: kind(letter.chars().next().expect("the word must begin with a letter")),
                key: (*key > 0).then(|| key.to_string().into_bytes()),
            };
            let requests: Vec<TestRequest> = words.iter().enumerate().map(to_request).collect();
            let placed = arranged(requests.iter().cloned());
            prop_assert_eq!(placed.len(), requests.len());
            for (index, first) in placed.iter().enumerate() {
                for second in &placed[index + 1..] {
                    let (first, second) = (&first.member, &second.member);
                    let may_conflict = first.key.is_none() || second.key.is_none() || first.key == second.key;
                    prop_assert!(!may_conflict || first.number < second.number, "{first:?} {second:?}");
                }
                let run = &placed[index..=index + first.followers];
                for other_member in run {
                    prop_assert_eq!(other_member.member.kind, first.member.kind);
                    let same_key = run.iter().filter(|other| other.member.key == other_member.member.key);
                    prop_assert!(same_key.count() == 1 || first.followers == 0);
                }
            }
        }
    }
}
