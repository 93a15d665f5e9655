//! Checks how soon a holder is notified that its lock was force-released: as soon as the latest replies of a majority of
//! the masters are that the client does not hold the lock, and not only when the validity ends. A later extension on a
//! master replaces the reply of this master.

use crate::change_plan::is_majority;
use crate::check::{ByValue, Check, Moment};
use crate::clock::MS;
use crate::facts::{Believer, Fact};
use crate::locker::place_of_key;
use crate::scenario::Scenario;
use quorate::node::{Claim, Extended};

pub(crate) struct ForceReleaseNotice {
    /// The longest time between the loss and the notification of the holder, in nanoseconds. The lock is lost when the
    /// latest replies of a majority of the masters are that the client does not hold it.
    longest_notice: u64,
    denials: ByValue<Denials>,
    judged_cases: u64,
}

#[derive(Default)]
struct Denials {
    masters: u16,
    /// The true time by which the holder must have been notified of the loss; `None` as long as no majority has replied
    /// that the client does not hold the lock.
    notice_deadline: Option<u64>,
}

impl ForceReleaseNotice {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            // A database or ZooKeeper needs more time, because each step needs several requests.
            longest_notice: if scenario.store_masters() == 0 { 2 } else { 10 }
                * (scenario.net.delay + scenario.net.jitter)
                + MS,
            denials: ByValue::default(),
            judged_cases: 0,
        }
    }

    /// Records how a master has answered an extension of the lock `claim`.
    fn record_extension(
        &mut self,
        moment: &Moment<'_>,
        master: usize,
        claim: &Claim,
        result: &Extended,
    ) {
        let value = claim.token().to_hex();
        match result {
            Extended::NotOurs => self.record_denial(moment, master, value),
            Extended::Kept | Extended::Restored | Extended::Unnoted => {
                // The master grants the lock again, so an earlier denial of this master no longer counts.
                if let Some(denials) = self.denials.get_mut(&value) {
                    denials.masters &= !(1 << master);
                }
            }
            _ => {}
        }
    }

    /// Records a denial: a master has replied that the client with this lock value does not hold the lock.
    fn record_denial(&mut self, moment: &Moment<'_>, master: usize, value: [u8; 32]) {
        let mut believers = moment.believers.iter();
        let held = believers.find(|one| one.value.to_hex() == value);
        let denials = self.denials.entry(value).or_default();
        denials.masters |= 1 << master;
        // If a client uses two sets of masters, its lock is lost as soon as a majority of one set has replied that the
        // client does not hold the lock.
        let record_denial = |believer: &Believer| {
            let mut sets = believer.sets.into_iter();
            sets.any(|set| is_majority(denials.masters, [set, set]))
        };
        if held.is_some_and(record_denial) && denials.notice_deadline.is_none() {
            self.judged_cases += 1;
            denials.notice_deadline = Some(moment.now + self.longest_notice);
        }
    }

    fn is_overdue(&self, now: u64, believer: &Believer) -> bool {
        let denials = self.denials.get(&believer.value.to_hex());
        denials
            .and_then(|denials| denials.notice_deadline)
            .is_some_and(|deadline| now > deadline)
    }
}

impl Check for ForceReleaseNotice {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !moment.promises.prompt {
            return Ok(());
        }
        match fact {
            Fact::RequestExecuted {
                master,
                resource,
                claim,
                extended: Some(result),
                ..
                // For a lock on several resources, check only the first resource.
            } if *resource == place_of_key(claim.key()) => {
                self.record_extension(moment, *master, claim, result);
            }
            Fact::StoreExtended {
                master,
                claim,
                result,
            } => self.record_extension(moment, *master, claim, result),
            Fact::BeliefEnded { believer, .. } => {
                self.denials.remove(&believer.value.to_hex());
            }
            _ => {}
        }
        Ok(())
    }

    fn check_state(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        if self.denials.is_empty() {
            return Ok(());
        }
        match moment
            .believers
            .iter()
            .find(|believer| self.is_overdue(moment.now, believer))
        {
            None => Ok(()),
            Some(believer) => Err(format!(
                "client {} was not notified that its lock is lost: {} ms have passed since a majority of masters \
                 replied that the client does not hold r{}",
                believer.client,
                self.longest_notice / MS,
                believer.resource
            )),
        }
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
