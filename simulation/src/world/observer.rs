//! The observers of a run (checkers, coverage and trace), and the locks that clients believe they hold.

use std::sync::Arc;

use quorate::Instant;
use quorate_model::history::Event;

use crate::check::Moment;
use crate::checks::Checkers;
use crate::clock::RUN_START;
use crate::coverage::Coverage;
use crate::crossings::CrossingCounter;
use crate::facts::{Believer, EndReason, Fact};
use crate::history::History;
use crate::kind::Class;
use crate::locker::{Hold, PLACES, semaphore_of_place};
use crate::run_options::RunOptions;
use crate::scenario::{Promises, Scenario};

pub(crate) struct RunObserver {
    pub(crate) checkers: Checkers,
    pub(crate) crossing_counter: CrossingCounter,
    pub(crate) believers: Vec<Believer>,
    pub(crate) awake_since: Vec<u64>,
    pub(crate) coverage: Coverage,
    pub(crate) event: u64,
    /// The lines of the trace; `None` if the run has no trace.
    pub(crate) trace: Option<Vec<String>>,
    /// The history for the check against the model; `None` if the run records no history.
    pub(crate) history: Option<History>,
    promises: Promises,
    /// Whether some client in the scenario stores a note, acquires a leadership, or observes an election.
    pub(crate) has_notes: bool,
    last_holder: [Option<usize>; PLACES],
    last_hold_id: u64,
}

impl RunObserver {
    pub(crate) fn new(scenario: &Scenario, run_options: RunOptions) -> Self {
        let promises = scenario.promises();
        Self {
            checkers: Checkers::new(scenario, run_options.checked_rules),
            crossing_counter: CrossingCounter::new(scenario),
            believers: Vec::new(),
            awake_since: vec![0; scenario.clients.len()],
            coverage: Coverage::default(),
            event: 0,
            trace: run_options.trace.then(Vec::new),
            history: run_options.history.then(History::default),
            promises,
            has_notes: scenario.has_notes(),
            last_holder: [None; PLACES],
            last_hold_id: 0,
        }
    }

    pub(crate) fn report_fact(&mut self, now: u64, fact: &Fact<'_>) {
        self.record_fact(now, fact);
        let moment = Moment {
            now,
            event: self.event,
            believers: &self.believers,
            awake_since: &self.awake_since,
            promises: self.promises,
        };
        self.checkers.check_fact(&moment, fact);
        self.crossing_counter.count_fact(&moment, fact);
    }

    /// Called when too many masters have lost their generation markers, so that the library's assumptions no longer
    /// hold. From then on, the checkers do not require exclusion, rising fencing tokens or correct stored values.
    pub(crate) fn lose_promises(&mut self) {
        self.coverage.lost_marker_majorities += u64::from(self.promises.exclusion);
        self.promises = Promises {
            exclusion: false,
            tokens: false,
            stock: false,
            ..self.promises
        };
    }

    /// Runs the checkers after an event. If the process of a client has just run, `client` is this client, and the
    /// state of its locks is updated first.
    pub(crate) fn check_after_event(&mut self, now: u64, client: Option<usize>) {
        for index in 0..self.believers.len() {
            let believer = &mut self.believers[index];
            if client != Some(believer.client) {
                continue;
            }
            let Some(valid_until) = believer.hold.end_of_validity().map(Instant::as_nanos) else {
                if !std::mem::replace(&mut believer.is_over, true) {
                    self.report_hold_fact(now, index, |believer| Fact::GuardEnded { believer });
                }
                continue;
            };
            let old_end = std::mem::replace(&mut believer.valid_until, valid_until);
            if valid_until > old_end {
                believer.ends_at = believer
                    .clock
                    .time_of_reading(valid_until)
                    .unwrap_or(u64::MAX);
                self.coverage.renewed += 1;
                let believer = &self.believers[index];
                let (client, resource) = (believer.client, believer.resource);
                self.trace_line(now, || {
                    format!(
                        "client {} extends r{} by {:.3} ms",
                        client,
                        resource,
                        (valid_until - old_end) as f64 / 1e6
                    )
                });
                self.report_hold_fact(now, index, |believer| Fact::ValidityExtended {
                    believer,
                    old_end,
                });
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
        self.checkers.check_state(&moment);
    }

    /// Reports a fact about one hold to the checkers. `index` is the index of the hold in `believers`.
    fn report_hold_fact(
        &mut self,
        now: u64,
        index: usize,
        fact: impl FnOnce(&Believer) -> Fact<'_>,
    ) {
        let moment = Moment {
            now,
            event: self.event,
            believers: &self.believers,
            awake_since: &self.awake_since,
            promises: self.promises,
        };
        let fact = fact(&self.believers[index]);
        let event = self.history.as_ref().and_then(|_| fact.to_model(now));
        if let (Some(history), Some(event)) = (&mut self.history, event) {
            history.push(now, event);
        }
        self.checkers.check_fact(&moment, &fact);
    }

    /// Adds a fact to the history, if the run records one and the model has such an event.
    fn record_fact(&mut self, now: u64, fact: &Fact<'_>) {
        if let Some(history) = &mut self.history
            && let Some(event) = fact.to_model(now)
        {
            history.push(now, event);
        }
    }

    /// Returns the recorded history; empty if the run records no history.
    pub(crate) fn take_history(&mut self) -> Vec<Event> {
        self.history.take().unwrap_or_default().events
    }

    /// Adds a hold that a client has just obtained, and returns its id.
    pub(crate) fn begin_belief(&mut self, now: u64, mut believer: Believer) -> u64 {
        self.coverage.acquired += 1;
        let previous_holder = self.last_holder[believer.resource].replace(believer.client);
        self.coverage.hand_overs += u64::from(
            previous_holder.is_some_and(|previous_holder| previous_holder != believer.client),
        );
        self.coverage.permits += u64::from(semaphore_of_place(believer.resource).is_some());
        self.coverage.holds_of_several += u64::from(believer.scope.resources().count() > 1);
        match believer.scope.class {
            None => {}
            Some(Class::Readers) => self.coverage.reader_holds += 1,
            Some(Class::Owner(_)) => self.coverage.owner_holds += 1,
        }
        let (scope, mut believers) = (believer.scope, self.believers.iter());
        let shares_lock =
            |other: &Believer| other.scope.overlaps(scope) && other.scope.is_compatible_with(scope);
        if scope.class.is_some() {
            self.coverage.shared_holders += u64::from(believers.any(shares_lock));
        }
        self.last_hold_id += 1;
        self.event += 1;
        believer.id = self.last_hold_id;
        believer.obtained_event = self.event;
        self.trace_line(now, || {
            format!(
                "client {} HOLDS r{:?}{}, value {:.6}, token {:?}, valid for {:.3} ms",
                believer.client,
                believer.scope.resources().collect::<Vec<_>>(),
                believer
                    .scope
                    .class
                    .map_or(String::new(), |class| format!(" {class:?}")),
                believer.value.to_string(),
                believer.fencing_token,
                believer
                    .valid_until
                    .saturating_sub(believer.clock.read(now)) as f64
                    / 1e6
            )
        });
        self.report_fact(
            now,
            &Fact::LockObtained {
                believer: &believer,
            },
        );
        self.believers.push(believer);
        self.last_hold_id
    }

    /// Records that the holder of the lock with the id `id` begins to watch for the notice that its lock may be lost
    /// soon, with this margin in nanoseconds.
    pub(crate) fn begin_risk_watch(&mut self, id: u64, margin: u64) {
        let is_this_hold = |believer: &&mut Believer| believer.id == id;
        if let Some(believer) = self.believers.iter_mut().find(is_this_hold) {
            believer.risk_margin = Some(margin);
        }
    }

    /// Reports to the checkers that the holder of the lock with the id `id` was notified that its lock may be lost soon.
    /// `valid_until` is the end of the validity in the notice, on the client's clock.
    pub(crate) fn report_risk(&mut self, now: u64, id: u64, valid_until: Instant) {
        let is_this_hold = |believer: &Believer| believer.id == id;
        let Some(index) = self.believers.iter().position(is_this_hold) else {
            return;
        };
        self.coverage.risk_notices += 1;
        let (client, resource) = (self.believers[index].client, self.believers[index].resource);
        self.trace_line(now, || {
            format!("client {client} is notified that its lock on r{resource} may be lost soon")
        });
        let valid_until = valid_until.as_nanos();
        self.report_hold_fact(now, index, |believer| Fact::RiskNoticed {
            believer,
            valid_until,
        });
    }

    /// Records that a client no longer holds the lock with the id `id`. Returns the client's handle of this lock;
    /// `None` if the id is unknown. The caller drops the handle after it has unlocked the world.
    pub(crate) fn end_belief(&mut self, now: u64, id: u64, reason: EndReason) -> Option<Arc<Hold>> {
        let is_this_hold = |believer: &Believer| believer.id == id;
        let index = self.believers.iter().position(is_this_hold)?;
        // First report the latest extension of this lock, if it has not been reported yet.
        self.check_after_event(now, Some(self.believers[index].client));
        let believer = self.believers.remove(index);
        self.trace_line(now, || {
            format!(
                "client {} no longer holds r{}: {reason:?}",
                believer.client, believer.resource
            )
        });
        self.report_fact(
            now,
            &Fact::BeliefEnded {
                believer: &believer,
                reason,
            },
        );
        Some(believer.hold)
    }

    /// Records that a killed client process holds no locks any more, and returns its handles of these locks. The caller
    /// drops the handles after it has unlocked the world.
    pub(crate) fn end_beliefs_of(&mut self, now: u64, client: usize) -> Vec<Arc<Hold>> {
        let own_believers = self
            .believers
            .iter()
            .filter(|believer| believer.client == client);
        let ids: Vec<u64> = own_believers.map(|believer| believer.id).collect();
        ids.into_iter()
            .filter_map(|id| self.end_belief(now, id, EndReason::Killed))
            .collect()
    }

    pub(crate) fn trace_line(&mut self, now: u64, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!(
                "{:>12.3} ms  {}",
                (now - RUN_START) as f64 / 1e6,
                line()
            ));
        }
    }
}
