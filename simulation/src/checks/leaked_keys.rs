//! In a calm scenario no key is left behind. Once a client is done with a value (released, dropped, or never granted),
//! its key is gone from every master within a round trip.
//!
//! The rule `healing` waits for the keys to expire, so it would not notice such leaked keys.

use std::collections::{HashMap, VecDeque};

use super::{Check, Moment};
use crate::clock::MS;
use crate::facts::{Believer, Call, Fact, Member};
use crate::locker::PLACES;
use crate::scenario::Scenario;

type Value = [u8; 32];

pub(crate) struct LeakedKeys {
    on: bool,
    /// The time until a release is executed: it is sent after earlier requests and may wait for a reply that lets it
    /// leave. With several kinds of locks, the release and the requests before it may each have to load a script first.
    bound: u64,
    /// The value with which each task is trying to get a lock.
    tries: HashMap<usize, Value>,
    /// Values that clients are done with, and when their keys must be gone.
    done: VecDeque<(u64, Value)>,
    /// By master and resource: the value in the lock key, and until which true time.
    keys: Vec<[(Option<Value>, u64); PLACES]>,
    /// Holds that share a lock, with master and resource.
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

    /// Looks for keys that should be gone by now.
    fn sweep(&mut self, now: u64) -> Result<(), String> {
        while let Some((by, value)) = self.done.front().copied().filter(|(by, _)| *by < now) {
            self.done.pop_front();
            self.judged += 1;
            let left = |one: &&(usize, usize, Member)| one.2.value == value && one.2.until > by;
            let member = self.members.iter().find(left);
            if let Some((master, resource, _)) = member {
                return Err(format!(
                    "master {master} still keeps a hold on r{resource} {} ms after its client was done with it",
                    self.bound / MS
                ));
            }
            for (master, keys) in self.keys.iter().enumerate() {
                let left = |(holder, until): &(_, u64)| *holder == Some(value) && *until > by;
                if let Some(resource) = keys.iter().position(left) {
                    return Err(format!(
                        "master {master} still keeps r{resource} {} ms after its client was done with it",
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
                // Another hold of an owner sends a second request.
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
            // If clones share a hold, the last one releases it.
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
