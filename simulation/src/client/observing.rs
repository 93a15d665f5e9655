//! The work of a client that observes an election.

use std::time::Duration;

use futures::future::{Either, select};
use quorate::runtime::Runtime;
use quorate::{Instant, Redlock};

use super::Client;
use crate::facts::Fact;
use crate::flaw::Flaw;
use crate::locker::key_of_place;
use crate::scenario::Step;

impl Client {
    /// Observes the election for the time `step.hold` (nanoseconds), and reports each observed leader to the checkers.
    pub(super) async fn observe_election(&self, step: &Step) {
        let Some(redlock) = self.locker.redlock() else {
            return;
        };
        let resource = usize::from(step.resource);
        self.report_fact(|task| Fact::ObservationStarted { task });
        let ends_at = self.process.now() + Duration::from_nanos(step.hold);
        let flaw = self.process.shared.world().flaw;
        if flaw == Some(Flaw::TermOfOne) {
            return self
                .believe_single_masters(redlock, resource, ends_at)
                .await;
        }
        let election = redlock.election(key_of_place(step.resource));
        let mut observation = election.observe().expect("the name must be valid");
        loop {
            let next = std::pin::pin!(observation.next());
            let Either::Left((leader, _)) = select(next, self.process.sleep_until(ends_at)).await
            else {
                return;
            };
            let leader_seen = leader.map(|leader| {
                let note = leader.note.and_then(|note| note.text);
                (leader.term, note)
            });
            self.trace(|client| {
                format!("client {client} observes {leader_seen:?} as the leader of r{resource}")
            });
            self.count_leader(leader_seen.as_ref());
            self.report_fact(|task| Fact::LeaderObserved {
                task,
                resource,
                leader: leader_seen
                    .as_ref()
                    .map(|(term, note)| (*term, note.as_deref())),
            });
        }
    }

    /// For a seeded bug: observes an election by asking one master after another. The client believes
    /// the leader in each single reply, without a majority.
    async fn believe_single_masters(&self, redlock: &Redlock, resource: usize, ends_at: Instant) {
        let interval = Duration::from_nanos(self.process.shared.world().scenario.settings.ttl) / 10;
        for index in 0.. {
            if self.process.now() >= ends_at {
                return;
            }
            let status = redlock.status(key_of_place(resource as u8)).await;
            let nodes = status.expect("the name must be valid").nodes;
            let state = nodes[index % nodes.len()].state.as_ref().ok();
            let held_state = state.filter(|state| state.holder.is_some());
            if let Some(term) = held_state.and_then(|state| state.term.or(state.counter)) {
                self.report_fact(|task| Fact::LeaderObserved {
                    task,
                    resource,
                    leader: Some((term, None)),
                });
            }
            self.process
                .sleep_until(self.process.now() + interval)
                .await;
        }
    }

    fn count_leader(&self, leader_seen: Option<&(u64, Option<String>)>) {
        let coverage = &mut self.process.shared.world().observer.coverage;
        match leader_seen {
            Some((_, Some(_))) => coverage.leaders_seen += 1,
            Some((_, None)) => coverage.unnamed_seen += 1,
            None => coverage.nobody_seen += 1,
        }
    }
}
