//! Draws scenarios in which masters are replaced while clients take locks. They are drawn like other scenarios. But
//! most of them last longer and have a smaller `max_ttl`, so that there is time for a replacement.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::change_plan::{ChangePlan, admits_step};
use crate::kind::{Kind, ValueStep};
use crate::scenario::{ClientPlan, Disk, Step};

/// The probability that a scenario with a replacement of masters has values under locks, in parts per million.
const VALUES_PPM: u32 = 350_000;
/// The probability that a scenario with a replacement of masters has notes of holders, in parts per million.
const NOTES_PPM: u32 = 200_000;

/// Pairs of an old and a new set of masters (bit n is master n).
const SET_PAIRS: [[u16; 2]; 11] = [
    // Three masters, of which one, two or all three are replaced by others.
    [0b00_0111, 0b00_1011],
    [0b00_0111, 0b00_1011],
    [0b00_0111, 0b01_1100],
    [0b00_0111, 0b11_1000],
    // Masters are only added, or are only removed.
    [0b00_0111, 0b01_1111],
    [0b01_1111, 0b00_0111],
    [0b01_1111, 0b00_0111],
    // Five masters, of which one is replaced.
    [0b01_1111, 0b10_1111],
    // The number of old masters is even, or there is a single old master.
    [0b00_1111, 0b00_0111],
    [0b00_0011, 0b00_0111],
    [0b00_0001, 0b00_0111],
];

/// How far the fencing counters are ahead of the clocks at the beginning, in microseconds; `None` if there are no
/// counters yet. (A fencing counter is roughly a time in microseconds.) A scenario draws one of these values.
const COUNTERS_AHEAD_US: [Option<u64>; 3] = [None, Some(5_000_000), Some(3_600_000_000)];

/// Draws the number that the operators write last into the generation markers. At least half of the draws return the
/// largest number in `marker_numbers`.
fn draw_goal(rng: &mut Rng, initial_number: u64, marker_numbers: &[u64]) -> u64 {
    let reachable: Vec<u64> = marker_numbers
        .iter()
        .copied()
        .filter(|marker_number| *marker_number >= initial_number)
        .collect();
    let largest = *reachable.last().unwrap_or(&0);
    if rng.chance(500_000) {
        largest
    } else {
        rng.pick(&reachable)
    }
}

impl Scenario {
    /// Draws a scenario from this seed. In the scenario, masters are replaced while clients take locks.
    pub fn draw_changes(seed: u64) -> Self {
        let rng = &mut Rng::stream(seed, 10);
        let set_pair = rng.pick(&SET_PAIRS);
        let masters = 16 - (set_pair[0] | set_pair[1]).leading_zeros();
        let (mut scenario, resources) = Self::draw_base(seed, Some(masters as u8));
        scenario.remove_clock_jumps();
        let kinds_rng = &mut Rng::stream(seed, 11);
        let has_fencing = scenario.settings.fencing;
        if has_fencing {
            scenario.add_lock_kinds(&mut Rng::stream(seed, 4), resources);
            if kinds_rng.chance(NOTES_PPM) {
                scenario.note_holders(kinds_rng);
            }
        }
        if has_fencing && kinds_rng.chance(VALUES_PPM) {
            scenario.keep_values(kinds_rng);
        } else {
            scenario.stretch(rng);
        }
        if has_fencing {
            scenario.add_permits(&mut Rng::stream(seed, 8));
        }
        scenario.add_foreign_keys(&mut Rng::stream(seed, 7), resources);
        scenario.exhaust_memory_for_one_lock(&mut Rng::stream(seed, 15));
        scenario.idle_for_days(&mut Rng::stream(seed, 12), false);
        let mut sets = set_pair.to_vec();
        if rng.chance(200_000) {
            sets.push(set_pair[0]);
        }
        scenario.jump_clocks(&mut Rng::stream(seed, 16), &sets);
        scenario.plan_change(rng, sets);
        scenario.faults.sort_by_key(|fault| fault.at);
        scenario
    }

    /// Removes all jumps of clocks, because an operator does not prepare a change while the masters' clocks differ.
    /// [`jump_clocks`](Self::jump_clocks) adds pairs of jumps that cancel each other out.
    fn remove_clock_jumps(&mut self) {
        let is_jump = |fault: &Fault| matches!(fault.kind, FaultKind::ClockJump { .. });
        self.faults.retain(|fault| !is_jump(fault));
    }

    /// Adds values under locks, and makes the scenario longer. A master that has lost its memory then has enough time
    /// to wait for `max_ttl` and to vote again.
    fn keep_values(&mut self, rng: &mut Rng) {
        self.slow_down(rng);
        if rng.chance(300_000) {
            self.crash_by_turns(rng);
        } else {
            self.stop_masters_by_turns(rng);
        }
        self.use_values(rng);
        self.add_removals(rng);
        self.remove_on_another_client(rng);
    }

    /// In some scenarios, lets a random client remove a value that client 0 has created, and sometimes lets a random
    /// client create the value again. These clients may be at any step in the replacement of masters.
    fn remove_on_another_client(&mut self, rng: &mut Rng) {
        let is_creation = |step: &&Step| matches!(step.kind, Kind::Value(ValueStep::Create(_)));
        let creations: Vec<Step> = self.clients[0]
            .steps
            .iter()
            .filter(is_creation)
            .copied()
            .collect();
        if creations.is_empty() || !rng.chance(350_000) {
            return;
        }
        let create = rng.pick(&creations);
        let record = create.kind == Kind::Value(ValueStep::Create(0));
        let remove = Step {
            kind: Kind::Value(ValueStep::Remove { record }),
            ..create
        };
        let new_steps = [Some(remove), rng.chance(600_000).then_some(create)];
        let mut index = 0;
        for step in new_steps.into_iter().flatten() {
            let client = rng.below(self.clients.len() as u64) as usize;
            let steps = &mut self.clients[client].steps;
            index = rng.range(index, steps.len().max(index as usize) as u64);
            let think = rng.below(200) * MS;
            steps.insert(steps.len().min(index as usize), Step { think, ..step });
        }
    }

    /// Replaces all crashes and stalls with new ones, which do not overlap. At most one master at a time is stalled,
    /// down, or without votes after a restart.
    fn stop_masters_by_turns(&mut self, rng: &mut Rng) {
        let is_away = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::Crash { .. } | FaultKind::Stall { .. }
            )
        };
        self.faults.retain(|fault| !is_away(fault));
        for master in &mut self.masters {
            master.disk = rng.pick(&[Disk::None, Disk::None, Disk::Always]);
        }
        let mut at = rng.below(3_000) * MS;
        while at + 200 * MS < self.heal_at {
            let remaining = (self.heal_at - at) / MS;
            let master = rng.below(self.masters.len() as u64) as u8;
            let lasts = rng.range(50, 3_000).min(remaining) * MS;
            let guard_time = if rng.chance(500_000) {
                let age = MS;
                let down = lasts;
                let kind = FaultKind::Crash { master, down, age };
                self.faults.push(Fault { at, kind });
                self.settings.max_ttl / 50 * 51 + 1_000 * MS
            } else {
                let kind = FaultKind::Stall { master, lasts };
                self.faults.push(Fault { at, kind });
                0
            };
            at += lasts + guard_time + rng.below(1_500) * MS;
        }
    }

    /// Moves the end of the faults to a time between 3 and 8 s, and scales the times of all faults by the same factor.
    /// Also lengthens the pauses of clients, and draws `max_ttl` again.
    fn stretch(&mut self, rng: &mut Rng) {
        let old_end_ms = self.heal_at / MS;
        self.heal_at = rng.range(3_000, 8_000) * MS;
        for fault in &mut self.faults {
            fault.at = fault.at / old_end_ms * (self.heal_at / MS);
        }
        self.tasks = self.tasks.min(3);
        let factor = rng.pick(&[1, 2, 4, 6]);
        for client in &mut self.clients {
            for step in &mut client.steps {
                step.think *= factor;
            }
        }
        let max_ttl = rng.pick(&[0, 600, 1_000, 1_000, 1_500, 3_200]) * MS;
        self.settings.max_ttl = max_ttl.max(self.settings.ttl);
    }

    /// Removes all faults except force-releases, and makes the network fast and reliable.
    fn keep_only_force_releases(&mut self) {
        let is_force_release = |fault: &Fault| matches!(fault.kind, FaultKind::ForceRelease { .. });
        self.faults.retain(is_force_release);
        let net = &mut self.net;
        (net.loss_ppm, net.duplicate_ppm, net.reset_ppm) = (0, 0, 0);
        (net.doze_ppm, net.preempt_ppm) = (0, 0);
        (net.delay, net.jitter) = (net.delay.min(MS), net.jitter.min(MS));
    }

    /// Draws how far the fencing counters are ahead of the masters' clocks at the beginning, in microseconds; `None` if
    /// the masters have no counters.
    ///
    /// Most scenarios with values begin without counters. If the counters are ahead of the clocks and masters lose
    /// data, the library promises nothing about values (`Promises::stock`).
    fn draw_counters_ahead(&self, rng: &mut Rng) -> Option<u64> {
        if self.has_values() {
            rng.pick(&[None, None, Some(5_000_000)])
        } else {
            rng.pick(&COUNTERS_AHEAD_US)
        }
    }

    fn plan_change(&mut self, rng: &mut Rng, sets: Vec<u16>) {
        let changes = sets.len() as u64 - 1;
        let marker_numbers: Vec<u64> = [0, 1, 2, 4, 5, 6, 8]
            .into_iter()
            .filter(|marker_number| *marker_number <= 4 * changes)
            .collect();
        let drawn_number = rng.chance(400_000).then(|| rng.pick(&marker_numbers));
        let is_fixed = rng.chance(150_000);
        if is_fixed && rng.chance(500_000) {
            self.keep_only_force_releases();
        }
        let initial_numbers = [None, Some(0), Some(2), Some(2)];
        let initial_number = if is_fixed {
            rng.pick(&initial_numbers)
        } else {
            drawn_number
        };
        let goal = if is_fixed {
            initial_number.unwrap_or(0)
        } else {
            draw_goal(rng, initial_number.unwrap_or(0), &marker_numbers)
        };
        let operators = if is_fixed { 0 } else { rng.pick(&[1, 1, 1, 2]) };
        self.add_operators(rng, operators);
        let last_step = 2 * changes as u8;
        let admitted_steps = |marker_number: u64| -> Vec<u8> {
            (0..=last_step)
                .filter(|step| admits_step(marker_number, *step))
                .collect()
        };
        // If `has_mixed_steps` is true, each client begins with random sets of masters, even if these masters reject
        // the client. No fault then changes the client's sets.
        let has_mixed_steps = !is_fixed && rng.chance(350_000);
        let first_steps = if has_mixed_steps {
            (0..=last_step).collect()
        } else {
            admitted_steps(initial_number.unwrap_or(0))
        };
        let last_steps = admitted_steps(goal);
        let steps: Vec<(u8, u8)> = (0..self.clients.len())
            .map(|_| {
                let first = rng.pick(&first_steps);
                let last = if is_fixed {
                    first
                } else {
                    rng.pick(&last_steps)
                };
                (first, last)
            })
            .collect();
        if rng.chance(400_000) {
            self.hold_for_long_times(rng);
        }
        if !is_fixed && !has_mixed_steps {
            self.reconfigure_clients(rng, &steps, operators, last_step);
        }
        let plan = ChangePlan {
            initial_number,
            goal,
            operators,
            longest_pause: rng.pick(&[20, 200, 1_000]) * MS,
            steps,
            counters_ahead_us: self.draw_counters_ahead(rng),
            stops_replaced: changes == 1 && rng.chance(700_000),
            sets,
        };
        self.change = Some(plan);
    }

    /// Inserts operators before the other clients. An operator is a client process that takes no locks, so it has no
    /// steps.
    fn add_operators(&mut self, rng: &mut Rng, operators: u8) {
        for _ in 0..operators {
            let template = &self.clients[rng.below(self.clients.len() as u64) as usize];
            let operator = ClientPlan {
                origin: rng.range(1, 1 << 50),
                steps: Vec::new(),
                ..*template
            };
            self.clients.insert(0, operator);
        }
    }

    /// Makes clients hold locks nearly all the time, sometimes for longer than an operator waits for old locks to
    /// expire.
    fn hold_for_long_times(&mut self, rng: &mut Rng) {
        let longest = rng.pick(&[2 * self.settings.ttl, 3 * self.settings.max_ttl]);
        let is_one_resource = rng.chance(500_000);
        let steps = self.clients.iter_mut().flat_map(|client| &mut client.steps);
        for step in steps.filter(|step| !matches!(step.kind, Kind::Value(_))) {
            step.think = rng.below(100 * MS);
            step.hold = rng.below(longest);
            step.resource = if is_one_resource { 0 } else { step.resource };
            step.renew = rng.chance(800_000);
        }
    }

    /// Adds faults that reconfigure clients at random times. A client mostly moves by one step in the replacement of
    /// masters, sometimes by two.
    fn reconfigure_clients(
        &mut self,
        rng: &mut Rng,
        steps: &[(u8, u8)],
        operators: u8,
        last_step: u8,
    ) {
        for (client, (first, _)) in steps.iter().enumerate().skip(operators.into()) {
            let mut step = *first;
            let mut at = 0;
            while step < last_step && rng.chance(800_000) {
                at += rng.below((self.heal_at - at) * 2 / 3);
                step += if rng.chance(900_000) { 1 } else { 2 };
                let kind = FaultKind::Reconfigure {
                    client: client as u8,
                    step: step.min(last_step),
                    down: rng.below(200 * MS),
                };
                self.faults.push(Fault { at, kind });
            }
        }
    }
}
