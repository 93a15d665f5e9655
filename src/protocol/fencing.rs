//! Agreement on one fencing token, based on the counters that the masters returned.
//!
//! # Why like this
//!
//! Simpler rules for the token were rejected:
//!
//! - **A counter on one server:** it is lost with this server.
//! - **The largest number that a master returned:** the other counters are below this number, so the next holder can
//!   get a smaller token (seeded bug `largest-counter`).
//! - **A majority of counters that have reached the number:** no schedule is known in which this harms a client (seeded
//!   bug `confirm-at-least`). With the exact rule, the check `backing` of the simulation can verify each token.
//!
//! A second round costs a round trip. So the client proposes a number from the clocks ([`ClockOffset`]), and the
//! counters usually agree after the first round. The client once learned this estimate from the old token of a shared
//! lock. After masters had lost their counters, its tokens were too small
//! (`reader_that_joins_a_shared_lock_does_not_lower_later_token_proposals`).
//!
//! Not solved: if a master's clock jumps ahead by more than a day and is corrected within seconds, two clients can get
//! the same token (docs/protocol.md, "How long a counter lives").

use super::quorum::{MasterSet, Quorum};

/// The result of comparing the masters' counters after a won round (docs/protocol.md, "Fencing tokens").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// A majority returned the same number: it is the fencing token.
    Agreed(u64),
    /// No majority returned the same number. The client must write the largest number to all masters, and a majority
    /// must confirm it.
    WriteBack(u64),
}

/// Compares the fencing numbers that the masters granted. `granted` are pairs of a master's index and its number.
///
/// - If a majority granted the same number, this number is the token. While masters are replaced, a majority of the old
///   masters and a majority of the next masters must have granted this number.
/// - Otherwise a majority must first confirm the largest number, so that no two holders get the same token.
pub(crate) fn agree(
    quorum: Quorum,
    granted: impl Iterator<Item = (usize, u64)> + Clone,
) -> Agreement {
    let mut numbers = granted.clone().map(|(_, number)| number);
    let largest = numbers.clone().max().unwrap_or(0);
    let granting = |wanted: u64| {
        let same_number = granted.clone().filter(|(_, number)| *number == wanted);
        same_number.map(|(node, _)| node).collect::<MasterSet>()
    };
    // At most one number can have a majority, so the first match is the only one.
    match numbers.find(|&number| quorum.is_met_by(granting(number))) {
        Some(token) => Agreement::Agreed(token),
        None => Agreement::WriteBack(largest),
    }
}

/// The largest fencing token, and the limit of fencing counters: 2^53. Lua numbers are doubles, which cannot represent
/// every integer above 2^53. So with larger counters, two holders could get the same token.
pub(crate) const LARGEST_TOKEN: u64 = 1 << 53;

/// The standing of a fencing token according to the masters, at the moment of the reading.
///
/// The answer can be outdated when the caller receives it: only a resource that checks tokens can refuse a stale write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenVerdict {
    /// A majority of the masters shows the same holder and no newer token, and the token is that of the holder. If
    /// readers or an owner hold the lock, at least one of them has this token.
    Current,
    /// A majority of the masters has a newer number than the token. So a client has a newer token, or has at least
    /// tried to get one after the lock with this token had ended.
    Superseded,
    /// The lock with this token has ended (released, expired or force-released), and no majority of the masters shows a
    /// newer number.
    Ended,
    /// Less than a majority of the masters answered, or their answers do not decide. For example, the token is not
    /// known to the masters.
    Unknown,
}

/// The lock key and the fencing counter of a lock on one master.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownLock<'a> {
    /// The index of the master.
    pub(crate) node: usize,
    /// The value of the lock key.
    pub(crate) holder: Option<&'a [u8]>,
    /// The fencing counter.
    pub(crate) counter: Option<u64>,
}

/// Decides the standing of `token` from the answers of the masters; see [`TokenVerdict`]. `shown` has no entry for a
/// master that did not answer.
///
/// - The token is current if a majority of the masters shows the same holder, no counter of this majority is above the
///   token, and one of them is the token. This majority has a master in common with the majority that backed the token.
///   The counter of this master is at least the token, so it is the token, and no grant followed on this master. So the
///   holder that it shows is the holder of the token.
/// - The lock has certainly ended on a master whose lock key is missing, or whose counter is above the token. A key
///   with a counter below the token proves nothing: the master may have missed the second round, in which a majority
///   confirmed the token.
pub(crate) fn token_verdict<'a>(
    quorum: Quorum,
    token: u64,
    shown_locks: impl Iterator<Item = ShownLock<'a>> + Clone,
) -> TokenVerdict {
    let masters_where = |is_selected: &dyn Fn(&ShownLock<'a>) -> bool| {
        let selected = shown_locks.clone().filter(|master| is_selected(master));
        selected.map(|master| master.node).collect::<MasterSet>()
    };
    let is_newer = |master: &ShownLock<'_>| master.counter.is_some_and(|counter| counter > token);
    if !quorum.is_met_by(masters_where(&|_| true)) {
        return TokenVerdict::Unknown;
    }
    // The holders whose number is the token on at least one master.
    let with_token = shown_locks
        .clone()
        .filter(|master| master.counter == Some(token));
    let mut holders = with_token.filter_map(|master| master.holder);
    // While masters are replaced, some holders know only the old or only the next masters.
    let is_holder = |holder: &[u8]| {
        let backing = masters_where(&|master| master.holder == Some(holder) && !is_newer(master));
        quorum.is_met_in_one_set(backing)
    };
    if holders.any(is_holder) {
        TokenVerdict::Current
    } else if quorum.is_met_by(masters_where(&is_newer)) {
        TokenVerdict::Superseded
    } else if quorum.is_met_by(masters_where(&|master| {
        master.holder.is_none() || is_newer(master)
    })) {
        TokenVerdict::Ended
    } else {
        TokenVerdict::Unknown
    }
}

/// The estimated difference between the masters' clocks and this client's wall clock. The client learns it from the
/// fencing numbers that masters granted. With this offset, the client proposes fencing tokens that all masters accept
/// unchanged.
///
/// A wrong estimate does no harm: it only causes a second round of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset(i64);

/// The proposal slack: how far a proposed fencing token may be from a master's own clock, in microseconds. If a
/// proposal is further away, the master moves it to this limit.
pub(crate) const PROPOSAL_SLACK_US: u64 = 1_000_000;

/// The minimum lifetime of a fencing counter after the last grant of its lock: one day, in microseconds. A counter that
/// is ahead of the master's clock lives longer.
pub(crate) const COUNTER_TTL_US: u64 = 86_400_000_000;

/// The length of a period of fencing numbers: 1,000 s, in microseconds. A fencing number is read as a time in
/// microseconds, usually the time of its grant.
///
/// To save time on Redis and Valkey, only the first fencing number of a period sets the expiry of the fencing counter.
/// This expiry is [`COUNTER_TTL_US`] plus one period plus [`PROPOSAL_SLACK_US`].
pub(crate) const COUNTER_PERIOD_US: u64 = 1_000_000_000;

/// The margin, in microseconds, that a client adds to its next proposals after a master has raised a proposed fencing
/// token to the smallest token that the master accepts.
const EDGE_US: i64 = 5_000;

/// In microseconds: if a granted fencing number is at most this much above the client's proposal, the client keeps its
/// [`ClockOffset`]. The network delay can cause such a difference.
const NOISE_US: u64 = 2_000;

impl ClockOffset {
    pub(crate) fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub(crate) fn as_micros(self) -> i64 {
        self.0
    }

    pub(crate) fn proposal(self, wall_us: u64) -> u64 {
        wall_us.saturating_add_signed(self.0)
    }

    /// Updates the estimate after a round of requests. `wall_us` is the wall-clock time of the proposal, and `granted`
    /// is the largest fencing number that a master granted.
    pub(crate) fn learn(self, wall_us: u64, granted: u64) -> Self {
        let proposed = self.proposal(wall_us);
        let wall_micros_signed = i64::try_from(wall_us).unwrap_or(i64::MAX);
        let slack = i64::try_from(PROPOSAL_SLACK_US).unwrap_or(0);
        let granted_micros = i64::try_from(granted).unwrap_or(i64::MAX);
        if granted < proposed {
            // The master lowered the proposal to its clock plus `PROPOSAL_SLACK_US`: estimate its clock.
            Self(
                granted_micros
                    .saturating_sub(slack)
                    .saturating_sub(wall_micros_signed),
            )
        } else if granted - proposed > PROPOSAL_SLACK_US / 2 {
            // The master raised the proposal to its minimum. Next time, propose `EDGE_US` above this minimum.
            // The minimum may come from a counter far ahead of all clocks, so add at most 2 s to the offset.
            let next_offset = granted_micros
                .saturating_sub(wall_micros_signed)
                .saturating_add(EDGE_US);
            Self(next_offset.min(self.0.saturating_add(2 * slack)))
        } else if granted - proposed > NOISE_US {
            // A client whose clock is ahead has raised the counter: propose equally large numbers from now on.
            // Smaller differences come from network delay. If they counted, the offsets would grow for ever.
            Self(granted_micros.saturating_sub(wall_micros_signed))
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offset_is_adjusted_to_the_granted_fencing_number() {
        const WALL: u64 = 1_000_000_000;
        for (granted, learned) in [
            (WALL, 0),
            // A granted number at most `NOISE_US` above the proposal does not change the offset.
            (WALL + 2_000, 0),
            (WALL + 2_001, 2_001),
            (WALL + 500_000, 500_000),
            // The master raised the proposal to its lower limit: the offset grows to `EDGE_US` above this limit, but by
            // at most 2 s.
            (WALL + 500_001, 505_001),
            (WALL + 1_995_000, 2_000_000),
            (WALL + 9_000_000, 2_000_000),
            // The master lowered the proposal to its upper limit, which is 1 s ahead of its clock.
            (WALL - 1, -1_000_001),
        ] {
            let offset = ClockOffset::default().learn(WALL, granted);
            assert_eq!(offset.as_micros(), learned, "{granted}");
        }
    }

    #[test]
    fn agreed_fencing_number_was_granted_by_a_majority_of_the_configured_masters() {
        let agreement_of =
            |nodes, granted: &[u64]| agree(Quorum::new(nodes), granted.iter().copied().enumerate());
        assert_eq!(agreement_of(5, &[7, 7, 7]), Agreement::Agreed(7));
        assert_eq!(agreement_of(5, &[7, 7, 9]), Agreement::WriteBack(9));
        assert_eq!(agreement_of(5, &[9, 7, 7, 7]), Agreement::Agreed(7));
        assert_eq!(agreement_of(1, &[3]), Agreement::Agreed(3));
        assert_eq!(agreement_of(4, &[3, 3, 5]), Agreement::WriteBack(5));
    }

    #[test]
    fn agreed_fencing_number_was_granted_by_a_majority_of_each_set_of_masters() {
        let disjoint = Quorum::joint(MasterSet::first(3), (3..6).collect());
        let grown = Quorum::joint(MasterSet::first(3), MasterSet::first(5));
        for (quorum, granted, agreement) in [
            (disjoint, &[7, 7, 5, 7, 7, 5][..], Agreement::Agreed(7)),
            // In the next three rows, the number 7 has a majority of all six masters, but no majority in one of the two
            // sets of masters.
            (disjoint, &[7, 7, 7, 7, 5, 9], Agreement::WriteBack(9)),
            (disjoint, &[7, 5, 9, 7, 7, 7], Agreement::WriteBack(9)),
            (disjoint, &[7, 7, 7, 7, 5, 5], Agreement::WriteBack(7)),
            (grown, &[7, 7, 5, 7, 5], Agreement::Agreed(7)),
            (grown, &[7, 7, 9, 5, 5], Agreement::WriteBack(9)),
            (grown, &[7, 5, 5, 7, 7], Agreement::WriteBack(7)),
        ] {
            let granted = granted.iter().copied().enumerate();
            assert_eq!(agree(quorum, granted.clone()), agreement, "{granted:?}");
        }
    }

    /// The standing of token 9. Each pair is the holder and the counter that a master shows; `None` is a master that
    /// did not answer, and 0 a missing counter.
    fn verdict_of_token_9(
        quorum: Quorum,
        masters: &[Option<(Option<&'static str>, u64)>],
    ) -> TokenVerdict {
        let numbered = masters.iter().enumerate();
        let shown = numbered.filter_map(|(node, master)| {
            let (holder, counter) = (*master)?;
            let holder = holder.map(str::as_bytes);
            let counter = Some(counter).filter(|counter| *counter > 0);
            Some(ShownLock {
                node,
                holder,
                counter,
            })
        });
        token_verdict(quorum, 9, shown)
    }

    #[test]
    fn standing_of_a_token_follows_from_what_a_majority_of_the_masters_shows() {
        let held = |holder, counter| Some((Some(holder), counter));
        let free = |counter| Some((None, counter));
        let silent = None;
        for (masters, verdict) in [
            (
                [held("a", 9), held("a", 9), held("a", 9)],
                TokenVerdict::Current,
            ),
            ([held("a", 9), held("a", 9), silent], TokenVerdict::Current),
            // A minority missed the second round, in which the masters confirmed the token.
            ([held("a", 9), silent, held("a", 5)], TokenVerdict::Current),
            // A master has lost its counter, and a renewal has restored the key.
            ([held("a", 9), silent, held("a", 0)], TokenVerdict::Current),
            // A minority granted the lock to another client.
            (
                [held("a", 9), held("a", 9), held("b", 10)],
                TokenVerdict::Current,
            ),
            ([held("a", 9), silent, held("b", 10)], TokenVerdict::Unknown),
            ([held("a", 9), silent, silent], TokenVerdict::Unknown),
            // The number is the token on a minority, and another client holds the lock.
            (
                [held("b", 10), held("b", 10), held("a", 9)],
                TokenVerdict::Superseded,
            ),
            (
                [held("b", 10), held("b", 10), silent],
                TokenVerdict::Superseded,
            ),
            ([free(10), free(10), free(9)], TokenVerdict::Superseded),
            // The holder of the token holds the lock again, with a newer number.
            (
                [held("a", 10), held("a", 10), held("a", 9)],
                TokenVerdict::Superseded,
            ),
            // The master with the newer number of the second holder is silent.
            ([held("b", 10), free(9), silent], TokenVerdict::Ended),
            ([held("b", 10), held("a", 9), silent], TokenVerdict::Unknown),
            ([free(9), free(9), free(9)], TokenVerdict::Ended),
            ([free(9), free(9), held("a", 9)], TokenVerdict::Ended),
            ([free(9), held("a", 9), silent], TokenVerdict::Unknown),
            ([free(9), silent, silent], TokenVerdict::Unknown),
            // No master knows the token: it was not given for this lock, or the masters have lost their counters.
            ([free(0), free(0), free(0)], TokenVerdict::Ended),
            (
                [held("a", 5), held("a", 5), held("a", 5)],
                TokenVerdict::Unknown,
            ),
            (
                [held("a", 0), held("a", 0), held("a", 0)],
                TokenVerdict::Unknown,
            ),
            // A failed attempt got the number of the token on a minority.
            (
                [held("a", 5), held("a", 5), held("b", 9)],
                TokenVerdict::Unknown,
            ),
        ] {
            let quorum = Quorum::new(3);
            assert_eq!(verdict_of_token_9(quorum, &masters), verdict, "{masters:?}");
        }
    }

    #[test]
    fn token_of_a_holder_that_knows_only_the_old_masters_is_current_until_both_sets_have_newer_numbers()
     {
        let joint = Quorum::joint(MasterSet::first(3), (3..6).collect());
        let held = |holder, counter| Some((Some(holder), counter));
        let free = |counter| Some((None, counter));
        let (old, next) = ([held("a", 9), held("a", 9), free(0)], [free(10); 3]);
        let both_sets = [old, next].concat();
        assert_eq!(verdict_of_token_9(joint, &both_sets), TokenVerdict::Current);
        let ended = [[free(9); 3], [free(10); 3]].concat();
        assert_eq!(verdict_of_token_9(joint, &ended), TokenVerdict::Ended);
        let newer = [[free(10); 3], [free(10); 3]].concat();
        assert_eq!(verdict_of_token_9(joint, &newer), TokenVerdict::Superseded);
        for old_master in [free(10), held("a", 9)] {
            let silent = [[old_master; 3], [None; 3]].concat();
            assert_eq!(verdict_of_token_9(joint, &silent), TokenVerdict::Unknown);
        }
    }

    #[test]
    fn client_with_a_wrong_clock_adapts_its_proposals_to_the_clock_of_the_masters() {
        for offset_micros in [-40_000_000i64, 40_000_000] {
            let master = 1_700_000_000_000_000u64;
            let wall = master.saturating_add_signed(offset_micros);
            let mut offset = ClockOffset::default();
            for _ in 0..30 {
                let proposal = offset.proposal(wall);
                let granted =
                    proposal.clamp(master - PROPOSAL_SLACK_US, master + PROPOSAL_SLACK_US);
                offset = offset.learn(wall, granted);
            }
            let proposal = offset.proposal(wall);
            assert!(
                proposal.abs_diff(master) <= PROPOSAL_SLACK_US,
                "a client whose clock is off by {offset_micros} us must propose a number near {master} us, not {proposal} us"
            );
        }
    }
}
