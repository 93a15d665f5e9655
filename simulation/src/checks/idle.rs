//! Checks that no lock is idle (free, although a client waits for it) for long, in a scenario with ordered waiting and
//! without faults. After a release, the next waiter must hold the lock within a few round trips.
//!
//! Only this rule notices that a waiter was not woken. Such a waiter also gets the lock, but later, when its timer
//! fires.

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::kind::Kind;
use crate::locker::RESOURCES;
use crate::scenario::Scenario;

/// The longest time that a lock may be idle, as a number of one-way network delays. It covers a release, a wake-up, a
/// failed attempt and its release, another attempt, and a confirmation.
const WAYS: u64 = 12;

/// The longest total of the pauses that the library makes between a wake-up and the next attempt, in nanoseconds.
const SLACK: u64 = 15 * MS;

/// The factor for the longest idle time of a lock: 20 if at least one master is a store (a database or ZooKeeper),
/// otherwise 1. A store needs several requests for each step.
fn at_stores(scenario: &Scenario) -> u64 {
    if scenario.stores() == 0 { 1 } else { 20 }
}

pub(crate) struct Idle {
    /// Whether the rule applies: every lock in the scenario is on a single resource, and is exclusive or for readers.
    on: bool,
    bound: u64,
    locks: [Lock; RESOURCES],
    judged: u64,
}

#[derive(Default)]
struct Lock {
    /// The number of clients that hold the lock.
    held: u32,
    free_since: u64,
    /// The waiting tasks, longest wait first, each with the true time at which the task began to wait.
    waiting: Vec<(usize, u64)>,
}

impl Idle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            on: !scenario.takes(|kind| {
                !matches!(
                    kind,
                    Kind::Exclusive
                        | Kind::Shared
                        | Kind::Downgraded
                        | Kind::Noted(_)
                        | Kind::Lead(_)
                        | Kind::Observe
                )
            }),
            bound: at_stores(scenario)
                * (WAYS * (scenario.net.delay + scenario.net.jitter) + SLACK),
            locks: Default::default(),
            judged: 0,
        }
    }

    /// Called when a task obtains the lock or stops waiting for it. Returns an error if the lock has been free for
    /// longer than the bound while a task waited for it.
    fn judge(&mut self, at: &Moment<'_>, resource: usize) -> Result<(), String> {
        let lock = &self.locks[resource];
        let Some((_, since)) = lock.waiting.first().filter(|_| lock.held == 0) else {
            return Ok(());
        };
        self.judged += 1;
        let idle = at.now - lock.free_since.max(*since);
        if idle > self.bound {
            return Err(format!(
                "r{resource} was free for {:.1} ms while a client waited for it",
                idle as f64 / 1e6
            ));
        }
        Ok(())
    }
}

/// Whether a fact concerns an ordinary resource, as opposed to a semaphore.
fn is_of_resource(fact: &Fact<'_>) -> bool {
    let place = match fact {
        Fact::Asked { resource, .. }
        | Fact::Returned {
            call: Call::Acquire { resource, .. },
            ..
        } => *resource,
        Fact::Obtained { believer } | Fact::Retired { believer, .. } => believer.resource,
        _ => 0,
    };
    place < RESOURCES
}

impl Check for Idle {
    const RULE: &'static str = "no idle lock";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.order || !self.on {
            return Ok(());
        }
        if !is_of_resource(fact) {
            return Ok(());
        }
        match fact {
            Fact::Asked {
                task,
                resource,
                wait,
            } if *wait != Some(0) => self.locks[*resource].waiting.push((*task, at.now)),
            Fact::Obtained { believer } => {
                let said = self.judge(at, believer.resource);
                let lock = &mut self.locks[believer.resource];
                lock.held += 1;
                lock.waiting.retain(|(task, _)| *task != believer.task);
                return said;
            }
            Fact::Returned {
                task,
                call: Call::Acquire { resource, .. },
                ..
            } if self.locks[*resource]
                .waiting
                .iter()
                .any(|(one, _)| one == task) =>
            {
                let said = self.judge(at, *resource);
                let waiting = &mut self.locks[*resource].waiting;
                waiting.retain(|(one, _)| one != task);
                return said;
            }
            Fact::Retired { believer, .. } => {
                let lock = &mut self.locks[believer.resource];
                (lock.held, lock.free_since) = (lock.held.saturating_sub(1), at.now);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
