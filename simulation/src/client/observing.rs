//! The work of a client that observes an election.

use std::time::Duration;

use futures::future::{Either, select};
use quorate::runtime::Runtime;

use super::Client;
use crate::facts::Fact;
use crate::locker::key_of_place;
use crate::scenario::Step;

impl Client {
    /// Observes the election for the time `step.hold` (nanoseconds), and reports each observed leader to the checkers.
    pub(super) async fn observe_election(&self, step: &Step) {
        let redlock = self.library.redlock();
        let resource = usize::from(step.resource);
        self.report_fact(|task| Fact::ObservationStarted { task });
        let ends_at = self.process.now() + Duration::from_nanos(step.hold);
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

    fn count_leader(&self, leader_seen: Option<&(u64, Option<String>)>) {
        let coverage = &mut self.process.shared.world().observer.coverage;
        match leader_seen {
            Some((_, Some(_))) => coverage.leaders_seen += 1,
            Some((_, None)) => coverage.unnamed_seen += 1,
            None => coverage.nobody_seen += 1,
        }
    }
}
