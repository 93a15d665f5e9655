//! First come, first served: once somebody is well in line, nobody who came later gets the lock
//! first. Looked at only where waiters are ordered, and away from faults: a waiter that cannot
//! reach a majority has no place in line.

use std::collections::BTreeMap;

use quorate_promises::Line;

use super::{Case, Finding, Violation, seconds};
use crate::history::Attempt;
use crate::scenario::{Locker, Order, Workload};

/// By how much one must have come later to be certainly behind: the other must have missed its
/// first try and found its place by then, on a busy machine.
const LATER: u64 = 250_000_000;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let scenario = case.scenario;
    let in_line = matches!(scenario.locker, Locker::Quorate | Locker::JumpsLine);
    if scenario.order != Order::Fair || !in_line {
        return Finding::of("order", "nobody is in line".to_owned(), Vec::new());
    }
    let mut by_resource: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &case.attempts {
        // The locks of many are wanted by one only; a child process takes its time to start.
        let shared = Workload::ALL
            .iter()
            .filter(|workload| !matches!(workload, Workload::Many | Workload::Run))
            .any(|workload| workload.name() == attempt.resource);
        if shared {
            by_resource
                .entry(&attempt.resource)
                .or_default()
                .push(attempt);
        }
    }
    let mut seen = Seen::default();
    for (resource, attempts) in by_resource {
        seen.look_at(case, resource, &attempts);
    }
    let looked = seen.looked;
    let looked_at = format!("{looked} times somebody else was in line, away from faults");
    Finding::of("order", looked_at, seen.violations)
}

/// What has been looked at so far.
#[derive(Default)]
struct Seen {
    violations: Vec<Violation>,
    looked: usize,
}

impl Seen {
    /// The attempts on one resource, in the order in which they began.
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
            let Some((_, first)) = line.first() else {
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
            if line.passed(before).is_some() {
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
            "{} came {} after {} and got {resource:?} before it",
            winner.name(),
            seconds(winner.began - first.began),
            first.name()
        ),
        excused: None,
    }
}

impl Case<'_> {
    /// Whether no fault was felt from `from` to `to`: none in force, and no master still sitting
    /// out a restart, that of the very start included.
    fn is_quiet(&self, from: u64, to: u64) -> bool {
        let felt = self.scenario.max_ttl.as_nanos() as u64 + 1_500_000_000;
        from > felt
            && !self.faults.iter().any(|fault| {
                fault.from <= to && from <= fault.over.unwrap_or(self.end).saturating_add(felt)
            })
    }
}
