//! Draws scenarios in which some masters are stores (databases or ZooKeeper). Each scenario begins as the result of
//! [`Scenario::draw`] for the same seed. Then some masters become stores, and some clients get wrong dates.

use super::{MS, Rng, Scenario};
use crate::scenario::Disk;
use crate::store_plan::StorePlan;

/// The properties of the stores in a scenario: how many masters are stores, and which faults the stores may have.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// The share of masters that are stores, in percent.
    pub(super) stores: u64,
    /// The share of the stores that report their clocks, in percent.
    pub(super) clocked: u64,
    /// Whether a follower of the store may answer a read with an older state than the leader's.
    pub(super) lagging: bool,
    /// Whether wake-ups may be lost, late or sent twice.
    pub(super) deaf: bool,
    /// Whether commits may wait at the server, as if for a row lock.
    pub(super) stuck: bool,
    /// Whether stores without a clock may lose their memory in a restart.
    pub(super) forgets: bool,
}

impl Family {
    pub(super) fn draw(rng: &mut Rng, calm: bool) -> Self {
        let (stores, clocked) = (rng.pick(&[100, 100, 60, 40]), rng.pick(&[100, 0, 50]));
        let mut on = |ppm: u32| rng.chance(ppm) && !calm;
        Self {
            stores,
            clocked,
            lagging: on(500_000),
            deaf: on(300_000),
            stuck: on(400_000),
            forgets: on(200_000),
        }
    }

    pub(super) fn plan(self, rng: &mut Rng, scenario: &Scenario, disk: &mut Disk) -> StorePlan {
        let clocked = rng.below(100) < self.clocked;
        if !clocked && !self.forgets {
            *disk = Disk::Always;
        }
        let settings = scenario.settings;
        let longest = settings.ttl / 4 / MS * MS;
        let some = |rng: &mut Rng, on: bool, most: u64| if on { rng.below(most) as u32 } else { 0 };
        StorePlan {
            clocked,
            timeout: (settings.node_timeout * rng.pick(&[1, 2, 2, 2])).min(longest),
            lanes: rng.pick(if clocked { &[1, 2, 4] } else { &[1, 1, 2] }),
            batch: rng.pick(&[1, 2, 8]),
            wakes: !rng.chance(150_000),
            durable: *disk == Disk::Always && rng.chance(600_000),
            vague: rng.chance(300_000),
            lag_ppm: if clocked {
                0
            } else {
                some(rng, self.lagging, 500_000)
            },
            deaf_ppm: some(rng, self.deaf, 300_000),
            stuck_ppm: some(rng, self.stuck, 60_000),
            stuck: rng.range(1, 2 * settings.ttl / MS) * MS,
        }
    }
}

impl Scenario {
    /// Draws a scenario from this seed. In the scenario, at least one master is a store (a database or ZooKeeper).
    pub fn draw_stores(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        let rng = &mut Rng::stream(seed, 9);
        let family = Family::draw(rng, scenario.faults.is_empty());
        let chosen = rng.below(scenario.masters.len() as u64) as usize;
        for master in 0..scenario.masters.len() {
            let is_store = rng.below(100) < family.stores;
            if is_store || master == chosen {
                let mut disk = scenario.masters[master].disk;
                let plan = family.plan(rng, &scenario, &mut disk);
                scenario.masters[master].disk = disk;
                scenario.masters[master].store = Some(plan);
            }
        }
        scenario.mistake_dates(&mut Rng::stream(seed, 13));
        scenario
    }
}
