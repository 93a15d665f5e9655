//! Computes the progress of a run from its history:
//!
//! - the number of locks that clients obtained per second
//! - the times in which no client obtained a lock
//! - the times in which a lock was free although a client waited for it
//! - the masters that each client process used

use std::collections::BTreeMap;

use crate::event::Event;
use crate::history::{Attempt, History};
use crate::workload::{Workload, workload_name};

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
    pub succeeded: bool,
    /// The number of times that the operator tried the step.
    pub tries: usize,
    /// The output of `quorate masters` at the last attempt.
    pub output: String,
}

/// An interval in which a lock was free while a client waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeInterval {
    /// The resource that was free.
    pub resource: String,
    /// The start of the interval, in nanoseconds since the run began.
    pub from: u64,
    /// The end of the interval, in nanoseconds since the run began.
    pub to: u64,
    /// The attempt that obtained the lock at the end of the interval, e.g. `c1#7`.
    pub process: String,
}

/// The lifetime of one client process, and the set or sets of masters with which this process was configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    /// The client and its process, e.g. `c1.2` for the second process of `c1`.
    pub process: String,
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
    for entry in &history.entries {
        let Event::Step {
            change,
            step,
            since,
            succeeded,
            output,
        } = &entry.event
        else {
            continue;
        };
        let previous_try = steps
            .last_mut()
            .filter(|last| last.from == *since && last.name == *step);
        let tries = previous_try.as_ref().map_or(1, |last| last.tries + 1);
        let step_so_far = Step {
            change: *change,
            name: step.clone(),
            from: *since,
            to: entry.t,
            succeeded: *succeeded,
            tries,
            output: output.clone(),
        };
        match previous_try {
            Some(last) => *last = step_so_far,
            None => steps.push(step_so_far),
        }
    }
    steps
}

/// The times at which attempts succeeded: a client obtained a lock, or got an answer from a quota. In ascending order,
/// in nanoseconds since the run began. Without the workload `many`, in which each client has locks of its own.
pub fn success_times(attempts: &[Attempt]) -> Vec<u64> {
    let shared_attempts = attempts
        .iter()
        .filter(|attempt| workload_name(&attempt.resource) != Workload::Many.name());
    let mut times: Vec<u64> = shared_attempts.filter_map(Attempt::served_at).collect();
    times.sort_unstable();
    times
}

/// The number of entries of `times` in each second of the run up to `end`. All times are in nanoseconds since the run
/// began.
pub fn per_second(times: &[u64], end: u64) -> Vec<usize> {
    let mut seconds = vec![0; usize::try_from(end / SECOND).unwrap_or(0) + 1];
    for t in times {
        if let Some(second) = usize::try_from(t / SECOND)
            .ok()
            .and_then(|index| seconds.get_mut(index))
        {
            *second += 1;
        }
    }
    seconds
}

/// The longest time from one acquisition to the next, in nanoseconds. Only acquisitions between `from` and `to` count,
/// each with the time since the acquisition before it. `None` if there are none.
pub fn longest_gap(times: &[u64], from: u64, to: u64) -> Option<u64> {
    let pairs = times
        .windows(2)
        .filter(|pair| (from..to).contains(&pair[1]));
    pairs.map(|pair| pair[1] - pair[0]).max()
}

/// Every interval in which a plain exclusive lock was free while a client waited for it.
pub fn free_intervals(attempts: &[Attempt], end: u64) -> Vec<FreeInterval> {
    let plain_workloads = Workload::ALL
        .into_iter()
        .filter(|workload| workload.shows_breaks());
    plain_workloads
        .flat_map(|workload| free_intervals_of(workload.name(), attempts, end))
        .collect()
}

fn free_intervals_of(resource: &str, attempts: &[Attempt], end: u64) -> Vec<FreeInterval> {
    let of_resource: Vec<&Attempt> = attempts
        .iter()
        .filter(|attempt| attempt.resource == resource)
        .collect();
    let mut acquisitions: Vec<(u64, &Attempt)> = of_resource
        .iter()
        .filter_map(|attempt| Some((attempt.obtained_at?, *attempt)))
        .collect();
    acquisitions.sort_by_key(|(obtained_at, _)| *obtained_at);
    let mut by_start = of_resource.iter().peekable();
    let mut waiting: Vec<&Attempt> = Vec::new();
    let wait_ended_at = |attempt: &Attempt| {
        let possible_ends = [
            attempt.obtained_at,
            attempt.failed_at,
            attempt.process_ended_at,
        ];
        possible_ends.into_iter().flatten().min().unwrap_or(end)
    };
    let (mut free_since, mut intervals) = (0, Vec::new());
    for (obtained_at, winner) in acquisitions {
        waiting.extend(std::iter::from_fn(|| {
            by_start.next_if(|attempt| attempt.began_at < obtained_at)
        }));
        waiting.retain(|attempt| wait_ended_at(attempt) >= obtained_at);
        let wanted_since = waiting
            .first()
            .map_or(obtained_at, |attempt| attempt.began_at);
        let from = free_since.max(wanted_since);
        if from < obtained_at {
            let (resource, process) = (resource.to_owned(), winner.name());
            intervals.push(FreeInterval {
                resource,
                from,
                to: obtained_at,
                process,
            });
        }
        let held_until = winner.belief(end).map_or(obtained_at, |(_, to)| to);
        free_since = free_since.max(held_until);
    }
    intervals
}

/// All processes of clients in the run.
pub fn client_processes(history: &History) -> Vec<ClientProcess> {
    let mut by_name: BTreeMap<&str, ClientProcess> = BTreeMap::new();
    for entry in &history.entries {
        let step = match entry.event {
            Event::Sent { step } => step,
            Event::Ready { .. } => 0,
            Event::Gone { .. } => {
                if let Some(process) = by_name.get_mut(entry.process.as_str()) {
                    process.to = entry.t;
                }
                continue;
            }
            _ => continue,
        };
        let process = ClientProcess {
            process: entry.process.clone(),
            step,
            from: entry.t,
            to: history.end(),
        };
        by_name.entry(&entry.process).or_insert(process);
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;
    use crate::event::Entry;

    fn entry_at(t: u64, process: &str, event: Event) -> Entry {
        Entry {
            t,
            process: process.into(),
            event,
        }
    }

    fn wait(op: u64) -> Event {
        Event::Wait {
            op,
            resource: "file".into(),
            further_resources: Vec::new(),
            claim: Claim::Alone,
            continued_hold: None,
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
            entry_at(10, "c1", wait(1)),
            entry_at(12, "c1", obtained(1)),
            entry_at(50, "c2", wait(1)),
            entry_at(90, "c1", Event::Release { op: 1, until: None }),
            entry_at(120, "c2", obtained(1)),
            entry_at(130, "c2", Event::Release { op: 1, until: None }),
            entry_at(200, "c1", wait(2)),
            entry_at(205, "c1", obtained(2)),
        ]);
        let attempts = history.attempts();
        let free_intervals = free_intervals(&attempts, history.end());
        let times: Vec<_> = free_intervals
            .iter()
            .map(|interval| (interval.from, interval.to))
            .collect();
        assert_eq!(times, [(10, 12), (90, 120), (200, 205)]);
        let success_times = success_times(&attempts);
        assert_eq!(longest_gap(&success_times, 0, 150), Some(108));
        assert_eq!(longest_gap(&success_times, 150, 300), Some(85));
        assert_eq!(per_second(&success_times, history.end()), [3]);
    }

    #[test]
    fn operator_steps_and_client_lifetimes_are_computed_from_the_run_history() {
        let step = |step: &str, since, succeeded| Event::Step {
            change: 0,
            step: step.into(),
            since,
            succeeded,
            output: String::new(),
        };
        let history = History::new(vec![
            entry_at(1, "c1", Event::Ready { pid: 1 }),
            entry_at(3, "chaos", step("begin", 2, false)),
            entry_at(5, "chaos", step("begin", 2, true)),
            entry_at(9, "chaos", step("close", 6, true)),
            entry_at(
                10,
                "c1",
                Event::Gone {
                    meant: true,
                    how: "exit status: 0".into(),
                },
            ),
            entry_at(11, "c1.2", Event::Sent { step: 1 }),
            entry_at(12, "c1.2", Event::Ready { pid: 2 }),
        ]);
        let steps = steps(&history);
        let summaries: Vec<_> = steps
            .iter()
            .map(|item| (item.name.as_str(), item.tries, item.to))
            .collect();
        assert_eq!(summaries, [("begin", 2, 5), ("close", 1, 9)]);
        let client_processes = client_processes(&history);
        let summaries: Vec<_> = client_processes
            .iter()
            .map(|item| (item.step, item.from, item.to))
            .collect();
        assert_eq!(summaries, [(0, 1, 10), (1, 11, 12)]);
    }
}
