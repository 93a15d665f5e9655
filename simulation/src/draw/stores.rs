//! Draws scenarios in which some masters are stores (databases or ZooKeeper). Each scenario begins as the result of
//! [`Scenario::draw`] for the same seed. Then some masters become stores, and some clients get wrong dates.

use super::{MS, Rng, Scenario};
use crate::scenario::Disk;
use crate::store_plan::{RunRule, StorePlan};

/// The properties of the stores in a scenario: how many masters are stores, and which faults the stores may have.
#[derive(Clone, Copy)]
pub(super) struct StoreTraits {
    /// The share of masters that are stores, in percent.
    pub(super) stores_percent: u64,
    /// The share of the stores that report their clocks, in percent.
    pub(super) clocked_percent: u64,
    /// Whether a follower of the store may answer a read with an older state than the leader's.
    pub(super) may_lag: bool,
    /// Whether wake-ups may be lost, late or sent twice.
    pub(super) may_lose_wakes: bool,
    /// Whether commits may wait at the server, as if for a row lock.
    pub(super) may_delay_commits: bool,
    /// Whether stores without a clock may lose their memory in a restart.
    pub(super) may_forget: bool,
}

impl StoreTraits {
    pub(super) fn draw(rng: &mut Rng, calm: bool) -> Self {
        let (stores_percent, clocked_percent) =
            (rng.pick(&[100, 100, 60, 40]), rng.pick(&[100, 0, 50]));
        let mut drawn = |ppm: u32| rng.chance(ppm) && !calm;
        Self {
            stores_percent,
            clocked_percent,
            may_lag: drawn(500_000),
            may_lose_wakes: drawn(300_000),
            may_delay_commits: drawn(400_000),
            may_forget: drawn(200_000),
        }
    }

    /// Draws the plan of the master with this index as a store.
    pub(super) fn plan(
        self,
        rng: &mut Rng,
        scenario: &Scenario,
        master: usize,
        disk: &mut Disk,
    ) -> StorePlan {
        let clocked = rng.below(100) < self.clocked_percent;
        if !clocked && !self.may_forget {
            *disk = Disk::Always;
        }
        let settings = scenario.settings;
        let longest_timeout = settings.ttl / 4 / MS * MS;
        let draw_ppm = |rng: &mut Rng, is_drawn: bool, most: u64| {
            if is_drawn { rng.below(most) as u32 } else { 0 }
        };
        StorePlan {
            clocked,
            // The stores with an odd index give no dates, so that the runs contain stores without a date.
            date_grain: if !clocked && master.is_multiple_of(2) {
                MS
            } else {
                0
            },
            timeout: (settings.node_timeout * rng.pick(&[1, 2, 2, 2])).min(longest_timeout),
            sessions: rng.pick(if clocked { &[1, 2, 4] } else { &[1, 1, 2] }),
            commits_per_request: rng.pick(&[1, 2, 8]),
            sends_wakes: !rng.chance(150_000),
            run: if *disk == Disk::Always && rng.chance(600_000) {
                RunRule::Durable
            } else {
                RunRule::Uptime
            },
            wakes_name_no_lock: rng.chance(300_000),
            lagging_reads_ppm: if clocked {
                0
            } else {
                draw_ppm(rng, self.may_lag, 500_000)
            },
            disturbed_wakes_ppm: draw_ppm(rng, self.may_lose_wakes, 300_000),
            repeats_wakes: true,
            delayed_commits_ppm: draw_ppm(rng, self.may_delay_commits, 60_000),
            longest_commit_delay: rng.range(1, 2 * settings.ttl / MS) * MS,
        }
    }
}

impl Scenario {
    /// Draws a scenario from this seed. In the scenario, at least one master is a store (a database or ZooKeeper).
    pub fn draw_stores(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        let rng = &mut Rng::stream(seed, 9);
        let store_traits = StoreTraits::draw(rng, scenario.faults.is_empty());
        let certain_store = rng.below(scenario.masters.len() as u64) as usize;
        for master in 0..scenario.masters.len() {
            let is_store = rng.below(100) < store_traits.stores_percent;
            if is_store || master == certain_store {
                let mut disk = scenario.masters[master].disk;
                let plan = store_traits.plan(rng, &scenario, master, &mut disk);
                scenario.masters[master].disk = disk;
                scenario.masters[master].store = Some(plan);
            }
        }
        scenario.set_wrong_dates(&mut Rng::stream(seed, 13));
        let rng = &mut Rng::stream(seed, 18);
        scenario.draw_run_rules(rng);
        scenario.refuse_rare_kinds(rng);
        scenario.add_store_events(rng);
        scenario.set_store_back(rng);
        scenario
    }
}
