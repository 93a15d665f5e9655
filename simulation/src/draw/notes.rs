//! Worlds in which holders say who they are, and elections are held and watched.

use super::{Rng, Scenario};
use crate::kind::Kind;

/// In how many of a million worlds that is so.
const WORLDS_PPM: u32 = 60_000;

impl Scenario {
    /// By numbers of their own, so that the other worlds are what they were.
    pub(super) fn add_notes(&mut self, rng: &mut Rng) {
        if rng.chance(WORLDS_PPM) {
            self.note_holders(rng);
        }
    }

    /// Holders say who they are, and elections are held and watched.
    pub(super) fn note_holders(&mut self, rng: &mut Rng) {
        let ttl = self.settings.ttl;
        let clients = &mut self.clients;
        let plain = clients.iter_mut().flat_map(|client| &mut client.steps);
        let plain = plain.filter(|step| step.kind == Kind::Exclusive);
        for (note, step) in (0..).zip(plain) {
            match rng.below(8) {
                0..=2 => step.kind = Kind::Lead(note),
                3 => step.kind = Kind::Noted(note),
                4 | 5 => {
                    step.kind = Kind::Observe;
                    step.hold = rng.below(4 * ttl);
                    continue;
                }
                _ => continue,
            }
            // Notes of locks that are soon given back are not written, and leaders lead for a while.
            if rng.chance(500_000) {
                step.hold = rng.below(2 * ttl);
            }
        }
    }
}
