//! The work of a client that observes an election.

use std::time::Duration;

use futures::future::{Either, select};
use quorate::runtime::Runtime;
use quorate::{Instant, Redlock};

use super::Client;
use crate::facts::Fact;
use crate::locker::name;
use crate::scenario::Step;
use crate::seeded_bugs::Flaw;

impl Client {
    /// Observes the election for the time `step.hold` (nanoseconds), and reports each observed leader to the checkers.
    pub(super) async fn observe(&self, step: &Step) {
        let Some(redlock) = self.locker.redlock() else {
            return;
        };
        let resource = usize::from(step.resource);
        self.tell(|task| Fact::Observes { task });
        let end = self.process.now() + Duration::from_nanos(step.hold);
        let flaw = self.process.shared.world().flaw;
        if flaw == Some(Flaw::TermOfOne) {
            return self.believe_each(redlock, resource, end).await;
        }
        let election = redlock.election(name(step.resource));
        let mut observation = election.observe().expect("the name must be valid");
        loop {
            let next = std::pin::pin!(observation.next());
            let Either::Left((leader, _)) = select(next, self.process.sleep_until(end)).await
            else {
                return;
            };
            let seen = leader.map(|leader| {
                let note = leader.note.and_then(|note| note.text);
                (leader.term, note)
            });
            self.say(|client| {
                format!("client {client} observes {seen:?} as the leader of r{resource}")
            });
            self.count(seen.as_ref());
            self.tell(|task| Fact::Observed {
                task,
                resource,
                leader: seen.as_ref().map(|(term, note)| (*term, note.as_deref())),
            });
        }
    }

    /// For a seeded bug: observes an election by asking one master after another. The client believes
    /// the leader in each single reply, without a majority.
    async fn believe_each(&self, redlock: &Redlock, resource: usize, end: Instant) {
        let every = Duration::from_nanos(self.process.shared.world().scenario.settings.ttl) / 10;
        for look in 0.. {
            if self.process.now() >= end {
                return;
            }
            let status = redlock.status(name(resource as u8)).await;
            let nodes = status.expect("the name must be valid").nodes;
            let state = nodes[look % nodes.len()].state.as_ref().ok();
            let state = state.filter(|state| state.holder.is_some());
            if let Some(term) = state.and_then(|state| state.term.or(state.counter)) {
                self.tell(|task| Fact::Observed {
                    task,
                    resource,
                    leader: Some((term, None)),
                });
            }
            self.process.sleep_until(self.process.now() + every).await;
        }
    }

    fn count(&self, seen: Option<&(u64, Option<String>)>) {
        let coverage = &mut self.process.shared.world().watch.coverage;
        match seen {
            Some((_, Some(_))) => coverage.leaders_seen += 1,
            Some((_, None)) => coverage.unnamed_seen += 1,
            None => coverage.nobody_seen += 1,
        }
    }
}
