//! What a run is to be: its masters, clients and faults, what it promises, and the schedule that
//! follows from its seed.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::Persistence;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::faults::{Family, Injection, Kind, Reach};
pub use crate::workload::{Locker, Order, Workload};

/// Everything that a run is decided by. Stored beside the history, so that it can be run again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// What all draws come from.
    pub seed: u64,
    /// How long faults are injected. The calm after it comes on top.
    pub duration: Duration,
    /// How many masters.
    pub masters: usize,
    /// How many client processes.
    pub clients: usize,
    /// The kinds of faults.
    pub faults: Vec<Kind>,
    /// What clients do.
    pub workloads: Vec<Workload>,
    /// Who locks.
    pub locker: Locker,
    /// How waiters are ordered.
    pub order: Order,
    /// Whether restarted masters sit out.
    pub guarded: bool,
    /// How long a grant lasts.
    pub ttl: Duration,
    /// The longest ttl. Above two seconds, or fencing tokens need not rise when all masters forget.
    pub max_ttl: Duration,
    /// How long a client pauses between two attempts, at most.
    pub pause: Duration,
    /// How many locks the workload of many locks holds at once, in each client.
    pub many: usize,
    /// How long it holds each of them, about.
    pub many_hold: Duration,
    /// The longest pause between the beginnings of two faults.
    pub gap: Duration,
    /// The server program; `None`: what the machine offers.
    pub server: Option<PathBuf>,
    /// How long the calm may take until everybody has got on.
    pub patience: Duration,
}

/// What a scenario says about mutual exclusion. Everything else always holds: fenced writes above
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// Never two holders.
    Holds,
    /// Two holders are possible around some of the faults, and only there.
    MayBreak,
    /// Two holders are certain, and a run that did not see them did not look.
    MustBreak,
}

/// A fault and when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Since the warm start.
    pub at: Duration,
    /// What.
    pub fault: Injection,
}

/// How much longer than `max_ttl` a guarded master may sit out: it tells its age in whole seconds.
const GUARD_SLACK: Duration = Duration::from_millis(1_200);

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 1,
            duration: Duration::from_secs(10),
            masters: 5,
            clients: 8,
            faults: Kind::mixed(),
            workloads: Workload::ALL.to_vec(),
            locker: Locker::Quorate,
            order: Order::Fair,
            guarded: true,
            ttl: Duration::from_secs(1),
            max_ttl: Duration::from_millis(2_500),
            pause: Duration::from_millis(120),
            many: 40,
            many_hold: Duration::from_millis(2_500),
            gap: Duration::from_millis(500),
            server: None,
            patience: Duration::from_secs(30),
        }
    }
}

impl Scenario {
    /// What a majority is.
    pub fn majority(&self) -> usize {
        self.masters / 2 + 1
    }

    /// What may be expected of mutual exclusion.
    pub fn exclusion(&self) -> Exclusion {
        let breaks = |kind: &Kind| kind.breaks_exclusion(self.guarded);
        if !self.faults.is_empty() && self.faults.iter().all(|kind| kind.must_break()) {
            Exclusion::MustBreak
        } else if self.faults.iter().any(breaks) {
            Exclusion::MayBreak
        } else {
            Exclusion::Holds
        }
    }

    /// How long after the last fault a lock key on a master may still be a ghost: of a request that
    /// was held up and came when nobody wanted it any more, its release long gone by. Later ones
    /// were not released. `None` where clocks are wrong: then nothing can be said.
    pub fn settling(&self) -> Option<Duration> {
        let has = |family| self.faults.iter().any(|kind| kind.family() == family);
        if has(Family::Clock) {
            return None;
        }
        if self.faults.is_empty() {
            return Some(Duration::ZERO);
        }
        // Where packets vanish the kernel sends them again, the longer they did the later.
        let held_up = if has(Family::Link) { 2_500 } else { 1_000 };
        Some(self.ttl + Duration::from_millis(held_up))
    }

    /// Whether the parts go together.
    ///
    /// # Errors
    ///
    /// When they do not, with the reason.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.masters > 0, "at least one master");
        ensure!(self.clients > 0, "at least one client");
        let has = |kind| self.faults.contains(&kind);
        ensure!(
            !has(Kind::Amnesia) || !self.guarded,
            "amnesia is about masters that nobody guards: give --restart-guard off"
        );
        let clocks = self
            .faults
            .iter()
            .any(|kind| kind.family() == Family::Clock);
        let forgets = self
            .faults
            .iter()
            .any(|kind| kind.restarts() || *kind == Kind::Flushall);
        ensure!(
            !(clocks && forgets),
            "wrong clocks and lost memory together break even the order of fencing tokens: \
             run them apart"
        );
        Ok(())
    }

    /// What the master of this index keeps on disk, so that every kind of restart finds its like.
    pub fn persistence(&self, index: usize) -> Persistence {
        let mut wanted: Vec<Persistence> = Vec::new();
        for kind in &self.faults {
            if let Some(kept) = kind.persistence()
                && !wanted.contains(&kept)
            {
                wanted.push(kept);
            }
        }
        match wanted.len() {
            0 => Persistence::None,
            kinds => wanted[index % kinds],
        }
    }

    /// The faults in order of time: the same for the same scenario.
    pub fn schedule(&self) -> Vec<Planned> {
        Scheduler::new(self).plan()
    }
}

/// Draws the schedule, and keeps book of who is busy with which fault until when.
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
            .filter(|kind| kind.fits(scenario.masters))
            .collect();
        if kinds.is_empty() {
            return Vec::new();
        }
        let mut at = Duration::from_millis(self.rng.random_range(200..400));
        // Every kind once in each round, in a new order each time.
        let mut round: Vec<Kind> = Vec::new();
        while at < scenario.duration {
            if round.is_empty() {
                round.clone_from(&kinds);
                round.shuffle(&mut self.rng);
            }
            // The next kind whose targets are free; kinds that have to wait keep their turn.
            let ready = (0..round.len()).rev().find_map(|place| {
                let fault = self.draw(round[place], at)?;
                Some((place, fault))
            });
            if let Some((place, fault)) = ready {
                round.remove(place);
                self.book(&fault, at);
                self.planned.push(Planned { at, fault });
                at += scenario.gap.mul_f64(self.rng.random_range(0.3..1.0));
            } else {
                at += Duration::from_millis(50);
            }
        }
        self.planned
    }

    fn draw(&mut self, kind: Kind, at: Duration) -> Option<Injection> {
        let scenario = self.scenario;
        let suits = |index: &usize| {
            kind.persistence()
                .is_none_or(|kept| scenario.persistence(*index) == kept)
        };
        // MISCONF needs the place of the snapshot for itself.
        let shares = |index: &usize| {
            kind != Kind::Misconf || scenario.persistence(*index) != Persistence::Rdb
        };
        let free: Vec<usize> = (0..scenario.masters)
            .filter(|index| self.masters[*index] <= at)
            .filter(suits)
            .filter(shares)
            .collect();
        let idle: Vec<usize> = (0..scenario.clients)
            .filter(|index| self.clients[*index] <= at)
            .collect();
        let busy = self.masters.iter().filter(|until| **until > at).count();
        let mut masters = Vec::new();
        let mut clients = Vec::new();
        let pick = |from: &[usize], count: usize, rng: &mut StdRng| {
            let mut from = from.to_vec();
            from.shuffle(rng);
            from.truncate(count);
            from.sort_unstable();
            (from.len() == count).then_some(from)
        };
        match kind.reach() {
            Reach::One => {
                // Mostly a minority is hit at a time; now and then more.
                let most = (scenario.masters - scenario.majority()).max(1);
                if busy >= most && !self.rng.random_bool(0.1) {
                    return None;
                }
                masters = pick(&free, 1, &mut self.rng)?;
                if kind.family() == Family::Network && self.rng.random_bool(0.25) {
                    clients = pick(&idle, 1, &mut self.rng)?;
                }
            }
            Reach::Minority => {
                let count = scenario.masters - scenario.majority();
                masters = pick(&free, count, &mut self.rng)?;
            }
            Reach::Majority => masters = pick(&free, scenario.majority(), &mut self.rng)?,
            Reach::Client => {
                clients = pick(&idle, 1, &mut self.rng)?;
                if kind == Kind::PartitionClient {
                    masters = (0..scenario.masters).collect();
                }
            }
        }
        let ttl = scenario.ttl.as_millis() as u64;
        let lasts = match kind {
            _ if kind.is_momentary() => 0,
            Kind::ClientSigstop | Kind::ClientStarve => self.rng.random_range(ttl * 6 / 5..ttl * 2),
            Kind::ClientDrop => self.rng.random_range(400..1_200),
            _ if kind.restarts() => self.rng.random_range(50..700),
            _ => self.rng.random_range(ttl / 4..ttl * 3 / 2),
        };
        Some(Injection {
            kind,
            masters,
            clients,
            lasts: Duration::from_millis(lasts),
            draw: self.rng.random_range(0..1 << 32),
        })
    }

    fn book(&mut self, fault: &Injection, at: Duration) {
        let kind = fault.kind;
        let mut until = at + fault.lasts + Duration::from_millis(200);
        if kind.restarts() && self.scenario.guarded {
            until += self.scenario.max_ttl + GUARD_SLACK;
        }
        // A momentary fault is felt for a while; the next one should meet recovered clients.
        if kind.is_momentary() || kind == Kind::ClockMajority {
            until += self.scenario.ttl;
        }
        if kind != Kind::PartitionClient {
            for &index in &fault.masters {
                self.masters[index] = until;
            }
        }
        for &index in &fault.clients {
            self.clients[index] = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_schedule_and_every_kind_has_its_turn() {
        let scenario = Scenario {
            duration: Duration::from_secs(60),
            ..Scenario::default()
        };
        let plan = scenario.schedule();
        assert_eq!(plan, scenario.schedule());
        for kind in &scenario.faults {
            assert!(
                plan.iter().any(|planned| planned.fault.kind == *kind),
                "{kind} is never injected"
            );
        }
        let other = Scenario {
            seed: 2,
            ..scenario
        };
        assert_ne!(plan, other.schedule());
    }

    #[test]
    fn what_breaks_exclusion_is_known_beforehand() {
        let of = |faults: &[Kind], guarded| {
            let scenario = Scenario {
                faults: faults.to_vec(),
                guarded,
                ..Scenario::default()
            };
            scenario.exclusion()
        };
        assert_eq!(of(&Kind::mixed(), true), Exclusion::Holds);
        assert_eq!(of(&[Kind::Kill], false), Exclusion::MayBreak);
        assert_eq!(of(&[Kind::Amnesia], false), Exclusion::MustBreak);
        assert_eq!(of(&[Kind::Flushall, Kind::Stop], true), Exclusion::MayBreak);
    }
}
