//! Divides the operations of a run by object, and judges each object. Linearizability is local: a history is
//! linearizable if and only if the part of each object is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use todc_utils::specifications::Specification;

use crate::operation::Operation;
use crate::promise::Promise;
use crate::search::{Timed, Verdict, judge};
use crate::specifications::{
    BankOp, BankSpec, Lock, LockOp, LockSpec, Mode, QuotaOp, QuotaSpec, RegisterOp, RegisterSpec,
    SemaphoreOp, SemaphoreSpec, TokenSpec, ValueOp, ValueSpec,
};

/// A lock is cut at an exclusive hold after this number of holds. Longer parts take more memory, not more time.
const HOLDS_PER_PART: usize = 200;

/// The verdict about one object.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The kind and the name of the object, e.g. `lock file`.
    pub object: String,
    /// The number of operations that the checker has put into an order.
    pub operations: usize,
    /// The number of acquisitions that failed, or whose outcome is unknown. They change no state (see docs/histories.md).
    pub left_out: usize,
    /// The verdict for each promise that the object shows.
    pub verdicts: Vec<(Promise, Verdict)>,
    /// An explanation of a verdict.
    pub note: Option<&'static str>,
}

/// Judges all objects of a run. Each search ends after `limit`.
pub fn judge_all(operations: &[Operation], limit: Duration) -> Vec<Judged> {
    let mut objects: BTreeMap<(&str, &str, Option<usize>), Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        let (kind, name) = (operation.object.as_str(), operation.name.as_str());
        let mut add = |kind, slot| {
            let object = objects.entry((kind, name, slot)).or_default();
            object.push(operation);
        };
        add(kind, operation.slot);
        if operation.slot.is_some() {
            add("semaphore", None);
        }
    }
    let judged = objects
        .into_iter()
        .filter_map(|((kind, name, slot), operations)| {
            let slot = slot.map(|slot| format!(", slot {slot}"));
            let object = format!("{kind} {name}{}", slot.unwrap_or_default());
            if kind == "lock" {
                return Some(judge_lock(object, &operations, limit));
            }
            let (promise, operations, verdict) = judge_object(kind, &operations, limit)?;
            Some(Judged {
                object,
                operations,
                left_out: 0,
                verdicts: vec![(promise, verdict)],
                note: None,
            })
        });
    judged.collect()
}

/// Judges an object that is not a lock. Returns the promise, the number of operations and the verdict. `None` if this kind
/// of object is unknown.
fn judge_object(
    kind: &str,
    operations: &[&Operation],
    limit: Duration,
) -> Option<(Promise, usize, Verdict)> {
    fn judged<S: Specification>(
        promise: Promise,
        timed: &[Timed<S::Operation>],
        limit: Duration,
    ) -> Option<(Promise, usize, Verdict)> {
        let verdict = judge::<S>(timed, Instant::now() + limit);
        Some((promise, timed.len(), verdict))
    }
    match kind {
        "semaphore" => judged::<SemaphoreSpec>(Promise::Holds, &semaphore_ops(operations), limit),
        "value" => judged::<ValueSpec>(Promise::Values, &timed(operations, value_op), limit),
        "register" => {
            judged::<RegisterSpec>(Promise::Tokens, &timed(operations, register_op), limit)
        }
        "bank" => judged::<BankSpec>(Promise::Values, &timed(operations, bank_op), limit),
        "quota" => judged::<QuotaSpec>(Promise::Quotas, &quota_ops(operations), limit),
        _ => None,
    }
}

fn timed<T>(operations: &[&Operation], of: fn(&Operation) -> Option<T>) -> Vec<Timed<T>> {
    let operations = operations.iter();
    let timed = operations
        .filter_map(|operation| Some(Timed(operation.call, operation.returned, of(operation)?)));
    timed.collect()
}

/// One hold of a lock: the acquisition, and the end of the hold if it is in the history.
#[derive(Debug)]
struct Hold {
    call: u64,
    obtained: u64,
    mode: Mode,
    token: Option<u64>,
    /// Call and return of the end.
    end: Option<(u64, Option<u64>)>,
}

impl Hold {
    /// The first time at which the hold can be over.
    fn over_at(&self) -> u64 {
        self.end.map_or(u64::MAX, |(call, _)| call)
    }
}

/// The holds of a lock, sorted by the time at which they were obtained.
fn holds(operations: &[&Operation]) -> Vec<Hold> {
    let mut ends: BTreeMap<&str, (u64, Option<u64>)> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.op == "end") {
        ends.insert(&operation.by, (operation.call, operation.returned));
    }
    let mut holds: Vec<Hold> = operations
        .iter()
        .filter(|operation| operation.op == "acquire" && operation.outcome.as_deref() == Some("ok"))
        .filter_map(|operation| {
            Some(Hold {
                call: operation.call,
                obtained: operation.returned?,
                mode: mode(operation),
                token: operation.token,
                end: ends.get(operation.by.as_str()).copied(),
            })
        })
        .collect();
    holds.sort_by_key(|hold| hold.obtained);
    holds
}

/// The mode of a hold. A permit is exclusive: the holds of each slot are an object of their own.
fn mode(operation: &Operation) -> Mode {
    let mode = operation.mode.as_ref();
    if mode.is_some_and(|mode| mode == "reader") {
        return Mode::Reader;
    }
    let owner = mode.and_then(|mode| mode.get("owner")?.as_str());
    owner.map_or(Mode::Exclusive, |owner| Mode::Owner(owner.to_owned()))
}

fn judge_lock(object: String, operations: &[&Operation], limit: Duration) -> Judged {
    let holds = holds(operations);
    let acquisitions = operations
        .iter()
        .filter(|operation| operation.op == "acquire")
        .count();
    let parts = parts(&holds, HOLDS_PER_PART);
    let (both, mut note) = (judge_parts::<true>(&parts, limit), None);
    let (held, tokens) = if both == Verdict::Accepted {
        (both, both)
    } else {
        let held = judge_parts::<false>(&parts, limit);
        let tokens = judge::<TokenSpec>(&tokens(&holds), Instant::now() + limit);
        if held == Verdict::Accepted && tokens == Verdict::Accepted {
            // Each promise is kept. But the tokens are in another order than the holds. The promise allows this only
            // for single attempts that overlapped, which the history does not contain.
            note = Some("tokens in another order than the holds: overlapping attempts?");
            (held, Verdict::Unknown)
        } else {
            (held, tokens)
        }
    };
    Judged {
        object,
        operations: operations.len() - (acquisitions - holds.len()),
        left_out: acquisitions - holds.len(),
        verdicts: vec![(Promise::Holds, held), (Promise::Tokens, tokens)],
        note,
    }
}

fn judge_parts<const TOKENS: bool>(parts: &[Vec<Timed<LockOp>>], limit: Duration) -> Verdict {
    let deadline = Instant::now() + limit;
    let verdicts = parts
        .iter()
        .map(|part| judge::<LockSpec<TOKENS>>(part, deadline));
    verdicts.max().unwrap_or(Verdict::Accepted)
}

/// Cuts the operations of a lock at exclusive holds. docs/histories.md explains why this changes no verdict.
fn parts(holds: &[Hold], holds_per_part: usize) -> Vec<Vec<Timed<LockOp>>> {
    let mut cuts: Vec<usize> = Vec::new();
    let mut last_cut = 0;
    for (index, hold) in holds.iter().enumerate() {
        // A hold of no length, at the time at which others begin or end, may be on either side of the cut.
        let is_long = hold.over_at() > hold.obtained;
        let has_tokens = hold.token.is_some() || holds[0].token.is_none();
        let can_cut = hold.mode == Mode::Exclusive && is_long && has_tokens;
        if can_cut && index - last_cut >= holds_per_part {
            cuts.push(index);
            last_cut = index;
        }
    }
    let mut parts: Vec<Vec<Timed<LockOp>>> = vec![Vec::new()];
    for cut in &cuts {
        let last = Some((Mode::Exclusive, holds[*cut].token));
        let start = Lock {
            holds: [*cut].into(),
            last,
        };
        parts.push(vec![Timed(0, Some(0), LockOp::Start(start))]);
    }
    for (index, hold) in holds.iter().enumerate() {
        let part_after = cuts.partition_point(|cut| hold.over_at() > holds[*cut].obtained);
        let (acquired_in, ended_in) = match cuts.binary_search(&index) {
            Ok(cut) => (cut, cut + 1),
            Err(_) => (part_after, part_after),
        };
        // One nanosecond later than in the history, so that all operations begin after the start.
        let acquire = LockOp::Acquire {
            hold: index,
            mode: hold.mode.clone(),
            token: hold.token,
        };
        parts[acquired_in].push(Timed(hold.call + 1, Some(hold.obtained + 1), acquire));
        if let Some((call, returned)) = hold.end {
            // The search must place every end: an end whose return is unknown gets the last place.
            let returned = returned.unwrap_or(u64::MAX - 1);
            parts[ended_in].push(Timed(
                call + 1,
                Some(returned + 1),
                LockOp::End { hold: index },
            ));
        }
    }
    parts
}

/// The tokens of a lock. A hold that joins an earlier hold of its owner has the token of that hold, and gets no new one.
fn tokens(holds: &[Hold]) -> Vec<Timed<(Mode, u64)>> {
    let mut tokens = Vec::new();
    for (index, hold) in holds.iter().enumerate() {
        let Some(token) = hold.token else { continue };
        let joins = |other: &Hold| {
            matches!(hold.mode, Mode::Owner(_))
                && other.mode == hold.mode
                && other.token == hold.token
                && other.over_at() > hold.call
        };
        if !holds[..index].iter().any(joins) {
            tokens.push(Timed(
                hold.call,
                Some(hold.obtained),
                (hold.mode.clone(), token),
            ));
        }
    }
    tokens
}

/// The operations on a semaphore as a counter. Each acquisition is placed at its return. This changes no verdict: until its return,
/// a later acquisition only leaves more permits to the others. Without this, the search tries too many orders.
fn semaphore_ops(operations: &[&Operation]) -> Vec<Timed<SemaphoreOp>> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut timed = Vec::new();
    for operation in operations {
        let next = numbers.len();
        let hold = *numbers.entry(&operation.by).or_insert(next);
        let mode = operation.mode.as_ref();
        let permits = mode.and_then(|mode| mode.get("permit")?.as_u64());
        match (operation.op.as_str(), permits, operation.returned) {
            ("end", _, returned) => {
                let returned = returned.unwrap_or(u64::MAX);
                let end = SemaphoreOp::End { hold };
                timed.push(Timed(operation.call, Some(returned), end));
            }
            ("acquire", Some(permits), Some(returned)) => {
                let permits = permits as usize;
                let acquire = SemaphoreOp::Acquire { hold, permits };
                timed.push(Timed(returned, Some(returned), acquire));
            }
            _ => {}
        }
    }
    timed
}

fn value_op(operation: &Operation) -> Option<ValueOp> {
    let to = operation.to.clone();
    Some(match operation.op.as_str() {
        "write" => ValueOp::Write {
            from: operation.from.clone()?,
            to,
        },
        "set" => ValueOp::Set { to },
        _ => ValueOp::Unknown,
    })
}

fn register_op(operation: &Operation) -> Option<RegisterOp> {
    Some(RegisterOp {
        by: operation.by.clone(),
        token: operation.token?,
        is_accepted: operation.outcome.as_deref() == Some("ok"),
    })
}

/// The operations on a quota; they are sorted by their calls.
fn quota_ops(operations: &[&Operation]) -> Vec<Timed<QuotaOp>> {
    let mut unknown = 0..;
    let timed = operations.iter().map(|operation| {
        let outcome = operation.outcome.as_deref();
        let quota_op = match (operation.op.as_str(), outcome, operation.left) {
            ("create", _, Some(left)) => QuotaOp::Create { left },
            ("take", Some("taken"), Some(left)) => QuotaOp::Taken { left },
            ("take", Some("sold_out"), Some(left)) => QuotaOp::SoldOut { left },
            _ => QuotaOp::Unknown {
                number: unknown.next().unwrap_or_default(),
            },
        };
        Timed(operation.call, operation.returned, quota_op)
    });
    timed.collect()
}

fn bank_op(operation: &Operation) -> Option<BankOp> {
    if operation.op == "create" {
        let balance = operation.left?.try_into().ok()?;
        return Some(BankOp::Create { balance });
    }
    operation.balances.clone().map(BankOp::Book)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of pseudo-random numbers (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    /// Draws some holds of one lock. Most of them follow each other; some overlap, or have a wrong token.
    fn draw(random: &mut Random) -> Vec<Hold> {
        let (mut now, mut token) = (20, 10);
        let mut holds = Vec::new();
        for _ in 0..4 + random.below(10) {
            let obtained = (now + random.below(4)).saturating_sub(u64::from(random.below(12) == 0));
            now = obtained + random.below(5);
            token += random.below(3) + u64::from(random.below(10) > 0);
            let is_stale = random.below(25) == 0;
            holds.push(Hold {
                call: obtained.saturating_sub(random.below(15)),
                obtained,
                mode: if random.below(4) == 0 {
                    Mode::Reader
                } else {
                    Mode::Exclusive
                },
                token: Some(if is_stale { token - 4 } else { token }),
                end: (random.below(20) > 0).then(|| (now, Some(now + random.below(6)))),
            });
        }
        holds.sort_by_key(|hold| hold.obtained);
        holds
    }

    #[test]
    fn verdict_about_a_lock_is_the_same_with_and_without_cuts() {
        const HISTORIES: usize = 5_000;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let limit = Duration::from_secs(60);
        let (mut refused, mut cut) = (0, 0);
        for _ in 0..HISTORIES {
            let holds = draw(&mut random);
            let (whole, parts) = (parts(&holds, usize::MAX), parts(&holds, 2));
            let verdict = judge_parts::<true>(&whole, limit);
            assert_eq!(judge_parts::<true>(&parts, limit), verdict, "{holds:#?}");
            assert_eq!(
                judge_parts::<false>(&parts, limit),
                judge_parts::<false>(&whole, limit),
                "{holds:#?}"
            );
            refused += usize::from(verdict == Verdict::Refused);
            cut += usize::from(parts.len() > 1);
        }
        println!("{HISTORIES} histories: {cut} cut, {refused} refused");
        // Both verdicts, and histories with cuts, must be common.
        let common = HISTORIES / 10..HISTORIES * 9 / 10;
        assert!(
            common.contains(&refused) && cut > HISTORIES / 10,
            "{cut} {refused}"
        );
    }
}
