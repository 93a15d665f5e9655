//! One search for a linearization, with a limit. The search itself is that of `todc-utils`.
//!
//! The checker has no limit of its own. It calls the specification for every step that it tries, so the specification
//! counts the steps, and ends the search by a panic that only [`judge`] catches.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::time::Instant;

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// The largest amount of memory that one search may use for the states that it has visited, in bytes.
const MEMORY: usize = 1 << 30;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The checker found an order of the operations that the specification allows.
    Accepted,
    /// The search reached its limit.
    Unknown,
    /// There is no such order.
    Refused,
}

/// An operation for the checker: call, return (`None` if it is open), and what it does.
#[derive(Clone, Debug)]
pub struct Timed<T>(pub u64, pub Option<u64>, pub T);

thread_local! {
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Limit {
    deadline: Instant,
    calls: u32,
    states: usize,
}

/// The value of the panic that ends a search.
struct LimitReached;

/// The specification `S`, which also counts steps.
struct Limited<S>(PhantomData<S>);

impl<S: Specification> Specification for Limited<S> {
    type State = S::State;
    type Operation = S::Operation;

    fn init() -> S::State {
        S::init()
    }

    fn apply(operation: &S::Operation, state: &S::State) -> (bool, S::State) {
        let (is_valid, new_state) = S::apply(operation, state);
        if let Some(mut limit) = LIMIT.get() {
            limit.calls = limit.calls.wrapping_add(1);
            limit.states = limit.states.saturating_sub(usize::from(is_valid));
            let is_late = limit.calls.is_multiple_of(64) && Instant::now() > limit.deadline;
            if is_late || limit.states == 0 {
                panic_any(LimitReached);
            }
            LIMIT.set(Some(limit));
        }
        (is_valid, new_state)
    }
}

/// Whether the operations have an order that the specification allows, and in which an operation comes before another
/// one if it returned before the other one was called.
///
/// An open operation must be one that the specification accepts in every state: the checker may then put it last.
pub fn judge<S: Specification>(operations: &[Timed<S::Operation>], deadline: Instant) -> Verdict {
    if operations.is_empty() {
        return Verdict::Accepted;
    }
    // At equal times, calls come before returns: such operations overlap.
    let mut actions: Vec<(u64, bool, usize)> = Vec::new();
    for (index, Timed(call, returned, _)) in operations.iter().enumerate() {
        actions.push((*call, false, index));
        actions.push((returned.unwrap_or(u64::MAX), true, index));
    }
    actions.sort_unstable();
    let actions = actions.into_iter().map(|(_, is_return, index)| {
        let operation = operations[index].2.clone();
        // Each operation is a process of its own for the checker, so a process never has two operations at a time.
        (
            index,
            if is_return {
                Action::Response(operation)
            } else {
                Action::Call(operation)
            },
        )
    });
    let history = History::from_actions(actions.collect());
    // The checker stores, for each state, a byte for each call and each return.
    LIMIT.set(Some(Limit {
        deadline,
        calls: 0,
        states: MEMORY / (2 * operations.len()),
    }));
    let search = AssertUnwindSafe(|| WGLChecker::<Limited<S>>::is_linearizable(history));
    let result = catch_unwind(search);
    LIMIT.set(None);
    match result {
        Ok(true) => Verdict::Accepted,
        Ok(false) => Verdict::Refused,
        Err(payload) if payload.is::<LimitReached>() => Verdict::Unknown,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Prints no message for the panic that ends a search.
pub fn silence_limits() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<LimitReached>() {
            print(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::specifications::{Mode, QuotaOp, QuotaSpec, TokenSpec};

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// A quota of ten units, some requests without an answer, and then an answer with this number of units left.
    fn requests(unanswered: u64, left: u64) -> Vec<Timed<QuotaOp>> {
        let mut operations = vec![Timed(0, Some(1), QuotaOp::Create { left: 10 })];
        let unknown = (0..unanswered).map(|number| QuotaOp::Unknown { number });
        operations.extend(unknown.map(|operation| Timed(2, None, operation)));
        operations.push(Timed(30, Some(31), QuotaOp::Taken { left }));
        operations
    }

    #[test]
    fn open_operation_may_have_happened_or_not() {
        for (unanswered, left, verdict) in [
            (20, 9, Verdict::Accepted),
            (20, 0, Verdict::Accepted),
            (3, 6, Verdict::Accepted),
            (3, 5, Verdict::Refused),
            (20, 10, Verdict::Refused),
        ] {
            let operations = requests(unanswered, left);
            assert_eq!(
                judge::<QuotaSpec>(&operations, later()),
                verdict,
                "{unanswered} requests without an answer, {left} units left"
            );
        }
    }

    #[test]
    fn search_that_reaches_its_limit_is_unknown_and_neither_accepted_nor_refused() {
        silence_limits();
        let acquisition =
            |call, returned, token| Timed(call, Some(returned), (Mode::Exclusive, token));
        // The last token is too small. To refuse this, the search has to try every subset of the others.
        let history = |overlapping: u64| {
            let mut tokens: Vec<_> = (1..=overlapping)
                .map(|token| acquisition(token, 100, token))
                .collect();
            tokens.push(acquisition(101, 102, 1));
            tokens
        };
        assert_eq!(judge::<TokenSpec>(&history(4), later()), Verdict::Refused);
        let soon = Instant::now() + Duration::from_millis(100);
        assert_eq!(judge::<TokenSpec>(&history(64), soon), Verdict::Unknown);
    }
}
