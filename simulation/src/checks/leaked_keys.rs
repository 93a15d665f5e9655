//! Checks that no lock key is left behind in a scenario without faults. A client is done with a lock value when it has
//! released or dropped the lock, or has failed to acquire it. A few network delays later, no master may still have a
//! lock key with this value.
//!
//! The rule `healing` (every waiter gets its lock) does not notice leaked keys: its deadline leaves time
//! for them to expire.

use std::collections::{HashMap, VecDeque};

use crate::check::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Believer, Call, Fact, Member};
use crate::locker::PLACES;
use crate::scenario::Scenario;

type Value = [u8; 32];

pub(crate) struct LeakedKeys {
    is_calm: bool,
    /// The longest time from a client's release until every master has executed it, in nanoseconds. The release may
    /// wait for earlier requests of the client, and for the loading of scripts.
    longest_release: u64,
    /// By task: the lock value of the task's current attempt.
    attempt_values: HashMap<usize, Value>,
    /// The lock values that clients are done with, each with the true time by which no key may contain it.
    ended_values: VecDeque<(u64, Value)>,
    /// By master and resource: the value in the lock key, and the true time at which this key expires.
    keys: Vec<[(Option<Value>, u64); PLACES]>,
    /// The holds that share a lock (readers, or holds of one owner), each with its master and resource.
    members: Vec<(usize, usize, Member)>,
    judged_cases: u64,
}

impl LeakedKeys {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let loads_scripts = scenario.is_mixed() || scenario.has_values() || scenario.has_notes();
        Self {
            is_calm: scenario.promises().calm,
            longest_release: if loads_scripts { 6 } else { 2 }
                * (scenario.net.delay + scenario.net.jitter)
                + MS,
            attempt_values: HashMap::new(),
            ended_values: VecDeque::new(),
            keys: vec![[(None, 0); PLACES]; scenario.masters.len()],
            members: Vec::new(),
            judged_cases: 0,
        }
    }

    /// Returns an error if a key that should have been deleted before `now` still exists on some master.
    fn check_deadlines(&mut self, now: u64) -> Result<(), String> {
        while let Some((deadline, value)) = self
            .ended_values
            .front()
            .copied()
            .filter(|(deadline, _)| *deadline < now)
        {
            self.ended_values.pop_front();
            self.judged_cases += 1;
            let is_left = |hold: &&(usize, usize, Member)| {
                hold.2.value == value && hold.2.expires_at > deadline
            };
            let member = self.members.iter().find(is_left);
            if let Some((master, resource, _)) = member {
                return Err(format!(
                    "master {master} still stores a shared hold on r{resource} {} ms after the client released, \
                     dropped or failed to acquire the lock",
                    self.longest_release / MS
                ));
            }
            for (master, keys) in self.keys.iter().enumerate() {
                let is_left =
                    |(holder, until): &(_, u64)| *holder == Some(value) && *until > deadline;
                if let Some(resource) = keys.iter().position(is_left) {
                    return Err(format!(
                        "master {master} still stores the lock key of r{resource} {} ms after the client released, \
                         dropped or failed to acquire the lock",
                        self.longest_release / MS
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Check for LeakedKeys {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.is_calm {
            return Ok(());
        }
        self.check_deadlines(moment.now)?;
        let ended_value = match fact {
            Fact::AttemptStarted { task, claim, .. } => {
                // Each attempt has a lock value of its own. So if this value is new, the task's previous attempt has
                // ended.
                let value = claim.token().to_hex();
                let previous_value = self.attempt_values.insert(*task, value);
                previous_value.filter(|previous_value| *previous_value != value)
            }
            Fact::LockObtained { believer } => {
                self.attempt_values.remove(&believer.task);
                None
            }
            Fact::CallReturned {
                task,
                call: Call::Acquire { .. } | Call::Downgrade | Call::Value { .. },
                ..
            } => self.attempt_values.remove(task),
            // Clones of an owner's guard share one hold. Only the drop of the last clone releases the hold.
            Fact::BeliefEnded { believer, .. } => {
                let has_same_value = |one: &Believer| one.value == believer.value;
                let is_shared = moment.believers.iter().any(has_same_value);
                (!is_shared).then(|| believer.value.to_hex())
            }
            Fact::RequestExecuted {
                master,
                resource,
                after,
                expires_at,
                members,
                ..
            } => {
                if !members.is_empty() || !self.members.is_empty() {
                    let is_of_this_key =
                        |one: &(usize, usize, Member)| (one.0, one.1) == (*master, *resource);
                    self.members.retain(|one| !is_of_this_key(one));
                    let current_members =
                        members.iter().map(|member| (*master, *resource, *member));
                    self.members.extend(current_members);
                }
                self.keys[*master][*resource] = (after.holder, *expires_at);
                None
            }
            _ => None,
        };
        self.ended_values
            .extend(ended_value.map(|value| (moment.now + self.longest_release, value)));
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
