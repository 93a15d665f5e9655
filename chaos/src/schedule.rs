//! The faults of a run in order of time. They follow from the seed of the run.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::faults::{Injection, Kind, Lasts, Reach};
use crate::scenario::Scenario;
use crate::world::Needs;

/// A fault of the schedule, and the time at which it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The start of the fault, counted from the end of the warm-up.
    pub at: Duration,
    /// The fault to be injected.
    pub fault: Injection,
}

/// The restart guard excludes a restarted master for up to `max_ttl` plus this time, because masters report their
/// uptime in whole seconds.
const GUARD_SLACK: Duration = Duration::from_millis(1_200);

/// The schedule of a scenario. The same scenario always has the same schedule.
pub fn schedule(scenario: &Scenario) -> Vec<Planned> {
    Scheduler::new(scenario).plan()
}

/// Draws the schedule, and records for each master and client until when a fault affects it.
struct Scheduler<'a> {
    scenario: &'a Scenario,
    rng: StdRng,
    masters: Vec<Duration>,
    clients: Vec<Duration>,
    planned: Vec<Planned>,
}

impl<'a> Scheduler<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            rng: StdRng::seed_from_u64(scenario.seed),
            masters: vec![Duration::ZERO; scenario.masters],
            clients: vec![Duration::ZERO; scenario.clients],
            planned: Vec::new(),
        }
    }

    fn plan(mut self) -> Vec<Planned> {
        let scenario = self.scenario;
        let kinds: Vec<Kind> = scenario
            .faults
            .iter()
            .copied()
            .filter(|kind| self.is_possible(*kind))
            .collect();
        if kinds.is_empty() {
            return Vec::new();
        }
        let mut start = Duration::from_millis(self.rng.random_range(200..400));
        // Each round contains every kind of fault once, in a random order.
        let mut round: Vec<Kind> = Vec::new();
        while start < scenario.duration {
            if round.is_empty() {
                round.clone_from(&kinds);
                round.shuffle(&mut self.rng);
            }
            // Find a kind of fault for which enough targets are not affected by other faults.
            let next_fault = (0..round.len()).rev().find_map(|index| {
                let fault = self.draw_fault(round[index], start)?;
                Some((index, fault))
            });
            if let Some((index, fault)) = next_fault {
                round.remove(index);
                self.reserve_targets(&fault, start);
                self.planned.push(Planned { at: start, fault });
                start += scenario.gap.mul_f64(self.rng.random_range(0.3..1.0));
            } else {
                start += Duration::from_millis(50);
            }
        }
        self.planned
    }

    /// Whether this kind of fault can be injected in this run.
    fn is_possible(&self, kind: Kind) -> bool {
        let (scenario, nodes) = (self.scenario, self.scenario.nodes());
        let suits = |index| kind.suits(nodes[index], scenario.persistence(index));
        let hits_one_master = kind.reach == Reach::One;
        kind.fits(&nodes) && (!hits_one_master || (0..nodes.len()).any(suits))
    }

    fn draw_fault(&mut self, kind: Kind, start: Duration) -> Option<Injection> {
        let scenario = self.scenario;
        let nodes = scenario.nodes();
        let suits = |index: &usize| kind.suits(nodes[*index], scenario.persistence(*index));
        let free_masters: Vec<usize> = (0..scenario.masters)
            .filter(|index| self.masters[*index] <= start)
            .filter(suits)
            .collect();
        let free_clients: Vec<usize> = (0..scenario.clients)
            .filter(|index| self.clients[*index] <= start)
            .collect();
        let affected_count = self.masters.iter().filter(|until| **until > start).count();
        let mut masters = Vec::new();
        let mut clients = Vec::new();
        let pick = |candidates: &[usize], count: usize, rng: &mut StdRng| {
            let mut candidates = candidates.to_vec();
            candidates.shuffle(rng);
            candidates.truncate(count);
            candidates.sort_unstable();
            (candidates.len() == count).then_some(candidates)
        };
        match kind.reach {
            Reach::One => {
                // If faults affect `max_affected` masters already, affect another master only with a probability of 10
                // %.
                let max_affected = (scenario.masters - scenario.majority()).max(1);
                if affected_count >= max_affected && !self.rng.random_bool(0.1) {
                    return None;
                }
                masters = pick(&free_masters, 1, &mut self.rng)?;
                if kind.needs == Needs::Proxies && self.rng.random_bool(0.25) {
                    clients = pick(&free_clients, 1, &mut self.rng)?;
                }
            }
            Reach::Minority => {
                let count = scenario.masters - scenario.majority();
                masters = pick(&free_masters, count, &mut self.rng)?;
            }
            Reach::Majority => masters = pick(&free_masters, scenario.majority(), &mut self.rng)?,
            Reach::Client => clients = pick(&free_clients, 1, &mut self.rng)?,
        }
        Some(draw_injection(
            kind,
            masters,
            clients,
            scenario,
            &mut self.rng,
        ))
    }

    fn reserve_targets(&mut self, fault: &Injection, start: Duration) {
        let until = start + affected_time(fault, self.scenario);
        for &index in &fault.masters {
            self.masters[index] = until;
        }
        for &index in &fault.clients {
            self.clients[index] = until;
        }
    }
}

/// Draws a fault of this kind on these targets, with its duration.
pub(crate) fn draw_injection(
    kind: Kind,
    masters: Vec<usize>,
    clients: Vec<usize>,
    scenario: &Scenario,
    rng: &mut StdRng,
) -> Injection {
    let ttl = scenario.ttl.as_millis() as u64;
    let lasts = match kind.lasts {
        Lasts::Moment => 0,
        Lasts::BeyondTtl => rng.random_range(ttl * 6 / 5..ttl * 2),
        Lasts::BeyondGuard => {
            let guarded = (scenario.max_ttl + GUARD_SLACK).as_millis() as u64;
            guarded + rng.random_range(ttl * 2 / 5..ttl * 6 / 5)
        }
        Lasts::Attempts => rng.random_range(400..1_200),
        Lasts::Short => rng.random_range(50..700),
        Lasts::Usual => rng.random_range(ttl / 4..ttl * 3 / 2),
    };
    Injection {
        kind,
        masters,
        clients,
        lasts: Duration::from_millis(lasts),
        detail_seed: rng.random_range(0..1 << 32),
    }
}

/// The time from the start of the fault until it no longer affects its targets.
pub(crate) fn affected_time(fault: &Injection, scenario: &Scenario) -> Duration {
    let kind = fault.kind;
    let mut affected_time = fault.lasts + Duration::from_millis(200);
    if kind.restarts && scenario.guarded {
        affected_time += scenario.max_ttl + GUARD_SLACK;
    }
    // A momentary fault, or one that must break exclusion, affects its targets for one more TTL.
    if kind.lasts == Lasts::Moment || kind.must_break() {
        affected_time += scenario.ttl;
    }
    affected_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeKind;

    #[test]
    fn same_seed_gives_the_same_schedule_of_faults() {
        let scenario = Scenario {
            duration: Duration::from_secs(60),
            ..Scenario::default()
        };
        let plan = schedule(&scenario);
        assert_eq!(plan, schedule(&scenario));
        for kind in &scenario.faults {
            assert!(
                plan.iter().any(|planned| planned.fault.kind == *kind),
                "{kind} must be injected at least once"
            );
        }
        let other = Scenario {
            seed: 2,
            ..scenario
        };
        assert_ne!(plan, schedule(&other));
    }

    #[test]
    fn schedule_injects_each_fault_only_into_kinds_of_masters_that_support_it() {
        let mix = ["redis", "mysql", "ensemble"].map(|name| name.parse::<NodeKind>().unwrap());
        let scenario = Scenario {
            duration: Duration::from_secs(120),
            faults: Kind::mixed(&mix),
            ..Scenario::default().with_nodes(&mix)
        };
        let plan = schedule(&scenario);
        let last_start = plan.last().expect("the schedule must not be empty").at;
        assert!(
            last_start > Duration::from_secs(100),
            "the last fault must begin after more than 100 s, but begins after {last_start:?}"
        );
        for planned in &plan {
            let fault = &planned.fault;
            let nodes = fault.masters.iter().map(|index| mix[*index]);
            assert!(
                nodes.into_iter().all(|node| fault.kind.on.includes(node)),
                "{fault:?}"
            );
        }
        for name in ["db-row-held", "zk-leader-kill", "stop", "latency"] {
            let mut with_name = plan
                .iter()
                .filter(|planned| planned.fault.kind.name() == name);
            assert!(
                with_name.next().is_some(),
                "the schedule must contain the fault {name}"
            );
        }
    }
}
