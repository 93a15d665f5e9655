//! The promise that no lock is idle for long: as long as a task waits for a lock that is free, somebody soon gets it. A
//! lock has a capacity, the number of clients that may hold it at a time: the number of permits of a semaphore, and 1
//! for any other lock.
//!
//! Only this promise notices that a waiter was not woken. Such a waiter also gets the lock, but later, when its timer
//! fires.

use std::collections::HashMap;
use std::fmt;

use crate::history::{Assumption, Breach, Event, Hold, Moment, Promise, Queue};

/// The limits of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLimits {
    /// How many clients may hold the lock at a time.
    pub capacity: usize,
    /// The longest time for which the lock may be idle.
    pub longest: u64,
}

/// The checker of the promise that no lock is idle for long.
pub struct Idle {
    limits: Box<dyn Fn(Queue) -> Option<IdleLimits> + Send>,
    locks: HashMap<Queue, Lock>,
    /// The lock that each waiting task waits for.
    tasks: HashMap<u64, Queue>,
    judged: u64,
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Lock {
    /// The holds of the lock.
    holders: Vec<u64>,
    /// The time at which the lock was last obtained or ended.
    changed_at: u64,
    /// The waiting tasks, longest wait first, each with the time at which it began to wait.
    waiting: Vec<(u64, u64)>,
}

impl Idle {
    /// The checker with the limits of each lock. It does not check locks without limits.
    pub fn new(limits: impl Fn(Queue) -> Option<IdleLimits> + Send + 'static) -> Self {
        Self {
            limits: Box::new(limits),
            locks: HashMap::new(),
            tasks: HashMap::new(),
            judged: 0,
        }
    }

    /// Returns a breach if the lock has been free for too long while a task waited for it. Called whenever a hold of
    /// the lock begins or ends, or a task stops asking for it.
    fn check(&mut self, now: u64, queue: Queue) -> Option<Breach> {
        let limits = (self.limits)(queue)?;
        let lock = self.locks.get(&queue)?;
        let (_, waiting_since) = lock.waiting.first()?;
        if lock.holders.len() >= limits.capacity {
            return None;
        }
        self.judged += 1;
        let since = lock.changed_at.max(*waiting_since);
        (now - since > limits.longest).then(|| Breach {
            from: since,
            to: now,
            place: match queue {
                Queue::Place(place) => Some(place),
                Queue::Semaphore(_) => None,
            },
            parties: Vec::new(),
            text: match queue {
                Queue::Place(_) => "$place was free for too long while a task waited".to_owned(),
                Queue::Semaphore(number) => format!(
                    "a permit of the semaphore {number} was free for too long while a task waited"
                ),
            },
            assumption: Assumption::NoFaults,
        })
    }
}

impl Idle {
    /// Records that a hold has begun or ended.
    fn change(
        &mut self,
        now: u64,
        queue: Queue,
        hold: &Hold<'_>,
        is_obtained: bool,
    ) -> Option<Breach> {
        let is_known = |lock: &Lock| lock.holders.contains(&hold.id);
        if !is_obtained && !self.locks.get(&queue).is_some_and(is_known) {
            return None;
        }
        let breach = self.check(now, queue);
        let lock = self.locks.entry(queue).or_default();
        lock.changed_at = now;
        if is_obtained {
            lock.holders.push(hold.id);
            lock.waiting.retain(|(task, _)| *task != hold.task);
        } else {
            lock.holders.retain(|id| *id != hold.id);
        }
        breach
    }
}

impl Promise for Idle {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        let now = moment.time;
        match event {
            Event::Asked {
                task,
                queues: [queue, ..],
                waits,
            } => {
                self.tasks.insert(*task, *queue);
                if *waits {
                    let lock = self.locks.entry(*queue).or_default();
                    lock.waiting.push((*task, now));
                }
                None
            }
            Event::Answered { task } => {
                let queue = self.tasks.remove(task);
                let breach = queue.and_then(|queue| self.check(now, queue));
                let lock = queue.and_then(|queue| self.locks.get_mut(&queue));
                if let Some(lock) = lock {
                    lock.waiting.retain(|(waiting, _)| waiting != task);
                }
                breach
            }
            Event::Obtained(hold) | Event::Ended(hold) => {
                let is_obtained = matches!(event, Event::Obtained(_));
                hold.queues()
                    .next()
                    .and_then(|queue| self.change(now, queue, hold, is_obtained))
            }
            _ => None,
        }
        .into_iter()
        .collect()
    }

    fn judged(&self) -> u64 {
        self.judged
    }

    fn summary(&self) -> String {
        format!("{} times a task waited for a free lock", self.judged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Permit;
    use crate::history::testing::{breaches, hold};

    fn idle(capacity: usize) -> Idle {
        let longest = 10;
        Idle::new(move |_| Some(IdleLimits { capacity, longest }))
    }

    fn asked(task: u64, queues: &[Queue; 1]) -> Event<'_> {
        Event::Asked {
            task,
            queues,
            waits: true,
        }
    }

    #[test]
    fn lock_that_is_free_for_too_long_while_a_task_waits_is_reported() {
        let (first, second) = (hold(1, 10, 100, 1), hold(2, 60, 160, 2));
        let history = |ended_at, obtained_at| {
            [
                (10, Event::Obtained(&first)),
                (20, asked(2, &[Queue::Place(4)])),
                (ended_at, Event::Ended(&first)),
                (obtained_at, Event::Obtained(&second)),
                (obtained_at, Event::Answered { task: 2 }),
            ]
        };
        let mut promise = idle(1);
        assert!(breaches(&mut promise, &history(50, 60)).is_empty());
        assert_eq!(promise.judged(), 1);
        let text = "r4 was free for too long while a task waited";
        assert_eq!(breaches(&mut idle(1), &history(50, 61)), [text]);
        // The time before the task began to wait does not count.
        assert!(breaches(&mut idle(1), &history(15, 30)).is_empty());
    }

    #[test]
    fn permit_that_is_free_for_too_long_while_a_task_waits_is_reported() {
        let permit = |id, from| Hold {
            permit: Some(Permit {
                semaphore: 7,
                slot: Some(id),
                permits: 2,
            }),
            ..hold(id, from, from + 100, id)
        };
        let (first, second) = (permit(0, 10), permit(1, 40));
        let history = [
            (10, Event::Obtained(&first)),
            (20, asked(1, &[Queue::Semaphore(7)])),
            (40, Event::Obtained(&second)),
        ];
        let text = "a permit of the semaphore 7 was free for too long while a task waited";
        assert_eq!(breaches(&mut idle(2), &history), [text]);
        assert!(breaches(&mut idle(1), &history).is_empty());
    }
}
