//! Follows the announcements of new leaders, so that the page shows a new leader before its next regular reading.

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate::{LockName, Observation, Redlock};

/// The largest number of elections that are observed. Each observer asks the masters three times per ttl. The leaders
/// of further elections are only read regularly.
const MAX_OBSERVED: usize = 16;

/// The elections that are observed, by the ids of their locks.
#[derive(Default)]
pub(crate) struct Elections {
    observed: BTreeSet<Arc<str>>,
}

/// The observer of one election.
pub(crate) struct LeaderWatch {
    /// The id of the lock of the election.
    id: Arc<str>,
    observation: Observation,
    has_leader: bool,
}

impl LeaderWatch {
    /// Waits for the next change of the leader.
    pub(crate) async fn wait_for_change(mut self) -> Self {
        self.has_leader = self.observation.next().await.is_some();
        self
    }

    pub(crate) fn id(&self) -> &Arc<str> {
        &self.id
    }
}

impl Elections {
    /// Creates an observer for each of these elections that has none.
    pub(crate) fn observe_new(
        &mut self,
        redlock: &Redlock,
        elections: Vec<(Arc<str>, LockName)>,
    ) -> Vec<LeaderWatch> {
        let mut watches = Vec::new();
        for (id, name) in elections {
            if self.observed.len() >= MAX_OBSERVED || self.observed.contains(&id) {
                continue;
            }
            if let Ok(observation) = redlock.election(&name.resource).observe() {
                self.observed.insert(id.clone());
                watches.push(LeaderWatch {
                    id,
                    observation,
                    has_leader: true,
                });
            }
        }
        watches
    }

    /// Returns the observer after a change, to wait for the next one. An election without a leader is no longer
    /// observed: if a later reading shows a leader, it gets a new observer.
    pub(crate) fn after_change(&mut self, watch: LeaderWatch) -> Option<LeaderWatch> {
        if !watch.has_leader {
            self.observed.remove(&watch.id);
            return None;
        }
        Some(watch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_observed_elections_is_limited_and_each_has_one_observer() {
        let redlock = Redlock::builder().masters(["redis://127.0.0.1:1"]);
        let redlock = redlock.build().expect("good settings");
        let elections = |count: usize| {
            let election = |number: usize| {
                let resource = format!("election-{number}").into_bytes();
                let name = LockName {
                    resource,
                    slot: None,
                };
                (format!("l:election-{number}").into(), name)
            };
            (0..count).map(election).collect::<Vec<_>>()
        };
        let mut observed = Elections::default();
        let mut first = observed.observe_new(&redlock, elections(1));
        assert!(observed.observe_new(&redlock, elections(1)).is_empty());
        let more = observed.observe_new(&redlock, elections(100));
        assert_eq!(more.len(), MAX_OBSERVED - 1);
        let mut without_leader = first.pop().expect("an observer");
        without_leader.has_leader = false;
        assert!(observed.after_change(without_leader).is_none());
        assert_eq!(observed.observe_new(&redlock, elections(1)).len(), 1);
        for watch in more {
            assert!(observed.after_change(watch).is_some());
        }
    }
}
