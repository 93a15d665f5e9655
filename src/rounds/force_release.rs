//! Force-releases a lock on every master (docs/protocol.md, "Force-release").

use std::sync::Arc;
use std::time::Duration;

use super::coordinator::Coordinator;
use crate::node::{Ended, Fault, KeyState, Request};

/// The answer of each master, and the time from the request to the answer.
type Answers = Vec<(Result<KeyState, Fault>, Duration)>;

impl Coordinator {
    /// Force-releases the lock `key`, in these steps:
    ///
    /// 1. Reads the lock on every master.
    /// 2. Adds every value that was read to the break record of every master that can be reached. If a master answers
    ///    only now, repeats this step with its value.
    /// 3. Deletes the lock on every master, if a majority of the masters has the break record.
    ///
    /// Deletes only the locks that were read, not a lock that another client acquires in the meantime. Returns the
    /// state of the lock on each master as it was first read, or the fault of a master that did not execute the last
    /// step; and whether the third step was sent.
    pub(crate) async fn force_release(&self, key: Arc<[u8]>) -> (Answers, bool) {
        let mut first_answers: Answers = Vec::new();
        let mut ended_locks: Arc<[Ended]> = Arc::default();
        let mut last_answers = loop {
            let answers = self.force_release_step(&key, &ended_locks, false).await;
            add_first_answers(&mut first_answers, &answers);
            let states = first_answers
                .iter()
                .filter_map(|(state, _)| state.as_ref().ok());
            let all_ended: Arc<[Ended]> = Ended::all(states).into();
            if all_ended == ended_locks {
                break answers;
            }
            ended_locks = all_ended;
        };
        let numbered_answers = last_answers.iter().enumerate();
        let recorded = numbered_answers
            .filter(|(_, (state, _))| state.is_ok())
            .map(|(node, _)| node)
            .collect();
        let deletes = !ended_locks.is_empty() && self.quorum.is_met_by(recorded);
        if deletes {
            last_answers = self.force_release_step(&key, &ended_locks, true).await;
        }
        let answer_pairs = first_answers.into_iter().zip(last_answers);
        let answers = answer_pairs
            .map(|((state, latency), (last_state, _))| (last_state.and(state), latency));
        (answers.collect(), deletes)
    }

    async fn force_release_step(
        &self,
        key: &Arc<[u8]>,
        ended_locks: &Arc<[Ended]>,
        delete: bool,
    ) -> Answers {
        let request = Request::Break {
            key: key.clone(),
            ended: ended_locks.clone(),
            delete,
        };
        self.key_states(request).await
    }
}

/// Copies the answers of the masters that have answered for the first time to `first`.
fn add_first_answers(first: &mut Answers, answers: &Answers) {
    if first.is_empty() {
        first.clone_from(answers);
    } else {
        for (first_answer, answer) in first.iter_mut().zip(answers) {
            if first_answer.0.is_err() {
                first_answer.clone_from(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::Redlock;

    #[test]
    fn first_answer_of_each_master_is_kept() {
        let held_by = |value: &[u8]| {
            let holder = Some(value.to_vec());
            let state = KeyState {
                holder,
                ..KeyState::default()
            };
            (Ok(state), Duration::ZERO)
        };
        let failed = || (Err(Fault::OutOfMemory), Duration::ZERO);
        let mut first = Answers::new();
        add_first_answers(&mut first, &vec![failed(), held_by(b"a"), failed()]);
        assert_eq!(first, [failed(), held_by(b"a"), failed()]);
        add_first_answers(&mut first, &vec![held_by(b"b"), held_by(b"b"), failed()]);
        assert_eq!(first, [held_by(b"b"), held_by(b"a"), failed()]);
    }

    #[tokio::test(start_paused = true)]
    async fn deletion_is_sent_only_if_a_master_has_shown_a_lock() {
        let redlock = Redlock::in_memory(3);
        let force_release = || redlock.core.coordinator.force_release(b"r"[..].into());
        let (_, is_deletion_sent) = force_release().await;
        assert!(!is_deletion_sent, "the lock is free");
        let _guard = redlock.acquire("r").await.expect("free");
        let (_, is_deletion_sent) = force_release().await;
        assert!(is_deletion_sent, "the lock is held");
    }
}
