//! The observers of a run (checkers, coverage and trace), and the locks that clients believe they hold.

use std::sync::Arc;

use quorate::Instant;

use crate::checks::{Checkers, Moment};
use crate::clock::BEGIN;
use crate::coverage::Coverage;
use crate::crossings::Watched;
use crate::facts::{Believer, Fact, Why};
use crate::kind::Class;
use crate::locker::{Hold, PLACES, semaphore_of};
use crate::play::Play;
use crate::scenario::{Promises, Scenario};
use crate::seeded_bugs::Flaw;

pub(crate) struct Watch {
    pub(crate) checkers: Checkers,
    pub(crate) watched: Watched,
    pub(crate) believers: Vec<Believer>,
    pub(crate) awake_since: Vec<u64>,
    pub(crate) coverage: Coverage,
    pub(crate) event: u64,
    /// The lines of the trace; `None` if the run has no trace.
    pub(crate) trace: Option<Vec<String>>,
    promises: Promises,
    /// Whether some client in the scenario stores a note, acquires a leadership, or observes an election.
    pub(crate) has_notes: bool,
    last_holder: [Option<usize>; PLACES],
    holds: u64,
}

impl Watch {
    pub(crate) fn new(scenario: &Scenario, play: Play) -> Self {
        let promises = scenario.promises();
        // Some seeded bugs replace the library by a small client that never waits in a queue. Do not check the order of
        // waiters for these bugs.
        let in_order = !play.flaw.is_some_and(Flaw::is_locker);
        Self {
            checkers: Checkers::new(scenario, play.harm),
            watched: Watched::new(scenario),
            believers: Vec::new(),
            awake_since: vec![0; scenario.clients.len()],
            coverage: Coverage::default(),
            event: 0,
            trace: play.trace.then(Vec::new),
            promises: Promises {
                order: promises.order && in_order,
                ..promises
            },
            has_notes: scenario.has_notes(),
            last_holder: [None; PLACES],
            holds: 0,
        }
    }

    pub(crate) fn fact(&mut self, now: u64, fact: &Fact<'_>) {
        let moment = Moment {
            now,
            event: self.event,
            believers: &self.believers,
            awake_since: &self.awake_since,
            promises: self.promises,
        };
        self.checkers.see(&moment, fact);
        self.watched.see(&moment, fact);
    }

    /// Called when too many masters have lost their generation markers, so that the library's assumptions no longer
    /// hold. From then on, the checkers do not require exclusion, rising fencing tokens or correct stored values.
    pub(crate) fn lose_promises(&mut self) {
        self.coverage.split += u64::from(self.promises.exclusion);
        self.promises = Promises {
            exclusion: false,
            tokens: false,
            stock: false,
            ..self.promises
        };
    }

    /// Runs the checkers after an event. If the process of a client has just run, `client` is this client, and the
    /// state of its locks is updated first.
    pub(crate) fn after(&mut self, now: u64, client: Option<usize>) {
        for index in 0..self.believers.len() {
            let believer = &mut self.believers[index];
            if client != Some(believer.client) {
                continue;
            }
            let Some(until) = believer.hold.end_of_validity().map(Instant::as_nanos) else {
                if !std::mem::replace(&mut believer.over, true) {
                    self.show(now, index, |believer| Fact::Over { believer });
                }
                continue;
            };
            let old = std::mem::replace(&mut believer.until, until);
            if until > old {
                believer.ends = believer.clock.when(until).unwrap_or(u64::MAX);
                self.coverage.renewed += 1;
                let believer = &self.believers[index];
                let (client, resource) = (believer.client, believer.resource);
                self.say(now, || {
                    format!(
                        "client {} extends r{} by {:.3} ms",
                        client,
                        resource,
                        (until - old) as f64 / 1e6
                    )
                });
                self.show(now, index, |believer| Fact::Extended { believer, old });
            }
        }
        if self.believers.is_empty() {
            return;
        }
        let moment = Moment {
            now,
            event: self.event,
            believers: &self.believers,
            awake_since: &self.awake_since,
            promises: self.promises,
        };
        self.checkers.after(&moment);
    }

    /// Reports a fact about one hold to the checkers. `index` is the index of the hold in `believers`.
    fn show(&mut self, now: u64, index: usize, fact: impl FnOnce(&Believer) -> Fact<'_>) {
        let moment = Moment {
            now,
            event: self.event,
            believers: &self.believers,
            awake_since: &self.awake_since,
            promises: self.promises,
        };
        self.checkers.see(&moment, &fact(&self.believers[index]));
    }

    /// Adds a hold that a client has just obtained, and returns its id.
    pub(crate) fn obtained(&mut self, now: u64, mut believer: Believer) -> u64 {
        self.coverage.acquired += 1;
        let last = self.last_holder[believer.resource].replace(believer.client);
        self.coverage.hand_overs += u64::from(last.is_some_and(|last| last != believer.client));
        self.coverage.permits += u64::from(semaphore_of(believer.resource).is_some());
        self.coverage.several += u64::from(believer.scope.resources().count() > 1);
        match believer.scope.class {
            None => {}
            Some(Class::Readers) => self.coverage.shared += 1,
            Some(Class::Owner(_)) => self.coverage.owned += 1,
        }
        let (scope, mut believers) = (believer.scope, self.believers.iter());
        let compatible =
            |other: &Believer| other.scope.meets(scope) && other.scope.is_compatible_with(scope);
        if scope.class.is_some() {
            self.coverage.shared_holders += u64::from(believers.any(compatible));
        }
        self.holds += 1;
        self.event += 1;
        believer.id = self.holds;
        believer.since = self.event;
        self.say(now, || {
            format!(
                "client {} HOLDS r{:?}{}, value {:.6}, token {:?}, valid for {:.3} ms",
                believer.client,
                believer.scope.resources().collect::<Vec<_>>(),
                believer
                    .scope
                    .class
                    .map_or(String::new(), |class| format!(" {class:?}")),
                believer.value.to_string(),
                believer.fencing,
                believer.until.saturating_sub(believer.clock.read(now)) as f64 / 1e6
            )
        });
        self.fact(
            now,
            &Fact::Obtained {
                believer: &believer,
            },
        );
        self.believers.push(believer);
        self.holds
    }

    /// Records that a client no longer holds the lock with the id `id`. Returns the client's handle of this lock;
    /// `None` if the id is unknown. The caller drops the handle after it has unlocked the world.
    pub(crate) fn retire(&mut self, now: u64, id: u64, why: Why) -> Option<Arc<dyn Hold>> {
        let of = |believer: &Believer| believer.id == id;
        let index = self.believers.iter().position(of)?;
        // First report the latest extension of this lock, if it has not been reported yet.
        self.after(now, Some(self.believers[index].client));
        let believer = self.believers.remove(index);
        self.say(now, || {
            format!(
                "client {} no longer holds r{}: {why:?}",
                believer.client, believer.resource
            )
        });
        self.fact(
            now,
            &Fact::Retired {
                believer: &believer,
                why,
            },
        );
        Some(believer.hold)
    }

    /// Records that a killed client process holds no locks any more, and returns its handles of these locks. The caller
    /// drops the handles after it has unlocked the world.
    pub(crate) fn kill(&mut self, now: u64, client: usize) -> Vec<Arc<dyn Hold>> {
        let of = self.believers.iter().filter(|one| one.client == client);
        let ids: Vec<u64> = of.map(|one| one.id).collect();
        let retired = ids.into_iter();
        retired
            .filter_map(|id| self.retire(now, id, Why::Killed))
            .collect()
    }

    pub(crate) fn say(&mut self, now: u64, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!(
                "{:>12.3} ms  {}",
                (now - BEGIN) as f64 / 1e6,
                line()
            ));
        }
    }
}
