//! The order of the fencing tokens of a resource:
//!
//! - Two holds get the same token only if they may share the lock (e.g. readers).
//! - If an attempt begins after another hold was obtained, its token is larger than the token of that hold, or equal if
//!   the two holds may share the lock.
//!
//! Attempts that overlap in time may get their tokens in any order.

use std::collections::HashMap;
use std::hash::Hash;

/// A lock that was obtained with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Obtained<I> {
    /// The id of the client or of this hold. The caller decides which of the two it uses.
    pub(crate) who: I,
    /// When the client's attempt began.
    pub(crate) began: u64,
    /// When the lock was obtained.
    pub(crate) at: u64,
    /// The fencing token of the lock.
    pub(crate) token: u64,
}

/// A breach of the rules for fencing tokens. Each variant contains the earlier hold that conflicts with the new hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongToken<I> {
    /// The earlier hold has the same token as the new hold.
    Twice(Obtained<I>),
    /// The new hold has a smaller token, although its attempt began after the earlier hold was obtained.
    Smaller(Obtained<I>),
}

/// The fencing tokens of each resource.
#[derive(Debug)]
pub(crate) struct TokenOrder<R, I> {
    given_tokens: HashMap<R, GivenTokens<I>>,
}

#[derive(Debug)]
struct GivenTokens<I> {
    by_token: HashMap<u64, Obtained<I>>,
    /// The holds whose token was larger than the tokens of all holds obtained before them, in the order of
    /// [`Obtained::at`].
    records: Vec<Obtained<I>>,
}

impl<R, I> Default for TokenOrder<R, I> {
    fn default() -> Self {
        Self {
            given_tokens: HashMap::new(),
        }
    }
}

impl<R: Eq + Hash, I: Copy> TokenOrder<R, I> {
    /// Records that a client obtained a lock. Returns a breach of the rules, if there is one. Call this method in the
    /// order of `new.at`.
    ///
    /// `is_compatible` returns true for an earlier hold that may share this lock with the new hold. These two holds may have
    /// the same token.
    pub(crate) fn obtained(
        &mut self,
        resource: R,
        new: Obtained<I>,
        is_compatible: impl Fn(&I) -> bool,
    ) -> Option<WrongToken<I>> {
        let given_tokens = self
            .given_tokens
            .entry(resource)
            .or_insert_with(|| GivenTokens {
                by_token: HashMap::new(),
                records: Vec::new(),
            });
        let previous_holder = given_tokens.by_token.insert(new.token, new);
        if let Some(other) = previous_holder.filter(|other| !is_compatible(&other.who)) {
            return Some(WrongToken::Twice(other));
        }
        let earlier_count = given_tokens
            .records
            .partition_point(|record| record.at < new.began);
        let largest = earlier_count
            .checked_sub(1)
            .map(|last| given_tokens.records[last]);
        let last_record = given_tokens.records.last();
        if last_record.is_none_or(|last| last.token < new.token) {
            given_tokens.records.push(new);
        }
        largest
            .filter(|largest| largest.token > new.token)
            .map(WrongToken::Smaller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checker_reports_repeated_tokens_and_smaller_tokens_of_later_attempts() {
        let mut tokens = TokenOrder::default();
        let mut obtain = |resource, (began, at), token| {
            let who = at;
            let new = Obtained {
                who,
                began,
                at,
                token,
            };
            tokens.obtained(resource, new, |_| false)
        };
        assert_eq!(obtain("a", (0, 10), 7), None);
        assert_eq!(
            obtain("b", (0, 10), 7),
            None,
            "the same token on another resource must be allowed"
        );
        assert_eq!(
            obtain("a", (9, 12), 5),
            None,
            "if an attempt began before another client obtained the lock, a smaller token must be accepted"
        );
        assert_eq!(
            obtain("a", (10, 13), 6),
            None,
            "if an attempt began exactly when another client obtained the lock, a smaller token must be accepted"
        );
        let smaller = obtain("a", (13, 14), 4);
        assert!(matches!(
            smaller,
            Some(WrongToken::Smaller(Obtained { who: 10, .. }))
        ));
        let twice = obtain("a", (15, 16), 7);
        assert!(matches!(
            twice,
            Some(WrongToken::Twice(Obtained { who: 10, .. }))
        ));
        assert_eq!(obtain("a", (15, 17), 8), None);
    }
    #[test]
    fn shared_holds_may_have_equal_tokens_but_not_smaller_ones() {
        let mut tokens = TokenOrder::default();
        // Two clients with even numbers may share the lock, and so may two clients with odd numbers.
        let mut obtain = |who: u64, (began, at), token| {
            let new = Obtained {
                who,
                began,
                at,
                token,
            };
            tokens.obtained("a", new, |other| other % 2 == who % 2)
        };
        assert_eq!(obtain(2, (0, 10), 7), None);
        assert_eq!(
            obtain(4, (11, 12), 7),
            None,
            "equal tokens of holds that share a lock must be accepted"
        );
        let twice = obtain(5, (11, 13), 7);
        assert!(matches!(
            twice,
            Some(WrongToken::Twice(Obtained { who: 4, .. }))
        ));
        let smaller = obtain(6, (14, 15), 6);
        assert!(matches!(
            smaller,
            Some(WrongToken::Smaller(Obtained { who: 2, .. }))
        ));
    }
}
