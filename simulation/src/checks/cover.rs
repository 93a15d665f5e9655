//! Checks that a majority of the masters protects the lock of a holder. A master protects the lock if, until the end of
//! the validity in true time, it does one of the following:
//!
//! - keep the lock key, or
//! - give no votes, because it has restarted (docs/protocol.md, "Restart guard").
//!
//! The rule `exclusion` (at most one holder) notices a key that expires too early only if another client then acquires
//! the lock.

use super::{Check, Moment};
use crate::change_plan::is_majority;
use crate::clock::Clock;
use crate::facts::{Believer, Fact, Member};
use crate::locker::PLACES;
use crate::scenario::Scenario;

pub(crate) struct Cover {
    masters: Vec<Kept>,
    /// The masters that are databases or ZooKeeper (bit n is master n). The checkers do not read the lock records on
    /// these masters, so each of them always counts as keeping the lock.
    stores: u16,
    /// How long a master does not vote after a restart, in nanoseconds; zero without the restart guard.
    guarded: u64,
    judged: u64,
}

/// The lock keys on one master.
#[derive(Clone)]
struct Kept {
    keys: [Key; PLACES],
    /// The holds that share a lock (holds of readers, or of one owner), each with its resource.
    members: Vec<(usize, Member)>,
    /// The true time until which the master does not vote after a restart, because the restart guard is on.
    silent_until: u64,
}

#[derive(Clone, Copy, Default)]
struct Key {
    holder: Option<[u8; 32]>,
    /// The true time at which the lock key expires.
    until: u64,
}

impl Cover {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let masters = scenario.masters.len();
        let kept = Kept {
            keys: [Key::default(); PLACES],
            members: Vec::new(),
            silent_until: 0,
        };
        let guarded = if scenario.settings.guard {
            scenario.settings.max_ttl / 100 * 99
        } else {
            0
        };
        Self {
            masters: vec![kept; masters],
            stores: scenario.stores(),
            guarded,
            judged: 0,
        }
    }

    fn judge(&mut self, at: &Moment<'_>, believer: &Believer) -> Result<(), String> {
        if !at.promises.exclusion {
            return Ok(());
        }
        let clock: &Clock = &believer.clock;
        let Some(until) = clock.when(believer.until) else {
            return Ok(());
        };
        self.judged += 1;
        let value = believer.value.to_hex();
        let is_store = |master: usize| self.stores >> master & 1 == 1;
        let keeps = |kept: &Kept| {
            kept.silent_until >= until
                || believer.scope.resources().all(|resource| {
                    let key = kept.keys[resource];
                    let stands = match believer.scope.class {
                        None => key.holder == Some(value),
                        Some(_) => kept.members.iter().any(|(of, member)| {
                            *of == resource && member.value == value && member.until >= until
                        }),
                    };
                    stands && key.until >= until
                })
        };
        let kept = |(master, kept): &(usize, &Kept)| !is_store(*master) && keeps(kept);
        let masters = self.masters.iter().enumerate();
        let keepers = masters.filter(kept);
        let keepers = keepers.fold(self.stores, |all, (master, _)| all | 1 << master);
        if !is_majority(keepers, believer.sets) {
            let count = keepers.count_ones();
            return Err(format!(
                "client {} believes that it holds r{} for another {:.3} ms, but only {count} masters keep the lock key \
                 until then",
                believer.client,
                believer.resource,
                until.saturating_sub(at.now) as f64 / 1e6
            ));
        }
        Ok(())
    }
}

impl Check for Cover {
    const RULE: &'static str = "cover";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied {
                master,
                resource,
                after,
                expires,
                members,
                ..
            } => {
                let kept = &mut self.masters[*master].members;
                if !members.is_empty() || !kept.is_empty() {
                    kept.retain(|(of, _)| of != resource);
                    // Shared holds protect the lock only if the lock key contains the marker of a shared lock. Such a
                    // marker ends with a zero byte.
                    let marked = after.holder.is_some_and(|holder| holder.ends_with(&[0]));
                    let all = members.iter().filter(|_| marked);
                    kept.extend(all.map(|member| (*resource, *member)));
                }
                self.masters[*master].keys[*resource] = Key {
                    holder: after.holder,
                    until: *expires,
                };
            }
            Fact::Restarted { master, forgot } => {
                let kept = &mut self.masters[*master];
                kept.silent_until = at.now + self.guarded;
                if *forgot {
                    kept.keys = [Key::default(); PLACES];
                    kept.members.clear();
                }
            }
            Fact::Obtained { believer } | Fact::Extended { believer, .. } => {
                return self.judge(at, believer);
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
