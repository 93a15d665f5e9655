//! Scenarios without everything that the model does not have: locks of other kinds, force-releases, keys of other
//! programs, jumps of clocks, and days without use.

use super::{FaultKind, Scenario};
use crate::kind::Kind;
use crate::scenario::Disk;

impl Scenario {
    /// Draws a scenario with Redis masters that contains only what the model has.
    pub fn draw_modelled(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        scenario.keep_modelled();
        scenario
    }

    /// Draws a scenario in which masters are replaced, and that contains only what the model has. The model has no
    /// restart that loses data during a change.
    pub fn draw_modelled_changes(seed: u64) -> Self {
        let mut scenario = Self::draw_changes(seed);
        scenario.keep_modelled();
        for master in &mut scenario.masters {
            master.disk = Disk::Always;
        }
        scenario
    }

    fn keep_modelled(&mut self) {
        for step in self.clients.iter_mut().flat_map(|client| &mut client.steps) {
            step.kind = Kind::Exclusive;
        }
        let is_modelled = |fault: FaultKind| {
            !matches!(
                fault,
                FaultKind::ForceRelease { .. }
                    | FaultKind::ForeignKey { .. }
                    | FaultKind::ClockJump { .. }
                    | FaultKind::UnusedDays { .. }
            )
        };
        self.faults.retain(|fault| is_modelled(fault.kind));
    }
}
