//! Faults as values: what can go wrong, what it is done to, and how it is seen to have landed.
//!
//! An [`Injection`] is done to a [`World`] and gives a [`Landed`], which knows how to heal. Both
//! directions are verified: a kill that killed nothing is an error, not a quiet success.

mod clients;
mod clocks;
mod kind;
mod links;
mod network;
mod processes;
mod servers;

use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

pub use kind::{Family, Kind, Reach};

use crate::world::World;

/// One fault, what it is done to, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// What goes wrong.
    pub kind: Kind,
    /// On which masters, by index.
    pub masters: Vec<usize>,
    /// For which clients, by index. Faults of the network are between these clients and those masters.
    pub clients: Vec<usize>,
    /// How long it lasts.
    pub lasts: Duration,
    /// Draws the details: how late, how far, after how many bytes.
    pub draw: u64,
}

type Heal = Box<dyn FnOnce(&mut World) -> anyhow::Result<()>>;

/// A fault that was seen to have landed.
#[must_use = "it stays until it is healed"]
pub struct Landed {
    /// How that was seen.
    pub seen: String,
    heal: Heal,
}

impl Landed {
    /// A fault that was seen, and the way back.
    pub fn new(
        seen: impl Into<String>,
        heal: impl FnOnce(&mut World) -> anyhow::Result<()> + 'static,
    ) -> Self {
        Self {
            seen: seen.into(),
            heal: Box::new(heal),
        }
    }

    /// A fault that is over as soon as it has happened.
    pub fn momentary(seen: impl Into<String>) -> Self {
        Self::new(seen, |_| Ok(()))
    }

    /// Ends it and makes sure that it has ended.
    ///
    /// # Errors
    ///
    /// When it cannot be ended.
    pub fn heal(self, world: &mut World) -> anyhow::Result<()> {
        (self.heal)(world)
    }
}

impl std::fmt::Debug for Landed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landed")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Injection {
    /// Makes it happen and looks whether it has.
    ///
    /// # Errors
    ///
    /// When it could not be made to happen, or was not seen to have happened.
    pub fn inject(&self, world: &mut World) -> anyhow::Result<Landed> {
        let landed = match self.kind.family() {
            Family::Process => processes::inject(self, world),
            Family::Network => network::inject(self, world),
            Family::Link => links::inject(self, world),
            Family::Clock => clocks::inject(self, world),
            Family::Server => servers::inject(self, world),
            Family::Client => clients::inject(self, world),
        };
        landed.with_context(|| format!("{} on {}", self.kind, self.targets().join(", ")))
    }

    /// The names of what it is about, as they stand in the history.
    pub fn targets(&self) -> Vec<String> {
        let masters = self.masters.iter().map(|index| format!("m{}", index + 1));
        let clients = self.clients.iter().map(|index| format!("c{}", index + 1));
        masters.chain(clients).collect()
    }

    /// A number from `from` up to below `to`, the same for the same fault.
    fn pick(&self, from: u64, to: u64) -> u64 {
        from + self.draw % (to - from)
    }
}

/// Heals in turn, and reports the first failure after all have been tried.
fn all(heals: Vec<Heal>) -> impl FnOnce(&mut World) -> anyhow::Result<()> {
    move |world| {
        let mut outcome = Ok(());
        for heal in heals {
            let one = heal(world);
            outcome = outcome.and(one);
        }
        outcome
    }
}
