//! Checks the fair order (first come, first served): if one client began to wait clearly earlier than another, it gets
//! the lock first. The checker runs only in scenarios with the fair order.
//!
//! The checker skips periods in which a fault affected clients: a waiter that cannot reach a majority of the masters is
//! not in the queue.

use std::collections::BTreeMap;

use quorate_promises::Line;

use super::{Case, Finding, Violation, seconds};
use crate::claim::Claim;
use crate::history::Attempt;
use crate::scenario::{Locker, Order, Workload};
use crate::workload::family;

/// The minimum time between the starts of two waits, in nanoseconds. If the difference is smaller, the order in the
/// queue is uncertain, because a busy machine can delay the first attempt.
const LATER: u64 = 250_000_000;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let scenario = case.scenario;
    let in_line = matches!(scenario.locker, Locker::Quorate | Locker::JumpsLine);
    if scenario.order != Order::Fair || !in_line {
        return Finding::of(
            "order",
            "clients do not queue for locks in this chaos run".to_owned(),
            Vec::new(),
        );
    }
    let mut by_resource: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &case.attempts {
        // Skip an attempt by which a writer becomes a reader. Such a client already has the lock, so it does not wait
        // in the queue.
        if attempt.goes_on.is_some() || !is_in_line(family(&attempt.resource)) {
            continue;
        }
        for resource in attempt.resources() {
            by_resource.entry(resource).or_default().push(attempt);
        }
    }
    let mut seen = Seen::default();
    for (resource, attempts) in by_resource {
        seen.look_at(case, resource, &attempts);
    }
    let looked = seen.looked;
    let looked_at = format!(
        "{looked} acquisitions checked: in each case another client was queued, and no fault was active"
    );
    Finding::of("order", looked_at, seen.violations)
}

/// Whether the checker can judge the order in this workload. It cannot judge four workloads:
///
/// - `many`, because only one client uses each of its locks
/// - `run`, because a child process takes time to start
/// - `owners`, because an owner that holds the lock may acquire it again before all waiters
/// - `prizes`, because its clients take units of a quota, and the history does not record who locked the quota when
fn is_in_line(workload: &str) -> bool {
    let all = Workload::ALL.iter();
    let mut in_line = all.filter(|workload| {
        !matches!(
            workload,
            Workload::Many | Workload::Run | Workload::Owners | Workload::Prizes
        )
    });
    in_line.any(|one| one.name() == workload)
}

/// Whether both attempts can hold the lock at the same time. The checker cannot judge the order of such attempts.
fn at_once(one: &Attempt, other: &Attempt) -> bool {
    let permits = |attempt: &Attempt| matches!(attempt.claim, Claim::Permit(_));
    one.claim.is_compatible_with(&other.claim) || (permits(one) && permits(other))
}

/// The violations found so far, and the number of acquisitions that were compared with an earlier waiter.
#[derive(Default)]
struct Seen {
    violations: Vec<Violation>,
    looked: usize,
}

impl Seen {
    /// Checks the attempts on one resource. The attempts must be sorted by their start.
    fn look_at(&mut self, case: &Case<'_>, resource: &str, attempts: &[&Attempt]) {
        let mut won: Vec<(u64, &Attempt)> = attempts
            .iter()
            .filter_map(|attempt| Some((attempt.obtained?, *attempt)))
            .collect();
        won.sort_by_key(|(at, _)| *at);
        let over = |attempt: &Attempt| {
            let over = [attempt.obtained, attempt.missed, attempt.gone];
            over.into_iter().flatten().min().unwrap_or(case.end)
        };
        let mut leaving: Vec<usize> = (0..attempts.len()).collect();
        leaving.sort_by_key(|one| over(attempts[*one]));
        let (mut coming, mut leaving) = ((0..attempts.len()).peekable(), leaving.iter().peekable());
        let mut line = Line::default();
        for (at, winner) in won {
            while let Some(next) = coming.next_if(|next| attempts[*next].began < at) {
                if over(attempts[next]) > at {
                    line.stands(next, attempts[next].began);
                }
            }
            while let Some(one) = leaving.next_if(|one| over(attempts[**one]) <= at) {
                line.leaves(one);
            }
            let over_at = |one: &usize| over(attempts[*one]);
            let passable = |one: &usize| {
                at_once(attempts[*one], winner) && over_at(one) <= at.saturating_add(LATER)
            };
            let Some((since, first)) = line.first_of(|one| !passable(one)) else {
                continue;
            };
            let first = attempts[*first];
            let quiet = case.is_quiet(first.began, at)
                && case.paused(&first.who, first.began, winner.began) == 0;
            if !quiet {
                continue;
            }
            self.looked += 1;
            let starved = case.kept_waiting(&first.who, first.began, winner.began);
            let before = winner.began.saturating_sub(LATER + starved);
            if since < before {
                self.violations.push(passed(resource, first, winner, at));
            }
        }
    }
}

fn passed(resource: &str, first: &Attempt, winner: &Attempt, at: u64) -> Violation {
    Violation {
        checker: "order".into(),
        from: first.began,
        to: at,
        who: vec![first.who.clone(), winner.who.clone()],
        resource: Some(resource.to_owned()),
        what: format!(
            "{} began to wait {} later than {}, but got {resource:?} first",
            winner.name(),
            seconds(winner.began - first.began),
            first.name()
        ),
        excused: None,
    }
}

impl Case<'_> {
    /// Whether no fault affected the clients between `from` and `to`. After the end of a fault, and after the start of
    /// the run, clients may ignore the votes of restarted masters for some time. This time counts as affected.
    fn is_quiet(&self, from: u64, to: u64) -> bool {
        let felt = self.scenario.max_ttl.as_nanos() as u64 + 1_500_000_000;
        from > felt
            && !self.faults.iter().any(|fault| {
                fault.from <= to && from <= fault.over.unwrap_or(self.end).saturating_add(felt)
            })
    }
}
