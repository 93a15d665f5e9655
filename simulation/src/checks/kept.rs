//! Runs the checkers of the package `quorate-promises`: translates the facts of the simulation into the events of
//! these checkers, and their breaches into broken rules.

use quorate_promises::{
    Assumption, Breach, Class, Event, Hold, IdleLimits, Moment as Order, Party, Permit, Promise,
    Queue, Refusals, ValueEvent, Values,
};

use crate::check::{ByValue, Check, Moment};
use crate::clock::{MS, RUN_START};
use crate::facts::{Believer, Call, Fact};
use crate::happening::Happening;
use crate::kind::{Class as HoldClass, Kind, Scope};
use crate::locker::{
    PERMITS, RESOURCES, SEMAPHORES, place_of_key, semaphore_of_key, semaphore_of_place,
};
use crate::scenario::{Promises, Scenario};
use quorate::node::{Answer, Request};

/// Checks one promise. Ignores the events for which `applies` returns false.
pub(crate) struct Kept<P> {
    promise: P,
    /// Whether the scenario keeps the assumptions of the promise.
    applies: fn(&Promises) -> bool,
}

impl<P> Kept<P> {
    pub(super) fn new(promise: P, applies: fn(&Promises) -> bool) -> Self {
        Self { promise, applies }
    }
}

impl<P: Promise> Check for Kept<P> {
    fn check_event(&mut self, moment: &Moment<'_>, event: &Event<'_>) -> Result<(), String> {
        if !(self.applies)(&moment.promises) {
            return Ok(());
        }
        let breaches = self.promise.observe(order(moment), event);
        let is_excused = |breach: &Breach| match breach.assumption {
            Assumption::Nothing => false,
            Assumption::LocksAreKept => !moment.promises.exclusion,
            Assumption::NoFaults => !moment.promises.calm,
        };
        match breaches.iter().find(|breach| !is_excused(breach)) {
            None => Ok(()),
            Some(breach) => Err(format!(
                "{} (since {:.3} ms)",
                breach.describe(name, |place| format!("r{place}")),
                breach.from.saturating_sub(RUN_START) as f64 / 1e6
            )),
        }
    }

    fn judged_cases(&self) -> u64 {
        self.promise.judged()
    }
}

fn order(moment: &Moment<'_>) -> Order {
    Order {
        time: moment.now,
        order: moment.event,
    }
}

fn name(party: Party) -> String {
    match party {
        Party::Hold { client, .. } | Party::Client(client) => format!("client {client}"),
        Party::Observer(task) => format!("the observer in task {task}"),
    }
}

/// Translates facts into events.
pub(super) struct Translator {
    /// When each attempt began, by its lock value.
    began: ByValue<Order>,
    /// The largest configured number of permits, by semaphore.
    permits: [u64; SEMAPHORES],
}

/// The parts of an event that the event only borrows.
#[derive(Default)]
pub(super) struct Parts {
    places: Vec<u64>,
    note: Option<String>,
}

/// The queue in which clients wait for a place. All slots of a semaphore have one queue.
fn queue_of(place: usize) -> Queue {
    match semaphore_of_place(place) {
        None => Queue::Place(place as u64),
        Some(semaphore) => Queue::Semaphore(semaphore as u64),
    }
}

/// The queues of all locks that a fact is about, if the event for this fact has queues.
pub(super) fn queues_of(fact: &Fact<'_>) -> Vec<Queue> {
    match fact {
        Fact::AttemptStarted { claim, .. } => {
            let queue_of_key = |key: &[u8]| match semaphore_of_key(key) {
                None => queue_of(place_of_key(key)),
                Some(semaphore) => Queue::Semaphore(semaphore as u64),
            };
            claim.keys().map(|key| queue_of_key(key)).collect()
        }
        Fact::AcquireStarted {
            resource, scope, ..
        } => {
            let first = queue_of(*resource);
            let others = scope.resources().map(queue_of);
            let others = others.filter(|queue| *queue != first);
            std::iter::once(first).chain(others).collect()
        }
        Fact::AcquireRefused { scope, .. } => scope.resources().map(queue_of).collect(),
        _ => Vec::new(),
    }
}

impl Translator {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            began: ByValue::default(),
            permits: configured_permits(scenario).map(|(_, largest)| largest as u64),
        }
    }

    /// Returns the hold that the fact is about; `None` if it is about no hold. Records the beginning of an attempt.
    pub(super) fn hold<'a>(
        &mut self,
        moment: &Moment<'_>,
        fact: &Fact<'_>,
        parts: &'a mut Parts,
    ) -> Option<Hold<'a>> {
        let believer: &Believer = match fact {
            Fact::AttemptStarted { claim, .. } => {
                let began = self.began.entry(claim.token().to_hex());
                began.or_insert(order(moment));
                return None;
            }
            Fact::LockObtained { believer }
            | Fact::ValidityExtended { believer, .. }
            | Fact::GuardEnded { believer }
            | Fact::BeliefEnded { believer, .. } => believer,
            _ => return None,
        };
        let places = believer.scope.resources();
        parts.places.extend(places.map(|place| place as u64));
        if matches!(fact, Fact::LockObtained { .. }) {
            parts.note = believer.kind.note();
        }
        let began = self.began.get(&believer.value.to_hex());
        let permit = semaphore_of_place(believer.resource).map(|semaphore| Permit {
            semaphore: semaphore as u64,
            slot: Some(((believer.resource - RESOURCES) % PERMITS) as u64),
            permits: self.permits[semaphore],
        });
        Some(Hold {
            id: believer.id,
            client: believer.client as u64,
            task: believer.task as u64,
            places: &parts.places,
            class: class_of(believer.scope),
            permit,
            began: began.copied().unwrap_or(order(moment)),
            token: believer.fencing_token,
            until: believer.ends_at,
            note: parts.note.as_deref(),
        })
    }

    /// Returns the event for a fact; `None` if the promises have no such event. `hold` is the hold that the fact is
    /// about, and `queues` are the queues of its locks.
    pub(super) fn event<'a>(
        fact: &'a Fact<'_>,
        hold: Option<&'a Hold<'a>>,
        queues: &'a [Queue],
    ) -> Option<Event<'a>> {
        Some(match fact {
            Fact::AcquireStarted { task, wait, .. } => Event::Asked {
                task: *task as u64,
                queues,
                waits: *wait != Some(0),
            },
            Fact::AttemptStarted { task, .. } => Event::Tried {
                task: *task as u64,
                queues,
            },
            Fact::AcquireRefused {
                client,
                task,
                scope,
            } => Event::Refused {
                task: *task as u64,
                client: *client as u64,
                class: class_of(*scope),
                queues,
            },
            Fact::CallReturned {
                task,
                call: Call::Acquire { .. } | Call::Downgrade | Call::Value { .. },
                ..
            } => Event::Answered { task: *task as u64 },
            Fact::LockObtained { .. } => Event::Obtained(hold?),
            Fact::ValidityExtended { .. } => Event::Extended(hold?),
            Fact::GuardEnded { .. } | Fact::BeliefEnded { .. } => Event::Ended(hold?),
            Fact::ObservationStarted { task } => Event::ObservationStarted {
                observer: *task as u64,
            },
            Fact::LeaderObserved {
                task,
                resource,
                leader: Some((term, note)),
            } => Event::LeaderObserved {
                observer: *task as u64,
                place: *resource as u64,
                term: *term,
                note: *note,
            },
            Fact::Happened {
                happening: Happening::UnusedDays,
                ..
            } => Event::UnusedForDays,
            Fact::MasterRestarted { master, lost_data } => Event::MasterRestarted {
                master: *master as u64,
                lost_data: *lost_data,
            },
            _ => return event_of_value(fact),
        })
    }
}

fn class_of(scope: Scope) -> Class {
    match scope.class {
        None => Class::Exclusive,
        Some(HoldClass::Readers) => Class::Readers,
        Some(HoldClass::Owner(id)) => Class::Owner(id.into()),
    }
}

fn event_of_value<'a>(fact: &'a Fact<'_>) -> Option<Event<'a>> {
    match fact {
        Fact::Value {
            resource, event, ..
        } => Some(value_event(*resource, *event)),
        Fact::ValueRequestExecuted {
            resource,
            request: Request::Write { token, value, .. },
            answer: Ok(Answer::Written { .. }),
            ..
        } => {
            let bytes = value.bytes.as_deref().unwrap_or_default();
            Some(value_event(*resource, ValueEvent::Stored(*token, bytes)))
        }
        _ => None,
    }
}

fn value_event(resource: usize, event: ValueEvent<'_>) -> Event<'_> {
    let place = resource as u64;
    Event::Value { place, event }
}

/// The checker of refusals.
pub(super) fn refusals(scenario: &Scenario) -> Refusals {
    let refusals = Refusals::new(longest_trace(scenario));
    match scenario.change {
        Some(_) => refusals.with_replaced_masters(),
        None => refusals,
    }
}

/// The checker of values. A client may create a value a second time after a majority of the masters has lost data. If the
/// masters are replaced, a single one is enough: the masters of a set may have lost data before they were added to it.
pub(super) fn values(scenario: &Scenario) -> Values {
    let majority = match scenario.change {
        Some(_) => 1,
        None => scenario.masters.len() / 2 + 1,
    };
    Values::complete(majority)
}

/// The limits of the rule "no idle lock", in scenarios with ordered waiting and without faults. The bound on the time
/// for which a lock may be idle covers:
///
/// - for a lock: a release, a wake-up, a failed attempt and its release, another attempt, and a confirmation;
/// - for a permit: attempts for all three permits of the semaphore, after which earlier waiters leave the queue;
/// - for both: the pauses that the library makes between a wake-up and the next attempt.
///
/// Locks on single resources have limits only if all locks of the scenario are exclusive or for readers. A semaphore has
/// limits only if all clients configure the same number of permits.
pub(super) fn idle_limits(scenario: &Scenario) -> impl Fn(Queue) -> Option<IdleLimits> + use<> {
    let has_other_kinds = scenario.has_kind(|kind| {
        !matches!(
            kind,
            Kind::Exclusive
                | Kind::Shared
                | Kind::Downgraded
                | Kind::WithNote(_)
                | Kind::Leader(_)
                | Kind::Observe
        )
    });
    let (lock, permit) = (idle_bound(scenario, 12, 15), idle_bound(scenario, 20, 25));
    let permits = configured_permits(scenario);
    move |queue| match queue {
        Queue::Place(_) => (!has_other_kinds).then_some(IdleLimits {
            capacity: 1,
            longest: lock,
        }),
        Queue::Semaphore(semaphore) => {
            let (smallest, largest) = permits[semaphore as usize];
            (smallest == largest).then_some(IdleLimits {
                capacity: largest,
                longest: permit,
            })
        }
    }
}

/// The time of `delays` one-way network delays and of pauses of `pauses_ms` milliseconds. A store needs several requests
/// for each step, so the time is 20 times longer if at least one master is a store (a database, ZooKeeper or etcd).
fn idle_bound(scenario: &Scenario, delays: u64, pauses_ms: u64) -> u64 {
    let store_factor = if scenario.store_masters() == 0 { 1 } else { 20 };
    store_factor * (delays * (scenario.net.delay + scenario.net.jitter) + pauses_ms * MS)
}

/// How long the keys of a lock may stay on a master after the lock has ended, in scenarios without faults. The release
/// may wait for earlier requests of the client, and for the loading of scripts.
fn longest_trace(scenario: &Scenario) -> u64 {
    idle_bound(scenario, 20, 25)
}

/// The smallest and the largest configured number of permits, by semaphore.
fn configured_permits(scenario: &Scenario) -> [(usize, usize); SEMAPHORES] {
    let mut configured = [(usize::MAX, 0); SEMAPHORES];
    for client in &scenario.clients {
        for step in &client.steps {
            let Kind::Permit(permits) = step.kind else {
                continue;
            };
            let place = usize::from(step.kind.place(step.resource));
            record_permits(&mut configured, place, permits.into());
        }
        // If a client's last step takes a permit, the client takes one more permit at the end, for the first resource.
        if let Some(Kind::Permit(permits)) = client.steps.last().map(|step| step.kind) {
            let place = Kind::Permit(permits).place(0);
            record_permits(&mut configured, place.into(), permits.into());
        }
    }
    configured
}

fn record_permits(configured: &mut [(usize, usize); SEMAPHORES], place: usize, permits: usize) {
    if let Some(semaphore) = semaphore_of_place(place) {
        let (smallest, largest) = &mut configured[semaphore];
        (*smallest, *largest) = ((*smallest).min(permits), (*largest).max(permits));
    }
}
