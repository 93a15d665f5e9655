//! Checks that no lock is idle (free, although a client waits for it) for long, in a scenario with ordered waiting and
//! without faults. After a release, the next waiter must hold the lock within a few round trips.
//!
//! Only this rule notices that a waiter was not woken. Such a waiter also gets the lock, but later, when its timer
//! fires.

use crate::check::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::kind::Kind;
use crate::locker::RESOURCES;
use crate::scenario::Scenario;

/// The longest time that a lock may be idle, as a number of one-way network delays. It covers a release, a wake-up, a
/// failed attempt and its release, another attempt, and a confirmation.
const NETWORK_DELAYS: u64 = 12;

/// The longest total of the pauses that the library makes between a wake-up and the next attempt, in nanoseconds.
const SLACK: u64 = 15 * MS;

/// The factor for the longest idle time of a lock: 20 if at least one master is a store (a database or ZooKeeper),
/// otherwise 1. A store needs several requests for each step.
fn store_factor(scenario: &Scenario) -> u64 {
    if scenario.store_masters() == 0 { 1 } else { 20 }
}

pub(crate) struct IdleLock {
    /// Whether the rule applies: every lock in the scenario is on a single resource, and is exclusive or for readers.
    applies: bool,
    longest_idle: u64,
    locks: [Lock; RESOURCES],
    judged_cases: u64,
}

#[derive(Default)]
struct Lock {
    /// The number of clients that hold the lock.
    holders: u32,
    free_since: u64,
    /// The waiting tasks, longest wait first, each with the true time at which the task began to wait.
    waiting_tasks: Vec<(usize, u64)>,
}

impl IdleLock {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            applies: !scenario.has_kind(|kind| {
                !matches!(
                    kind,
                    Kind::Exclusive
                        | Kind::Shared
                        | Kind::Downgraded
                        | Kind::WithNote(_)
                        | Kind::Leader(_)
                        | Kind::Observe
                )
            }),
            longest_idle: store_factor(scenario)
                * (NETWORK_DELAYS * (scenario.net.delay + scenario.net.jitter) + SLACK),
            locks: Default::default(),
            judged_cases: 0,
        }
    }

    /// Called when a task obtains the lock or stops waiting for it. Returns an error if the lock has been free for
    /// longer than the bound while a task waited for it.
    fn check_idle(&mut self, moment: &Moment<'_>, resource: usize) -> Result<(), String> {
        let lock = &self.locks[resource];
        let Some((_, waiting_since)) = lock.waiting_tasks.first().filter(|_| lock.holders == 0)
        else {
            return Ok(());
        };
        self.judged_cases += 1;
        let idle_nanos = moment.now - lock.free_since.max(*waiting_since);
        if idle_nanos > self.longest_idle {
            return Err(format!(
                "r{resource} was free for {:.1} ms while a client waited for it",
                idle_nanos as f64 / 1e6
            ));
        }
        Ok(())
    }
}

/// Whether a fact concerns an ordinary resource, as opposed to a semaphore.
fn is_about_resource(fact: &Fact<'_>) -> bool {
    let place = match fact {
        Fact::AcquireStarted { resource, .. }
        | Fact::CallReturned {
            call: Call::Acquire { resource, .. },
            ..
        } => *resource,
        Fact::LockObtained { believer } | Fact::BeliefEnded { believer, .. } => believer.resource,
        _ => 0,
    };
    place < RESOURCES
}

impl Check for IdleLock {
    const RULE: &'static str = "no idle lock";

    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !moment.promises.order || !self.applies {
            return Ok(());
        }
        if !is_about_resource(fact) {
            return Ok(());
        }
        match fact {
            Fact::AcquireStarted {
                task,
                resource,
                wait,
            } if *wait != Some(0) => self.locks[*resource]
                .waiting_tasks
                .push((*task, moment.now)),
            Fact::LockObtained { believer } => {
                let result = self.check_idle(moment, believer.resource);
                let lock = &mut self.locks[believer.resource];
                lock.holders += 1;
                lock.waiting_tasks
                    .retain(|(task, _)| *task != believer.task);
                return result;
            }
            Fact::CallReturned {
                task,
                call: Call::Acquire { resource, .. },
                ..
            } if self.locks[*resource]
                .waiting_tasks
                .iter()
                .any(|(waiting, _)| waiting == task) =>
            {
                let result = self.check_idle(moment, *resource);
                let waiting_tasks = &mut self.locks[*resource].waiting_tasks;
                waiting_tasks.retain(|(waiting, _)| waiting != task);
                return result;
            }
            Fact::BeliefEnded { believer, .. } => {
                let lock = &mut self.locks[believer.resource];
                (lock.holders, lock.free_since) = (lock.holders.saturating_sub(1), moment.now);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
