//! The promise that every refusal has a cause: a task is refused as "held by another" only if another task held the lock
//! or asked for it in the time of the call, or not long before. The keys of a lock stay on the masters for a while after
//! the lock has ended, and so do those of a failed attempt.

use std::collections::HashMap;

use crate::history::{Assumption, Breach, Class, Event, Moment, Party, Promise, Queue};

/// The checker of the promise that every refusal has a cause.
#[derive(Debug)]
pub struct Refusals {
    /// How long keys may stay after the task that caused them has given them up.
    longest_trace: u64,
    locks: HashMap<Queue, Traces>,
    /// When each asking task began to ask, and the queues of the locks that it asks for.
    asking: HashMap<u64, (u64, Vec<Queue>)>,
    /// Whether a hold is a cause even if a hold of the same class may share the lock.
    all_holds_are_causes: bool,
    judged: u64,
}

/// The traces of all tasks in one lock.
#[derive(Debug, Default)]
struct Traces {
    /// The holds, each with its class.
    holders: Vec<(u64, Class)>,
    /// The time at which a hold last ended.
    last_end: Option<u64>,
    /// The last task that asked for the lock or sent a request for it, and the last other one; each with the time.
    last_tries: [Option<(u64, u64)>; 2],
    /// The tasks that ask for the lock now.
    asking: Vec<u64>,
}

impl Traces {
    fn record_try(&mut self, task: u64, now: u64) {
        let [last, other] = &mut self.last_tries;
        if last.is_some_and(|(last, _)| last != task) {
            *other = *last;
        }
        *last = Some((task, now));
    }

    /// Whether another task may have had keys in this lock after the time `since`, with which a hold of this class cannot
    /// share the lock.
    fn has_cause(&self, task: u64, class: Class, since: u64) -> bool {
        let is_recent = |(other, last_try): &(u64, u64)| *other != task && *last_try >= since;
        let is_in_the_way = |(_, other): &(u64, Class)| !other.may_share_with(class);
        self.holders.iter().any(is_in_the_way)
            || self.last_end.is_some_and(|last_end| last_end >= since)
            || self.asking.iter().any(|other| *other != task)
            || self.last_tries.iter().flatten().any(is_recent)
    }
}

impl Refusals {
    /// The checker. `longest_trace` is how long the keys of a lock may stay on a master after the lock has ended, or
    /// after the last request of an attempt.
    pub fn new(longest_trace: u64) -> Self {
        Self {
            longest_trace,
            locks: HashMap::new(),
            asking: HashMap::new(),
            all_holds_are_causes: false,
            judged: 0,
        }
    }

    /// The checker for histories in which masters are replaced. An owner may hold a lock on the old masters only, from
    /// the time before the change. Its token is not copied to the next masters while it holds the lock, so a client of
    /// both sets of masters cannot join this hold, although it is of the same owner.
    #[must_use]
    pub fn with_replaced_masters(self) -> Self {
        Self {
            all_holds_are_causes: true,
            ..self
        }
    }

    /// Records that a task asks for a lock. It asks until [`Event::Answered`].
    fn record_try(&mut self, now: u64, task: u64, queue: Queue) {
        let lock = self.locks.entry(queue).or_default();
        lock.record_try(task, now);
        let (_, queues) = self.asking.entry(task).or_insert((now, Vec::new()));
        if !queues.contains(&queue) {
            queues.push(queue);
            lock.asking.push(task);
        }
    }

    fn record_answer(&mut self, now: u64, task: u64) {
        let (_, queues) = self.asking.remove(&task).unwrap_or_default();
        for queue in queues {
            let lock = self.locks.entry(queue).or_default();
            lock.record_try(task, now);
            lock.asking.retain(|asking| *asking != task);
        }
    }

    fn check_refused(
        &mut self,
        now: u64,
        (task, client, class): (u64, u64, Class),
        queues: &[Queue],
    ) -> Option<Breach> {
        let (began, _) = self.asking.get(&task)?;
        self.judged += 1;
        let since = began.saturating_sub(self.longest_trace);
        let class = if self.all_holds_are_causes {
            Class::Exclusive
        } else {
            class
        };
        let has_cause = |queue: &Queue| {
            let lock = self.locks.get(queue);
            lock.is_some_and(|lock| lock.has_cause(task, class, since))
        };
        if queues.iter().any(has_cause) {
            return None;
        }
        let place = queues.first().copied();
        Some(Breach {
            from: *began,
            to: now,
            place: match place {
                Some(Queue::Place(place)) => Some(place),
                _ => None,
            },
            parties: vec![Party::Client(client)],
            text: format!(
                "$0 was refused because another client holds the lock, but no other task held it or asked for it in \
                 the time of the call ({queues:?})"
            ),
            assumption: Assumption::NoFaults,
        })
    }
}

impl Promise for Refusals {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        let now = moment.time;
        match event {
            Event::Answered { task } => self.record_answer(now, *task),
            Event::Asked { task, queues, .. } | Event::Tried { task, queues } => {
                for queue in *queues {
                    self.record_try(now, *task, *queue);
                }
            }
            Event::Obtained(hold) => {
                for queue in hold.queues() {
                    self.locks
                        .entry(queue)
                        .or_default()
                        .holders
                        .push((hold.id, hold.class));
                }
            }
            Event::Ended(hold) => {
                for queue in hold.queues() {
                    let lock = self.locks.entry(queue).or_default();
                    lock.holders.retain(|(id, _)| *id != hold.id);
                    lock.last_end = Some(now);
                }
            }
            Event::Refused {
                task,
                client,
                class,
                queues,
            } => {
                let breach = self.check_refused(now, (*task, *client, *class), queues);
                return breach.into_iter().collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn judged(&self) -> u64 {
        self.judged
    }

    fn summary(&self) -> String {
        format!("{} refusals checked", self.judged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Hold;
    use crate::history::testing::{breaches, hold};

    const QUEUES: [Queue; 1] = [Queue::Place(4)];

    /// Plays the given history, and then a task that asks at 100 and is refused at 105. Traces stay for 10 units of time.
    fn texts(earlier: &[(u64, Event<'_>)]) -> Vec<String> {
        texts_of_class(Class::Exclusive, earlier)
    }

    fn texts_of_class(class: Class, earlier: &[(u64, Event<'_>)]) -> Vec<String> {
        let asked = Event::Asked {
            task: 9,
            queues: &QUEUES,
            waits: false,
        };
        let refused = Event::Refused {
            task: 9,
            client: 3,
            class,
            queues: &QUEUES,
        };
        let call = [(100, asked), (105, refused)];
        let history: Vec<_> = earlier.iter().chain(&call).copied().collect();
        breaches(&mut Refusals::new(10), &history)
    }

    #[test]
    fn refusal_without_any_other_holder_or_attempt_is_reported() {
        let text = "c3 was refused because another client holds the lock, but no other task held it or asked for it in \
                    the time of the call ([Place(4)])";
        assert_eq!(texts(&[]), [text]);
        let first = hold(1, 20, 95, 1);
        let obtained = (20, Event::Obtained(&first));
        assert!(texts(&[obtained]).is_empty());
        assert!(texts(&[obtained, (90, Event::Ended(&first))]).is_empty());
        assert_eq!(texts(&[obtained, (89, Event::Ended(&first))]).len(), 1);
    }

    #[test]
    fn hold_that_may_share_the_lock_is_no_cause() {
        let reader = Hold {
            class: Class::Readers,
            ..hold(1, 20, 200, 1)
        };
        let obtained = [(20, Event::Obtained(&reader))];
        assert_eq!(texts_of_class(Class::Readers, &obtained).len(), 1);
        for class in [Class::Exclusive, Class::Owner(1)] {
            assert!(texts_of_class(class, &obtained).is_empty());
        }
    }

    #[test]
    fn hold_of_the_same_owner_is_a_cause_while_masters_are_replaced() {
        let owner = Hold {
            class: Class::Owner(1),
            ..hold(1, 20, 200, 1)
        };
        let history = [
            (20, Event::Obtained(&owner)),
            (
                100,
                Event::Asked {
                    task: 9,
                    queues: &QUEUES,
                    waits: false,
                },
            ),
            (
                105,
                Event::Refused {
                    task: 9,
                    client: 3,
                    class: owner.class,
                    queues: &QUEUES,
                },
            ),
        ];
        assert_eq!(breaches(&mut Refusals::new(10), &history).len(), 1);
        let mut refusals = Refusals::new(10).with_replaced_masters();
        assert!(breaches(&mut refusals, &history).is_empty());
    }

    #[test]
    fn refusal_while_another_task_waits_has_a_cause() {
        let asked = Event::Asked {
            task: 1,
            queues: &QUEUES,
            waits: true,
        };
        let answered = Event::Answered { task: 1 };
        assert!(texts(&[(20, asked)]).is_empty());
        assert!(texts(&[(20, asked), (90, answered)]).is_empty());
        assert_eq!(texts(&[(20, asked), (89, answered)]).len(), 1);
    }

    /// A task of the same process can wait in front, and has sent no request yet.
    #[test]
    fn refusal_while_a_task_waits_for_several_locks_has_a_cause() {
        let queues = [Queue::Place(3), QUEUES[0]];
        let asked = |queues| Event::Asked {
            task: 1,
            queues,
            waits: true,
        };
        assert!(texts(&[(20, asked(&queues))]).is_empty());
        assert_eq!(texts(&[(20, asked(&queues[..1]))]).len(), 1);
    }

    #[test]
    fn refusal_soon_after_an_attempt_of_another_task_has_a_cause() {
        let tried = |task| Event::Tried {
            task,
            queues: &QUEUES,
        };
        let answered = |task| Event::Answered { task };
        assert!(texts(&[(20, tried(1))]).is_empty());
        assert!(texts(&[(20, tried(1)), (90, answered(1))]).is_empty());
        assert_eq!(texts(&[(20, tried(1)), (89, answered(1))]).len(), 1);
        assert_eq!(texts(&[(95, tried(9)), (96, answered(9))]).len(), 1);
    }
}
