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
use crate::scenario::{Order, Workload};
use crate::workload::workload_name;

/// The minimum time between the starts of two waits, in nanoseconds. If the difference is smaller, the order in the
/// queue is uncertain, because a busy machine can delay the first attempt.
const MIN_START_DIFFERENCE: u64 = 250_000_000;

pub(super) fn check(case: &Case<'_>) -> Finding {
    if case.scenario.order != Order::Fair {
        return Finding::new(
            "order",
            "clients do not queue for locks in this chaos run".to_owned(),
            Vec::new(),
        );
    }
    let mut by_resource: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &case.attempts {
        // Skip an attempt by which a writer becomes a reader. Such a client already has the lock, so it does not wait
        // in the queue.
        if attempt.continued_hold.is_some() || !is_order_checked(workload_name(&attempt.resource)) {
            continue;
        }
        for resource in attempt.resources() {
            by_resource.entry(resource).or_default().push(attempt);
        }
    }
    let mut order_check = OrderCheck::default();
    for (resource, attempts) in by_resource {
        order_check.check_resource(case, resource, &attempts);
    }
    let compared = order_check.compared;
    let coverage = format!(
        "{compared} acquisitions checked: in each case another client was queued, and no fault was active"
    );
    Finding::new("order", coverage, order_check.violations)
}

/// Whether the checker can judge the order in this workload. It cannot judge four workloads:
///
/// - `many`, because only one client uses each of its locks
/// - `run`, because a child process takes time to start
/// - `owners`, because an owner that holds the lock may acquire it again before all waiters
/// - `prizes`, because its clients take units of a quota, and the history does not record who locked the quota when
fn is_order_checked(workload: &str) -> bool {
    let workloads = Workload::ALL.iter();
    let mut checked_workloads = workloads.filter(|workload| {
        !matches!(
            workload,
            Workload::Many | Workload::Run | Workload::Owners | Workload::Prizes
        )
    });
    checked_workloads.any(|checked| checked.name() == workload)
}

/// Whether both attempts can hold the lock at the same time. The checker cannot judge the order of such attempts.
fn may_overlap(attempt: &Attempt, other: &Attempt) -> bool {
    let is_permit = |attempt: &Attempt| matches!(attempt.claim, Claim::Permit(_));
    attempt.claim.is_compatible_with(&other.claim) || (is_permit(attempt) && is_permit(other))
}

/// The violations found so far, and the number of acquisitions that were compared with an earlier waiter.
#[derive(Default)]
struct OrderCheck {
    violations: Vec<Violation>,
    compared: usize,
}

impl OrderCheck {
    /// Checks the attempts on one resource. The attempts must be sorted by their start.
    fn check_resource(&mut self, case: &Case<'_>, resource: &str, attempts: &[&Attempt]) {
        let mut acquisitions: Vec<(u64, &Attempt)> = attempts
            .iter()
            .filter_map(|attempt| Some((attempt.obtained_at?, *attempt)))
            .collect();
        acquisitions.sort_by_key(|(obtained_at, _)| *obtained_at);
        let left_at = |attempt: &Attempt| {
            let ends = [
                attempt.obtained_at,
                attempt.failed_at,
                attempt.process_ended_at,
            ];
            ends.into_iter().flatten().min().unwrap_or(case.end)
        };
        let mut by_leaving: Vec<usize> = (0..attempts.len()).collect();
        by_leaving.sort_by_key(|index| left_at(attempts[*index]));
        let (mut by_start, mut by_leaving) =
            ((0..attempts.len()).peekable(), by_leaving.iter().peekable());
        let mut queue = Line::default();
        for (obtained_at, winner) in acquisitions {
            while let Some(index) =
                by_start.next_if(|index| attempts[*index].began_at < obtained_at)
            {
                if left_at(attempts[index]) > obtained_at {
                    queue.stands(index, attempts[index].began_at);
                }
            }
            while let Some(index) =
                by_leaving.next_if(|index| left_at(attempts[**index]) <= obtained_at)
            {
                queue.leaves(index);
            }
            let index_left_at = |index: &usize| left_at(attempts[*index]);
            let may_be_passed = |index: &usize| {
                may_overlap(attempts[*index], winner)
                    && index_left_at(index) <= obtained_at.saturating_add(MIN_START_DIFFERENCE)
            };
            let Some((first_waits_since, first_waiter)) =
                queue.first_of(|index| !may_be_passed(index))
            else {
                continue;
            };
            let first_waiter = attempts[*first_waiter];
            let (process, began_at) = (&first_waiter.process, first_waiter.began_at);
            let is_undisturbed = case.is_undisturbed(began_at, obtained_at)
                && case.paused_time(process, began_at, winner.began_at) == 0;
            if !is_undisturbed {
                continue;
            }
            self.compared += 1;
            let delay = case.delay_time(process, began_at, winner.began_at);
            let latest_start = winner.began_at.saturating_sub(MIN_START_DIFFERENCE + delay);
            if first_waits_since < latest_start {
                self.violations.push(overtaking_violation(
                    resource,
                    first_waiter,
                    winner,
                    obtained_at,
                ));
            }
        }
    }
}

fn overtaking_violation(
    resource: &str,
    first_waiter: &Attempt,
    winner: &Attempt,
    obtained_at: u64,
) -> Violation {
    Violation {
        checker: "order".into(),
        from: first_waiter.began_at,
        to: obtained_at,
        processes: vec![first_waiter.process.clone(), winner.process.clone()],
        resource: Some(resource.to_owned()),
        description: format!(
            "{} began to wait {} later than {}, but got {resource:?} first",
            winner.name(),
            seconds(winner.began_at - first_waiter.began_at),
            first_waiter.name()
        ),
        excused: None,
    }
}

impl Case<'_> {
    /// Whether no fault affected the clients between `from` and `to`. After the end of a fault, and after the start of
    /// the run, clients may ignore the votes of restarted masters for some time. This time counts as affected.
    pub(super) fn is_undisturbed(&self, from: u64, to: u64) -> bool {
        let aftermath = self.scenario.max_ttl.as_nanos() as u64 + 1_500_000_000;
        from > aftermath
            && !self.faults.iter().any(|fault| {
                fault.from <= to
                    && from <= fault.over_at.unwrap_or(self.end).saturating_add(aftermath)
            })
    }
}
