//! Adds notes of holders, and elections of leaders, to some scenarios.

use super::{Rng, Scenario};
use crate::kind::Kind;

/// The probability that a scenario has notes and elections, in parts per million.
const NOTES_PPM: u32 = 60_000;

impl Scenario {
    /// Adds notes and elections to some scenarios. `rng` is a separate random stream, so these draws do not change the
    /// scenario's other draws.
    pub(super) fn add_notes_and_elections(&mut self, rng: &mut Rng) {
        if rng.chance(NOTES_PPM) {
            self.note_holders(rng);
        }
    }

    /// Turns some steps with a plain exclusive lock into steps that leave a note, lead, or observe an election.
    pub(super) fn note_holders(&mut self, rng: &mut Rng) {
        let ttl = self.settings.ttl;
        let clients = &mut self.clients;
        let steps = clients.iter_mut().flat_map(|client| &mut client.steps);
        let plain_steps = steps.filter(|step| step.kind == Kind::Exclusive);
        for (note, step) in (0..).zip(plain_steps) {
            match rng.below(8) {
                0..=2 => step.kind = Kind::Leader(note),
                3 => step.kind = Kind::WithNote(note),
                4 | 5 => {
                    step.kind = Kind::Observe;
                    step.hold = rng.below(4 * ttl);
                    continue;
                }
                _ => continue,
            }
            // Give half of these steps another hold time, up to twice the TTL. The library writes no note for a short
            // hold.
            if rng.chance(500_000) {
                step.hold = rng.below(2 * ttl);
            }
        }
    }
}
