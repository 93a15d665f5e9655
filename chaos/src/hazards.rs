//! Draws the faults for a run in which an operator replaces masters. At any time, a majority of the old set of masters
//! and a majority of the new set are free of faults.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::faults::{Injection, Kind, Reach};
use crate::scenario::Scenario;
use crate::schedule::{felt, injection};
use crate::walk::Moment;
use crate::world::Needs;

/// The faults that the option `--faults mixed` selects if masters are changed during the run.
pub const USUAL: [&str; 11] = [
    "kill",
    "stop",
    "restart-aof-always",
    "partition-one",
    "partition-minority",
    "late-requests",
    "latency",
    "reset",
    "client-sigkill",
    "client-sigstop",
    "client-drop",
];

/// The kinds of faults that are injected between `close` and `open`, two steps of each change of masters.
const BETWEEN: [&str; 2] = ["kill", "stop"];

/// The kinds of faults that [`USUAL`] names.
pub fn usual() -> Vec<Kind> {
    USUAL.iter().filter_map(|name| name.parse().ok()).collect()
}

/// Checks whether all of these faults can be injected while masters are changed.
///
/// # Errors
///
/// If a fault cannot be injected. The error names the fault.
pub fn check(faults: &[Kind]) -> anyhow::Result<()> {
    for kind in faults {
        let ways = matches!(kind.needs, Needs::Nothing | Needs::Proxies);
        let parts_one = kind.reach == Reach::Client && kind.needs == Needs::Proxies;
        ensure!(
            ways && !parts_one && kind.reach != Reach::Majority,
            "{kind} cannot be injected while masters are replaced; these faults can: {}",
            USUAL.join(", ")
        );
    }
    Ok(())
}

/// Draws faults, and records for each master and client until when a fault affects it.
#[derive(Debug)]
pub struct Hazards {
    scenario: Scenario,
    rng: StdRng,
    masters: Vec<Instant>,
    clients: Vec<Instant>,
    /// The kinds of master faults that have not been drawn yet. If no kind is left, the list is filled again with all
    /// kinds of master faults in the scenario.
    round: Vec<Kind>,
    of_clients: Vec<Kind>,
    next_of_clients: Instant,
    between: usize,
}

impl Hazards {
    /// The generator of faults for a scenario with changes of masters.
    pub fn new(scenario: &Scenario) -> Self {
        let now = Instant::now();
        Self {
            rng: StdRng::seed_from_u64(scenario.seed),
            masters: vec![now; scenario.masters],
            clients: vec![now; scenario.clients],
            round: Vec::new(),
            of_clients: Vec::new(),
            next_of_clients: now + scenario.ttl,
            between: scenario.seed as usize,
            scenario: scenario.clone(),
        }
    }

    /// Draws the next fault for masters. In each set of masters in `sets`, a majority stays free of faults. Returns
    /// `None` if no fault is possible now.
    pub fn on_masters(&mut self, moment: Moment, sets: &[&[usize]]) -> Option<Injection> {
        let mut kinds = match moment {
            Moment::Closed => {
                self.between += 1;
                let name = BETWEEN[self.between % BETWEEN.len()];
                let faults = self.scenario.faults.iter().copied();
                let of = |name: &str| faults.clone().filter(|kind| kind.name() == name).collect();
                let named: Vec<Kind> = of(name);
                if named.is_empty() {
                    of(BETWEEN[(self.between + 1) % 2])
                } else {
                    named
                }
            }
            Moment::Usual => {
                if self.round.is_empty() {
                    self.round = self.kinds(|kind| kind.reach != Reach::Client);
                }
                self.round.clone()
            }
        };
        kinds.reverse();
        for kind in kinds {
            let Some(masters) = self.targets(kind, sets) else {
                continue;
            };
            self.round
                .retain(|other| *other != kind || moment == Moment::Closed);
            let fault = injection(kind, masters, Vec::new(), &self.scenario, &mut self.rng);
            return Some(self.booked(fault));
        }
        None
    }

    /// Draws a fault for one client of the list `idle`. Returns `None` until the random pause after the last client
    /// fault is over, and while all these clients are still affected by faults.
    pub fn on_clients(&mut self, idle: &[usize]) -> Option<Injection> {
        let now = Instant::now();
        let free: Vec<usize> = idle
            .iter()
            .copied()
            .filter(|one| self.clients[*one] <= now)
            .collect();
        if now < self.next_of_clients || free.is_empty() {
            return None;
        }
        if self.of_clients.is_empty() {
            self.of_clients = self.kinds(|kind| kind.reach == Reach::Client);
        }
        let kind = self.of_clients.pop()?;
        self.next_of_clients = now + self.scenario.ttl.mul_f64(self.rng.random_range(1.0..3.0));
        let client = free[self.rng.random_range(0..free.len())];
        let fault = injection(
            kind,
            Vec::new(),
            vec![client],
            &self.scenario,
            &mut self.rng,
        );
        Some(self.booked(fault))
    }

    fn kinds(&mut self, such: impl Fn(&Kind) -> bool) -> Vec<Kind> {
        let kinds = self.scenario.faults.iter().copied().filter(such);
        let mut kinds: Vec<Kind> = kinds.collect();
        kinds.shuffle(&mut self.rng);
        kinds
    }

    /// Draws masters for this kind of fault, so that a majority of each set of masters is left unaffected.
    fn targets(&mut self, kind: Kind, sets: &[&[usize]]) -> Option<Vec<usize>> {
        let now = Instant::now();
        let nodes = self.scenario.nodes();
        let mut all: Vec<usize> = sets.iter().flat_map(|set| set.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|one| kind.suits(nodes[*one], self.scenario.persistence(*one)));
        all.shuffle(&mut self.rng);
        let wanted = match kind.reach {
            Reach::Minority => sets.iter().map(|set| (set.len() - 1) / 2).min()?,
            _ => 1,
        };
        let mut chosen: Vec<usize> = Vec::new();
        for master in all {
            let busy = |one: &&usize| {
                self.masters[**one] > now || chosen.contains(*one) || **one == master
            };
            let leaves_majority = |set: &&[usize]| set.iter().filter(busy).count() * 2 < set.len();
            if chosen.len() < wanted
                && self.masters[master] <= now
                && sets.iter().all(leaves_majority)
            {
                chosen.push(master);
            }
        }
        chosen.sort_unstable();
        (wanted > 0 && chosen.len() == wanted).then_some(chosen)
    }

    fn booked(&mut self, fault: Injection) -> Injection {
        // Until this time, the targets get no other fault. The 300 ms are for injecting and healing this fault.
        let until = Instant::now() + felt(&fault, &self.scenario) + Duration::from_millis(300);
        for &index in &fault.masters {
            self.masters[index] = until;
        }
        for &index in &fault.clients {
            self.clients[index] = until;
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;

    fn hazards() -> Hazards {
        let changes = Changes::one_by_one(5, 1);
        let scenario = Scenario {
            masters: changes.servers(),
            faults: usual(),
            changes: Some(changes),
            ..Scenario::default()
        };
        check(&scenario.faults).expect("the faults must fit the scenario");
        Hazards::new(&scenario)
    }

    #[test]
    fn faults_hit_only_minorities_of_the_old_masters_and_of_the_new_masters() {
        let sets: [&[usize]; 2] = [&[0, 1, 2, 3, 4], &[1, 2, 3, 4, 5]];
        let mut hazards = hazards();
        let mut hit: Vec<usize> = Vec::new();
        while let Some(fault) = hazards.on_masters(Moment::Usual, &sets) {
            hit.extend(&fault.masters);
            for set in sets {
                assert!(
                    set.iter().filter(|one| hit.contains(one)).count() <= 2,
                    "{hit:?}"
                );
            }
        }
        assert!(hit.len() >= 2, "{hit:?}");
    }

    #[test]
    fn only_kill_or_stop_faults_hit_a_change_of_masters_between_close_and_open() {
        let sets: [&[usize]; 1] = [&[0, 1, 2]];
        let mut hazards = hazards();
        let fault = hazards
            .on_masters(Moment::Closed, &sets)
            .expect("a fault must be selected");
        assert!(BETWEEN.contains(&fault.kind.name()), "{fault:?}");
        assert!(
            hazards.on_masters(Moment::Closed, &sets).is_none(),
            "only one of three masters may be affected at a time"
        );
    }

    #[test]
    fn fault_unsuitable_for_a_change_of_masters_is_refused() {
        for name in [
            "partition-client",
            "partition-majority",
            "clock-back",
            "amnesia",
        ] {
            assert!(
                check(&[name.parse().expect("the name must be that of a fault")]).is_err(),
                "{name}"
            );
        }
    }
}
