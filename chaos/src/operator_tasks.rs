//! The tasks of an operator that changes masters, in order. A careful operator follows docs/operations.md. Other
//! operators make mistakes that the checkers must find.

use crate::changes::{MasterChanges, Operator};

/// A task of the operator, which must be completed before the next task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Run `quorate masters` with this step, e.g. `begin`.
    Command(&'static str),
    /// End these clients, and start them again with other masters.
    RestartClients(Vec<usize>, MasterSet),
    /// Inject a fault into a master.
    Fault(Moment),
    /// Stop the servers that are no longer used. They are not started again.
    Retire,
    /// Write the key `quorate:masters` on the new masters by hand, instead of with the step `open`.
    WriteMarker,
    /// Wait for twice `max_ttl`. In this time, the clients use their current masters.
    WaitTwiceMaxTtl,
}

/// The set of masters with which clients are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterSet {
    /// Both the old and the new masters.
    OldAndNext,
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
            Self::RestartClients(_, MasterSet::OldAndNext) => "clients of both",
            Self::RestartClients(..) => "clients of the next",
            Self::Fault(_) => "fault",
            Self::Retire => "stop",
            Self::WriteMarker => "marks",
            Self::WaitTwiceMaxTtl => "rest",
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
pub fn tasks_of_change(changes: &MasterChanges, clients: usize, faults: bool) -> Vec<Task> {
    let mut tasks = match changes.operator {
        Operator::Careful => careful_tasks(clients),
        Operator::NoJointStep => vec![
            Task::RestartClients((0..clients.div_ceil(2)).collect(), MasterSet::NextAsFirst),
            Task::WaitTwiceMaxTtl,
        ],
        Operator::OpensByHand => vec![
            Task::Command("begin"),
            Task::RestartClients(vec![0], MasterSet::OldAndNext),
            Task::WriteMarker,
            Task::RestartClients((0..clients.div_ceil(2)).collect(), MasterSet::Next),
            Task::WaitTwiceMaxTtl,
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
fn careful_tasks(clients: usize) -> Vec<Task> {
    let last_client = clients - 1;
    let late_clients: Vec<usize> = (clients > 3).then(|| last_client - 1).into_iter().collect();
    let early_clients: Vec<usize> = (0..last_client).collect();
    let (first_half, second_half) = early_clients.split_at(early_clients.len() / 2);
    let other_clients: Vec<usize> = (0..clients)
        .filter(|client| !late_clients.contains(client))
        .collect();
    let (first_updated, last_updated) = other_clients.split_at(other_clients.len() / 2);
    let mut tasks = vec![
        Task::Fault(Moment::Usual),
        Task::Command("begin"),
        Task::RestartClients(first_half.to_vec(), MasterSet::OldAndNext),
        Task::Fault(Moment::Usual),
        Task::RestartClients(second_half.to_vec(), MasterSet::OldAndNext),
        Task::Command("close"),
        Task::Fault(Moment::Closed),
        Task::Command("open"),
        Task::RestartClients(first_updated.to_vec(), MasterSet::Next),
        Task::Fault(Moment::Usual),
        Task::RestartClients(last_updated.to_vec(), MasterSet::Next),
        Task::Command("finish"),
        Task::RestartClients(late_clients, MasterSet::Next),
        Task::Retire,
    ];
    tasks.retain(|task| !matches!(task, Task::RestartClients(clients, _) if clients.is_empty()));
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_of_a_change_of_masters_contains_every_step() {
        for clients in 1..9 {
            let tasks = tasks_of_change(&MasterChanges::at_once(3), clients, true);
            let mut updated: Vec<usize> = tasks
                .iter()
                .filter_map(|task| match task {
                    Task::RestartClients(clients, MasterSet::Next) => Some(clients.clone()),
                    _ => None,
                })
                .flatten()
                .collect();
            updated.sort_unstable();
            assert_eq!(updated, (0..clients).collect::<Vec<_>>());
            for step in STEPS {
                let is_planned = tasks.iter().any(|task| task.name() == step);
                let is_impossible = clients == 1 && step == "clients of both";
                assert!(
                    is_planned || is_impossible,
                    "the plan for {clients} clients must contain the step {step}"
                );
            }
        }
        let position_of =
            |tasks: &[Task], task: &Task| tasks.iter().position(|other| other == task);
        let tasks = tasks_of_change(&MasterChanges::at_once(3), 5, true);
        let closed_moment = position_of(&tasks, &Task::Fault(Moment::Closed));
        assert!(position_of(&tasks, &Task::Command("close")) < closed_moment);
        assert!(closed_moment < position_of(&tasks, &Task::Command("open")));
        let without_faults = tasks_of_change(&MasterChanges::at_once(3), 5, false);
        assert!(
            !without_faults
                .iter()
                .any(|task| matches!(task, Task::Fault(_)))
        );
    }
}
