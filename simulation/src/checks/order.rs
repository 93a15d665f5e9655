//! Rule 8: first come, first served.
//!
//! On every master: no grant while a live waiter stands before. Over all: once a waiter is in
//! line on a majority, no attempt that started later, by a younger one or by one without a place,
//! has the lock before it. The second is promised where nothing keeps waiters from showing signs
//! of life.

use std::sync::Arc;

use super::{ByValue, Check, Moment};
use crate::facts::{Fact, Verb};
use crate::locker::{RESOURCES, resource_of};
use crate::scenario::Scenario;
use quorate::node::{Answer, Claim, Fairness, Ticket};

pub(crate) struct Line {
    fair: bool,
    quorum: u32,
    /// The line on each master, per resource, as the messages make it.
    lines: Vec<[Vec<Standing>; RESOURCES]>,
    /// Everybody who waits in line.
    waiters: Vec<Waiter>,
    /// When each attempt began, and from which place.
    started: ByValue<(u64, Option<Ticket>)>,
}

struct Standing {
    rank: (u64, Arc<str>),
    /// On the master's clock.
    until_ms: u64,
}

struct Waiter {
    rank: (u64, Arc<str>),
    resource: usize,
    masters: u16,
    /// The event with which it was in line on a majority.
    firm: Option<u64>,
}

impl Line {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        Self {
            fair: scenario.settings.fair && scenario.settings.fencing,
            quorum: masters as u32 / 2 + 1,
            lines: (0..masters).map(|_| Default::default()).collect(),
            waiters: Vec::new(),
            started: ByValue::default(),
        }
    }

    fn stand(
        &mut self,
        at: &Moment<'_>,
        master: usize,
        resource: usize,
        now_ms: u64,
        place: &Ticket,
    ) {
        let rank = (place.number, place.waiter.clone());
        let until_ms = now_ms + place.heartbeat.as_nanos().div_ceil(1_000_000) as u64;
        let line = &mut self.lines[master][resource];
        // The dead are purged: a clock that jumps back does not bring them to life.
        line.retain(|one| one.until_ms > now_ms || one.rank == rank);
        match line.iter_mut().find(|one| one.rank == rank) {
            Some(one) => one.until_ms = until_ms,
            None => line.push(Standing {
                rank: rank.clone(),
                until_ms,
            }),
        }
        let index = self.waiters.iter().position(|one| one.rank == rank);
        let index = index.unwrap_or_else(|| {
            self.waiters.push(Waiter {
                rank,
                resource,
                masters: 0,
                firm: None,
            });
            self.waiters.len() - 1
        });
        let waiter = &mut self.waiters[index];
        waiter.masters |= 1 << master;
        if waiter.masters.count_ones() >= self.quorum {
            waiter.firm.get_or_insert(at.event);
        }
    }
}

fn place(claim: &Claim) -> Option<&Ticket> {
    match claim.fairness() {
        Fairness::Fair(place) => place.as_deref(),
        Fairness::Unordered => None,
    }
}

impl Check for Line {
    const RULE: &'static str = "first come, first served";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.fair {
            return Ok(());
        }
        match fact {
            Fact::Started { claim, .. } => {
                self.started
                    .entry(claim.token().to_hex())
                    .or_insert_with(|| (at.event, place(claim).cloned()));
            }
            Fact::Applied {
                master,
                now_ms,
                resource,
                claim,
                verb: Verb::Acquire,
                answer,
                before,
                after,
                ..
            } => {
                let place = place(claim);
                if let Some(place) = place {
                    self.stand(at, *master, *resource, *now_ms, place);
                }
                let fresh =
                    matches!(answer, Ok(Answer::Granted { .. })) && before.holder != after.holder;
                let rank = place.map(|place| (place.number, place.waiter.clone()));
                let line = &self.lines[*master][*resource];
                let before = |one: &&Standing| {
                    one.until_ms > *now_ms && rank.as_ref().is_none_or(|rank| one.rank < *rank)
                };
                if let Some(first) = line
                    .iter()
                    .find(before)
                    .filter(|_| fresh && at.promises.steady)
                {
                    return Err(format!(
                        "master {master} granted r{resource} although {} stands before",
                        first.rank.1
                    ));
                }
            }
            Fact::Left { master, claim } => {
                if let Some(place) = place(claim) {
                    let resource = resource_of(claim.key());
                    let gone = |waiter: &Arc<str>| *waiter == place.waiter;
                    self.lines[*master][resource].retain(|one| !gone(&one.rank.1));
                    self.waiters.retain(|one| !gone(&one.rank.1));
                }
            }
            Fact::Restarted { master, .. } => self.lines[*master] = Default::default(),
            Fact::Obtained { believer } => {
                let Some((started, place)) = self.started.get(&believer.value.to_hex()) else {
                    return Ok(());
                };
                let mine = place
                    .as_ref()
                    .map(|place| (place.number, place.waiter.clone()));
                self.waiters.retain(|one| Some(&one.rank) != mine.as_ref());
                let passed = self.waiters.iter().find(|one| {
                    one.resource == believer.resource
                        && one.firm.is_some_and(|firm| firm < *started)
                        && mine.as_ref().is_none_or(|mine| one.rank < *mine)
                });
                if let Some(passed) = passed.filter(|_| at.promises.order) {
                    return Err(format!(
                        "client {} has r{} before {}, who stood in line on a majority already",
                        believer.client, believer.resource, passed.rank.1
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
