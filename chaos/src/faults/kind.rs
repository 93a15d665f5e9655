//! What a fault is: a row that says its name, what it means for the promises of a run, what it needs, and how it
//! is done. The rows stand beside the code that does them, one table a file.
//!
//! An [`Injection`] of a [`Kind`] is done to a [`World`] and gives a [`Landed`], which knows how to heal. Both
//! directions are verified: a kill that killed nothing is an error, not a quiet success.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use anyhow::Context;
use quorate_testbed::Persistence;
use serde::{Serialize, Serializer};

use crate::node::{NodeKind, Which};
use crate::world::{Needs, Tools, World};

/// What can go wrong: the name of a row.
#[derive(Clone, Copy)]
pub struct Kind(pub(super) &'static Row);

/// One kind of fault.
pub struct Row {
    name: &'static str,
    /// What happens, in a line.
    pub what: &'static str,
    /// How many it is done to.
    pub reach: Reach,
    /// Which masters it can be done to.
    pub on: Which,
    /// What has to be there before it can happen.
    pub needs: Needs,
    /// In a run of fewer masters it means nothing.
    pub fewest_masters: usize,
    /// How long it lasts.
    pub lasts: Lasts,
    /// Whether the masters have started anew when it is over.
    pub restarts: bool,
    breaks: Breaks,
    disk: Disk,
    deed: Deed,
}

/// How many it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One master.
    One,
    /// As many masters as leave a majority.
    Minority,
    /// As few masters as are a majority.
    Majority,
    /// One client.
    Client,
}

/// How long it lasts, as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// Around the ttl.
    Usual,
    /// It is over in the moment in which it happens.
    Moment,
    /// As long as somebody needs to see that a master is gone.
    Short,
    /// As long as a few attempts take.
    Attempts,
    /// For longer than the ttl.
    BeyondTtl,
}

/// Where Redlock cannot promise mutual exclusion around a fault: masters that forget without a restart that could
/// be seen, or whose clocks are wrong by more than the drift that is allowed for. One such master is enough: it may
/// be the one that two majorities have in common. Replies that lie in a way that fits would be another; no fault
/// here tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaks {
    Never,
    /// Two holders are possible, and only where nothing guards against forgetful restarts.
    Unguarded,
    /// They are possible: a master forgets, and nobody can see that.
    Forgets,
    /// They are possible: a clock is wrong.
    Mistimes,
    /// Two holders are certain: a run that did not see them did not look.
    Must,
    /// The same, and only without a guard; there is another fault for guarded masters.
    MustUnguarded,
}

/// What the master must have on disk for it to make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Any,
    Keeps(Persistence),
    /// It needs the place of what such masters keep.
    Not(Persistence),
}

/// What is done to one master of those that it is about.
pub(super) type ToEach = fn(&Injection, usize, &mut World) -> anyhow::Result<Landed>;
/// What is done to all that it is about at once.
pub(super) type ToAll = fn(&Injection, &mut World) -> anyhow::Result<Landed>;

/// How it is done.
#[derive(Clone, Copy)]
enum Deed {
    Each(ToEach),
    All(ToAll),
}

impl Row {
    /// A fault that is done to one master after the other.
    pub(super) const fn each(name: &'static str, what: &'static str, deed: ToEach) -> Self {
        Self::new(name, what, Deed::Each(deed))
    }

    /// A fault that is done to all its targets at once.
    pub(super) const fn all(name: &'static str, what: &'static str, deed: ToAll) -> Self {
        Self::new(name, what, Deed::All(deed))
    }

    const fn new(name: &'static str, what: &'static str, deed: Deed) -> Self {
        Self {
            name,
            what,
            reach: Reach::One,
            on: Which::Redis,
            needs: Needs::Nothing,
            fewest_masters: 1,
            lasts: Lasts::Usual,
            restarts: false,
            breaks: Breaks::Never,
            disk: Disk::Any,
            deed,
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

    pub(super) const fn on(self, on: Which) -> Self {
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

    pub(super) const fn breaks(self, breaks: Breaks) -> Self {
        Self { breaks, ..self }
    }

    pub(super) const fn disk(self, disk: Disk) -> Self {
        Self { disk, ..self }
    }
}

impl Kind {
    /// Its name on the command line and in the history.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether Redlock cannot promise mutual exclusion around it.
    pub fn breaks_exclusion(self, guarded: bool, nodes: &[NodeKind]) -> bool {
        match self.breaks {
            Breaks::Never => false,
            // Who comes back with all that it has answered needs no guard.
            Breaks::Unguarded => !guarded && nodes.iter().any(|node| Which::Forgetful.has(*node)),
            _ => true,
        }
    }

    /// Whether a master may know less when it is over than before.
    pub fn forgets(self) -> bool {
        self.restarts || self.breaks == Breaks::Forgets
    }

    /// Whether it takes the lock from a holder for certain, so that a run that saw no broken
    /// exclusion was not looking.
    pub fn must_break(self) -> bool {
        matches!(self.breaks, Breaks::Must | Breaks::MustUnguarded)
    }

    /// Whether it is about masters that nobody guards.
    pub fn is_unguarded(self) -> bool {
        self.breaks == Breaks::MustUnguarded
    }

    /// What the master must keep on disk for it to make sense; `None`: whatever it is.
    pub fn persistence(self) -> Option<Persistence> {
        match self.disk {
            Disk::Keeps(kept) => Some(kept),
            Disk::Any | Disk::Not(_) => None,
        }
    }

    /// Whether it can happen to a master of this kind with this on its disk, where that is a Redis.
    pub fn suits(self, node: NodeKind, kept: Persistence) -> bool {
        let disk = match self.disk {
            Disk::Any => true,
            Disk::Keeps(needed) => kept == needed,
            Disk::Not(spoilt) => kept != spoilt,
        };
        self.on.has(node) && (disk || node != NodeKind::Redis)
    }

    /// Whether a run of these masters can have it at all.
    pub fn fits(self, nodes: &[NodeKind]) -> bool {
        self.unfit(nodes).is_none()
    }

    /// Why a run of these masters cannot have it, if it cannot.
    fn unfit(self, nodes: &[NodeKind]) -> Option<String> {
        if nodes.len() < self.fewest_masters {
            return Some(format!("needs at least {} masters", self.fewest_masters));
        }
        let majority = nodes.len() / 2 + 1;
        let (needed, all) = match self.reach {
            Reach::Client => return None,
            Reach::One => (1, "it can be done to none of these masters"),
            Reach::Minority => (nodes.len() - majority, "it can be done to too few of them"),
            Reach::Majority => (majority, "it can be done to no majority of them"),
        };
        let found = nodes.iter().filter(|node| self.on.has(**node)).count();
        if found < needed {
            return Some(all.to_owned());
        }
        let alone = matches!(self.needs, Needs::Clocks | Needs::Links | Needs::Names);
        let is_mixed = nodes.iter().any(|node| *node != NodeKind::Redis);
        (alone && is_mixed).then(|| "is done where all masters are Redis".to_owned())
    }

    /// Why it cannot be had here, if it cannot.
    pub fn unavailable(self, nodes: &[NodeKind], tools: &Tools) -> Option<String> {
        self.unfit(nodes).or_else(|| tools.lack(self.needs))
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

/// One fault, what it is done to, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What goes wrong.
    pub kind: Kind,
    /// On which masters, by index. None: between the clients and all masters.
    pub masters: Vec<usize>,
    /// For which clients, by index. None: for all that have to do with the masters.
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

    /// A fault that has been done and is to be looked for. What cannot be seen is healed at once.
    ///
    /// # Errors
    ///
    /// What `look` says.
    pub fn once_seen(
        world: &mut World,
        look: impl FnOnce(&World) -> anyhow::Result<String>,
        heal: impl FnOnce(&mut World) -> anyhow::Result<()> + 'static,
    ) -> anyhow::Result<Self> {
        match look(world) {
            Ok(seen) => Ok(Self::new(seen, heal)),
            Err(error) => {
                let _ = heal(world);
                Err(error)
            }
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

    /// Several as one. All are healed, and the first failure is reported after that.
    fn all(parts: Vec<(usize, Self)>) -> Self {
        let seen: Vec<String> = parts
            .iter()
            .map(|(index, part)| format!("m{}: {}", index + 1, part.seen))
            .collect();
        Self::new(seen.join("; "), |world| {
            let mut outcome = Ok(());
            for (index, part) in parts {
                let one = part.heal(world).with_context(|| format!("m{}", index + 1));
                outcome = outcome.and(one);
            }
            outcome
        })
    }
}

impl fmt::Debug for Landed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let landed = match self.kind.deed {
            Deed::All(deed) => deed(self, world),
            Deed::Each(deed) => self.inject_each(deed, world),
        };
        landed.with_context(|| format!("{} on {}", self.kind, self.targets().join(", ")))
    }

    /// Where one master is spared, the others are healed at once: half a fault is none.
    fn inject_each(&self, deed: ToEach, world: &mut World) -> anyhow::Result<Landed> {
        let mut parts = Vec::new();
        for &index in &self.masters {
            match deed(self, index, world) {
                Ok(landed) => parts.push((index, landed)),
                Err(error) => {
                    let _ = Landed::all(parts).heal(world);
                    return Err(error.context(format!("m{}", index + 1)));
                }
            }
        }
        Ok(Landed::all(parts))
    }

    /// The names of what it is about, as they stand in the history.
    pub fn targets(&self) -> Vec<String> {
        let masters = self.masters.iter().map(|index| format!("m{}", index + 1));
        let clients = self.clients.iter().map(|index| format!("c{}", index + 1));
        masters.chain(clients).collect()
    }

    /// The clients that it is about.
    pub(super) fn clients_in(&self, world: &World) -> Vec<usize> {
        or_all(&self.clients, world.roads.len())
    }

    /// The clients and masters that it is between.
    pub(super) fn pairs(&self, world: &World) -> Vec<(usize, usize)> {
        let masters = or_all(&self.masters, world.masters.len());
        let of = |client: usize| masters.iter().map(move |&master| (client, master));
        self.clients_in(world).into_iter().flat_map(of).collect()
    }

    /// Whether the other one is about one of our targets.
    pub fn meets(&self, other: &Self) -> bool {
        let meet = |ours: &[usize], theirs: &[usize]| theirs.iter().any(|one| ours.contains(one));
        meet(&self.masters, &other.masters) || meet(&self.clients, &other.clients)
    }

    /// A number from `from` up to below `to`, the same for the same fault.
    pub(super) fn pick(&self, from: u64, to: u64) -> u64 {
        from + self.draw % (to - from)
    }

    /// So many milliseconds.
    pub(super) fn ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.pick(from, to))
    }

    /// One of these.
    pub(super) fn one_of<'a, T>(&self, all: &'a [T]) -> &'a T {
        &all[self.pick(0, all.len() as u64) as usize]
    }
}

fn or_all(some: &[usize], all: usize) -> Vec<usize> {
    match some {
        [] => (0..all).collect(),
        some => some.to_vec(),
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

    /// Done to all masters but the third; cannot be seen on the second.
    static PICKY: Row = Row::each("picky", "for the test", |_, index, world| {
        if index == 2 {
            bail!("not to that one");
        }
        let look = |_: &World| match index {
            1 => bail!("nothing to be seen"),
            _ => Ok("there".to_owned()),
        };
        Landed::once_seen(world, look, move |_| {
            HEALED.lock().unwrap().push(index);
            Ok(())
        })
    });

    #[test]
    fn half_a_fault_is_healed_at_once_and_so_is_one_that_nobody_sees() {
        let layout = Layout {
            ways: 0,
            masters: Vec::new(),
            timeout: Duration::from_millis(250),
            server: None,
            needs: Vec::new(),
            seed: 1,
        };
        let recorder = Recorder::new(Clock::start());
        let nobody = Fleet::new(&recorder, &std::env::temp_dir()).unwrap();
        let mut world = World::build(&layout, Tools::default(), nobody).unwrap();
        let injection = |masters: &[usize]| Injection {
            kind: Kind(&PICKY),
            masters: masters.to_vec(),
            clients: Vec::new(),
            lasts: Duration::ZERO,
            draw: 0,
        };
        let mut healed_by = |masters: &[usize]| {
            HEALED.lock().unwrap().clear();
            let landed = injection(masters).inject(&mut world);
            let before = HEALED.lock().unwrap().clone();
            (landed.map(|landed| landed.seen).ok(), before)
        };
        let both = "m1: there; m4: there".to_owned();
        assert_eq!(healed_by(&[0, 3]), (Some(both), vec![]));
        assert_eq!(healed_by(&[0, 2]), (None, vec![0]));
        assert_eq!(healed_by(&[0, 3, 1]), (None, vec![1, 0, 3]));
    }
}
