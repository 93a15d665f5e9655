//! Draws a scenario from a seed.
//!
//! Each seed first draws a subset of all kinds of faults; only these kinds can occur in the scenario (swarm testing).
//! So scenarios with rare combinations of faults occur as well.

mod changes;
mod clocks;
mod days;
mod modelled;
mod notes;
mod restarts;
mod store_events;
mod stores;
mod tries;
mod values;

use crate::clock::MS;
use crate::kind::Kind;
use crate::locker::{PERMITS, SEMAPHORES, slot_place};
use crate::rng::Rng;
use crate::scenario::{
    ClientPlan, Disk, Fault, FaultKind, MasterPlan, Net, PERIOD, Refusal, Scenario, Settings, Step,
    WORST_PPM,
};

impl Scenario {
    /// Draws the scenario of this seed.
    pub fn draw(seed: u64) -> Self {
        Self::draw_with_kinds(seed, None, true)
    }

    /// Draws a scenario with this number of masters; `None` draws this number as well. If `days` is true, some
    /// scenarios have unused days.
    fn draw_with_kinds(seed: u64, masters: Option<u8>, days: bool) -> Self {
        let (mut scenario, resources) = Self::draw_base(seed, masters);
        if scenario.settings.fencing {
            scenario.add_lock_kinds(&mut Rng::stream(seed, 4), resources);
            scenario.add_notes_and_elections(&mut Rng::stream(seed, 6));
            scenario.add_values(&mut Rng::stream(seed, 5));
            scenario.add_removals(&mut Rng::stream(seed, 9));
            scenario.add_permits(&mut Rng::stream(seed, 8));
        }
        scenario.add_foreign_keys(&mut Rng::stream(seed, 7), resources);
        scenario.force_release_rare_kinds(&mut Rng::stream(seed, 14));
        scenario.exhaust_memory_for_one_lock(&mut Rng::stream(seed, 15));
        if days {
            scenario.idle_for_days(&mut Rng::stream(seed, 12), true);
        }
        scenario.force_release_behind_partitions(&mut Rng::stream(seed, 17));
        scenario
    }

    /// Draws the parts that every scenario has: masters, clients with plain exclusive locks, a network and faults.
    /// `fixed_masters` is the number of masters; `None` draws this number as well. Returns the scenario and the number
    /// of its resources.
    fn draw_base(seed: u64, fixed_masters: Option<u8>) -> (Self, u8) {
        let mut rng = Rng::stream(seed, 1);
        let rng = &mut rng;
        let drawn_masters = rng.pick(&[1u8, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7, 9]);
        let masters = fixed_masters.unwrap_or(drawn_masters);
        let clients = rng.range(2, 5) as u8;
        let resources = rng.pick(&[1u8, 1, 1, 2, 5, 20]);
        let tasks = rng.pick(&[1u8, 1, 1, 2, 3, 6]);
        let kinds = DrawnKinds::draw(rng);
        let settings = self::settings(rng);
        let heal_at = rng.range(2_000, 5_000) * MS;
        let master_plans = (0..masters).map(|_| kinds.master(rng)).collect();
        let steps = rng.range(4, 14) * (1 + u64::from(tasks) / 2);
        let step = |rng: &mut Rng| kinds.step(rng, resources, settings.ttl);
        let client_plans = (0..clients)
            .map(|_| kinds.client(rng, |rng| (0..steps).map(|_| step(rng)).collect()))
            .collect();
        let net = kinds.net(rng, settings.ttl);
        let mut faults = Faults {
            rng,
            heal_at,
            list: Vec::new(),
        };
        kinds.add_master_faults(&mut faults, masters);
        kinds.add_connection_faults(&mut faults, masters);
        kinds.add_client_faults(&mut faults, clients, resources, settings.ttl);
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
            one_step_per_process: false,
        };
        (scenario, resources)
    }

    /// Draws the kinds of locks. About every third scenario has other kinds in addition to plain exclusive locks. `rng`
    /// is a separate random stream, so these draws do not change the scenario's other draws.
    fn add_lock_kinds(&mut self, rng: &mut Rng, resources: u8) {
        let mut chance = |ppm: u32| rng.chance(ppm);
        if !chance(350_000) {
            return;
        }
        let has_several = chance(500_000) && resources > 1;
        let (has_readers, has_owners, has_downgrades) =
            (chance(600_000), chance(450_000), chance(400_000));
        let owners = rng.range(1, 3);
        for client in &mut self.clients {
            for step in &mut client.steps {
                let choice = rng.below(9);
                step.kind = match choice {
                    0 | 1 if has_several => {
                        let others = rng.range(1, 4);
                        let add_resource = |bits: u32, _| bits | 1 << rng.below(resources.into());
                        Kind::Several((0..others).fold(0, add_resource))
                    }
                    2 | 3 if has_readers => Kind::Shared,
                    4 | 5 if has_owners => Kind::Owner(rng.below(owners) as u8),
                    6 if has_owners => Kind::OwnerOfProcess(rng.below(owners) as u8),
                    7 if has_downgrades => Kind::Downgraded,
                    _ => Kind::Exclusive,
                };
            }
        }
    }
}

impl Scenario {
    /// Lets some steps take a permit of a semaphore, in about every seventh scenario. In most of these scenarios, all
    /// clients configure the same number of permits.
    fn add_permits(&mut self, rng: &mut Rng) {
        if !rng.chance(150_000) {
            return;
        }
        let (one_in, is_agreed) = (rng.pick(&[2u64, 2, 4]), rng.chance(750_000));
        let permits_by_semaphore: Vec<u8> =
            (0..SEMAPHORES).map(|_| rng.pick(&[1, 2, 2, 3])).collect();
        for client in &mut self.clients {
            for step in &mut client.steps {
                let own_permits = rng.range(1, PERMITS as u64) as u8;
                if rng.below(one_in) == 0 {
                    let common_permits =
                        permits_by_semaphore[usize::from(step.resource) % SEMAPHORES];
                    step.kind = Kind::Permit(if is_agreed {
                        common_permits
                    } else {
                        own_permits
                    });
                }
            }
        }
        for fault in &mut self.faults {
            if let FaultKind::ForceRelease { resource, .. } = &mut fault.kind
                && rng.chance(400_000)
            {
                *resource = slot_place(*resource, rng.below(2) as usize);
            }
        }
    }
}

impl Scenario {
    /// Adds force-releases to about a tenth of the scenarios that have faults, if clients use values or notes. Such
    /// scenarios are rare, so the other draws seldom force-release their locks.
    fn force_release_rare_kinds(&mut self, rng: &mut Rng) {
        let has_rare_kinds = self.has_values() || self.has_notes();
        if self.faults.is_empty() || !has_rare_kinds || !rng.chance(100_000) {
            return;
        }
        for resource in 0..2 {
            let at = rng.below(self.heal_at - 10 * MS);
            let kind = FaultKind::ForceRelease {
                resource,
                missed: 0,
            };
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Changes force-releases so that they miss some masters. Also adds force-releases to a fifth of the scenarios with
    /// faults: each happens while some clients have no link to one master, and the operator misses another master.
    fn force_release_behind_partitions(&mut self, rng: &mut Rng) {
        let masters = self.masters.len() as u64;
        let steps = self.clients.iter().flat_map(|client| &client.steps);
        let resources: Vec<u8> = steps.map(|step| step.resource).collect();
        if self.faults.is_empty() || resources.is_empty() || masters < 3 {
            return;
        }
        for fault in &mut self.faults {
            if let FaultKind::ForceRelease { missed, .. } = &mut fault.kind
                && rng.chance(300_000)
            {
                *missed = 1 << rng.below(masters);
            }
        }
        let count = if rng.chance(200_000) {
            rng.range(1, 5)
        } else {
            0
        };
        for _ in 0..count {
            let at = rng.below(self.heal_at - 30 * MS);
            let remaining = (self.heal_at - at) / MS;
            let lasts_ms = rng.range(20, self.settings.ttl / MS + 200).min(remaining);
            let cut_master = rng.below(masters);
            let kind = FaultKind::Partition {
                clients: rng.draw() as u16,
                masters: 1 << cut_master,
                to: true,
                from: true,
                lasts: lasts_ms * MS,
            };
            self.faults.push(Fault { at, kind });
            let kind = FaultKind::ForceRelease {
                resource: rng.pick(&resources),
                missed: 1 << ((cut_master + rng.range(1, masters - 1)) % masters),
            };
            let at = at + rng.range(1, lasts_ms) * MS;
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Adds periods in which a master has no memory left for the lock of one resource, to a tenth of the scenarios with
    /// faults.
    fn exhaust_memory_for_one_lock(&mut self, rng: &mut Rng) {
        let steps = self.clients.iter().flat_map(|client| &client.steps);
        let resources: Vec<u8> = steps.map(|step| step.resource).collect();
        if self.faults.is_empty() || resources.is_empty() || !rng.chance(100_000) {
            return;
        }
        for _ in 0..rng.range(1, 6) {
            let at = rng.below(self.heal_at - 10 * MS);
            let remaining = (self.heal_at - at) / MS;
            let kind = FaultKind::OutOfMemory {
                master: rng.below(self.masters.len() as u64) as u8,
                resource: rng.pick(&resources),
                lasts: rng.range(1, 1_500).min(remaining) * MS,
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
            let remaining = (self.heal_at - at) / MS;
            let kind = FaultKind::ForeignKey {
                master: rng.below(self.masters.len() as u64) as u8,
                resource: rng.below(resources.into()) as u8,
                lasts: rng.range(1, 1_500).min(remaining) * MS,
            };
            self.faults.push(Fault { at, kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }
}

/// The properties of a scenario. Most of them are kinds of faults that can occur in it.
struct DrawnKinds {
    force_releases: bool,
    clock_jumps: bool,
    preemptions: bool,
    crashes: bool,
    stalls: bool,
    partitions: bool,
    resets: bool,
    pauses: bool,
    kills: bool,
    packet_losses: bool,
    duplicates: bool,
    task_delays: bool,
    slow_network: bool,
    resets_of_messages: bool,
    half_open_connections: bool,
    refusals: bool,
    script_flushes: bool,
    malformed_replies: bool,
    skewed_clocks: bool,
    drifting_clocks: bool,
    dropped_futures: bool,
    shuffled_tasks: bool,
    leftover_packets: bool,
    torn_writes: bool,
}

impl DrawnKinds {
    fn draw(rng: &mut Rng) -> Self {
        // Some scenarios are calm (without faults), because the library promises more in calm scenarios. In the other
        // scenarios, each kind of fault occurs with its own probability, mostly between 10 and 40 %.
        let calm = rng.chance(120_000);
        let force_releases = rng.chance(if calm { 400_000 } else { 60_000 });
        let mut is_drawn = |ppm: u32, harmless: bool| rng.chance(ppm) && (harmless || !calm);
        Self {
            force_releases,
            clock_jumps: is_drawn(80_000, false),
            preemptions: is_drawn(120_000, false),
            crashes: is_drawn(350_000, false),
            stalls: is_drawn(250_000, false),
            partitions: is_drawn(350_000, false),
            resets: is_drawn(250_000, false),
            pauses: is_drawn(350_000, false),
            kills: is_drawn(250_000, false),
            packet_losses: is_drawn(250_000, false),
            duplicates: is_drawn(300_000, false),
            task_delays: is_drawn(200_000, false),
            slow_network: is_drawn(250_000, false),
            resets_of_messages: is_drawn(150_000, false),
            half_open_connections: is_drawn(200_000, false),
            refusals: is_drawn(250_000, false),
            script_flushes: is_drawn(150_000, false),
            malformed_replies: is_drawn(200_000, false),
            skewed_clocks: is_drawn(400_000, true),
            drifting_clocks: is_drawn(400_000, true),
            dropped_futures: is_drawn(400_000, true),
            shuffled_tasks: is_drawn(300_000, true),
            leftover_packets: is_drawn(500_000, true),
            torn_writes: is_drawn(400_000, true),
        }
    }

    /// Draws the rate error of a clock, in parts per million. Half of the clocks have the largest allowed error,
    /// positive or negative. The other clocks have a smaller random error. If clocks do not drift in this scenario,
    /// returns zero.
    fn drift(&self, rng: &mut Rng) -> i64 {
        match rng.below(4) {
            _ if !self.drifting_clocks => 0,
            0 => WORST_PPM,
            1 => -WORST_PPM,
            _ => rng.around(WORST_PPM),
        }
    }

    fn master(&self, rng: &mut Rng) -> MasterPlan {
        MasterPlan {
            offset_us: rng.around(if self.skewed_clocks { 350_000 } else { 500 }),
            ppm: self.drift(rng),
            disk: rng.pick(&[Disk::None, Disk::None, Disk::Stale, Disk::Always]),
            store: None,
        }
    }

    fn client(&self, rng: &mut Rng, draw_steps: impl FnOnce(&mut Rng) -> Vec<Step>) -> ClientPlan {
        ClientPlan {
            origin: rng.range(1, 1 << 50),
            ppm: self.drift(rng),
            wall_us: rng.around(if self.skewed_clocks { 5_000_000 } else { 2_000 }),
            steps: draw_steps(rng),
        }
    }

    fn step(&self, rng: &mut Rng, resources: u8, ttl: u64) -> Step {
        let is_long_hold = rng.chance(150_000);
        Step {
            think: rng.below(120 * MS),
            resource: rng.below(resources.into()) as u8,
            wait: if rng.chance(200_000) {
                0
            } else {
                rng.range(10, 1_500) * MS
            },
            hold: rng.below(if is_long_hold { 2 * ttl } else { 60 * MS }),
            renew: !rng.chance(300_000),
            extend: rng
                .chance(150_000)
                .then(|| ttl / MS * rng.range(5, 10) / 10 * MS),
            cut: (self.dropped_futures && rng.chance(250_000)).then(|| rng.range(1, 8) as u8),
            drop: rng.chance(200_000),
            cut_release: (self.dropped_futures && rng.chance(150_000)).then_some(1),
            kind: Kind::Exclusive,
        }
    }

    fn net(&self, rng: &mut Rng, ttl: u64) -> Net {
        fn draw_ppm(rng: &mut Rng, is_drawn: bool, low: u64, high: u64) -> u32 {
            if is_drawn {
                rng.range(low, high) as u32
            } else {
                0
            }
        }
        Net {
            delay: rng.range(50_000, if self.slow_network { 8 * MS } else { MS }),
            jitter: rng.range(10_000, if self.slow_network { 30 * MS } else { MS }),
            loss_ppm: draw_ppm(rng, self.packet_losses, 1_000, 50_000),
            again: rng.range(5, 200) * MS,
            duplicate_ppm: draw_ppm(rng, self.duplicates, 1_000, 60_000),
            duplicate_late: rng.range(1, 2 * ttl / MS) * MS,
            reset_ppm: draw_ppm(rng, self.resets_of_messages, 500, 10_000),
            doze_ppm: draw_ppm(rng, self.task_delays, 1_000, 80_000),
            doze: rng.range(1, 2 * ttl / MS) * MS,
            preempt_ppm: draw_ppm(rng, self.preemptions, 300, 10_000),
            preempt: rng.range(1, 2 * ttl / MS) * MS,
            cut_ppm: if self.torn_writes { 300_000 } else { 0 },
            leftover_ppm: if self.leftover_packets { 700_000 } else { 0 },
            shuffle: self.shuffled_tasks,
        }
    }

    fn add_master_faults(&self, faults: &mut Faults<'_>, masters: u8) {
        let draw_number = |rng: &mut Rng| rng.below(masters.into()) as u8;
        faults.add(self.crashes, 4, |rng, remaining| FaultKind::Crash {
            master: draw_number(rng),
            down: rng.range(1, 1_500).min(remaining) * MS,
            age: rng.range(1, 1_000) * MS,
        });
        faults.add(self.stalls, 5, |rng, remaining| FaultKind::Stall {
            master: draw_number(rng),
            lasts: rng.range(1, 1_200).min(remaining) * MS,
        });
        faults.add(self.clock_jumps, 3, |rng, _| FaultKind::ClockJump {
            master: draw_number(rng),
            by_us: rng.around(2_000_000),
        });
    }

    fn add_connection_faults(&self, faults: &mut Faults<'_>, masters: u8) {
        let draw_number = |rng: &mut Rng| rng.below(masters.into()) as u8;
        faults.add(self.partitions, 6, |rng, remaining| {
            let direction = rng.below(4);
            FaultKind::Partition {
                clients: rng.draw() as u16,
                masters: rng.draw() as u16,
                to: direction != 1,
                from: direction != 2,
                lasts: rng.range(1, 1_500).min(remaining) * MS,
            }
        });
        faults.add(self.resets, 8, |rng, _| FaultKind::ResetConnections {
            master: draw_number(rng),
        });
        faults.add(self.half_open_connections, 4, |rng, _| {
            FaultKind::ForgetConnections {
                master: draw_number(rng),
            }
        });
        faults.add(self.refusals, 5, |rng, remaining| FaultKind::Refuse {
            master: draw_number(rng),
            how: rng.pick(&Refusal::ALL),
            lasts: rng.range(1, 1_000).min(remaining) * MS,
        });
        faults.add(self.script_flushes, 4, |rng, _| FaultKind::FlushScripts {
            master: draw_number(rng),
        });
        faults.add(self.malformed_replies, 6, |rng, _| {
            FaultKind::MalformReplies {
                master: draw_number(rng),
            }
        });
    }

    fn add_client_faults(&self, faults: &mut Faults<'_>, clients: u8, resources: u8, ttl: u64) {
        let draw_number = |rng: &mut Rng| rng.below(clients.into()) as u8;
        faults.add(self.force_releases, 5, |rng, _| FaultKind::ForceRelease {
            resource: rng.below(resources.into()) as u8,
            missed: 0,
        });
        faults.add(self.pauses, 8, |rng, remaining| FaultKind::Pause {
            client: draw_number(rng),
            lasts: rng.range(1, 3 * ttl / MS).min(remaining) * MS,
        });
        faults.add(self.kills, 4, |rng, remaining| FaultKind::Kill {
            client: draw_number(rng),
            down: rng.range(1, 500).min(remaining) * MS,
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
    /// If `is_drawn`, adds between 1 and `limit` faults at random times. `draw_kind` draws each fault. Its second
    /// argument is the time from this fault until the end of all faults, in milliseconds.
    fn add(&mut self, is_drawn: bool, limit: u64, draw_kind: impl Fn(&mut Rng, u64) -> FaultKind) {
        if !is_drawn {
            return;
        }
        for _ in 0..self.rng.range(1, limit) {
            let at = self.rng.below(self.heal_at - 10 * MS);
            let kind = draw_kind(self.rng, (self.heal_at - at) / MS);
            self.list.push(Fault { at, kind });
        }
    }
}
