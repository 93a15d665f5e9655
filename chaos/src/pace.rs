//! Computes the progress of a run from its history:
//!
//! - the number of locks that clients obtained per second
//! - the times in which no client obtained a lock
//! - the times in which a lock was free although a client waited for it
//! - the masters that each client process used

use std::collections::BTreeMap;

use crate::event::Event;
use crate::history::{Attempt, History};
use crate::workload::{Workload, family};

/// One second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// A step of a change of masters, with all attempts of the operator at this step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of the change of masters, counted from 0.
    pub change: usize,
    /// The name of the operator's step.
    pub name: String,
    /// The time of the first attempt at the step, in nanoseconds since the run began.
    pub from: u64,
    /// The time at which the step succeeded or was abandoned, in nanoseconds since the run began.
    pub to: u64,
    /// Whether the last attempt at the step succeeded.
    pub done: bool,
    /// The number of times that the operator tried the step.
    pub tries: usize,
    /// The output of `quorate masters` at the last attempt.
    pub said: String,
}

/// An interval in which a lock was free while a client waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The resource that was free.
    pub resource: String,
    /// The start of the interval, in nanoseconds since the run began.
    pub from: u64,
    /// The end of the interval, in nanoseconds since the run began.
    pub to: u64,
    /// The attempt that obtained the lock at the end of the interval, e.g. `c1#7`.
    pub who: String,
}

/// The lifetime of one client process, and the set or sets of masters with which this process was configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The client and its process, e.g. `c1.2` for the second process of `c1`.
    pub who: String,
    /// The masters that the process used: 0 for the first set, 1 for the first and second set together, 2 for the
    /// second set, 3 for the second and third set together, etc.
    pub step: u64,
    /// The start of the process, in nanoseconds since the run began.
    pub from: u64,
    /// The end of the process, in nanoseconds since the run began.
    pub to: u64,
}

/// The steps of all changes of masters, in order of time. All tries of a step are combined into one [`Step`].
pub fn steps(history: &History) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in &history.lines {
        let Event::Step {
            change,
            step,
            since,
            done,
            said,
        } = &line.what
        else {
            continue;
        };
        let again = steps
            .last_mut()
            .filter(|last| last.from == *since && last.name == *step);
        let tries = again.as_ref().map_or(1, |last| last.tries + 1);
        let new = Step {
            change: *change,
            name: step.clone(),
            from: *since,
            to: line.t,
            done: *done,
            tries,
            said: said.clone(),
        };
        match again {
            Some(last) => *last = new,
            None => steps.push(new),
        }
    }
    steps
}

/// The times at which attempts succeeded: a client obtained a lock, or got an answer from a quota. In ascending order,
/// in nanoseconds since the run began. Without the workload `many`, in which each client has locks of its own.
pub fn had(attempts: &[Attempt]) -> Vec<u64> {
    let shared = attempts
        .iter()
        .filter(|one| family(&one.resource) != Workload::Many.name());
    let mut had: Vec<u64> = shared.filter_map(Attempt::served).collect();
    had.sort_unstable();
    had
}

/// The number of entries of `had` in each second of the run up to `end`. All times are in nanoseconds since the run
/// began.
pub fn per_second(had: &[u64], end: u64) -> Vec<usize> {
    let mut seconds = vec![0; usize::try_from(end / SECOND).unwrap_or(0) + 1];
    for t in had {
        if let Some(second) = usize::try_from(t / SECOND)
            .ok()
            .and_then(|at| seconds.get_mut(at))
        {
            *second += 1;
        }
    }
    seconds
}

/// The longest time from one acquisition to the next, in nanoseconds. Only acquisitions between `from` and `to` count,
/// each with the time since the acquisition before it. `None` if there are none.
pub fn longest_gap(had: &[u64], from: u64, to: u64) -> Option<u64> {
    let pairs = had.windows(2).filter(|pair| (from..to).contains(&pair[1]));
    pairs.map(|pair| pair[1] - pair[0]).max()
}

/// Every interval in which a plain exclusive lock was free while a client waited for it.
pub fn idle(attempts: &[Attempt], end: u64) -> Vec<Idle> {
    let plain = Workload::ALL.into_iter().filter(|one| one.shows_breaks());
    plain
        .flat_map(|workload| idle_of(workload.name(), attempts, end))
        .collect()
}

fn idle_of(resource: &str, attempts: &[Attempt], end: u64) -> Vec<Idle> {
    let all: Vec<&Attempt> = attempts
        .iter()
        .filter(|one| one.resource == resource)
        .collect();
    let mut won: Vec<(u64, &Attempt)> = all
        .iter()
        .filter_map(|one| Some((one.obtained?, *one)))
        .collect();
    won.sort_by_key(|(at, _)| *at);
    let mut coming = all.iter().peekable();
    let mut waiting: Vec<&Attempt> = Vec::new();
    let over = |one: &Attempt| {
        let ends = [one.obtained, one.missed, one.gone];
        ends.into_iter().flatten().min().unwrap_or(end)
    };
    let (mut free, mut idle) = (0, Vec::new());
    for (at, winner) in won {
        waiting.extend(std::iter::from_fn(|| coming.next_if(|one| one.began < at)));
        waiting.retain(|one| over(one) >= at);
        let wanted = waiting.first().map_or(at, |one| one.began);
        let from = free.max(wanted);
        if from < at {
            let (resource, who) = (resource.to_owned(), winner.name());
            idle.push(Idle {
                resource,
                from,
                to: at,
                who,
            });
        }
        let held = winner.belief(end).map_or(at, |(_, to)| to);
        free = free.max(held);
    }
    idle
}

/// All processes of clients in the run.
pub fn lives(history: &History) -> Vec<Life> {
    let mut lives: BTreeMap<&str, Life> = BTreeMap::new();
    for line in &history.lines {
        let step = match line.what {
            Event::Sent { step } => step,
            Event::Ready { .. } => 0,
            Event::Gone { .. } => {
                if let Some(life) = lives.get_mut(line.who.as_str()) {
                    life.to = line.t;
                }
                continue;
            }
            _ => continue,
        };
        let life = Life {
            who: line.who.clone(),
            step,
            from: line.t,
            to: history.end(),
        };
        lives.entry(&line.who).or_insert(life);
    }
    lives.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;
    use crate::event::Entry;

    fn at(t: u64, who: &str, what: Event) -> Entry {
        Entry {
            t,
            who: who.into(),
            what,
        }
    }

    fn wait(op: u64) -> Event {
        Event::Wait {
            op,
            resource: "file".into(),
            also: Vec::new(),
            claim: Claim::Alone,
            goes_on: None,
        }
    }

    fn obtained(op: u64) -> Event {
        Event::Obtained {
            op,
            token: None,
            until: Some(1_000),
            slot: None,
        }
    }

    #[test]
    fn lock_counts_as_idle_only_while_it_is_free_and_a_client_waits() {
        let history = History::new(vec![
            at(10, "c1", wait(1)),
            at(12, "c1", obtained(1)),
            at(50, "c2", wait(1)),
            at(90, "c1", Event::Release { op: 1, until: None }),
            at(120, "c2", obtained(1)),
            at(130, "c2", Event::Release { op: 1, until: None }),
            at(200, "c1", wait(2)),
            at(205, "c1", obtained(2)),
        ]);
        let attempts = history.attempts();
        let idle = idle(&attempts, history.end());
        let times: Vec<_> = idle.iter().map(|one| (one.from, one.to)).collect();
        assert_eq!(times, [(10, 12), (90, 120), (200, 205)]);
        let had = had(&attempts);
        assert_eq!(longest_gap(&had, 0, 150), Some(108));
        assert_eq!(longest_gap(&had, 150, 300), Some(85));
        assert_eq!(per_second(&had, history.end()), [3]);
    }

    #[test]
    fn operator_steps_and_client_lifetimes_are_computed_from_the_run_history() {
        let step = |step: &str, since, done| Event::Step {
            change: 0,
            step: step.into(),
            since,
            done,
            said: String::new(),
        };
        let history = History::new(vec![
            at(1, "c1", Event::Ready { pid: 1 }),
            at(3, "chaos", step("begin", 2, false)),
            at(5, "chaos", step("begin", 2, true)),
            at(9, "chaos", step("close", 6, true)),
            at(
                10,
                "c1",
                Event::Gone {
                    meant: true,
                    how: "exit status: 0".into(),
                },
            ),
            at(11, "c1.2", Event::Sent { step: 1 }),
            at(12, "c1.2", Event::Ready { pid: 2 }),
        ]);
        let steps = steps(&history);
        let told: Vec<_> = steps
            .iter()
            .map(|one| (one.name.as_str(), one.tries, one.to))
            .collect();
        assert_eq!(told, [("begin", 2, 5), ("close", 1, 9)]);
        let lives = lives(&history);
        let told: Vec<_> = lives
            .iter()
            .map(|one| (one.step, one.from, one.to))
            .collect();
        assert_eq!(told, [(0, 1, 10), (1, 11, 12)]);
    }
}
