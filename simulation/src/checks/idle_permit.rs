//! Checks that no permit of a semaphore is idle (free, although a client waits for a permit) for long, in a scenario
//! with ordered waiting and without faults. The next waiter must get a free permit within a few round trips.

use super::permits::asked_for;
use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Call, Fact};
use crate::locker::{SEMAPHORES, semaphore_of};
use crate::scenario::Scenario;

/// The longest time that a permit may be idle, as a number of one-way network delays. In this time, a waiter may try
/// all three permits of the semaphore, and earlier waiters leave the queue.
const WAYS: u64 = 20;

/// The longest total of the pauses that the library makes between a wake-up and the next attempt, in nanoseconds.
const SLACK: u64 = 25 * MS;

/// The factor for the longest idle time of a permit: 20 if at least one master is a store (a database or ZooKeeper),
/// otherwise 1. A store needs several requests for each step.
fn at_stores(scenario: &Scenario) -> u64 {
    if scenario.stores() == 0 { 1 } else { 20 }
}

pub(crate) struct IdlePermit {
    bound: u64,
    semaphores: [Semaphore; SEMAPHORES],
    judged: u64,
}

#[derive(Default)]
struct Semaphore {
    /// The number of permits of the semaphore; `None` if clients configure different numbers of permits.
    permits: Option<usize>,
    held: usize,
    /// The true time at which a permit of the semaphore was last taken or released.
    moved: u64,
    /// The waiting tasks, longest wait first, each with the true time at which the task began to wait.
    waiting: Vec<(usize, u64)>,
}

impl IdlePermit {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let semaphore = |(fewest, most)| Semaphore {
            permits: (fewest == most).then_some(most),
            ..Semaphore::default()
        };
        Self {
            bound: at_stores(scenario)
                * (WAYS * (scenario.net.delay + scenario.net.jitter) + SLACK),
            semaphores: asked_for(scenario).map(semaphore),
            judged: 0,
        }
    }

    /// Called when a task stops waiting, and when a permit is taken or released. Returns an error if a permit has been
    /// free for longer than the bound while a task waited for a permit.
    fn judge(&mut self, now: u64, line: usize) -> Result<(), String> {
        let semaphore = &self.semaphores[line];
        let Some((_, since)) = semaphore.waiting.first() else {
            return Ok(());
        };
        if semaphore.permits.is_none_or(|all| semaphore.held >= all) {
            return Ok(());
        }
        self.judged += 1;
        let idle = now - semaphore.moved.max(*since);
        if idle > self.bound {
            return Err(format!(
                "a permit of the semaphore r{line} was free for {:.1} ms while a client waited for a permit",
                idle as f64 / 1e6
            ));
        }
        Ok(())
    }
}

impl Check for IdlePermit {
    const RULE: &'static str = "no idle permit";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.order {
            return Ok(());
        }
        let place = match fact {
            Fact::Asked { resource, .. }
            | Fact::Returned {
                call: Call::Acquire { resource, .. },
                ..
            } => *resource,
            Fact::Obtained { believer } | Fact::Retired { believer, .. } => believer.resource,
            _ => return Ok(()),
        };
        let Some(line) = semaphore_of(place) else {
            return Ok(());
        };
        let said = match fact {
            Fact::Asked { .. } => Ok(()),
            _ => self.judge(at.now, line),
        };
        let semaphore = &mut self.semaphores[line];
        match fact {
            Fact::Asked { task, wait, .. } if *wait != Some(0) => {
                semaphore.waiting.push((*task, at.now));
            }
            Fact::Obtained { believer } => {
                semaphore.held += 1;
                semaphore.moved = at.now;
                semaphore.waiting.retain(|(task, _)| *task != believer.task);
            }
            Fact::Retired { .. } => {
                semaphore.held = semaphore.held.saturating_sub(1);
                semaphore.moved = at.now;
            }
            Fact::Returned { task, .. } => semaphore.waiting.retain(|(one, _)| one != task),
            _ => {}
        }
        said
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
