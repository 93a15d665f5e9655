//! Checks that a majority of the masters protects the lock of a holder. A master protects the lock if, until the end of
//! the validity in true time, it does one of the following:
//!
//! - keep the lock key, or
//! - give no votes, because it has restarted (docs/protocol.md, "Restart guard").
//!
//! The rule `exclusion` (at most one holder) notices a key that expires too early only if another client then acquires
//! the lock.

use crate::change_plan::is_majority;
use crate::check::{Check, Moment};
use crate::clock::Clock;
use crate::facts::{Believer, Fact, Member};
use crate::locker::PLACES;
use crate::scenario::Scenario;

pub(crate) struct Cover {
    masters: Vec<MasterKeys>,
    /// The masters that are databases or ZooKeeper (bit n is master n). The checkers do not read the lock records on
    /// these masters, so each of them always counts as keeping the lock.
    store_masters: u16,
    /// How long a master does not vote after a restart, in nanoseconds; zero without the restart guard.
    guard_nanos: u64,
    judged_cases: u64,
}

/// The lock keys on one master.
#[derive(Clone)]
struct MasterKeys {
    keys: [LockKey; PLACES],
    /// The holds that share a lock (holds of readers, or of one owner), each with its resource.
    members: Vec<(usize, Member)>,
    /// The true time until which the master does not vote after a restart, because the restart guard is on.
    votes_again_at: u64,
}

#[derive(Clone, Copy, Default)]
struct LockKey {
    holder: Option<[u8; 32]>,
    /// The true time at which the lock key expires.
    expires_at: u64,
}

impl Cover {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        let no_keys = MasterKeys {
            keys: [LockKey::default(); PLACES],
            members: Vec::new(),
            votes_again_at: 0,
        };
        let guard_nanos = if scenario.settings.guard {
            scenario.settings.max_ttl / 100 * 99
        } else {
            0
        };
        Self {
            masters: vec![no_keys; masters],
            store_masters: scenario.store_masters(),
            guard_nanos,
            judged_cases: 0,
        }
    }

    fn check_hold(&mut self, moment: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        if !moment.promises.exclusion {
            return Ok(());
        }
        let clock: &Clock = &believer.clock;
        let Some(valid_until) = clock.time_of_reading(believer.valid_until) else {
            return Ok(());
        };
        self.judged_cases += 1;
        let value = believer.value.to_hex();
        let is_store = |master: usize| self.store_masters >> master & 1 == 1;
        let protects_lock = |master: &MasterKeys| {
            master.votes_again_at >= valid_until
                || believer.scope.resources().all(|resource| {
                    let key = master.keys[resource];
                    let has_value = match believer.scope.class {
                        None => key.holder == Some(value),
                        Some(_) => master.members.iter().any(|(on_resource, member)| {
                            *on_resource == resource
                                && member.value == value
                                && member.expires_at >= valid_until
                        }),
                    };
                    has_value && key.expires_at >= valid_until
                })
        };
        let is_keeper =
            |(master, keys): &(usize, &MasterKeys)| !is_store(*master) && protects_lock(keys);
        let masters = self.masters.iter().enumerate();
        let keepers = masters
            .filter(is_keeper)
            .fold(self.store_masters, |keepers, (master, _)| {
                keepers | 1 << master
            });
        if !is_majority(keepers, believer.sets) {
            let count = keepers.count_ones();
            return Err(format!(
                "client {} believes that it holds r{} for another {:.3} ms, but only {count} masters keep the lock key \
                 until then",
                believer.client,
                believer.resource,
                valid_until.saturating_sub(moment.now) as f64 / 1e6
            ));
        }
        Ok(())
    }
}

impl Check for Cover {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::RequestExecuted {
                master,
                resource,
                after,
                expires_at,
                members,
                ..
            } => {
                let kept_members = &mut self.masters[*master].members;
                if !members.is_empty() || !kept_members.is_empty() {
                    kept_members.retain(|(held, _)| held != resource);
                    // Shared holds protect the lock only if the lock key contains the marker of a shared lock. Such a
                    // marker ends with a zero byte.
                    let has_marker = after.holder.is_some_and(|holder| holder.ends_with(&[0]));
                    let new_members = members.iter().filter(|_| has_marker);
                    kept_members.extend(new_members.map(|member| (*resource, *member)));
                }
                self.masters[*master].keys[*resource] = LockKey {
                    holder: after.holder,
                    expires_at: *expires_at,
                };
            }
            Fact::MasterRestarted { master, lost_data } => {
                let restarted = &mut self.masters[*master];
                restarted.votes_again_at = moment.now + self.guard_nanos;
                if *lost_data {
                    restarted.keys = [LockKey::default(); PLACES];
                    restarted.members.clear();
                }
            }
            Fact::LockObtained { believer } | Fact::ValidityExtended { believer, .. } => {
                return self.check_hold(moment, believer);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
