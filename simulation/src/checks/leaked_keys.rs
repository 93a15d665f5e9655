//! Checks that no lock key is left behind in a scenario without faults. A client is done with a lock value when it has
//! released or dropped the lock, or has failed to acquire it. A few network delays later, no master may still have a
//! lock key with this value.
//!
//! The rule `healing` (every waiter gets its lock) does not notice leaked keys: its deadline leaves time
//! for them to expire.

use std::collections::{HashMap, VecDeque};

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Believer, Call, Fact, Member};
use crate::locker::PLACES;
use crate::scenario::Scenario;

type Value = [u8; 32];

pub(crate) struct LeakedKeys {
    on: bool,
    /// The longest time from a client's release until every master has executed it, in nanoseconds. The release may
    /// wait for earlier requests of the client, and for the loading of scripts.
    bound: u64,
    /// By task: the lock value of the task's current attempt.
    tries: HashMap<usize, Value>,
    /// The lock values that clients are done with, each with the true time by which no key may contain it.
    done: VecDeque<(u64, Value)>,
    /// By master and resource: the value in the lock key, and the true time at which this key expires.
    keys: Vec<[(Option<Value>, u64); PLACES]>,
    /// The holds that share a lock (readers, or holds of one owner), each with its master and resource.
    members: Vec<(usize, usize, Member)>,
    judged: u64,
}

impl LeakedKeys {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let loads = scenario.is_mixed() || scenario.has_values() || scenario.has_notes();
        Self {
            on: scenario.promises().calm,
            bound: if loads { 6 } else { 2 } * (scenario.net.delay + scenario.net.jitter) + MS,
            tries: HashMap::new(),
            done: VecDeque::new(),
            keys: vec![[(None, 0); PLACES]; scenario.masters.len()],
            members: Vec::new(),
            judged: 0,
        }
    }

    /// Returns an error if a key that should have been deleted before `now` still exists on some master.
    fn sweep(&mut self, now: u64) -> Result<(), String> {
        while let Some((by, value)) = self.done.front().copied().filter(|(by, _)| *by < now) {
            self.done.pop_front();
            self.judged += 1;
            let left = |one: &&(usize, usize, Member)| one.2.value == value && one.2.until > by;
            let member = self.members.iter().find(left);
            if let Some((master, resource, _)) = member {
                return Err(format!(
                    "master {master} still stores a shared hold on r{resource} {} ms after the client released, \
                     dropped or failed to acquire the lock",
                    self.bound / MS
                ));
            }
            for (master, keys) in self.keys.iter().enumerate() {
                let left = |(holder, until): &(_, u64)| *holder == Some(value) && *until > by;
                if let Some(resource) = keys.iter().position(left) {
                    return Err(format!(
                        "master {master} still stores the lock key of r{resource} {} ms after the client released, \
                         dropped or failed to acquire the lock",
                        self.bound / MS
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Check for LeakedKeys {
    const RULE: &'static str = "no leaked keys";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !self.on {
            return Ok(());
        }
        self.sweep(at.now)?;
        let over = match fact {
            Fact::Started { task, claim, .. } => {
                // Each attempt has a lock value of its own. So if this value is new, the task's previous attempt has
                // ended.
                let value = claim.token().to_hex();
                let last = self.tries.insert(*task, value);
                last.filter(|last| *last != value)
            }
            Fact::Obtained { believer } => {
                self.tries.remove(&believer.task);
                None
            }
            Fact::Returned {
                task,
                call: Call::Acquire { .. } | Call::Downgrade | Call::Value { .. },
                ..
            } => self.tries.remove(task),
            // Clones of an owner's guard share one hold. Only the drop of the last clone releases the hold.
            Fact::Retired { believer, .. } => {
                let same = |one: &Believer| one.value == believer.value;
                let shared = at.believers.iter().any(same);
                (!shared).then(|| believer.value.to_hex())
            }
            Fact::Applied {
                master,
                resource,
                after,
                expires,
                members,
                ..
            } => {
                if !members.is_empty() || !self.members.is_empty() {
                    let here =
                        |one: &(usize, usize, Member)| (one.0, one.1) == (*master, *resource);
                    self.members.retain(|one| !here(one));
                    let all = members.iter().map(|member| (*master, *resource, *member));
                    self.members.extend(all);
                }
                self.keys[*master][*resource] = (after.holder, *expires);
                None
            }
            _ => None,
        };
        self.done
            .extend(over.map(|value| (at.now + self.bound, value)));
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
