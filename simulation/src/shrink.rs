//! Shrinks a failing scenario: removes parts while the rest still breaks the same rule.

use crate::run_options::RunOptions;
use crate::scenario::{FaultKind, Scenario, Step};

/// The largest number of simulation runs for shrinking one scenario.
const LARGEST_RUNS: usize = 4_000;

/// Returns the smallest scenario found that still breaks the rule `rule` with the options `run_options`.
pub fn shrink(scenario: &Scenario, run_options: RunOptions, rule: &str) -> Scenario {
    let mut shrinker = Shrinker {
        best: scenario.clone(),
        run_options,
        rule,
        runs: 0,
    };
    while shrinker.remove_parts_once() {}
    shrinker.best
}

/// A part of `T` that the shrinker may remove. The `bool` is true if `T` has this part. The function removes the part.
type Part<T> = (bool, fn(&mut T));

struct Shrinker<'a> {
    best: Scenario,
    run_options: RunOptions,
    rule: &'a str,
    runs: usize,
}

impl Scenario {
    /// Whether the clock jumps of every master sum to zero. Otherwise a clock stays wrong after the faults.
    fn clocks_end_right(&self) -> bool {
        (0..self.masters.len()).all(|index| {
            let jumps = self.faults.iter().filter_map(|fault| match fault.kind {
                FaultKind::ClockJump { master, by_us } if usize::from(master) == index => {
                    Some(by_us)
                }
                _ => None,
            });
            jumps.sum::<i64>() == 0
        })
    }
}

impl Shrinker<'_> {
    /// Plays the scenario with `change`, and keeps the change if the scenario still breaks the same rule. Returns true
    /// if the change was kept.
    fn keep_if_still_failing(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        if self.runs >= LARGEST_RUNS {
            return false;
        }
        self.runs += 1;
        let mut candidate = self.best.clone();
        change(&mut candidate);
        if self.best.clocks_end_right() && !candidate.clocks_end_right() {
            return false;
        }
        let result = self.run_options.run(&candidate);
        let is_same_violation = result
            .violation
            .is_some_and(|violation| violation.rule == self.rule);
        if is_same_violation {
            self.best = candidate;
        }
        is_same_violation
    }

    /// Tries to remove every part of the scenario once. Returns false if nothing was removed, or if [`LARGEST_RUNS`]
    /// runs have been played.
    fn remove_parts_once(&mut self) -> bool {
        let mut is_smaller = false;
        is_smaller |= self.remove_faults();
        is_smaller |= self.remove_clients();
        is_smaller |= self.remove_steps();
        is_smaller |= self.simplify();
        is_smaller && self.runs < LARGEST_RUNS
    }

    fn remove_faults(&mut self) -> bool {
        let mut is_smaller = false;
        let mut chunk_size = self.best.faults.len();
        while chunk_size > 0 {
            let mut first = 0;
            while first < self.best.faults.len() {
                let end = (first + chunk_size).min(self.best.faults.len());
                if self.keep_if_still_failing(|scenario| {
                    scenario.faults.drain(first..end);
                }) {
                    is_smaller = true;
                } else {
                    first = end;
                }
            }
            chunk_size /= 2;
        }
        is_smaller
    }

    /// Removes the last client and its faults, as long as the same rule still breaks. Then tries to remove all steps of
    /// each remaining client.
    fn remove_clients(&mut self) -> bool {
        let mut is_smaller = false;
        while self.best.clients.len() > 1 {
            let last_client = self.best.clients.len() - 1;
            let concerns_other_client = |kind: FaultKind| match kind {
                FaultKind::Pause { client, .. }
                | FaultKind::Kill { client, .. }
                | FaultKind::WallClockJump { client, .. }
                | FaultKind::Reconfigure { client, .. } => usize::from(client) != last_client,
                _ => true,
            };
            if !self.keep_if_still_failing(|scenario| {
                scenario.clients.pop();
                scenario
                    .faults
                    .retain(|fault| concerns_other_client(fault.kind));
            }) {
                break;
            }
            is_smaller = true;
        }
        for client in 0..self.best.clients.len() {
            if !self.best.clients[client].steps.is_empty() {
                is_smaller |=
                    self.keep_if_still_failing(|scenario| scenario.clients[client].steps.clear());
            }
        }
        is_smaller
    }

    fn remove_steps(&mut self) -> bool {
        let mut is_smaller = false;
        for client in 0..self.best.clients.len() {
            let mut chunk_size = self.best.clients[client].steps.len();
            while chunk_size > 0 {
                let mut first = 0;
                while first < self.best.clients[client].steps.len() {
                    let end = (first + chunk_size).min(self.best.clients[client].steps.len());
                    if self.keep_if_still_failing(|scenario| {
                        scenario.clients[client].steps.drain(first..end);
                    }) {
                        is_smaller = true;
                    } else {
                        first = end;
                    }
                }
                chunk_size /= 2;
            }
        }
        is_smaller
    }

    /// Tries to remove network faults, clock errors and details of steps, one after another.
    fn simplify(&mut self) -> bool {
        let mut is_smaller = false;
        let net = self.best.net;
        let parts: [Part<Scenario>; 8] = [
            (net.loss_ppm > 0, |scenario| scenario.net.loss_ppm = 0),
            (net.duplicate_ppm > 0, |scenario| {
                scenario.net.duplicate_ppm = 0;
            }),
            (net.reset_ppm > 0, |scenario| scenario.net.reset_ppm = 0),
            (net.doze_ppm > 0, |scenario| scenario.net.doze_ppm = 0),
            (net.preempt_ppm > 0, |scenario| scenario.net.preempt_ppm = 0),
            (net.leftover_ppm > 0, |scenario| {
                scenario.net.leftover_ppm = 0;
            }),
            (net.cut_ppm > 0, |scenario| scenario.net.cut_ppm = 0),
            (net.shuffle, |scenario| scenario.net.shuffle = false),
        ];
        for (is_present, remove_part) in parts {
            is_smaller |= is_present && self.keep_if_still_failing(remove_part);
        }
        for master in 0..self.best.masters.len() {
            let plan = self.best.masters[master];
            if plan.offset_us != 0 {
                is_smaller |=
                    self.keep_if_still_failing(|scenario| scenario.masters[master].offset_us = 0);
            }
            if plan.ppm != 0 {
                is_smaller |=
                    self.keep_if_still_failing(|scenario| scenario.masters[master].ppm = 0);
            }
        }
        for client in 0..self.best.clients.len() {
            let plan = &self.best.clients[client];
            let (ppm, wall_us) = (plan.ppm, plan.wall_us);
            if ppm != 0 {
                is_smaller |=
                    self.keep_if_still_failing(|scenario| scenario.clients[client].ppm = 0);
            }
            if wall_us != 0 {
                is_smaller |=
                    self.keep_if_still_failing(|scenario| scenario.clients[client].wall_us = 0);
            }
            for step in 0..self.best.clients[client].steps.len() {
                is_smaller |= self.simplify_step(client, step);
            }
        }
        is_smaller
    }

    fn simplify_step(&mut self, client: usize, step: usize) -> bool {
        let step_plan = self.best.clients[client].steps[step];
        let parts: [Part<Step>; 4] = [
            (step_plan.extend.is_some(), |step| step.extend = None),
            (step_plan.cut.is_some(), |step| step.cut = None),
            (step_plan.cut_release.is_some(), |step| {
                step.cut_release = None;
            }),
            (step_plan.drop, |step| step.drop = false),
        ];
        let mut is_smaller = false;
        for (is_present, remove_part) in parts {
            is_smaller |= is_present
                && self.keep_if_still_failing(|scenario| {
                    remove_part(&mut scenario.clients[client].steps[step]);
                });
        }
        is_smaller
    }
}
