//! The operations that each kind of object may do, one at a time, as docs/promises.md promises them.

use std::collections::{BTreeMap, BTreeSet};

use todc_utils::specifications::Specification;

/// Which holds of a lock may exist at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// No other hold.
    Exclusive,
    /// Other readers.
    Reader,
    /// Other holds of this owner.
    Owner(String),
}

/// The state of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    /// The current holds, by number. All of them have the mode of the last acquisition.
    pub holds: BTreeSet<usize>,
    /// The mode and the token of the last acquisition.
    pub last: Option<(Mode, Option<u64>)>,
}

/// An operation on a lock.
#[derive(Clone, Debug)]
pub enum LockOp {
    /// Sets the state. It is always the first operation.
    Start(Lock),
    Acquire {
        hold: usize,
        mode: Mode,
        token: Option<u64>,
    },
    End {
        hold: usize,
    },
}

/// A lock: an acquisition needs a free lock, or holds that it may share. If `TOKENS`, its token is also larger than that
/// of the last acquisition. Readers, and holds of an owner, may have the same token as the last acquisition, if this one
/// had the same mode. A further hold of an owner always has the token of the first hold.
pub struct LockSpec<const TOKENS: bool>;

impl<const TOKENS: bool> Specification for LockSpec<TOKENS> {
    type State = Lock;
    type Operation = LockOp;

    fn init() -> Lock {
        Lock::default()
    }

    fn apply(operation: &LockOp, lock: &Lock) -> (bool, Lock) {
        let mut next = lock.clone();
        match operation {
            LockOp::Start(start) => (true, start.clone()),
            LockOp::End { hold } => (next.holds.remove(hold), next),
            LockOp::Acquire { hold, mode, token } => {
                let is_free = lock.holds.is_empty();
                let is_shared = *mode != Mode::Exclusive
                    && lock.last.as_ref().is_some_and(|(last, _)| last == mode);
                let is_nested = is_shared && !is_free && matches!(mode, Mode::Owner(_));
                let last_token = lock.last.as_ref().and_then(|(_, token)| *token);
                let is_token_right = if is_nested {
                    *token == last_token
                } else {
                    !TOKENS || is_larger(*token, last_token, is_shared)
                };
                next.holds.insert(*hold);
                next.last = Some((mode.clone(), token.or(last_token)));
                ((is_free || is_shared) && is_token_right, next)
            }
        }
    }
}

/// Whether a token may follow another one. A lock implementation without tokens has nothing to compare.
fn is_larger(token: Option<u64>, last: Option<u64>, may_be_equal: bool) -> bool {
    let (Some(token), Some(last)) = (token, last) else {
        return true;
    };
    token > last || (may_be_equal && token == last)
}

/// The fencing counter of a lock alone, without the lock: each acquisition gets a larger token. Readers, and holds of an
/// owner, may share a token.
pub struct TokenSpec;

impl Specification for TokenSpec {
    type State = Option<(Mode, u64)>;
    type Operation = (Mode, u64);

    fn init() -> Self::State {
        None
    }

    fn apply((mode, token): &(Mode, u64), last: &Self::State) -> (bool, Self::State) {
        let is_right = last.as_ref().is_none_or(|(last_mode, last_token)| {
            let may_be_equal = *mode != Mode::Exclusive && mode == last_mode;
            is_larger(Some(*token), Some(*last_token), may_be_equal)
        });
        (is_right, Some((mode.clone(), *token)))
    }
}

/// An operation on a semaphore.
#[derive(Clone, Debug)]
pub enum SemaphoreOp {
    Acquire { hold: usize, permits: usize },
    End { hold: usize },
}

/// A semaphore as a counter: never more holds than permits.
pub struct SemaphoreSpec;

impl Specification for SemaphoreSpec {
    type State = BTreeSet<usize>;
    type Operation = SemaphoreOp;

    fn init() -> Self::State {
        BTreeSet::new()
    }

    fn apply(operation: &SemaphoreOp, holds: &Self::State) -> (bool, Self::State) {
        let mut next = holds.clone();
        match operation {
            SemaphoreOp::Acquire { hold, permits } => {
                next.insert(*hold);
                (holds.len() < *permits, next)
            }
            SemaphoreOp::End { hold } => (next.remove(hold), next),
        }
    }
}

/// An operation on a file that clients change under a lock.
#[derive(Clone, Debug)]
pub enum ValueOp {
    /// Compare-and-set: the content is `from`, and becomes `to` (`None`: not recorded).
    Write { from: String, to: Option<String> },
    /// The content becomes `to`, whatever it was.
    Set { to: Option<String> },
    /// The content may have changed to anything.
    Unknown,
}

/// A file as a register with compare-and-set. The state is the content; `None` if it is not known.
pub struct ValueSpec;

impl Specification for ValueSpec {
    type State = Option<String>;
    type Operation = ValueOp;

    fn init() -> Self::State {
        None
    }

    fn apply(operation: &ValueOp, content: &Self::State) -> (bool, Self::State) {
        match operation {
            ValueOp::Write { from, to } => {
                let is_right = content.as_ref().is_none_or(|content| content == from);
                (is_right, to.clone())
            }
            ValueOp::Set { to } => (true, to.clone()),
            ValueOp::Unknown => (true, None),
        }
    }
}

/// A write to a register that checks fencing tokens.
#[derive(Clone, Debug)]
pub struct RegisterOp {
    pub by: String,
    pub token: u64,
    pub is_accepted: bool,
}

/// A register that checks fencing tokens: it accepts a token that is larger than every earlier one, or the same token
/// from the same attempt.
pub struct RegisterSpec;

impl Specification for RegisterSpec {
    type State = Option<(u64, String)>;
    type Operation = RegisterOp;

    fn init() -> Self::State {
        None
    }

    fn apply(operation: &RegisterOp, last: &Self::State) -> (bool, Self::State) {
        let RegisterOp {
            by,
            token,
            is_accepted,
        } = operation;
        if !is_accepted {
            let is_stale = last.as_ref().is_some_and(|(highest, _)| token < highest);
            return (is_stale, last.clone());
        }
        let is_right = last
            .as_ref()
            .is_none_or(|(highest, writer)| token > highest || (token == highest && by == writer));
        (is_right, Some((*token, by.clone())))
    }
}

/// An operation on a quota. `left` is the number of units in the answer.
#[derive(Clone, Debug)]
pub enum QuotaOp {
    Create {
        left: u64,
    },
    Taken {
        left: u64,
    },
    SoldOut {
        left: u64,
    },
    /// A request without an answer: it may have taken a unit. `number` counts these requests from 0, in the order of
    /// their calls.
    Unknown {
        number: u64,
    },
}

/// A quota as a counter that only falls.
///
/// Requests without an answer take effect in the order of their calls. This changes no verdict, because they are open
/// until the end: of two such requests, the one that was called earlier can replace the other one. But the search has
/// to try fewer orders.
pub struct QuotaSpec;

impl Specification for QuotaSpec {
    /// The number of units left, and the number of requests without an answer so far.
    type State = (u64, u64);
    type Operation = QuotaOp;

    fn init() -> Self::State {
        (0, 0)
    }

    fn apply(operation: &QuotaOp, (left, unknown): &Self::State) -> (bool, Self::State) {
        let fewer = left.saturating_sub(1);
        match operation {
            QuotaOp::Create { left } => (true, (*left, *unknown)),
            QuotaOp::Taken { left: answer } => (*left > 0 && *answer == fewer, (fewer, *unknown)),
            QuotaOp::SoldOut { left: answer } => (*left == 0 && *answer == 0, (*left, *unknown)),
            QuotaOp::Unknown { number } => (number == unknown, (fewer, unknown + 1)),
        }
    }
}

/// An operation on the bank.
#[derive(Clone, Debug)]
pub enum BankOp {
    /// Every account has this balance.
    Create { balance: i64 },
    /// The named accounts get new balances.
    Book(BTreeMap<String, i64>),
}

/// The accounts of a bank. A booking moves money between accounts, so it does not change their sum.
pub struct BankSpec;

impl Specification for BankSpec {
    /// The balance of an account without bookings, and the other balances.
    type State = (i64, BTreeMap<String, i64>);
    type Operation = BankOp;

    fn init() -> Self::State {
        (0, BTreeMap::new())
    }

    fn apply(operation: &BankOp, (opening, accounts): &Self::State) -> (bool, Self::State) {
        match operation {
            BankOp::Create { balance } => (true, (*balance, BTreeMap::new())),
            BankOp::Book(balances) => {
                let names = balances.keys();
                let sum_before: i64 = names
                    .map(|name| accounts.get(name).unwrap_or(opening))
                    .sum();
                let sum_after: i64 = balances.values().sum();
                let mut accounts = accounts.clone();
                accounts.extend(balances.clone());
                (sum_before == sum_after, (*opening, accounts))
            }
        }
    }
}
