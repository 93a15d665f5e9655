//! Checks how soon a holder is notified that its lock was force-released: as soon as a majority of the masters has
//! replied that the client does not hold the lock, and not only when the validity ends.

use super::{ByValue, Check, Moment};
use crate::change_plan::is_majority;
use crate::clock::MS;
use crate::facts::{Believer, Fact};
use crate::locker::resource_of;
use crate::scenario::Scenario;
use quorate::node::Extended;

pub(crate) struct Prompt {
    /// The longest time between the loss and the notification of the holder, in nanoseconds. The lock is lost when a
    /// majority of the masters has replied that the client does not hold it.
    bound: u64,
    taken: ByValue<Taken>,
    judged: u64,
}

#[derive(Default)]
struct Taken {
    masters: u16,
    /// The true time by which the holder must have been notified of the loss; `None` as long as no majority has replied
    /// that the client does not hold the lock.
    by: Option<u64>,
}

impl Prompt {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            // A database or ZooKeeper needs more time, because each step needs several requests.
            bound: if scenario.stores() == 0 { 2 } else { 10 }
                * (scenario.net.delay + scenario.net.jitter)
                + MS,
            taken: ByValue::default(),
            judged: 0,
        }
    }

    /// Records a denial: a master has replied that the client with this lock value does not hold the lock.
    fn denied(&mut self, at: &Moment<'_>, master: usize, value: [u8; 32]) {
        let mut believers = at.believers.iter();
        let held = believers.find(|one| one.value.to_hex() == value);
        let taken = self.taken.entry(value).or_default();
        taken.masters |= 1 << master;
        // If a client uses two sets of masters, its lock is lost as soon as a majority of one set has replied that the
        // client does not hold the lock.
        let denied = |believer: &Believer| {
            let mut sets = believer.sets.into_iter();
            sets.any(|set| is_majority(taken.masters, [set, set]))
        };
        if held.is_some_and(denied) && taken.by.is_none() {
            self.judged += 1;
            taken.by = Some(at.now + self.bound);
        }
    }

    fn late(&self, now: u64, believer: &Believer) -> bool {
        let taken = self.taken.get(&believer.value.to_hex());
        taken.and_then(|taken| taken.by).is_some_and(|by| now > by)
    }
}

impl Check for Prompt {
    const RULE: &'static str = "holders learn of force-releases";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.prompt {
            return Ok(());
        }
        match fact {
            Fact::Applied {
                master,
                resource,
                claim,
                extended: Some(Extended::NotOurs),
                ..
                // For a lock on several resources, check only the first resource.
            } if *resource == resource_of(claim.key()) => {
                self.denied(at, *master, claim.token().to_hex());
            }
            Fact::Denied { master, claim } => self.denied(at, *master, claim.token().to_hex()),
            Fact::Retired { believer, .. } => {
                self.taken.remove(&believer.value.to_hex());
            }
            _ => {}
        }
        Ok(())
    }

    fn after(&mut self, at: &Moment<'_>) -> Result<(), String> {
        if self.taken.is_empty() {
            return Ok(());
        }
        match at.believers.iter().find(|one| self.late(at.now, one)) {
            None => Ok(()),
            Some(one) => Err(format!(
                "client {} was not notified that its lock is lost: {} ms have passed since a majority of masters \
                 replied that the client does not hold r{}",
                one.client,
                self.bound / MS,
                one.resource
            )),
        }
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
