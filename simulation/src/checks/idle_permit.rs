//! Checks that no permit of a semaphore is idle (free, although a client waits for a permit) for long, in a scenario
//! with ordered waiting and without faults. The next waiter must get a free permit within a few round trips.

use super::permits::configured_permits;
use crate::check::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::locker::{SEMAPHORES, semaphore_of_place};
use crate::scenario::Scenario;

/// The longest time that a permit may be idle, as a number of one-way network delays. In this time, a waiter may try
/// all three permits of the semaphore, and earlier waiters leave the queue.
const NETWORK_DELAYS: u64 = 20;

/// The longest total of the pauses that the library makes between a wake-up and the next attempt, in nanoseconds.
const SLACK: u64 = 25 * MS;

/// The factor for the longest idle time of a permit: 20 if at least one master is a store (a database or ZooKeeper),
/// otherwise 1. A store needs several requests for each step.
fn store_factor(scenario: &Scenario) -> u64 {
    if scenario.store_masters() == 0 { 1 } else { 20 }
}

pub(crate) struct IdlePermit {
    longest_idle: u64,
    semaphores: [Semaphore; SEMAPHORES],
    judged_cases: u64,
}

#[derive(Default)]
struct Semaphore {
    /// The number of permits of the semaphore; `None` if clients configure different numbers of permits.
    permits: Option<usize>,
    held_permits: usize,
    /// The true time at which a permit of the semaphore was last taken or released.
    changed_at: u64,
    /// The waiting tasks, longest wait first, each with the true time at which the task began to wait.
    waiting_tasks: Vec<(usize, u64)>,
}

impl IdlePermit {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let semaphore = |(smallest, largest)| Semaphore {
            permits: (smallest == largest).then_some(largest),
            ..Semaphore::default()
        };
        Self {
            longest_idle: store_factor(scenario)
                * (NETWORK_DELAYS * (scenario.net.delay + scenario.net.jitter) + SLACK),
            semaphores: configured_permits(scenario).map(semaphore),
            judged_cases: 0,
        }
    }

    /// Called when a task stops waiting, and when a permit is taken or released. Returns an error if a permit has been
    /// free for longer than the bound while a task waited for a permit.
    fn check_idle(&mut self, now: u64, semaphore_index: usize) -> Result<(), String> {
        let semaphore = &self.semaphores[semaphore_index];
        let Some((_, waiting_since)) = semaphore.waiting_tasks.first() else {
            return Ok(());
        };
        if semaphore
            .permits
            .is_none_or(|permits| semaphore.held_permits >= permits)
        {
            return Ok(());
        }
        self.judged_cases += 1;
        let idle_nanos = now - semaphore.changed_at.max(*waiting_since);
        if idle_nanos > self.longest_idle {
            return Err(format!(
                "a permit of the semaphore r{semaphore_index} was free for {:.1} ms while a client waited for a permit",
                idle_nanos as f64 / 1e6
            ));
        }
        Ok(())
    }
}

impl Check for IdlePermit {
    const RULE: &'static str = "no idle permit";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !moment.promises.order {
            return Ok(());
        }
        let place = match fact {
            Fact::AcquireStarted { resource, .. }
            | Fact::CallReturned {
                call: Call::Acquire { resource, .. },
                ..
            } => *resource,
            Fact::LockObtained { believer } | Fact::BeliefEnded { believer, .. } => {
                believer.resource
            }
            _ => return Ok(()),
        };
        let Some(semaphore_index) = semaphore_of_place(place) else {
            return Ok(());
        };
        let result = match fact {
            Fact::AcquireStarted { .. } => Ok(()),
            _ => self.check_idle(moment.now, semaphore_index),
        };
        let semaphore = &mut self.semaphores[semaphore_index];
        match fact {
            Fact::AcquireStarted { task, wait, .. } if *wait != Some(0) => {
                semaphore.waiting_tasks.push((*task, moment.now));
            }
            Fact::LockObtained { believer } => {
                semaphore.held_permits += 1;
                semaphore.changed_at = moment.now;
                semaphore
                    .waiting_tasks
                    .retain(|(task, _)| *task != believer.task);
            }
            Fact::BeliefEnded { .. } => {
                semaphore.held_permits = semaphore.held_permits.saturating_sub(1);
                semaphore.changed_at = moment.now;
            }
            Fact::CallReturned { task, .. } => semaphore
                .waiting_tasks
                .retain(|(waiting, _)| waiting != task),
            _ => {}
        }
        result
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
