//! The definition of a kind of fault. Each other file of this folder has a table of such definitions, next to the
//! functions that inject the faults.
//!
//! An [`Injection`] of a [`Kind`] acts on a [`World`] and returns a [`Landed`], which can heal the fault. Injecting and
//! healing are both verified. For example, a kill that kills no process is an error.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use anyhow::Context;
use quorate_testbed::Persistence;
use serde::{Serialize, Serializer};

use super::landed::Landed;
use crate::node::redis::REDIS;
use crate::node::{MasterGroup, NodeKind};
use crate::world::{Needs, Tools, World};

/// A kind of fault: a reference to its definition.
#[derive(Clone, Copy)]
pub struct Kind(pub(super) &'static Row);

/// One kind of fault: a row of the table of faults.
pub struct Row {
    name: &'static str,
    /// A description of the fault in one line.
    pub description: &'static str,
    /// The share of the masters or clients that the fault affects, e.g. one master or a minority.
    pub reach: Reach,
    /// The kinds of masters that the fault can be injected into.
    pub on: MasterGroup,
    /// The tools that the run must set up before it can inject this kind of fault, e.g. proxies.
    pub needs: Needs,
    /// The minimum number of masters. In a run with fewer masters the fault is not available.
    pub fewest_masters: usize,
    /// How long the fault lasts.
    pub lasts: Lasts,
    /// Whether the affected masters have restarted by the time when the fault ends.
    pub restarts: bool,
    breaks: ExclusionBreach,
    disk: RequiredPersistence,
    inject_function: InjectFunction,
}

/// The number of targets of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One master.
    One,
    /// The largest minority of the masters.
    Minority,
    /// The smallest majority of masters.
    Majority,
    /// One client.
    Client,
}

/// The rule by which the duration of a fault is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// 0.25 to 1.5 TTLs.
    Usual,
    /// The fault has no duration: it ends as soon as it has happened.
    Moment,
    /// 50 to 700 ms: long enough for clients to notice that a master does not answer.
    Short,
    /// 400 to 1,200 ms: long enough for a client to try a few times to get a lock.
    Attempts,
    /// Longer than the TTL: 1.2 to 2 TTLs.
    BeyondTtl,
    /// Longer than the restart guard excludes a master: 0.4 to 1.2 TTLs longer.
    BeyondGuard,
}

/// Whether a fault can break mutual exclusion.
///
/// Redlock does not guarantee mutual exclusion in two cases: a master loses data and clients cannot see that it has
/// restarted; or a master's clock is wrong by more than the allowed drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExclusionBreach {
    Never,
    /// Two holders at the same time are possible if the restart guard is off, and impossible if it is on.
    Unguarded,
    /// As `Unguarded`, for masters of every kind: the fault itself takes data from the master.
    UnguardedOnAll,
    /// Two holders at the same time are possible, because a master loses data without a visible restart.
    Forgets,
    /// Two holders at the same time are possible, because a master's clock is wrong.
    Mistimes,
    /// Two holders at the same time are certain if clients often compete for the same lock.
    Must,
    /// Two holders at the same time are certain if the restart guard is off. In runs with this fault, the guard is off
    /// by default.
    MustUnguarded,
}

/// The persistence that a master needs for this fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredPersistence {
    Any,
    Keeps(Persistence),
    /// Any persistence except this one.
    Not(Persistence),
}

/// A function that injects a fault into one master, given by its index.
pub(super) type InjectIntoMaster = fn(&Injection, usize, &mut World) -> anyhow::Result<Landed>;
/// A function that injects a fault into all of its targets in one call.
pub(super) type InjectIntoAll = fn(&Injection, &mut World) -> anyhow::Result<Landed>;

/// The function that injects a fault: called once for each master, or once for all targets.
#[derive(Clone, Copy)]
enum InjectFunction {
    Each(InjectIntoMaster),
    All(InjectIntoAll),
}

impl Row {
    /// The row of a fault whose function is called once for each affected master.
    pub(super) const fn each(
        name: &'static str,
        description: &'static str,
        inject_function: InjectIntoMaster,
    ) -> Self {
        Self::new(name, description, InjectFunction::Each(inject_function))
    }

    /// The row of a fault whose function is called once for all its targets.
    pub(super) const fn all(
        name: &'static str,
        description: &'static str,
        inject_function: InjectIntoAll,
    ) -> Self {
        Self::new(name, description, InjectFunction::All(inject_function))
    }

    const fn new(
        name: &'static str,
        description: &'static str,
        inject_function: InjectFunction,
    ) -> Self {
        Self {
            name,
            description,
            reach: Reach::One,
            on: MasterGroup::Of(REDIS),
            needs: Needs::Nothing,
            fewest_masters: 1,
            lasts: Lasts::Usual,
            restarts: false,
            breaks: ExclusionBreach::Never,
            disk: RequiredPersistence::Any,
            inject_function,
        }
    }

    pub(super) const fn reach(self, reach: Reach) -> Self {
        let fewest_masters = match reach {
            Reach::Minority => 3,
            _ => self.fewest_masters,
        };
        Self {
            reach,
            fewest_masters,
            ..self
        }
    }

    pub(super) const fn on(self, on: MasterGroup) -> Self {
        Self { on, ..self }
    }

    pub(super) const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    pub(super) const fn fewest_masters(self, fewest_masters: usize) -> Self {
        Self {
            fewest_masters,
            ..self
        }
    }

    pub(super) const fn lasts(self, lasts: Lasts) -> Self {
        Self { lasts, ..self }
    }

    pub(super) const fn restarts(self) -> Self {
        Self {
            restarts: true,
            lasts: Lasts::Short,
            ..self
        }
    }

    pub(super) const fn breaks(self, breaks: ExclusionBreach) -> Self {
        Self { breaks, ..self }
    }

    pub(super) const fn disk(self, disk: RequiredPersistence) -> Self {
        Self { disk, ..self }
    }
}

impl Kind {
    /// The name of the fault on the command line and in the history.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether two holders at the same time are possible in a run with this fault and these kinds of masters. `guarded`
    /// states whether the restart guard is on.
    pub fn breaks_exclusion(self, guarded: bool, nodes: &[NodeKind]) -> bool {
        match self.breaks {
            ExclusionBreach::Never => false,
            // A restart breaks exclusion only if the killed master loses data and clients then count its votes at once.
            ExclusionBreach::Unguarded => {
                !guarded
                    && nodes
                        .iter()
                        .any(|node| MasterGroup::Forgetful.includes(*node))
            }
            ExclusionBreach::UnguardedOnAll => !guarded,
            _ => true,
        }
    }

    /// Whether a master may have lost data by the time when this fault ends.
    pub fn forgets(self) -> bool {
        self.restarts || self.breaks == ExclusionBreach::Forgets
    }

    /// Whether the fault is meant to cause two holders at the same time.
    pub fn must_break(self) -> bool {
        matches!(
            self.breaks,
            ExclusionBreach::Must | ExclusionBreach::MustUnguarded
        )
    }

    /// Whether the fault is meant for runs without the restart guard.
    pub fn is_unguarded(self) -> bool {
        self.breaks == ExclusionBreach::MustUnguarded
    }

    /// The persistence that the fault needs on a Redis master; `None` if any persistence is suitable.
    pub fn persistence(self) -> Option<Persistence> {
        match self.disk {
            RequiredPersistence::Keeps(persistence) => Some(persistence),
            RequiredPersistence::Any | RequiredPersistence::Not(_) => None,
        }
    }

    /// Whether the fault can be injected into a master of this kind. For a Redis master, `persistence` is the
    /// persistence with which it was started; for other masters, it has no meaning.
    pub fn suits(self, node: NodeKind, persistence: Persistence) -> bool {
        let is_persistence_suitable = match self.disk {
            RequiredPersistence::Any => true,
            RequiredPersistence::Keeps(required) => persistence == required,
            RequiredPersistence::Not(excluded) => persistence != excluded,
        };
        self.on.includes(node) && (is_persistence_suitable || !node.is_redis())
    }

    /// Whether the fault can be injected in a run with masters of these kinds.
    pub fn fits(self, nodes: &[NodeKind]) -> bool {
        self.unfit_reason(nodes).is_none()
    }

    /// The reason why the fault cannot be injected in a run with masters of these kinds, or `None` if it can.
    fn unfit_reason(self, nodes: &[NodeKind]) -> Option<String> {
        if nodes.len() < self.fewest_masters {
            return Some(format!("needs at least {} masters", self.fewest_masters));
        }
        let majority = nodes.len() / 2 + 1;
        let (needed, too_few) = match self.reach {
            Reach::Client => return None,
            Reach::One => (1, "the fault applies to none of these masters"),
            Reach::Minority => (
                nodes.len() - majority,
                "the fault applies to too few of these masters",
            ),
            Reach::Majority => (
                majority,
                "the fault does not apply to a majority of these masters",
            ),
        };
        let applicable = nodes.iter().filter(|node| self.on.includes(**node)).count();
        if applicable < needed {
            return Some(too_few.to_owned());
        }
        let needs_only_redis = matches!(self.needs, Needs::Clocks | Needs::Links | Needs::Names);
        let is_mixed = nodes.iter().any(|node| !node.is_redis());
        (needs_only_redis && is_mixed)
            .then(|| "the fault needs a run with only Redis masters".to_owned())
    }

    /// The reason why the fault is not available on this machine, or `None` if it is.
    pub fn unavailable(self, nodes: &[NodeKind], tools: &Tools) -> Option<String> {
        self.unfit_reason(nodes)
            .or_else(|| tools.missing_reason(self.needs))
    }
}

impl Deref for Kind {
    type Target = Row;

    fn deref(&self) -> &Row {
        self.0
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Kind {}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One fault to be injected: its kind, its targets, and its duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The kind of fault.
    pub kind: Kind,
    /// The indices of the affected masters. Empty if the fault affects no single masters: it is inside clients, or it
    /// disturbs the connections between clients and all masters.
    pub masters: Vec<usize>,
    /// The indices of the affected clients. An empty list means all clients.
    pub clients: Vec<usize>,
    /// How long the fault lasts.
    pub lasts: Duration,
    /// The seed for the details of this fault, e.g. how long it delays each message.
    pub detail_seed: u64,
}

impl Injection {
    /// Injects the fault and verifies its effect.
    ///
    /// # Errors
    ///
    /// If the fault could not be injected, or if its effect was not observed.
    pub fn inject(&self, world: &mut World) -> anyhow::Result<Landed> {
        let landed = match self.kind.inject_function {
            InjectFunction::All(inject_function) => inject_function(self, world),
            InjectFunction::Each(inject_function) => self.inject_each(inject_function, world),
        };
        landed.with_context(|| format!("{} on {}", self.kind, self.targets().join(", ")))
    }

    /// Injects the fault into its masters, one after the other. If the injection fails for one master, heals the fault
    /// on the previous masters and returns the error.
    fn inject_each(
        &self,
        inject_function: InjectIntoMaster,
        world: &mut World,
    ) -> anyhow::Result<Landed> {
        let mut parts = Vec::new();
        for &index in &self.masters {
            match inject_function(self, index, world) {
                Ok(landed) => parts.push((index, landed)),
                Err(error) => {
                    let _ = Landed::combined(parts).heal(world);
                    return Err(error.context(format!("m{}", index + 1)));
                }
            }
        }
        Ok(Landed::combined(parts))
    }

    /// The names of the affected masters and clients, e.g. `m1` and `c2`.
    pub fn targets(&self) -> Vec<String> {
        let masters = self.masters.iter().map(|index| format!("m{}", index + 1));
        let clients = self.clients.iter().map(|index| format!("c{}", index + 1));
        masters.chain(clients).collect()
    }

    /// The clients that the fault affects, as indices into [`World::paths`].
    pub(super) fn clients_in(&self, world: &World) -> Vec<usize> {
        all_if_empty(&self.clients, world.paths.len())
    }

    /// The pairs of client and master that the fault affects, by index.
    pub(super) fn pairs(&self, world: &World) -> Vec<(usize, usize)> {
        let masters = all_if_empty(&self.masters, world.masters.len());
        let pairs_of = |client: usize| masters.iter().map(move |&master| (client, master));
        self.clients_in(world)
            .into_iter()
            .flat_map(pairs_of)
            .collect()
    }

    /// Whether this fault and `other` have a target in common.
    pub fn shares_target(&self, other: &Self) -> bool {
        let overlap =
            |first: &[usize], second: &[usize]| second.iter().any(|index| first.contains(index));
        overlap(&self.masters, &other.masters) || overlap(&self.clients, &other.clients)
    }

    /// Draws a number from `from` up to but not including `to`. Repeated calls for one fault return the same number.
    pub(super) fn pick(&self, from: u64, to: u64) -> u64 {
        from + self.detail_seed % (to - from)
    }

    /// Draws a duration from `from` up to but not including `to` milliseconds. Repeated calls for one fault return the
    /// same duration.
    pub(super) fn drawn_time(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.pick(from, to))
    }

    /// Draws an element of `elements`. Repeated calls for one fault return the same element.
    pub(super) fn drawn_element<'a, T>(&self, elements: &'a [T]) -> &'a T {
        &elements[self.pick(0, elements.len() as u64) as usize]
    }
}

fn all_if_empty(indices: &[usize], count: usize) -> Vec<usize> {
    match indices {
        [] => (0..count).collect(),
        indices => indices.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use anyhow::bail;

    use super::*;
    use crate::event::Clock;
    use crate::fleet::Fleet;
    use crate::recorder::Recorder;
    use crate::world::Layout;

    static HEALED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

    /// A fault for the test below. It cannot be injected into m3, and has no visible effect on m2.
    static PICKY: Row = Row::each("picky", "for the test", |_, index, world| {
        if index == 2 {
            bail!("this fault cannot be injected into m3");
        }
        let observe = |_: &World| match index {
            1 => bail!("the fault has no effect on m2"),
            _ => Ok("there".to_owned()),
        };
        Landed::once_observed(world, observe, move |_| {
            HEALED.lock().unwrap().push(index);
            Ok(())
        })
    });

    #[test]
    fn failed_injection_of_a_fault_is_undone_on_all_affected_masters() {
        let layout = Layout {
            path_count: 0,
            masters: Vec::new(),
            timeout: Duration::from_millis(250),
            server: None,
            needs: Vec::new(),
            seed: 1,
        };
        let recorder = Recorder::new(Clock::start());
        let no_clients = Fleet::new(&recorder, &std::env::temp_dir()).unwrap();
        let mut world = World::build(&layout, Tools::default(), no_clients).unwrap();
        let injection = |masters: &[usize]| Injection {
            kind: Kind(&PICKY),
            masters: masters.to_vec(),
            clients: Vec::new(),
            lasts: Duration::ZERO,
            detail_seed: 0,
        };
        let mut inject_and_healed = |masters: &[usize]| {
            HEALED.lock().unwrap().clear();
            let landed = injection(masters).inject(&mut world);
            let healed = HEALED.lock().unwrap().clone();
            (landed.map(|landed| landed.effect).ok(), healed)
        };
        let both_effects = "m1: there; m4: there".to_owned();
        assert_eq!(inject_and_healed(&[0, 3]), (Some(both_effects), vec![]));
        assert_eq!(inject_and_healed(&[0, 2]), (None, vec![0]));
        assert_eq!(inject_and_healed(&[0, 3, 1]), (None, vec![1, 0, 3]));
    }
}
