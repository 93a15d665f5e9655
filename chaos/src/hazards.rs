//! Draws the faults for a run in which an operator replaces masters. At any time, a majority of the old set of masters
//! and a majority of the new set are free of faults.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::faults::{Injection, Kind, Reach};
use crate::operator_tasks::Moment;
use crate::scenario::Scenario;
use crate::schedule::{affected_time, draw_injection};
use crate::world::Needs;

/// The faults that the option `--faults mixed` selects if masters are changed during the run.
pub const USUAL_FAULTS: [&str; 11] = [
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
const FAULTS_WHILE_CLOSED: [&str; 2] = ["kill", "stop"];

/// The kinds of faults that [`USUAL_FAULTS`] names.
pub fn usual_faults() -> Vec<Kind> {
    USUAL_FAULTS
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect()
}

/// Checks whether all of these faults can be injected while masters are changed.
///
/// # Errors
///
/// If a fault cannot be injected. The error names the fault.
pub fn check_faults(faults: &[Kind]) -> anyhow::Result<()> {
    for kind in faults {
        let is_supported = matches!(kind.needs, Needs::Nothing | Needs::Proxies);
        let isolates_client = kind.reach == Reach::Client && kind.needs == Needs::Proxies;
        ensure!(
            is_supported && !isolates_client && kind.reach != Reach::Majority,
            "{kind} cannot be injected while masters are replaced; these faults can: {}",
            USUAL_FAULTS.join(", ")
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
    remaining_kinds: Vec<Kind>,
    remaining_client_kinds: Vec<Kind>,
    next_client_fault_at: Instant,
    closed_moments: usize,
}

impl Hazards {
    /// The generator of faults for a scenario with changes of masters.
    pub fn new(scenario: &Scenario) -> Self {
        let now = Instant::now();
        Self {
            rng: StdRng::seed_from_u64(scenario.seed),
            masters: vec![now; scenario.masters],
            clients: vec![now; scenario.clients],
            remaining_kinds: Vec::new(),
            remaining_client_kinds: Vec::new(),
            next_client_fault_at: now + scenario.ttl,
            closed_moments: scenario.seed as usize,
            scenario: scenario.clone(),
        }
    }

    /// Draws the next fault for masters. In each set of masters in `sets`, a majority stays free of faults. Returns
    /// `None` if no fault is possible now.
    pub fn draw_master_fault(&mut self, moment: Moment, sets: &[&[usize]]) -> Option<Injection> {
        let mut kinds = match moment {
            Moment::Closed => {
                self.closed_moments += 1;
                let name = FAULTS_WHILE_CLOSED[self.closed_moments % FAULTS_WHILE_CLOSED.len()];
                let faults = self.scenario.faults.iter().copied();
                let kinds_named =
                    |name: &str| faults.clone().filter(|kind| kind.name() == name).collect();
                let preferred: Vec<Kind> = kinds_named(name);
                if preferred.is_empty() {
                    kinds_named(FAULTS_WHILE_CLOSED[(self.closed_moments + 1) % 2])
                } else {
                    preferred
                }
            }
            Moment::Usual => {
                if self.remaining_kinds.is_empty() {
                    self.remaining_kinds = self.kinds(|kind| kind.reach != Reach::Client);
                }
                self.remaining_kinds.clone()
            }
        };
        kinds.reverse();
        for kind in kinds {
            let Some(masters) = self.targets(kind, sets) else {
                continue;
            };
            self.remaining_kinds
                .retain(|other| *other != kind || moment == Moment::Closed);
            let fault = draw_injection(kind, masters, Vec::new(), &self.scenario, &mut self.rng);
            return Some(self.reserve_targets(fault));
        }
        None
    }

    /// Draws a fault for one client of the list `idle`. Returns `None` until the random pause after the last client
    /// fault is over, and while all these clients are still affected by faults.
    pub fn draw_client_fault(&mut self, idle: &[usize]) -> Option<Injection> {
        let now = Instant::now();
        let unaffected: Vec<usize> = idle
            .iter()
            .copied()
            .filter(|client| self.clients[*client] <= now)
            .collect();
        if now < self.next_client_fault_at || unaffected.is_empty() {
            return None;
        }
        if self.remaining_client_kinds.is_empty() {
            self.remaining_client_kinds = self.kinds(|kind| kind.reach == Reach::Client);
        }
        let kind = self.remaining_client_kinds.pop()?;
        self.next_client_fault_at =
            now + self.scenario.ttl.mul_f64(self.rng.random_range(1.0..3.0));
        let client = unaffected[self.rng.random_range(0..unaffected.len())];
        let fault = draw_injection(
            kind,
            Vec::new(),
            vec![client],
            &self.scenario,
            &mut self.rng,
        );
        Some(self.reserve_targets(fault))
    }

    fn kinds(&mut self, is_included: impl Fn(&Kind) -> bool) -> Vec<Kind> {
        let kinds = self.scenario.faults.iter().copied().filter(is_included);
        let mut kinds: Vec<Kind> = kinds.collect();
        kinds.shuffle(&mut self.rng);
        kinds
    }

    /// Draws masters for this kind of fault, so that a majority of each set of masters is left unaffected.
    fn targets(&mut self, kind: Kind, sets: &[&[usize]]) -> Option<Vec<usize>> {
        let now = Instant::now();
        let nodes = self.scenario.nodes();
        let mut candidates: Vec<usize> = sets.iter().flat_map(|set| set.iter().copied()).collect();
        candidates.sort_unstable();
        candidates.dedup();
        candidates.retain(|master| kind.suits(nodes[*master], self.scenario.persistence(*master)));
        candidates.shuffle(&mut self.rng);
        let count = match kind.reach {
            Reach::Minority => sets.iter().map(|set| (set.len() - 1) / 2).min()?,
            _ => 1,
        };
        let mut chosen: Vec<usize> = Vec::new();
        for master in candidates {
            let is_affected = |member: &&usize| {
                self.masters[**member] > now || chosen.contains(*member) || **member == master
            };
            let leaves_majority =
                |set: &&[usize]| set.iter().filter(is_affected).count() * 2 < set.len();
            if chosen.len() < count
                && self.masters[master] <= now
                && sets.iter().all(leaves_majority)
            {
                chosen.push(master);
            }
        }
        chosen.sort_unstable();
        (count > 0 && chosen.len() == count).then_some(chosen)
    }

    fn reserve_targets(&mut self, fault: Injection) -> Injection {
        // Until this time, the targets get no other fault. The 300 ms are for injecting and healing this fault.
        let until =
            Instant::now() + affected_time(&fault, &self.scenario) + Duration::from_millis(300);
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
    use crate::changes::MasterChanges;

    fn hazards() -> Hazards {
        let changes = MasterChanges::one_by_one(5, 1);
        let scenario = Scenario {
            masters: changes.servers(),
            faults: usual_faults(),
            changes: Some(changes),
            ..Scenario::default()
        };
        check_faults(&scenario.faults).expect("the faults must fit the scenario");
        Hazards::new(&scenario)
    }

    #[test]
    fn faults_hit_only_minorities_of_the_old_masters_and_of_the_new_masters() {
        let sets: [&[usize]; 2] = [&[0, 1, 2, 3, 4], &[1, 2, 3, 4, 5]];
        let mut hazards = hazards();
        let mut hit: Vec<usize> = Vec::new();
        while let Some(fault) = hazards.draw_master_fault(Moment::Usual, &sets) {
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
            .draw_master_fault(Moment::Closed, &sets)
            .expect("a fault must be selected");
        assert!(
            FAULTS_WHILE_CLOSED.contains(&fault.kind.name()),
            "{fault:?}"
        );
        assert!(
            hazards.draw_master_fault(Moment::Closed, &sets).is_none(),
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
                check_faults(&[name.parse().expect("the name must be that of a fault")]).is_err(),
                "{name}"
            );
        }
    }
}
