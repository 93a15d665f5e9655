//! Shrinks a failing scenario: removes parts while the rest still breaks the same rule.

use crate::play::Play;
use crate::scenario::{FaultKind, Scenario, Step};

/// The largest number of simulation runs for shrinking one scenario.
const MOST: usize = 4_000;

/// Returns the smallest scenario found that still breaks the rule `rule` with the options `play`.
pub fn shrink(scenario: &Scenario, play: Play, rule: &str) -> Scenario {
    let mut shrinker = Shrinker {
        best: scenario.clone(),
        play,
        rule,
        runs: 0,
    };
    while shrinker.round() {}
    shrinker.best
}

/// A part of `T` that the shrinker may remove. The `bool` is true if `T` has this part. The function removes the part.
type Part<T> = (bool, fn(&mut T));

struct Shrinker<'a> {
    best: Scenario,
    play: Play,
    rule: &'a str,
    runs: usize,
}

impl Scenario {
    /// Whether the clock jumps of every master sum to zero. Otherwise a clock stays wrong after the faults.
    fn clocks_end_right(&self) -> bool {
        (0..self.masters.len()).all(|of| {
            let jumps = self.faults.iter().filter_map(|fault| match fault.kind {
                FaultKind::Jump { master, by_us } if usize::from(master) == of => Some(by_us),
                _ => None,
            });
            jumps.sum::<i64>() == 0
        })
    }
}

impl Shrinker<'_> {
    /// Plays the scenario with `change`, and keeps the change if the scenario still breaks the same rule. Returns true
    /// if the change was kept.
    fn attempt(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        if self.runs >= MOST {
            return false;
        }
        self.runs += 1;
        let mut candidate = self.best.clone();
        change(&mut candidate);
        if self.best.clocks_end_right() && !candidate.clocks_end_right() {
            return false;
        }
        let outcome = self.play.run(&candidate);
        let fails = outcome
            .violation
            .is_some_and(|violation| violation.rule == self.rule);
        if fails {
            self.best = candidate;
        }
        fails
    }

    /// Tries to remove every part of the scenario once. Returns false if nothing was removed, or if [`MOST`] runs have
    /// been played.
    fn round(&mut self) -> bool {
        let mut smaller = false;
        smaller |= self.faults();
        smaller |= self.clients();
        smaller |= self.steps();
        smaller |= self.plainer();
        smaller && self.runs < MOST
    }

    fn faults(&mut self) -> bool {
        let mut smaller = false;
        let mut size = self.best.faults.len();
        while size > 0 {
            let mut from = 0;
            while from < self.best.faults.len() {
                let to = (from + size).min(self.best.faults.len());
                if self.attempt(|scenario| {
                    scenario.faults.drain(from..to);
                }) {
                    smaller = true;
                } else {
                    from = to;
                }
            }
            size /= 2;
        }
        smaller
    }

    /// Removes the last client and its faults, as long as the same rule still breaks. Then tries to remove all steps of
    /// each remaining client.
    fn clients(&mut self) -> bool {
        let mut smaller = false;
        while self.best.clients.len() > 1 {
            let last = self.best.clients.len() - 1;
            let fits = |kind: FaultKind| match kind {
                FaultKind::Pause { client, .. }
                | FaultKind::Kill { client, .. }
                | FaultKind::Date { client, .. }
                | FaultKind::Tell { client, .. } => usize::from(client) != last,
                _ => true,
            };
            if !self.attempt(|scenario| {
                scenario.clients.pop();
                scenario.faults.retain(|fault| fits(fault.kind));
            }) {
                break;
            }
            smaller = true;
        }
        for client in 0..self.best.clients.len() {
            if !self.best.clients[client].steps.is_empty() {
                smaller |= self.attempt(|scenario| scenario.clients[client].steps.clear());
            }
        }
        smaller
    }

    fn steps(&mut self) -> bool {
        let mut smaller = false;
        for client in 0..self.best.clients.len() {
            let mut size = self.best.clients[client].steps.len();
            while size > 0 {
                let mut from = 0;
                while from < self.best.clients[client].steps.len() {
                    let to = (from + size).min(self.best.clients[client].steps.len());
                    if self.attempt(|scenario| {
                        scenario.clients[client].steps.drain(from..to);
                    }) {
                        smaller = true;
                    } else {
                        from = to;
                    }
                }
                size /= 2;
            }
        }
        smaller
    }

    /// Tries to remove network faults, clock errors and details of steps, one after another.
    fn plainer(&mut self) -> bool {
        let mut smaller = false;
        let net = self.best.net;
        let parts: [Part<Scenario>; 8] = [
            (net.loss_ppm > 0, |s| s.net.loss_ppm = 0),
            (net.duplicate_ppm > 0, |s| s.net.duplicate_ppm = 0),
            (net.reset_ppm > 0, |s| s.net.reset_ppm = 0),
            (net.doze_ppm > 0, |s| s.net.doze_ppm = 0),
            (net.preempt_ppm > 0, |s| s.net.preempt_ppm = 0),
            (net.leftover_ppm > 0, |s| s.net.leftover_ppm = 0),
            (net.cut_ppm > 0, |s| s.net.cut_ppm = 0),
            (net.shuffle, |s| s.net.shuffle = false),
        ];
        for (on, off) in parts {
            smaller |= on && self.attempt(off);
        }
        for master in 0..self.best.masters.len() {
            let plan = self.best.masters[master];
            if plan.offset_us != 0 {
                smaller |= self.attempt(|s| s.masters[master].offset_us = 0);
            }
            if plan.ppm != 0 {
                smaller |= self.attempt(|s| s.masters[master].ppm = 0);
            }
        }
        for client in 0..self.best.clients.len() {
            let plan = &self.best.clients[client];
            let (ppm, wall_us) = (plan.ppm, plan.wall_us);
            if ppm != 0 {
                smaller |= self.attempt(|s| s.clients[client].ppm = 0);
            }
            if wall_us != 0 {
                smaller |= self.attempt(|s| s.clients[client].wall_us = 0);
            }
            for step in 0..self.best.clients[client].steps.len() {
                smaller |= self.plainer_step(client, step);
            }
        }
        smaller
    }

    fn plainer_step(&mut self, client: usize, step: usize) -> bool {
        let was = self.best.clients[client].steps[step];
        let parts: [Part<Step>; 4] = [
            (was.extend.is_some(), |step| step.extend = None),
            (was.cut.is_some(), |step| step.cut = None),
            (was.cut_release.is_some(), |step| step.cut_release = None),
            (was.drop, |step| step.drop = false),
        ];
        let mut smaller = false;
        for (on, off) in parts {
            smaller |= on && self.attempt(|s| off(&mut s.clients[client].steps[step]));
        }
        smaller
    }
}
