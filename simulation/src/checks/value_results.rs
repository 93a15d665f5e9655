//! Checks values under locks from the view of the clients (docs/protocol.md, "Values under a lock"). A value is a quota
//! (units that clients take), or a record of the last period (for example a day) whose work was done.
//!
//! - A quota hands out each of its units at most once, and no other units.
//! - The work of a period starts at most once.
//! - The number of remaining units that a call reports agrees with the units taken so far.
//! - A quota that was reported as lost hands out no units. The same rule applies to the work of a period.
//! - No value is lost unless a master restarts.
//! - A value is created a second time only after its removal, or after a majority of the masters has lost data.

use std::collections::{HashMap, HashSet};

use crate::check::{Check, Moment};
use crate::facts::{Fact, ValueResult};
use crate::kind::ValueStep;
use crate::scenario::Scenario;
use quorate::node::{Answer, Request};

#[derive(Default)]
pub(crate) struct ValueResults {
    /// The quotas that were created, by resource.
    quotas: HashMap<usize, Quota>,
    /// The client that took each unit of a quota, by resource and unit. Units are numbered from zero.
    unit_takers: HashMap<(usize, u64), usize>,
    /// The client that did the work of each period, by resource and by the bytes that it wrote into the record.
    period_workers: HashMap<(usize, Vec<u8>), usize>,
    /// The bytes written on some master, by resource and fencing token.
    written_bytes: HashMap<(usize, u64), Vec<u8>>,
    /// For each resource whose value was reported as lost: the event of the first report, and the smallest step of a
    /// client that received a report. The step says which masters a client uses (see `change_plan`). A later call at
    /// this or a later step must take no units and start no work.
    lost_values: HashMap<usize, (u64, u8)>,
    created_at: HashMap<usize, u64>,
    /// By resource: the masters that have lost data since the value was created.
    forgetful_masters: HashMap<usize, HashSet<usize>>,
    /// The smallest number of forgetful masters after which a client may create the value a second time.
    majority: usize,
    removals: RemovalHistory,
    /// Whether any master has restarted. Before the first restart, no value may be lost.
    restarted: bool,
    /// By task: its current call on a value.
    calls: HashMap<usize, ValueCall>,
    judged_cases: u64,
}

#[derive(Clone, Copy, Default)]
struct Quota {
    units: u64,
    /// The number of units that clients have certainly taken.
    taken_units: u64,
    /// The largest number of units that clients may have taken: the units requested by all calls, except calls that
    /// certainly took none.
    requested_units: u64,
}

/// The removals of values, by resource.
#[derive(Default)]
struct RemovalHistory {
    /// By resource: the number of the event at which the last removal ended. A call that began before this event may
    /// still report the removed value.
    ended_at: HashMap<usize, u64>,
    /// The resources whose value was removed, and for which no client has begun to create a new value since.
    removed: HashSet<usize>,
    /// The number of removals that have not returned yet, or whose result is uncertain.
    open_removals: HashMap<usize, usize>,
    /// The fencing token under which the last confirmed removal was written.
    removal_tokens: HashMap<usize, u64>,
    /// The largest fencing token of a write that creates the value.
    creation_tokens: HashMap<usize, u64>,
}

impl RemovalHistory {
    /// Whether a removal of the value may have overlapped in time with the call `call`.
    fn may_overlap(&self, resource: usize, call: ValueCall) -> bool {
        let last_end = self.ended_at.get(&resource).copied().unwrap_or(0);
        last_end > call.began_at
            || self
                .open_removals
                .get(&resource)
                .is_some_and(|count| *count > 0)
    }

    /// Records that a creation writes its value under the fencing token `token`. If this token is
    /// larger than that of the last removal, the resource has a value again.
    fn created_under(&mut self, resource: usize, token: u64) {
        let largest = self.creation_tokens.entry(resource).or_default();
        *largest = token.max(*largest);
        if self
            .removal_tokens
            .get(&resource)
            .is_some_and(|removal_token| *removal_token < token)
        {
            self.removed.remove(&resource);
        }
    }
}

#[derive(Clone, Copy)]
struct ValueCall {
    verb: ValueStep,
    resource: usize,
    /// The number of the event with which the call began.
    began_at: u64,
    /// The client's step when its call began. It says which masters the client uses (see `change_plan`).
    step: u8,
    /// The number of units of the quota that had certainly been taken when the call began.
    taken_before: u64,
    /// If the call creates a quota: the number of units of the resource's earlier quota; 0 if there was none.
    earlier_units: u64,
    /// The fencing token under which the call writes; `None` until the call sends a write.
    token: Option<u64>,
}

impl ValueCall {
    fn creates(&self, resource: usize) -> bool {
        self.resource == resource && matches!(self.verb, ValueStep::Create(_))
    }
}

impl ValueResults {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let majority = if scenario.change.is_some() {
            // The masters of a set may have lost data before they were added to it.
            1
        } else {
            scenario.masters.len() / 2 + 1
        };
        Self {
            majority,
            ..Self::default()
        }
    }

    fn record_call(
        &mut self,
        (began_at, task): (u64, usize),
        (resource, step): (usize, u8),
        verb: ValueStep,
    ) {
        let running_creation = self
            .calls
            .values()
            .find(|call| call.creates(resource))
            .copied();
        let quota = self.quotas.entry(resource).or_default();
        let (taken_before, mut earlier_units) = (quota.taken_units, 0);
        match verb {
            ValueStep::Create(units) => {
                earlier_units =
                    running_creation.map_or(quota.units, |creation| creation.earlier_units);
                // A creation fails if the resource has a value already, so it does not change the number of units.
                if !self.created_at.contains_key(&resource) {
                    quota.units = units.into();
                }
                self.removals.removed.remove(&resource);
            }
            ValueStep::Take(units) => quota.requested_units += u64::from(units),
            ValueStep::Remove { .. } => {
                *self.removals.open_removals.entry(resource).or_default() += 1;
                // While this removal runs, a call may or may not find the value. So forget earlier reports.
                self.lost_values.remove(&resource);
                self.created_at.remove(&resource);
            }
            ValueStep::ReadRemaining
            | ValueStep::AtMostOnce
            | ValueStep::AtLeastOnce
            | ValueStep::SeparateCalls => {}
        }
        let call = ValueCall {
            verb,
            resource,
            began_at,
            step,
            taken_before,
            earlier_units,
            token: None,
        };
        self.calls.insert(task, call);
    }

    /// Records the fencing token under which the call of a task writes the value.
    fn writes(&mut self, task: usize, resource: usize, token: u64) {
        let Some(call) = self.calls.get_mut(&task) else {
            return;
        };
        call.token = Some(token);
        if call.creates(resource) {
            self.removals.created_under(resource, token);
        }
    }

    /// Records that a removal has returned: the old value is gone from every master. If a creation has a larger fencing
    /// token than the removal, the creation came later, and its value stays.
    fn record_removal(&mut self, now: u64, resource: usize, removal: ValueCall) {
        self.judged_cases += 1;
        let token = removal.token.unwrap_or(u64::MAX);
        let creation_token = self.removals.creation_tokens.get(&resource);
        let is_replaced = creation_token.is_some_and(|creation_token| *creation_token > token);
        self.removals.removal_tokens.insert(resource, token);
        self.forget_units_and_work(resource);
        let other_calls = || self.calls.values().filter(|call| call.resource == resource);
        let quota = self.quotas.get(&resource).copied().unwrap_or_default();
        let requested_units = if is_replaced {
            quota.requested_units
        } else {
            other_calls().map(|call| call.verb.units()).sum()
        };
        let is_removal = |call: &&ValueCall| matches!(call.verb, ValueStep::Remove { .. });
        let open_removals = other_calls().filter(is_removal).count();
        if !is_replaced && !other_calls().any(|call| matches!(call.verb, ValueStep::Create(_))) {
            self.removals.removed.insert(resource);
        }
        self.removals.open_removals.insert(resource, open_removals);
        self.removals.ended_at.insert(resource, now);
        let new_quota = Quota {
            taken_units: 0,
            requested_units,
            ..quota
        };
        self.quotas.insert(resource, new_quota);
    }

    /// Updates the quota's number of units when a call to create the quota has returned. If several clients create the
    /// quota at the same time, at most one call succeeds.
    fn record_creation_result(&mut self, call: ValueCall, result: ValueResult) {
        let quota = self.quotas.entry(call.resource).or_default();
        match (call.verb, result) {
            (ValueStep::Create(units), ValueResult::Created) => {
                quota.units = units.into();
                for other in self
                    .calls
                    .values_mut()
                    .filter(|other| other.creates(call.resource))
                {
                    other.earlier_units = units.into();
                }
            }
            (ValueStep::Create(_), ValueResult::NotChanged) if call.earlier_units > 0 => {
                quota.units = call.earlier_units;
            }
            _ => {}
        }
    }

    fn check_returned(
        &mut self,
        now: u64,
        (client, resource): (usize, usize),
        call: ValueCall,
        result: ValueResult,
    ) -> Result<(), String> {
        if result == ValueResult::Removed {
            self.record_removal(now, resource, call);
            return Ok(());
        }
        let units = call.verb.units();
        let hands_out = matches!(result, ValueResult::Taken(_) | ValueResult::WorkDue(_));
        let shows_value =
            hands_out || matches!(result, ValueResult::UnitsLeft(_) | ValueResult::AlreadyDone);
        let quota = self.quotas.entry(resource).or_default();
        if matches!(
            result,
            ValueResult::NotChanged | ValueResult::Lost | ValueResult::UnitsLeft(_)
        ) {
            quota.requested_units = quota.requested_units.saturating_sub(units);
        }
        self.record_creation_result(call, result);
        if self.removals.may_overlap(resource, call)
            || self.calls.values().any(|other| other.creates(resource))
        {
            return Ok(());
        }
        if shows_value && self.removals.removed.contains(&resource) {
            return Err(format!(
                "client {client} gets {result:?} for the value r{resource} after its removal"
            ));
        }
        let lost_report = self.lost_values.get(&resource);
        if hands_out
            && lost_report.is_some_and(|(event, step)| *event < call.began_at && *step <= call.step)
        {
            return Err(format!(
                "client {client} gets {result:?} for the value r{resource}, which was reported as lost before the \
                 call"
            ));
        }
        match result {
            ValueResult::Created => self.check_creation(now, client, call)?,
            // At an odd step, the client uses old and new masters. It may get `Lost`, because the value may not have
            // been copied to the new masters yet.
            ValueResult::Lost if call.step.is_multiple_of(2) && self.was_created_before(call) => {
                self.judged_cases += 1;
                if !self.restarted {
                    return Err(format!(
                        "client {client} gets Lost for the value r{resource}, although no master has restarted"
                    ));
                }
                let report = self.lost_values.entry(resource).or_insert((now, call.step));
                report.1 = report.1.min(call.step);
            }
            ValueResult::Taken(remaining) => {
                self.quotas.entry(resource).or_default().taken_units += units;
                self.check_taken_units(client, resource, remaining, units)?;
                self.check_remaining(resource, call, remaining + units)?;
            }
            ValueResult::UnitsLeft(remaining) => self.check_remaining(resource, call, remaining)?,
            ValueResult::WorkDue(token) => self.check_work(client, resource, token)?,
            _ => {}
        }
        Ok(())
    }

    fn check_creation(&mut self, now: u64, client: usize, call: ValueCall) -> Result<(), String> {
        if self.was_created_before(call) {
            self.check_second_creation(client, call.resource)?;
        }
        self.created_at.insert(call.resource, now);
        self.forgetful_masters.remove(&call.resource);
        Ok(())
    }

    /// Checks that a majority of the masters has lost the value that a client creates a second time. Such a creation is
    /// the decision of an operator, who then begins with a new value.
    fn check_second_creation(&mut self, client: usize, resource: usize) -> Result<(), String> {
        self.judged_cases += 1;
        let forgetful = self.forgetful_masters.get(&resource);
        let forgetful = forgetful.map_or(0, HashSet::len);
        if forgetful < self.majority {
            return Err(format!(
                "client {client} creates the value r{resource} a second time, although only {forgetful} masters have \
                 lost data since it was created"
            ));
        }
        self.forget_units_and_work(resource);
        if let Some(quota) = self.quotas.get_mut(&resource) {
            quota.taken_units = 0;
        }
        Ok(())
    }

    /// Forgets which units were taken and which work was done with an earlier value of the resource.
    fn forget_units_and_work(&mut self, resource: usize) {
        self.unit_takers.retain(|(other, _), _| *other != resource);
        self.period_workers
            .retain(|(other, _), _| *other != resource);
        self.lost_values.remove(&resource);
    }

    fn was_created_before(&self, call: ValueCall) -> bool {
        let created_at = self.created_at.get(&call.resource);
        created_at.is_some_and(|created_at| *created_at < call.began_at)
    }

    /// Checks that each unit that a call has taken exists and was not taken before.
    fn check_taken_units(
        &mut self,
        client: usize,
        resource: usize,
        remaining: u64,
        units: u64,
    ) -> Result<(), String> {
        self.judged_cases += 1;
        let quota_units = self.quotas.get(&resource).map_or(0, |quota| quota.units);
        for unit in remaining..remaining + units {
            if unit >= quota_units {
                return Err(format!(
                    "client {client} took a unit of the quota r{resource} and {unit} units were left, but the quota \
                     was created with only {quota_units} units"
                ));
            }
            if let Some(other) = self.unit_takers.insert((resource, unit), client) {
                return Err(format!(
                    "clients {other} and {client} took the same unit of the quota r{resource}: after each take, {unit} \
                     units were left"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the number of remaining units that a call reports agrees with the units taken and requested so far.
    fn check_remaining(
        &mut self,
        resource: usize,
        call: ValueCall,
        remaining: u64,
    ) -> Result<(), String> {
        self.judged_cases += 1;
        let quota = self.quotas.get(&resource).copied().unwrap_or_default();
        let largest = quota.units.saturating_sub(call.taken_before);
        let smallest = quota.units.saturating_sub(quota.requested_units);
        if remaining > largest || remaining < smallest {
            return Err(format!(
                "a call reports {remaining} units left of r{resource}, but only {smallest} to {largest} are possible \
                 (created: {}; taken before this call: {}; requested by all calls: {})",
                quota.units, call.taken_before, quota.requested_units
            ));
        }
        Ok(())
    }

    /// Checks that no client has done the work of this period before.
    fn check_work(&mut self, client: usize, resource: usize, token: u64) -> Result<(), String> {
        self.judged_cases += 1;
        let Some(period) = self.written_bytes.get(&(resource, token)) else {
            return Err(format!(
                "client {client} runs the once job r{resource} under the fencing token {token}, but no master has \
                 a record with this token"
            ));
        };
        let key = (resource, period.clone());
        match self.period_workers.insert(key, client) {
            None => Ok(()),
            Some(other) => Err(format!(
                "clients {other} and {client} both run the once job r{resource} in the period {:?}",
                String::from_utf8_lossy(period)
            )),
        }
    }
}

impl Check for ValueResults {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !moment.promises.stock {
            return Ok(());
        }
        match fact {
            Fact::MasterRestarted { master, lost_data } => {
                self.restarted = true;
                if *lost_data {
                    for resource in self.created_at.keys() {
                        let masters = self.forgetful_masters.entry(*resource).or_default();
                        masters.insert(*master);
                    }
                }
            }
            Fact::ValueCallStarted {
                task,
                resource,
                verb,
                step,
            } => self.record_call((moment.event, *task), (*resource, *step), *verb),
            Fact::ValueCallReturned {
                client,
                task,
                resource,
                result,
            } => {
                if let Some(call) = self.calls.remove(task) {
                    return self.check_returned(moment.event, (*client, *resource), call, *result);
                }
            }
            Fact::WriteSent {
                task,
                resource,
                token,
            } => self.writes(*task, *resource, *token),
            Fact::StoreWriteSent {
                resource,
                token,
                bytes,
            } => {
                self.written_bytes
                    .insert((*resource, *token), bytes.to_vec());
            }
            Fact::ValueRequestExecuted {
                resource,
                request: Request::Write { token, value, .. },
                answer: Ok(Answer::Written { .. }),
                ..
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                self.written_bytes
                    .insert((*resource, *token), bytes.to_vec());
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
