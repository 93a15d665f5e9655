//! Draws scenarios in which masters are replaced while clients take locks. They are drawn like other scenarios. But
//! most of them last longer and have a smaller `max_ttl`, so that there is time for a replacement.

use super::{Fault, FaultKind, MS, Rng, Scenario};
use crate::change_plan::{ChangePlan, admits};
use crate::kind::{Kind, ValueStep};
use crate::scenario::{ClientPlan, Disk, Step};

/// The probability that a scenario with a replacement of masters has values under locks, in parts per million.
const VALUES_PPM: u32 = 350_000;
/// The probability that a scenario with a replacement of masters has notes of holders, in parts per million.
const NOTES_PPM: u32 = 200_000;

/// Pairs of an old and a new set of masters (bit n is master n).
const SHAPES: [[u16; 2]; 11] = [
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
const AHEAD: [Option<u64>; 3] = [None, Some(5_000_000), Some(3_600_000_000)];

/// Draws the number that the operators write last into the generation markers. At least half of the draws return the
/// largest number in `marks`.
fn goal_from(rng: &mut Rng, begins: u64, marks: &[u64]) -> u64 {
    let higher: Vec<u64> = marks
        .iter()
        .copied()
        .filter(|mark| *mark >= begins)
        .collect();
    let last = *higher.last().unwrap_or(&0);
    if rng.chance(500_000) {
        last
    } else {
        rng.pick(&higher)
    }
}

impl Scenario {
    /// Draws a scenario from this seed. In the scenario, masters are replaced while clients take locks.
    pub fn draw_changes(seed: u64) -> Self {
        let rng = &mut Rng::stream(seed, 10);
        let shape = rng.pick(&SHAPES);
        let masters = 16 - (shape[0] | shape[1]).leading_zeros();
        let (mut scenario, resources) = Self::drawn(seed, Some(masters as u8));
        scenario.steady();
        let kinds = &mut Rng::stream(seed, 11);
        let fenced = scenario.settings.fencing;
        if fenced {
            scenario.mix(&mut Rng::stream(seed, 4), resources);
            if kinds.chance(NOTES_PPM) {
                scenario.note_holders(kinds);
            }
        }
        if fenced && kinds.chance(VALUES_PPM) {
            scenario.keep_values(kinds);
        } else {
            scenario.stretch(rng);
        }
        if fenced {
            scenario.permit(&mut Rng::stream(seed, 8));
        }
        scenario.add_foreign_keys(&mut Rng::stream(seed, 7), resources);
        scenario.fill_for_one_lock(&mut Rng::stream(seed, 15));
        scenario.idle_for_days(&mut Rng::stream(seed, 12), false);
        let mut sets = shape.to_vec();
        if rng.chance(200_000) {
            sets.push(shape[0]);
        }
        scenario.jump_clocks(&mut Rng::stream(seed, 16), &sets);
        scenario.plan_change(rng, sets);
        scenario.faults.sort_by_key(|fault| fault.at);
        scenario
    }

    /// Removes all jumps of clocks, because an operator does not prepare a change while the masters' clocks differ.
    /// [`jump_clocks`](Self::jump_clocks) adds pairs of jumps that cancel each other out.
    fn steady(&mut self) {
        let jumps = |fault: &Fault| matches!(fault.kind, FaultKind::Jump { .. });
        self.faults.retain(|fault| !jumps(fault));
    }

    /// Adds values under locks, and makes the scenario longer. A master that has lost its memory then has enough time
    /// to wait for `max_ttl` and to vote again.
    fn keep_values(&mut self, rng: &mut Rng) {
        self.slow_down(rng);
        if rng.chance(300_000) {
            self.crash_by_turns(rng);
        } else {
            self.away_by_turns(rng);
        }
        self.use_values(rng);
        self.add_removals(rng);
        self.remove_elsewhere(rng);
    }

    /// In some scenarios, lets a random client remove a value that client 0 has created, and sometimes lets a random
    /// client create the value again. These clients may be at any step in the replacement of masters.
    fn remove_elsewhere(&mut self, rng: &mut Rng) {
        let creates = |step: &&Step| matches!(step.kind, Kind::Value(ValueStep::Create(_)));
        let created: Vec<Step> = self.clients[0]
            .steps
            .iter()
            .filter(creates)
            .copied()
            .collect();
        if created.is_empty() || !rng.chance(350_000) {
            return;
        }
        let create = rng.pick(&created);
        let record = create.kind == Kind::Value(ValueStep::Create(0));
        let remove = Step {
            kind: Kind::Value(ValueStep::Remove { record }),
            ..create
        };
        let both = [Some(remove), rng.chance(600_000).then_some(create)];
        let mut at = 0;
        for step in both.into_iter().flatten() {
            let client = rng.below(self.clients.len() as u64) as usize;
            let steps = &mut self.clients[client].steps;
            at = rng.range(at, steps.len().max(at as usize) as u64);
            let think = rng.below(200) * MS;
            steps.insert(steps.len().min(at as usize), Step { think, ..step });
        }
    }

    /// Replaces all crashes and stalls with new ones, which do not overlap. At most one master at a time is stalled,
    /// down, or without votes after a restart.
    fn away_by_turns(&mut self, rng: &mut Rng) {
        let crashes = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::Crash { .. } | FaultKind::Stall { .. }
            )
        };
        self.faults.retain(|fault| !crashes(fault));
        for master in &mut self.masters {
            master.disk = rng.pick(&[Disk::None, Disk::None, Disk::Always]);
        }
        let mut at = rng.below(3_000) * MS;
        while at + 200 * MS < self.heal_at {
            let left = (self.heal_at - at) / MS;
            let master = rng.below(self.masters.len() as u64) as u8;
            let lasts = rng.range(50, 3_000).min(left) * MS;
            let again = if rng.chance(500_000) {
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
            at += lasts + again + rng.below(1_500) * MS;
        }
    }

    /// Moves the end of the faults to a time between 3 and 8 s, and scales the times of all faults by the same factor.
    /// Also lengthens the pauses of clients, and draws `max_ttl` again.
    fn stretch(&mut self, rng: &mut Rng) {
        let was = self.heal_at / MS;
        self.heal_at = rng.range(3_000, 8_000) * MS;
        for fault in &mut self.faults {
            fault.at = fault.at / was * (self.heal_at / MS);
        }
        self.tasks = self.tasks.min(3);
        let slower = rng.pick(&[1, 2, 4, 6]);
        for client in &mut self.clients {
            for step in &mut client.steps {
                step.think *= slower;
            }
        }
        let longest = rng.pick(&[0, 600, 1_000, 1_000, 1_500, 3_200]) * MS;
        self.settings.max_ttl = longest.max(self.settings.ttl);
    }

    /// Removes all faults except force-releases, and makes the network fast and reliable.
    fn quieten(&mut self) {
        let breaks = |fault: &Fault| matches!(fault.kind, FaultKind::Break { .. });
        self.faults.retain(breaks);
        let net = &mut self.net;
        (net.loss_ppm, net.duplicate_ppm, net.reset_ppm) = (0, 0, 0);
        (net.doze_ppm, net.preempt_ppm) = (0, 0);
        (net.delay, net.jitter) = (net.delay.min(MS), net.jitter.min(MS));
    }

    fn plan_change(&mut self, rng: &mut Rng, sets: Vec<u16>) {
        let changes = sets.len() as u64 - 1;
        let marks: Vec<u64> = [0, 1, 2, 4, 5, 6, 8]
            .into_iter()
            .filter(|mark| *mark <= 4 * changes)
            .collect();
        let begins = rng.chance(400_000).then(|| rng.pick(&marks));
        let stands = rng.chance(150_000);
        if stands && rng.chance(500_000) {
            self.quieten();
        }
        let both = [None, Some(0), Some(2), Some(2)];
        let begins = if stands { rng.pick(&both) } else { begins };
        let goal = if stands {
            begins.unwrap_or(0)
        } else {
            goal_from(rng, begins.unwrap_or(0), &marks)
        };
        let operators = if stands { 0 } else { rng.pick(&[1, 1, 1, 2]) };
        self.add_operators(rng, operators);
        let last = 2 * changes as u8;
        let admitted =
            |mark: u64| -> Vec<u8> { (0..=last).filter(|step| admits(mark, *step)).collect() };
        // If `mixed` is true, each client begins with random sets of masters, even if these masters reject the client.
        // No fault then changes the client's sets.
        let mixed = !stands && rng.chance(350_000);
        let first = if mixed {
            (0..=last).collect()
        } else {
            admitted(begins.unwrap_or(0))
        };
        let end = admitted(goal);
        let steps: Vec<(u8, u8)> = (0..self.clients.len())
            .map(|_| {
                let first = rng.pick(&first);
                let end = if stands { first } else { rng.pick(&end) };
                (first, end)
            })
            .collect();
        if rng.chance(400_000) {
            self.hold_for_long(rng);
        }
        if !stands && !mixed {
            self.tell_clients(rng, &steps, operators, last);
        }
        let plan = ChangePlan {
            begins,
            goal,
            operators,
            pause: rng.pick(&[20, 200, 1_000]) * MS,
            steps,
            // Most scenarios with values begin without counters. If the counters are ahead of the clocks and masters
            // lose data, the library promises nothing about values (`Promises::stock`).
            ahead: if self.has_values() {
                rng.pick(&[None, None, Some(5_000_000)])
            } else {
                rng.pick(&AHEAD)
            },
            retires: changes == 1 && rng.chance(700_000),
            sets,
        };
        self.change = Some(plan);
    }

    /// Inserts operators before the other clients. An operator is a client process that takes no locks, so it has no
    /// steps.
    fn add_operators(&mut self, rng: &mut Rng, operators: u8) {
        for _ in 0..operators {
            let like = &self.clients[rng.below(self.clients.len() as u64) as usize];
            let operator = ClientPlan {
                origin: rng.range(1, 1 << 50),
                steps: Vec::new(),
                ..*like
            };
            self.clients.insert(0, operator);
        }
    }

    /// Makes clients hold locks nearly all the time, sometimes for longer than an operator waits for old locks to
    /// expire.
    fn hold_for_long(&mut self, rng: &mut Rng) {
        let longest = rng.pick(&[2 * self.settings.ttl, 3 * self.settings.max_ttl]);
        let one = rng.chance(500_000);
        let steps = self.clients.iter_mut().flat_map(|client| &mut client.steps);
        for step in steps.filter(|step| !matches!(step.kind, Kind::Value(_))) {
            step.think = rng.below(100 * MS);
            step.hold = rng.below(longest);
            step.resource = if one { 0 } else { step.resource };
            step.renew = rng.chance(800_000);
        }
    }

    /// Adds faults that reconfigure clients at random times. A client mostly moves by one step in the replacement of
    /// masters, sometimes by two.
    fn tell_clients(&mut self, rng: &mut Rng, steps: &[(u8, u8)], operators: u8, last: u8) {
        for (client, (first, _)) in steps.iter().enumerate().skip(operators.into()) {
            let mut step = *first;
            let mut at = 0;
            while step < last && rng.chance(800_000) {
                at += rng.below((self.heal_at - at) * 2 / 3);
                step += if rng.chance(900_000) { 1 } else { 2 };
                let kind = FaultKind::Tell {
                    client: client as u8,
                    step: step.min(last),
                    down: rng.below(200 * MS),
                };
                self.faults.push(Fault { at, kind });
            }
        }
    }
}
