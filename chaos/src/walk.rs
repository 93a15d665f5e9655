//! The tasks of an operator that changes masters, in order. A careful operator follows docs/operations.md. Other
//! operators make mistakes that the checkers must find.

use crate::changes::{Changes, Operator};

/// A task of the operator, which must be completed before the next task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Run `quorate masters` with this step, e.g. `begin`.
    Command(&'static str),
    /// End these clients, and start them again with other masters.
    Clients(Vec<usize>, Given),
    /// Inject a fault into a master.
    Fault(Moment),
    /// Stop the servers that are no longer used. They are not started again.
    Retire,
    /// Write the key `quorate:masters` on the new masters by hand, instead of with the step `open`.
    Marks,
    /// Wait for twice `max_ttl`. In this time, the clients use their current masters.
    Rest,
}

/// The set of masters with which clients are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// Both the old and the new masters.
    Both,
    /// Only the new masters. The clients know that these masters replace the old ones.
    Next,
    /// Only the new masters, as if they were the first masters of the clients. This is a mistake of the operator.
    NextAsFirst,
}

/// Between which steps of a change of masters a fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Any moment except [`Closed`](Self::Closed).
    Usual,
    /// Between the steps `close` and `open` of [`STEPS`].
    Closed,
}

impl Task {
    /// The name of the task in the history.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Command(step) => step,
            Self::Clients(_, Given::Both) => "clients of both",
            Self::Clients(..) => "clients of the next",
            Self::Fault(_) => "fault",
            Self::Retire => "stop",
            Self::Marks => "marks",
            Self::Rest => "rest",
        }
    }
}

/// The steps of a complete change of masters, as in docs/operations.md.
pub const STEPS: [&str; 7] = [
    "begin",
    "clients of both",
    "close",
    "open",
    "clients of the next",
    "finish",
    "stop",
];

/// The tasks of the operator for one change, with this number of clients.
pub fn plan(changes: &Changes, clients: usize, faults: bool) -> Vec<Task> {
    let mut tasks = match changes.operator {
        Operator::Careful => careful(clients),
        Operator::NoJointStep => vec![
            Task::Clients((0..clients.div_ceil(2)).collect(), Given::NextAsFirst),
            Task::Rest,
        ],
        Operator::OpensByHand => vec![
            Task::Command("begin"),
            Task::Clients(vec![0], Given::Both),
            Task::Marks,
            Task::Clients((0..clients.div_ceil(2)).collect(), Given::Next),
            Task::Rest,
        ],
    };
    tasks.retain(|task| faults || !matches!(task, Task::Fault(_)));
    tasks
}

/// The tasks of a careful operator. Two clients are restarted late, as if the operator had overlooked them:
///
/// - The last client gets the new masters only after the step `open`. Until then, it uses the old masters.
/// - If there are at least four clients, the client before the last gets the new masters only after the step `finish`.
///   Until then, it uses both sets of masters.
fn careful(clients: usize) -> Vec<Task> {
    let last = clients - 1;
    let late: Vec<usize> = (clients > 3).then(|| last - 1).into_iter().collect();
    let joined: Vec<usize> = (0..last).collect();
    let (first, second) = joined.split_at(joined.len() / 2);
    let in_time: Vec<usize> = (0..clients).filter(|one| !late.contains(one)).collect();
    let (early, rest) = in_time.split_at(in_time.len() / 2);
    let mut tasks = vec![
        Task::Fault(Moment::Usual),
        Task::Command("begin"),
        Task::Clients(first.to_vec(), Given::Both),
        Task::Fault(Moment::Usual),
        Task::Clients(second.to_vec(), Given::Both),
        Task::Command("close"),
        Task::Fault(Moment::Closed),
        Task::Command("open"),
        Task::Clients(early.to_vec(), Given::Next),
        Task::Fault(Moment::Usual),
        Task::Clients(rest.to_vec(), Given::Next),
        Task::Command("finish"),
        Task::Clients(late, Given::Next),
        Task::Retire,
    ];
    tasks.retain(|task| !matches!(task, Task::Clients(some, _) if some.is_empty()));
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_of_a_change_of_masters_contains_every_step() {
        for clients in 1..9 {
            let tasks = plan(&Changes::at_once(3), clients, true);
            let mut given: Vec<usize> = tasks
                .iter()
                .filter_map(|task| match task {
                    Task::Clients(some, Given::Next) => Some(some.clone()),
                    _ => None,
                })
                .flatten()
                .collect();
            given.sort_unstable();
            assert_eq!(given, (0..clients).collect::<Vec<_>>());
            for step in STEPS {
                let taken = tasks.iter().any(|task| task.name() == step);
                let nobody = clients == 1 && step == "clients of both";
                assert!(
                    taken || nobody,
                    "the plan for {clients} clients must contain the step {step}"
                );
            }
        }
        let place = |tasks: &[Task], what: &Task| tasks.iter().position(|task| task == what);
        let tasks = plan(&Changes::at_once(3), 5, true);
        let closed = place(&tasks, &Task::Fault(Moment::Closed));
        assert!(place(&tasks, &Task::Command("close")) < closed);
        assert!(closed < place(&tasks, &Task::Command("open")));
        let calm = plan(&Changes::at_once(3), 5, false);
        assert!(!calm.iter().any(|task| matches!(task, Task::Fault(_))));
    }
}
