//! Runs the checkers of the package `quorate-promises`: replays the history of a run into them.
//!
//! A hold is replayed with the end that its whole history shows ([`Attempt::belief`]). So the checkers of holds judge
//! each hold by all of its events, even if the client recorded an extension late.

use std::collections::HashMap;
use std::hash::Hash;

use quorate_promises::{
    Assumption, Breach, Class, Event as Replayed, Exclusion, Hold, Moment, OwnerTokens, Party,
    Permit, Permits, Promise, Queue, Refusals, Terms, Tokens, Values,
};

use super::prizes::{self, QuotaEvent};
use super::{Case, Finding, Verdict, Violation, exclusion, fencing, seconds};
use crate::claim::Claim;
use crate::event::Event;
use crate::history::Attempt;
use crate::workload::{Workload, workload_name};

/// A promise that chaos runs check.
struct Kept {
    checker: &'static str,
    /// The promise is checked only in scenarios with one of these workloads; in every scenario if there are none.
    workloads: &'static [Workload],
    promise: fn(&Case<'_>) -> Box<dyn Promise>,
    /// Completes the finding with what only chaos runs know.
    conclude: fn(&Case<'_>, Finding) -> Finding,
}

const fn kept(
    checker: &'static str,
    workloads: &'static [Workload],
    promise: fn(&Case<'_>) -> Box<dyn Promise>,
    conclude: fn(&Case<'_>, Finding) -> Finding,
) -> Kept {
    Kept {
        checker,
        workloads,
        promise,
        conclude,
    }
}

/// All promises, one per line.
const KEPT: [Kept; 7] = [
    kept(
        "exclusion",
        &[],
        |_| Box::<Exclusion>::default(),
        exclusion::conclude,
    ),
    kept("fencing", &[], tokens, fencing::conclude),
    kept(
        "permits",
        &[Workload::Permits],
        |_| Box::<Permits>::default(),
        as_it_is,
    ),
    kept(
        "owners",
        &[Workload::Owners],
        |_| Box::<OwnerTokens>::default(),
        as_it_is,
    ),
    kept("leaders", &[Workload::Leader], terms, as_it_is),
    kept("refusals", &[], refusals, as_it_is),
    kept(
        "prizes",
        &[Workload::Prizes],
        |_| Box::<Values>::default(),
        prizes::conclude,
    ),
];

fn as_it_is(_: &Case<'_>, finding: Finding) -> Finding {
    finding
}

fn tokens(_: &Case<'_>) -> Box<dyn Promise> {
    Box::new(Tokens::default().with_joined_holds())
}

/// The note of a leader is its name, e.g. `c1#7`.
fn terms(_: &Case<'_>) -> Box<dyn Promise> {
    Box::new(Terms::default().with_a_note_for_each_leader())
}

/// The time for which keys may stay: a lock that was not released stays until its TTL has passed. One second more is for
/// requests that are late.
fn refusals(case: &Case<'_>) -> Box<dyn Promise> {
    let longest_trace = case.scenario.max_ttl.as_nanos() as u64 + 1_000_000_000;
    Box::new(Refusals::new(longest_trace))
}

/// Checks all promises of the scenario.
pub(super) fn check(case: &Case<'_>) -> Vec<Finding> {
    let is_checked = |kept: &&Kept| {
        let workloads = &case.scenario.workloads;
        kept.workloads.is_empty() || kept.workloads.iter().any(|one| workloads.contains(one))
    };
    let mut checked: Vec<(&Kept, Box<dyn Promise>, Vec<Breach>)> = KEPT
        .iter()
        .filter(is_checked)
        .map(|kept| (kept, (kept.promise)(case), Vec::new()))
        .collect();
    let mut replay = Replay::new(case);
    replay.play(|moment, event| {
        for (_, promise, breaches) in &mut checked {
            breaches.extend(promise.observe(moment, &event));
        }
    });
    let findings = checked.into_iter().map(|(kept, promise, breaches)| {
        let violations = breaches
            .iter()
            .map(|breach| replay.violation(kept.checker, breach))
            .collect();
        let finding = Finding::new(kept.checker, promise.summary(), violations);
        let finding = (kept.conclude)(case, finding);
        if !kept.workloads.is_empty() && promise.judged() == 0 {
            return finding.at_least(Verdict::Unknown);
        }
        finding
    });
    findings.collect()
}

/// Numbers for names, counted from 0 in the order of their first use.
struct Numbers<T> {
    by_name: HashMap<T, u64>,
    names: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            names: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    fn number(&mut self, name: T) -> u64 {
        let names = &mut self.names;
        *self.by_name.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u64 - 1
        })
    }
}

/// The history of a run as events for the promises.
struct Replay<'a> {
    case: &'a Case<'a>,
    processes: Numbers<&'a str>,
    /// The resources, each with the slot if it is a semaphore.
    places: Numbers<(&'a str, Option<usize>)>,
    semaphores: Numbers<&'a str>,
    owners: Numbers<&'a str>,
    quota_events: Vec<QuotaEvent<'a>>,
    attempts: Vec<Parts>,
}

/// The parts of an attempt that the events of the promises borrow.
struct Parts {
    /// The locked resources.
    places: Vec<u64>,
    queues: Vec<Queue>,
    /// The name of the attempt, e.g. `c1#7`.
    name: String,
}

/// An event in the order of the replay.
#[derive(Clone, Copy)]
enum Step {
    /// This event about a quota.
    Quota(usize),
    /// The hold of this attempt ends.
    Ended(usize),
    /// This attempt obtains its lock.
    Obtained(usize),
    /// This attempt fails, because another client holds the lock.
    Refused(usize),
    /// This attempt is over: it has obtained its lock or an answer, has failed, or its process has ended.
    Answered(usize),
    /// This attempt begins.
    Asked(usize),
    /// This line of the history.
    Line(usize),
}

impl<'a> Replay<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let (mut places, mut semaphores) = (Numbers::default(), Numbers::default());
        let attempts = case.attempts.iter().map(|attempt| {
            let resource_slots = attempt.resource_slots();
            let queues = attempt.resources().map(|resource| match &attempt.claim {
                Claim::Permit(_) => Queue::Semaphore(semaphores.number(resource)),
                _ => Queue::Place(places.number((resource, None))),
            });
            Parts {
                queues: queues.collect(),
                places: resource_slots.map(|place| places.number(place)).collect(),
                name: attempt.name(),
            }
        });
        let attempts = attempts.collect();
        let mut processes = Numbers::default();
        Self {
            case,
            attempts,
            quota_events: prizes::events(case, |process| processes.number(process)),
            processes,
            places,
            semaphores,
            owners: Numbers::default(),
        }
    }

    /// All steps in order. At the same time, holds end before others begin, and a hold that ends when it begins ends after
    /// its beginning.
    fn steps(&self) -> Vec<(u64, Step)> {
        let mut steps = Vec::new();
        for (index, attempt) in self.case.attempts.iter().enumerate() {
            if let Some((from, to)) = attempt.belief(self.case.end) {
                steps.push((from, Step::Obtained(index)));
                steps.push((to, Step::Ended(index)));
            }
            steps.push((attempt.began_at, Step::Asked(index)));
            let failed_at = attempt.failed_at;
            steps.extend(
                failed_at
                    .filter(|_| attempt.is_refused)
                    .map(|t| (t, Step::Refused(index))),
            );
            let ends = [attempt.served_at(), failed_at, attempt.process_ended_at];
            let answered_at = ends.into_iter().flatten().min().unwrap_or(self.case.end);
            steps.push((answered_at, Step::Answered(index)));
        }
        let quota_events = self.quota_events.iter().enumerate();
        steps.extend(quota_events.map(|(index, (t, ..))| (*t, Step::Quota(index))));
        let lines = self.case.history.entries.iter().enumerate();
        steps.extend(lines.map(|(index, entry)| (entry.t, Step::Line(index))));
        let attempts = &self.case.attempts;
        let rank = |t: u64, step: &Step| match step {
            // The sort is stable, and the beginning of each hold is in front of its end.
            Step::Ended(index) if attempts[*index].obtained_at == Some(t) => 1,
            Step::Quota(_) | Step::Ended(_) => 0,
            Step::Obtained(_) => 1,
            Step::Refused(_) => 2,
            Step::Answered(_) => 3,
            Step::Asked(_) => 4,
            Step::Line(_) => 5,
        };
        steps.sort_by_key(|(t, step)| (*t, rank(*t, step)));
        steps
    }

    fn play(&mut self, mut observe: impl FnMut(Moment, Replayed<'_>)) {
        let attempts = std::mem::take(&mut self.attempts);
        for (t, step) in self.steps() {
            let moment = Moment::at(t);
            match step {
                Step::Obtained(index) => {
                    observe(
                        moment,
                        Replayed::Obtained(&self.hold(index, &attempts[index])),
                    );
                }
                Step::Ended(index) => {
                    observe(moment, Replayed::Ended(&self.hold(index, &attempts[index])));
                }
                Step::Refused(index) => {
                    let event = Replayed::Refused {
                        task: index as u64,
                        client: self.processes.number(&self.case.attempts[index].process),
                        class: self.class(&self.case.attempts[index].claim),
                        queues: &attempts[index].queues,
                    };
                    observe(moment, event);
                }
                Step::Answered(index) => {
                    let task = index as u64;
                    observe(moment, Replayed::Answered { task });
                }
                Step::Quota(index) => {
                    let (_, quota, event) = self.quota_events[index];
                    let place = self.places.number((quota, None));
                    observe(moment, Replayed::Value { place, event });
                }
                Step::Asked(index) => {
                    let (task, queues) = (index as u64, &attempts[index].queues);
                    observe(moment, Replayed::Tried { task, queues });
                }
                Step::Line(index) => {
                    if let Some(event) = self.line(index) {
                        observe(moment, event);
                    }
                }
            }
        }
        self.attempts = attempts;
    }

    fn class(&mut self, claim: &'a Claim) -> Class {
        match claim {
            Claim::Alone | Claim::Permit(_) => Class::Exclusive,
            Claim::Reader => Class::Readers,
            Claim::Owner(owner) => Class::Owner(self.owners.number(owner)),
        }
    }

    fn hold<'b>(&mut self, index: usize, Parts { places, name, .. }: &'b Parts) -> Hold<'b> {
        let attempt: &'a Attempt = &self.case.attempts[index];
        let permit = match &attempt.claim {
            Claim::Permit(permits) => Some(Permit {
                semaphore: self.semaphores.number(&attempt.resource),
                slot: attempt.slot.map(|slot| slot as u64),
                permits: *permits as u64,
            }),
            _ => None,
        };
        let is_campaign = workload_name(&attempt.resource) == Workload::Leader.name();
        Hold {
            id: index as u64,
            client: self.processes.number(&attempt.process),
            task: index as u64,
            places,
            class: self.class(&attempt.claim),
            permit,
            began: Moment::at(attempt.began_at),
            token: attempt.token,
            until: attempt.belief(self.case.end).map_or(0, |(_, to)| to),
            note: is_campaign.then_some(name.as_str()),
        }
    }

    /// The event for a line of the history; `None` if the promises have no such event.
    fn line(&mut self, index: usize) -> Option<Replayed<'a>> {
        let entry = &self.case.history.entries[index];
        Some(match &entry.event {
            Event::Followed { term, leader } => Replayed::LeaderObserved {
                observer: self.processes.number(&entry.process),
                place: self.places.number((Workload::Leader.name(), None)),
                term: (*term)?,
                note: leader.as_deref(),
            },
            _ => return None,
        })
    }

    fn process(&self, party: Party) -> String {
        let (Party::Hold {
            client: process, ..
        }
        | Party::Observer(process)
        | Party::Client(process)) = party;
        self.processes.names[process as usize].to_owned()
    }

    fn violation(&self, checker: &str, breach: &Breach) -> Violation {
        let name = |party| match party {
            Party::Hold { id, .. } => self.attempts[id as usize].name.clone(),
            Party::Observer(_) | Party::Client(_) => self.process(party),
        };
        let resource = |place: u64| self.places.names[place as usize];
        let place_name = |place| match resource(place) {
            (resource, Some(slot)) => format!("{resource:?}, slot {slot}"),
            (resource, None) => format!("{resource:?}"),
        };
        let parties = breach.parties.iter().map(|party| self.process(*party));
        let excused = match breach.assumption {
            Assumption::Nothing => None,
            Assumption::LocksAreKept => self.case.excuse(breach.from, breach.to),
            Assumption::NoFaults => {
                let is_disturbed = !self.case.is_undisturbed(breach.from, breach.to);
                is_disturbed.then(|| "a fault affected the clients".to_owned())
            }
        };
        let mut description = breach.describe(name, place_name);
        if breach.assumption == Assumption::LocksAreKept {
            description = format!("{description}, for {}", seconds(breach.to - breach.from));
        }
        Violation {
            checker: checker.to_owned(),
            from: breach.from,
            to: breach.to,
            processes: parties.collect(),
            resource: breach.place.map(|place| resource(place).0.to_owned()),
            description,
            excused,
        }
    }
}
