//! Checks values under locks from the view of the clients (docs/protocol.md, "Values under a lock"). A value is a quota
//! (units that clients take), or a record of the last period (for example a day) whose work was done.
//!
//! - A quota hands out each of its units at most once, and no other units.
//! - The work of a period starts at most once.
//! - The number of remaining units that a call reports agrees with the units taken so far.
//! - A quota that was reported as lost hands out no units. The same rule applies to the work of a period.
//! - No value is lost unless a master restarts.

use std::collections::{HashMap, HashSet};

use super::{Check, Moment};
use crate::facts::{Fact, ValueResult};
use crate::kind::ValueStep;
use crate::scenario::Scenario;
use quorate::node::{Answer, Request};

#[derive(Default)]
pub(crate) struct Stock {
    /// The quotas that were created, by resource.
    quotas: HashMap<usize, Quota>,
    /// The client that took each unit of a quota, by resource and unit. Units are numbered from zero.
    taken: HashMap<(usize, u64), usize>,
    /// The client that did the work of each period, by resource and by the bytes that it wrote into the record.
    done: HashMap<(usize, Vec<u8>), usize>,
    /// The bytes written on some master, by resource and fencing token.
    written: HashMap<(usize, u64), Vec<u8>>,
    /// For each resource whose value was reported as lost: the event of the first report, and the smallest step of a
    /// client that received a report. The step says which masters a client uses (see `change_plan`). A later call at
    /// this or a later step must take no units and start no work.
    lost: HashMap<usize, (u64, u8)>,
    created: HashMap<usize, u64>,
    removals: Removals,
    /// Whether any master has restarted. Before the first restart, no value may be lost.
    restarted: bool,
    /// By task: its current call on a value.
    asks: HashMap<usize, Ask>,
    judged: u64,
}

#[derive(Clone, Copy, Default)]
struct Quota {
    units: u64,
    /// The number of units that clients have certainly taken.
    taken: u64,
    /// The largest number of units that clients may have taken: the units requested by all calls, except calls that
    /// certainly took none.
    asked: u64,
}

/// The removals of values, by resource.
#[derive(Default)]
struct Removals {
    /// By resource: the number of the event at which the last removal ended. A call that began before this event may
    /// still report the removed value.
    since: HashMap<usize, u64>,
    /// The resources whose value was removed, and for which no client has begun to create a new value since.
    gone: HashSet<usize>,
    /// The number of removals that have not returned yet, or whose result is uncertain.
    open: HashMap<usize, usize>,
    /// The fencing token under which the last confirmed removal was written.
    written: HashMap<usize, u64>,
    /// The largest fencing token of a write that creates the value.
    creations: HashMap<usize, u64>,
}

impl Removals {
    /// Whether a removal of the value may have overlapped in time with the call `ask`.
    fn cover(&self, resource: usize, ask: Ask) -> bool {
        let since = self.since.get(&resource).copied().unwrap_or(0);
        since > ask.began || self.open.get(&resource).is_some_and(|open| *open > 0)
    }

    /// Records that a creation writes its value under the fencing token `number`. If this token is
    /// larger than that of the last removal, the resource has a value again.
    fn created_under(&mut self, resource: usize, number: u64) {
        let last = self.creations.entry(resource).or_default();
        *last = number.max(*last);
        if self
            .written
            .get(&resource)
            .is_some_and(|removal| *removal < number)
        {
            self.gone.remove(&resource);
        }
    }
}

#[derive(Clone, Copy)]
struct Ask {
    verb: ValueStep,
    resource: usize,
    /// The number of the event with which the call began.
    began: u64,
    /// The client's step when its call began. It says which masters the client uses (see `change_plan`).
    step: u8,
    /// The number of units of the quota that had certainly been taken when the call began.
    taken: u64,
    /// If the call creates a quota: the number of units of the resource's earlier quota; 0 if there was none.
    before: u64,
    /// The fencing token under which the call writes; `None` until the call sends a write.
    number: Option<u64>,
}

impl Ask {
    fn creates(&self, resource: usize) -> bool {
        self.resource == resource && matches!(self.verb, ValueStep::Create(_))
    }
}

impl Stock {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self::default()
    }

    fn asks(
        &mut self,
        (began, task): (u64, usize),
        (resource, step): (usize, u8),
        verb: ValueStep,
    ) {
        let mut others = self.asks.values();
        let others = others.find(|other| other.creates(resource));
        let quota = self.quotas.entry(resource).or_default();
        let (taken, mut before) = (quota.taken, 0);
        match verb {
            ValueStep::Create(units) => {
                before = others.map_or(quota.units, |other| other.before);
                // A creation fails if the resource has a value already, so it does not change the number of units.
                if !self.created.contains_key(&resource) {
                    quota.units = units.into();
                }
                self.removals.gone.remove(&resource);
            }
            ValueStep::Take(units) => quota.asked += u64::from(units),
            ValueStep::Remove { .. } => {
                *self.removals.open.entry(resource).or_default() += 1;
                // While this removal runs, a call may or may not find the value. So forget earlier reports.
                self.lost.remove(&resource);
                self.created.remove(&resource);
            }
            ValueStep::Left | ValueStep::Once | ValueStep::AtLeast | ValueStep::Turn => {}
        }
        let ask = Ask {
            verb,
            resource,
            began,
            step,
            taken,
            before,
            number: None,
        };
        self.asks.insert(task, ask);
    }

    /// Records the fencing token under which the call of a task writes the value.
    fn writes(&mut self, task: usize, resource: usize, number: u64) {
        let Some(ask) = self.asks.get_mut(&task) else {
            return;
        };
        ask.number = Some(number);
        if ask.creates(resource) {
            self.removals.created_under(resource, number);
        }
    }

    /// Records that a removal has returned: the old value is gone from every master. If a creation has a larger fencing
    /// token than the removal, the creation came later, and its value stays.
    fn removed(&mut self, now: u64, resource: usize, removal: Ask) {
        self.judged += 1;
        let number = removal.number.unwrap_or(u64::MAX);
        let creation = self.removals.creations.get(&resource);
        let is_replaced = creation.is_some_and(|creation| *creation > number);
        self.removals.written.insert(resource, number);
        self.taken.retain(|(of, _), _| *of != resource);
        self.done.retain(|(of, _), _| *of != resource);
        self.lost.remove(&resource);
        let asks = || self.asks.values().filter(|ask| ask.resource == resource);
        let quota = self.quotas.get(&resource).copied().unwrap_or_default();
        let asked = if is_replaced {
            quota.asked
        } else {
            asks().map(|ask| ask.verb.units()).sum()
        };
        let removes = |ask: &&Ask| matches!(ask.verb, ValueStep::Remove { .. });
        let open = asks().filter(removes).count();
        if !is_replaced && !asks().any(|ask| matches!(ask.verb, ValueStep::Create(_))) {
            self.removals.gone.insert(resource);
        }
        self.removals.open.insert(resource, open);
        self.removals.since.insert(resource, now);
        let anew = Quota {
            taken: 0,
            asked,
            ..quota
        };
        self.quotas.insert(resource, anew);
    }

    /// Updates the quota's number of units when a call to create the quota has returned. If several clients create the
    /// quota at the same time, at most one call succeeds.
    fn created_or_not(&mut self, ask: Ask, result: ValueResult) {
        let quota = self.quotas.entry(ask.resource).or_default();
        match (ask.verb, result) {
            (ValueStep::Create(created), ValueResult::Created) => {
                quota.units = created.into();
                for other in self
                    .asks
                    .values_mut()
                    .filter(|other| other.creates(ask.resource))
                {
                    other.before = created.into();
                }
            }
            (ValueStep::Create(_), ValueResult::Nothing) if ask.before > 0 => {
                quota.units = ask.before;
            }
            _ => {}
        }
    }

    fn returned(
        &mut self,
        now: u64,
        (client, resource): (usize, usize),
        ask: Ask,
        result: ValueResult,
    ) -> Result<(), String> {
        if result == ValueResult::Removed {
            self.removed(now, resource, ask);
            return Ok(());
        }
        let units = ask.verb.units();
        let hands_out = matches!(result, ValueResult::Taken(_) | ValueResult::Due(_));
        let shows = hands_out || matches!(result, ValueResult::Left(_) | ValueResult::Done);
        let quota = self.quotas.entry(resource).or_default();
        if matches!(
            result,
            ValueResult::Nothing | ValueResult::Lost | ValueResult::Left(_)
        ) {
            quota.asked = quota.asked.saturating_sub(units);
        }
        self.created_or_not(ask, result);
        if self.removals.cover(resource, ask)
            || self.asks.values().any(|other| other.creates(resource))
        {
            return Ok(());
        }
        if shows && self.removals.gone.contains(&resource) {
            return Err(format!(
                "client {client} gets {result:?} for the value r{resource} after its removal"
            ));
        }
        let lost = self.lost.get(&resource);
        if hands_out && lost.is_some_and(|(at, step)| *at < ask.began && *step <= ask.step) {
            return Err(format!(
                "client {client} gets {result:?} for the value r{resource}, which was reported as lost before the \
                 call"
            ));
        }
        match result {
            ValueResult::Created => {
                self.created.insert(resource, now);
            }
            // At an odd step, the client uses old and new masters. It may get `Lost`, because the value may not have
            // been copied to the new masters yet.
            ValueResult::Lost if ask.step.is_multiple_of(2) && self.was_created_before(ask) => {
                self.judged += 1;
                if !self.restarted {
                    return Err(format!(
                        "client {client} gets Lost for the value r{resource}, although no master has restarted"
                    ));
                }
                let first = self.lost.entry(resource).or_insert((now, ask.step));
                first.1 = first.1.min(ask.step);
            }
            ValueResult::Taken(left) => {
                self.quotas.entry(resource).or_default().taken += units;
                self.took(client, resource, left, units)?;
                self.left(resource, ask, left + units)?;
            }
            ValueResult::Left(left) => self.left(resource, ask, left)?,
            ValueResult::Due(number) => self.did(client, resource, number)?,
            _ => {}
        }
        Ok(())
    }

    fn was_created_before(&self, ask: Ask) -> bool {
        let created = self.created.get(&ask.resource);
        created.is_some_and(|at| *at < ask.began)
    }

    /// Checks that each unit that a call has taken exists and was not taken before.
    fn took(
        &mut self,
        client: usize,
        resource: usize,
        left: u64,
        units: u64,
    ) -> Result<(), String> {
        self.judged += 1;
        let stock = self.quotas.get(&resource).map_or(0, |quota| quota.units);
        for unit in left..left + units {
            if unit >= stock {
                return Err(format!(
                    "client {client} took a unit of the quota r{resource} and {unit} units were left, but the quota \
                     was created with only {stock} units"
                ));
            }
            if let Some(other) = self.taken.insert((resource, unit), client) {
                return Err(format!(
                    "clients {other} and {client} took the same unit of the quota r{resource}: after each take, {unit} \
                     units were left"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the number of remaining units that a call reports agrees with the units taken and requested so far.
    fn left(&mut self, resource: usize, ask: Ask, left: u64) -> Result<(), String> {
        self.judged += 1;
        let quota = self.quotas.get(&resource).copied().unwrap_or_default();
        let most = quota.units.saturating_sub(ask.taken);
        let least = quota.units.saturating_sub(quota.asked);
        if left > most || left < least {
            return Err(format!(
                "a call reports {left} units left of r{resource}, but only {least} to {most} are possible (created: \
                 {}; taken before this call: {}; requested by all calls: {})",
                quota.units, ask.taken, quota.asked
            ));
        }
        Ok(())
    }

    /// Checks that no client has done the work of this period before.
    fn did(&mut self, client: usize, resource: usize, number: u64) -> Result<(), String> {
        self.judged += 1;
        let Some(period) = self.written.get(&(resource, number)) else {
            return Err(format!(
                "client {client} runs the once job r{resource} under the fencing token {number}, but no master has \
                 a record with this token"
            ));
        };
        let key = (resource, period.clone());
        match self.done.insert(key, client) {
            None => Ok(()),
            Some(other) => Err(format!(
                "clients {other} and {client} both run the once job r{resource} in the period {:?}",
                String::from_utf8_lossy(period)
            )),
        }
    }
}

impl Check for Stock {
    const RULE: &'static str = "stock";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.stock {
            return Ok(());
        }
        match fact {
            Fact::Restarted { .. } => self.restarted = true,
            Fact::Asks {
                task,
                resource,
                verb,
                step,
            } => self.asks((at.event, *task), (*resource, *step), *verb),
            Fact::ValueReturned {
                client,
                task,
                resource,
                result,
            } => {
                if let Some(ask) = self.asks.remove(task) {
                    return self.returned(at.event, (*client, *resource), ask, *result);
                }
            }
            Fact::WriteSent {
                task,
                resource,
                token,
            } => self.writes(*task, *resource, *token),
            Fact::Writes {
                resource,
                token,
                bytes,
            } => {
                self.written.insert((*resource, *token), bytes.to_vec());
            }
            Fact::Valued {
                resource,
                request: Request::Write { token, value, .. },
                answer: Ok(Answer::Written { .. }),
                ..
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                self.written.insert((*resource, *token), bytes.to_vec());
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
