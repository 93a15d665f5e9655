//! Draws a scenario from a seed.
//!
//! Each seed first draws a subset of all kinds of faults; only these kinds can occur in the scenario (swarm testing).
//! So scenarios with rare combinations of faults occur as well.

mod changes;
mod clocks;
mod days;
mod notes;
mod restarts;
mod stores;
mod tries;
mod values;

use crate::clock::MS;
use crate::kind::Kind;
use crate::locker::{PERMITS, SEMAPHORES, place_of_slot};
use crate::rng::Rng;
use crate::scenario::{
    ClientPlan, Disk, Fault, FaultKind, MasterPlan, Net, PERIOD, Refusal, Scenario, Settings, Step,
    WORST_PPM,
};

impl Scenario {
    /// Draws the scenario of this seed.
    pub fn draw(seed: u64) -> Self {
        Self::furnished(seed, None, true)
    }

    /// Draws a scenario with this number of masters; `None` draws this number as well. If `days` is true, some scenarios
    /// have unused days.
    fn furnished(seed: u64, masters: Option<u8>, days: bool) -> Self {
        let (mut scenario, resources) = Self::drawn(seed, masters);
        if scenario.settings.fencing {
            scenario.mix(&mut Rng::stream(seed, 4), resources);
            scenario.add_notes(&mut Rng::stream(seed, 6));
            scenario.add_values(&mut Rng::stream(seed, 5));
            scenario.add_removals(&mut Rng::stream(seed, 9));
            scenario.permit(&mut Rng::stream(seed, 8));
        }
        scenario.add_foreign_keys(&mut Rng::stream(seed, 7), resources);
        scenario.break_what_is_rare(&mut Rng::stream(seed, 14));
        scenario.fill_for_one_lock(&mut Rng::stream(seed, 15));
        if days {
            scenario.idle_for_days(&mut Rng::stream(seed, 12), true);
        }
        scenario.break_behind_partitions(&mut Rng::stream(seed, 17));
        scenario
    }

    /// Draws the parts that every scenario has: masters, clients with plain exclusive locks, a network and faults.
    /// `asked` is the number of masters; `None` draws this number as well. Returns the scenario and the number of its
    /// resources.
    fn drawn(seed: u64, asked: Option<u8>) -> (Self, u8) {
        let mut rng = Rng::stream(seed, 1);
        let rng = &mut rng;
        let masters = rng.pick(&[1u8, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7, 9]);
        let masters = asked.unwrap_or(masters);
        let clients = rng.range(2, 5) as u8;
        let resources = rng.pick(&[1u8, 1, 1, 2, 5, 20]);
        let tasks = rng.pick(&[1u8, 1, 1, 2, 3, 6]);
        let on = Kinds::draw(rng);
        let settings = self::settings(rng);
        let heal_at = rng.range(2_000, 5_000) * MS;
        let master_plans = (0..masters).map(|_| on.master(rng)).collect();
        let steps = rng.range(4, 14) * (1 + u64::from(tasks) / 2);
        let step = |rng: &mut Rng| on.step(rng, resources, settings.ttl);
        let client_plans = (0..clients)
            .map(|_| on.client(rng, |rng| (0..steps).map(|_| step(rng)).collect()))
            .collect();
        let net = on.net(rng, settings.ttl);
        let mut faults = Faults {
            rng,
            heal_at,
            list: Vec::new(),
        };
        on.of_masters(&mut faults, masters);
        on.of_connections(&mut faults, masters);
        on.of_clients(&mut faults, clients, resources, settings.ttl);
        let mut faults = faults.list;
        faults.sort_by_key(|fault| fault.at);
        let scenario = Self {
            seed,
            masters: master_plans,
            clients: client_plans,
            net,
            faults,
            heal_at,
            tasks,
            period: PERIOD,
            settings,
            change: None,
            brief: false,
        };
        (scenario, resources)
    }

    /// Draws the kinds of locks. About every third scenario has other kinds in addition to plain exclusive locks. `rng`
    /// is a separate random stream, so these draws do not change the scenario's other draws.
    fn mix(&mut self, rng: &mut Rng, resources: u8) {
        let mut on = |ppm: u32| rng.chance(ppm);
        if !on(350_000) {
            return;
        }
        let several = on(500_000) && resources > 1;
        let (shared, owned, downgraded) = (on(600_000), on(450_000), on(400_000));
        let owners = rng.range(1, 3);
        for client in &mut self.clients {
            for step in &mut client.steps {
                let drawn = rng.below(9);
                step.kind = match drawn {
                    0 | 1 if several => {
                        let others = rng.range(1, 4);
                        let one = |bits: u32, _| bits | 1 << rng.below(resources.into());
                        Kind::Several((0..others).fold(0, one))
                    }
                    2 | 3 if shared => Kind::Shared,
                    4 | 5 if owned => Kind::Owner(rng.below(owners) as u8),
                    6 if owned => Kind::Counted(rng.below(owners) as u8),
                    7 if downgraded => Kind::Downgraded,
                    _ => Kind::Exclusive,
                };
            }
        }
    }
}

impl Scenario {
    /// Lets some steps take a permit of a semaphore, in about every seventh scenario. In most of these scenarios, all
    /// clients configure the same number of permits.
    fn permit(&mut self, rng: &mut Rng) {
        if !rng.chance(150_000) {
            return;
        }
        let (share, agreed) = (rng.pick(&[2u64, 2, 4]), rng.chance(750_000));
        let permits: Vec<u8> = (0..SEMAPHORES).map(|_| rng.pick(&[1, 2, 2, 3])).collect();
        for client in &mut self.clients {
            for step in &mut client.steps {
                let other = rng.range(1, PERMITS as u64) as u8;
                if rng.below(share) == 0 {
                    let all = permits[usize::from(step.resource) % SEMAPHORES];
                    step.kind = Kind::Permit(if agreed { all } else { other });
                }
            }
        }
        for fault in &mut self.faults {
            if let FaultKind::Break { resource, .. } = &mut fault.kind
                && rng.chance(400_000)
            {
                *resource = place_of_slot(*resource, rng.below(2) as usize);
            }
        }
    }
}

impl Scenario {
    /// Adds force-releases to about a tenth of the scenarios that have faults, if clients use values or notes. Such
    /// scenarios are rare, so the other draws seldom force-release their locks.
    fn break_what_is_rare(&mut self, rng: &mut Rng) {
        let rare = self.has_values() || self.has_notes();
        if self.faults.is_empty() || !rare || !rng.chance(100_000) {
            return;
        }
        for resource in 0..2 {
            let at = rng.below(self.heal_at - 10 * MS);
            let kind = FaultKind::Break {
                resource,
                missed: 0,
            };
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Changes force-releases so that they miss some masters. Also adds force-releases to a fifth of the scenarios with
    /// faults: each happens while some clients have no link to one master, and the operator misses another master.
    fn break_behind_partitions(&mut self, rng: &mut Rng) {
        let masters = self.masters.len() as u64;
        let steps = self.clients.iter().flat_map(|client| &client.steps);
        let resources: Vec<u8> = steps.map(|step| step.resource).collect();
        if self.faults.is_empty() || resources.is_empty() || masters < 3 {
            return;
        }
        for fault in &mut self.faults {
            if let FaultKind::Break { missed, .. } = &mut fault.kind
                && rng.chance(300_000)
            {
                *missed = 1 << rng.below(masters);
            }
        }
        let times = if rng.chance(200_000) {
            rng.range(1, 5)
        } else {
            0
        };
        for _ in 0..times {
            let at = rng.below(self.heal_at - 30 * MS);
            let left = (self.heal_at - at) / MS;
            let lasts = rng.range(20, self.settings.ttl / MS + 200).min(left);
            let away = rng.below(masters);
            let kind = FaultKind::Partition {
                clients: rng.draw() as u16,
                masters: 1 << away,
                to: true,
                from: true,
                lasts: lasts * MS,
            };
            self.faults.push(Fault { at, kind });
            let kind = FaultKind::Break {
                resource: rng.pick(&resources),
                missed: 1 << ((away + rng.range(1, masters - 1)) % masters),
            };
            let at = at + rng.range(1, lasts) * MS;
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Adds periods in which a master has no memory left for the lock of one resource, to a tenth of the scenarios with
    /// faults.
    fn fill_for_one_lock(&mut self, rng: &mut Rng) {
        let steps = self.clients.iter().flat_map(|client| &client.steps);
        let resources: Vec<u8> = steps.map(|step| step.resource).collect();
        if self.faults.is_empty() || resources.is_empty() || !rng.chance(100_000) {
            return;
        }
        for _ in 0..rng.range(1, 6) {
            let at = rng.below(self.heal_at - 10 * MS);
            let left = (self.heal_at - at) / MS;
            let kind = FaultKind::Fill {
                master: rng.below(self.masters.len() as u64) as u8,
                resource: rng.pick(&resources),
                lasts: rng.range(1, 1_500).min(left) * MS,
            };
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Adds foreign keys (values that other programs store under the keys of locks) to about every tenth scenario that
    /// has faults.
    fn add_foreign_keys(&mut self, rng: &mut Rng, resources: u8) {
        if self.faults.is_empty() || !rng.chance(100_000) {
            return;
        }
        for _ in 0..rng.range(1, 6) {
            let at = rng.below(self.heal_at - 10 * MS);
            let left = (self.heal_at - at) / MS;
            let kind = FaultKind::ForeignKey {
                master: rng.below(self.masters.len() as u64) as u8,
                resource: rng.below(resources.into()) as u8,
                lasts: rng.range(1, 1_500).min(left) * MS,
            };
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }
}

/// The properties of a scenario. Most of them are kinds of faults that can occur in it.
struct Kinds {
    breaking: bool,
    jumping: bool,
    preempting: bool,
    crashing: bool,
    stalling: bool,
    cutting: bool,
    resetting: bool,
    pausing: bool,
    killing: bool,
    losing: bool,
    doubling: bool,
    dozing: bool,
    slow: bool,
    drippy: bool,
    forgetting: bool,
    refusing: bool,
    flushing: bool,
    garbling: bool,
    skewed: bool,
    drifting: bool,
    dropping: bool,
    shuffle: bool,
    leftovers: bool,
    torn: bool,
}

impl Kinds {
    fn draw(rng: &mut Rng) -> Self {
        // Some scenarios are calm (without faults), because the library promises more in calm scenarios. In the other
        // scenarios, each kind of fault occurs with its own probability, mostly between 10 and 40 %.
        let calm = rng.chance(120_000);
        let breaking = rng.chance(if calm { 400_000 } else { 60_000 });
        let mut on = |ppm: u32, harmless: bool| rng.chance(ppm) && (harmless || !calm);
        Self {
            breaking,
            jumping: on(80_000, false),
            preempting: on(120_000, false),
            crashing: on(350_000, false),
            stalling: on(250_000, false),
            cutting: on(350_000, false),
            resetting: on(250_000, false),
            pausing: on(350_000, false),
            killing: on(250_000, false),
            losing: on(250_000, false),
            doubling: on(300_000, false),
            dozing: on(200_000, false),
            slow: on(250_000, false),
            drippy: on(150_000, false),
            forgetting: on(200_000, false),
            refusing: on(250_000, false),
            flushing: on(150_000, false),
            garbling: on(200_000, false),
            skewed: on(400_000, true),
            drifting: on(400_000, true),
            dropping: on(400_000, true),
            shuffle: on(300_000, true),
            leftovers: on(500_000, true),
            torn: on(400_000, true),
        }
    }

    /// Draws the rate error of a clock, in parts per million. Half of the clocks have the largest allowed error,
    /// positive or negative. The other clocks have a smaller random error. If clocks do not drift in this scenario,
    /// returns zero.
    fn drift(&self, rng: &mut Rng) -> i64 {
        match rng.below(4) {
            _ if !self.drifting => 0,
            0 => WORST_PPM,
            1 => -WORST_PPM,
            _ => rng.around(WORST_PPM),
        }
    }

    fn master(&self, rng: &mut Rng) -> MasterPlan {
        MasterPlan {
            offset_us: rng.around(if self.skewed { 350_000 } else { 500 }),
            ppm: self.drift(rng),
            disk: rng.pick(&[Disk::None, Disk::None, Disk::Stale, Disk::Always]),
            store: None,
        }
    }

    fn client(&self, rng: &mut Rng, steps: impl FnOnce(&mut Rng) -> Vec<Step>) -> ClientPlan {
        ClientPlan {
            origin: rng.range(1, 1 << 50),
            ppm: self.drift(rng),
            wall_us: rng.around(if self.skewed { 5_000_000 } else { 2_000 }),
            steps: steps(rng),
        }
    }

    fn step(&self, rng: &mut Rng, resources: u8, ttl: u64) -> Step {
        let long = rng.chance(150_000);
        Step {
            think: rng.below(120 * MS),
            resource: rng.below(resources.into()) as u8,
            wait: if rng.chance(200_000) {
                0
            } else {
                rng.range(10, 1_500) * MS
            },
            hold: rng.below(if long { 2 * ttl } else { 60 * MS }),
            renew: !rng.chance(300_000),
            extend: rng
                .chance(150_000)
                .then(|| ttl / MS * rng.range(5, 10) / 10 * MS),
            cut: (self.dropping && rng.chance(250_000)).then(|| rng.range(1, 8) as u8),
            drop: rng.chance(200_000),
            cut_release: (self.dropping && rng.chance(150_000)).then_some(1),
            kind: Kind::Exclusive,
        }
    }

    fn net(&self, rng: &mut Rng, ttl: u64) -> Net {
        fn some(rng: &mut Rng, on: bool, low: u64, high: u64) -> u32 {
            if on { rng.range(low, high) as u32 } else { 0 }
        }
        Net {
            delay: rng.range(50_000, if self.slow { 8 * MS } else { MS }),
            jitter: rng.range(10_000, if self.slow { 30 * MS } else { MS }),
            loss_ppm: some(rng, self.losing, 1_000, 50_000),
            again: rng.range(5, 200) * MS,
            duplicate_ppm: some(rng, self.doubling, 1_000, 60_000),
            duplicate_late: rng.range(1, 2 * ttl / MS) * MS,
            reset_ppm: some(rng, self.drippy, 500, 10_000),
            doze_ppm: some(rng, self.dozing, 1_000, 80_000),
            doze: rng.range(1, 2 * ttl / MS) * MS,
            preempt_ppm: some(rng, self.preempting, 300, 10_000),
            preempt: rng.range(1, 2 * ttl / MS) * MS,
            cut_ppm: if self.torn { 300_000 } else { 0 },
            leftover_ppm: if self.leftovers { 700_000 } else { 0 },
            shuffle: self.shuffle,
        }
    }

    fn of_masters(&self, faults: &mut Faults<'_>, masters: u8) {
        let any = |rng: &mut Rng| rng.below(masters.into()) as u8;
        faults.add(self.crashing, 4, |rng, left| FaultKind::Crash {
            master: any(rng),
            down: rng.range(1, 1_500).min(left) * MS,
            age: rng.range(1, 1_000) * MS,
        });
        faults.add(self.stalling, 5, |rng, left| FaultKind::Stall {
            master: any(rng),
            lasts: rng.range(1, 1_200).min(left) * MS,
        });
        faults.add(self.jumping, 3, |rng, _| FaultKind::Jump {
            master: any(rng),
            by_us: rng.around(2_000_000),
        });
    }

    fn of_connections(&self, faults: &mut Faults<'_>, masters: u8) {
        let any = |rng: &mut Rng| rng.below(masters.into()) as u8;
        faults.add(self.cutting, 6, |rng, left| {
            let way = rng.below(4);
            FaultKind::Partition {
                clients: rng.draw() as u16,
                masters: rng.draw() as u16,
                to: way != 1,
                from: way != 2,
                lasts: rng.range(1, 1_500).min(left) * MS,
            }
        });
        faults.add(self.resetting, 8, |rng, _| FaultKind::Reset {
            master: any(rng),
        });
        faults.add(self.forgetting, 4, |rng, _| FaultKind::Forget {
            master: any(rng),
        });
        faults.add(self.refusing, 5, |rng, left| FaultKind::Refuse {
            master: any(rng),
            how: rng.pick(&Refusal::ALL),
            lasts: rng.range(1, 1_000).min(left) * MS,
        });
        faults.add(self.flushing, 4, |rng, _| FaultKind::Flush {
            master: any(rng),
        });
        faults.add(self.garbling, 6, |rng, _| FaultKind::Garble {
            master: any(rng),
        });
    }

    fn of_clients(&self, faults: &mut Faults<'_>, clients: u8, resources: u8, ttl: u64) {
        let any = |rng: &mut Rng| rng.below(clients.into()) as u8;
        faults.add(self.breaking, 5, |rng, _| FaultKind::Break {
            resource: rng.below(resources.into()) as u8,
            missed: 0,
        });
        faults.add(self.pausing, 8, |rng, left| FaultKind::Pause {
            client: any(rng),
            lasts: rng.range(1, 3 * ttl / MS).min(left) * MS,
        });
        faults.add(self.killing, 4, |rng, left| FaultKind::Kill {
            client: any(rng),
            down: rng.range(1, 500).min(left) * MS,
        });
    }
}

fn settings(rng: &mut Rng) -> Settings {
    let ttl = rng.range(200, 1_200) * MS;
    Settings {
        ttl,
        max_ttl: rng
            .pick(&[3_200 * MS, 3_200 * MS, 4_000 * MS, 1_500 * MS])
            .max(ttl),
        node_timeout: rng.range(8, (ttl / MS / 8).min(60)) * MS,
        retry_most: rng.range(10, 60) * MS,
        fencing: !rng.chance(60_000),
        guard: !rng.chance(80_000),
        fair: !rng.chance(300_000),
    }
}

/// The faults of a run that have been drawn so far.
struct Faults<'a> {
    rng: &'a mut Rng,
    heal_at: u64,
    list: Vec<Fault>,
}

impl Faults<'_> {
    /// If `on`, adds between 1 and `most` faults at random times. `kind` draws each fault. Its second argument is the
    /// time from this fault until the end of all faults, in milliseconds.
    fn add(&mut self, on: bool, most: u64, kind: impl Fn(&mut Rng, u64) -> FaultKind) {
        if !on {
            return;
        }
        for _ in 0..self.rng.range(1, most) {
            let at = self.rng.below(self.heal_at - 10 * MS);
            let kind = kind(self.rng, (self.heal_at - at) / MS);
            self.list.push(Fault { at, kind });
        }
    }
}
