//! A fault that was injected and whose effect was observed, with the function that heals it.

use std::fmt;

use anyhow::Context;

use crate::world::World;

type Heal = Box<dyn FnOnce(&mut World) -> anyhow::Result<()>>;

/// A fault that was injected and whose effect was observed.
#[must_use = "the fault lasts until `heal` is called"]
pub struct Landed {
    /// The observed effect of the fault.
    pub effect: String,
    heal: Heal,
}

impl Landed {
    /// Combines the description of the observed effect with the function that heals the fault.
    pub fn new(
        effect: impl Into<String>,
        heal: impl FnOnce(&mut World) -> anyhow::Result<()> + 'static,
    ) -> Self {
        Self {
            effect: effect.into(),
            heal: Box::new(heal),
        }
    }

    /// Observes the effect of a fault that was just injected. If the effect cannot be observed, heals the fault
    /// immediately.
    ///
    /// # Errors
    ///
    /// The error of the function `observe`, which observes the effect.
    pub fn once_observed(
        world: &mut World,
        observe: impl FnOnce(&World) -> anyhow::Result<String>,
        heal: impl FnOnce(&mut World) -> anyhow::Result<()> + 'static,
    ) -> anyhow::Result<Self> {
        match observe(world) {
            Ok(effect) => Ok(Self::new(effect, heal)),
            Err(error) => {
                let _ = heal(world);
                Err(error)
            }
        }
    }

    /// An injected fault that ends as soon as it has happened, so that nothing needs to be healed.
    pub fn momentary(effect: impl Into<String>) -> Self {
        Self::new(effect, |_| Ok(()))
    }

    /// Ends the fault and verifies that it has ended.
    ///
    /// # Errors
    ///
    /// If the fault cannot be ended, or its end cannot be verified.
    pub fn heal(self, world: &mut World) -> anyhow::Result<()> {
        (self.heal)(world)
    }

    /// Combines several faults into one. Healing it heals every fault, even if an earlier one cannot be healed. The
    /// result is the first error.
    pub(super) fn combined(faults: Vec<(usize, Self)>) -> Self {
        let effects: Vec<String> = faults
            .iter()
            .map(|(index, fault)| format!("m{}: {}", index + 1, fault.effect))
            .collect();
        Self::new(effects.join("; "), |world| {
            let mut outcome = Ok(());
            for (index, fault) in faults {
                let outcome_of_part = fault.heal(world).with_context(|| format!("m{}", index + 1));
                outcome = outcome.and(outcome_of_part);
            }
            outcome
        })
    }
}

impl fmt::Debug for Landed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landed")
            .field("seen", &self.effect)
            .finish_non_exhaustive()
    }
}
