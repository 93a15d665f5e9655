//! What a run is to be: its masters, clients and faults, and what it promises.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::Persistence;
use serde::{Deserialize, Serialize};

use crate::changes::{Changes, Operator};
use crate::faults::Kind;
use crate::node::NodeKind;
pub use crate::workload::{Locker, Order, Workload};
use crate::world::{Layout, Needs};

/// Everything that a run is decided by. Stored beside the history, so that it can be run again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// What all draws come from.
    pub seed: u64,
    /// How long faults are injected. The calm after it comes on top.
    pub duration: Duration,
    /// How many masters.
    pub masters: usize,
    /// What they are. Empty: all of them Redis.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeKind>,
    /// How masters are changed meanwhile. `masters` are all that there are then, before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// How many client processes.
    pub clients: usize,
    /// The kinds of faults.
    pub faults: Vec<Kind>,
    /// What clients do.
    pub workloads: Vec<Workload>,
    /// Who locks.
    pub locker: Locker,
    /// How waiters are ordered.
    pub order: Order,
    /// Whether restarted masters sit out.
    pub guarded: bool,
    /// How long a grant lasts.
    pub ttl: Duration,
    /// The longest ttl. Above two seconds, or fencing tokens need not rise when all masters forget.
    pub max_ttl: Duration,
    /// How long a client pauses between two attempts, at most.
    pub pause: Duration,
    /// How many locks the workload of many locks holds at once, in each client.
    pub many: usize,
    /// How long it holds each of them, about.
    pub many_hold: Duration,
    /// The longest pause between the beginnings of two faults.
    pub gap: Duration,
    /// The server program; `None`: what the machine offers.
    pub server: Option<PathBuf>,
    /// How long the calm may take until everybody has got on.
    pub patience: Duration,
}

/// What a scenario says about mutual exclusion. Everything else always holds: fenced writes above
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// Never two holders.
    Holds,
    /// Two holders are possible around some of the faults, and only there.
    MayBreak,
    /// Two holders are certain, and a run that did not see them did not look.
    MustBreak,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 1,
            duration: Duration::from_secs(10),
            masters: 5,
            nodes: Vec::new(),
            changes: None,
            clients: 8,
            faults: Kind::mixed(&[NodeKind::Redis]),
            workloads: Workload::LOCK.to_vec(),
            locker: Locker::Quorate,
            order: Order::Fair,
            guarded: true,
            ttl: Duration::from_secs(1),
            max_ttl: Duration::from_millis(2_500),
            pause: Duration::from_millis(120),
            many: 40,
            many_hold: Duration::from_millis(2_500),
            gap: Duration::from_millis(500),
            server: None,
            patience: Duration::from_secs(30),
        }
    }
}

impl Scenario {
    /// What the masters are.
    pub fn nodes(&self) -> Vec<NodeKind> {
        match &self.nodes[..] {
            [] => vec![NodeKind::Redis; self.masters],
            nodes => nodes.to_vec(),
        }
    }

    /// The same scenario over these.
    #[must_use]
    pub fn over(self, nodes: &[NodeKind]) -> Self {
        let is_mixed = nodes.iter().any(|node| *node != NodeKind::Redis);
        Self {
            masters: nodes.len(),
            nodes: if is_mixed { nodes.to_vec() } else { Vec::new() },
            ..self
        }
    }

    /// What a majority is.
    pub fn majority(&self) -> usize {
        self.masters / 2 + 1
    }

    /// What may be expected of mutual exclusion.
    pub fn exclusion(&self) -> Exclusion {
        let nodes = self.nodes();
        let breaks = |kind: &Kind| kind.breaks_exclusion(self.guarded, &nodes);
        // Who is rarely in each other's way may be lucky.
        let seen = self.workloads.iter().any(|one| one.shows_breaks());
        if seen && !self.faults.is_empty() && self.faults.iter().all(|kind| kind.must_break()) {
            Exclusion::MustBreak
        } else if self.faults.iter().any(breaks) {
            Exclusion::MayBreak
        } else {
            Exclusion::Holds
        }
    }

    /// How long after the last fault a lock key on a master may still be a ghost: of a request that
    /// was held up and came when nobody wanted it any more, its release long gone by. Later ones
    /// were not released. `None` where clocks are wrong: then nothing can be said.
    pub fn settling(&self) -> Option<Duration> {
        if self.has(Needs::Clocks) {
            return None;
        }
        if self.faults.is_empty() {
            return Some(Duration::ZERO);
        }
        // Where packets vanish the kernel sends them again, the longer they did the later.
        let held_up = if self.has(Needs::Links) { 2_500 } else { 1_000 };
        Some(self.ttl + Duration::from_millis(held_up))
    }

    /// Whether the parts go together.
    ///
    /// # Errors
    ///
    /// When they do not, with the reason.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.masters > 0, "at least one master");
        ensure!(self.clients > 0, "at least one client");
        ensure!(
            self.nodes.is_empty() || self.nodes.len() == self.masters,
            "{} masters are named, and there are {}",
            self.nodes.len(),
            self.masters
        );
        let foreign = self.nodes.iter().find(|node| **node != NodeKind::Redis);
        if let Some(foreign) = foreign {
            ensure!(
                self.locker.is_the_library(),
                "{} knows only Redis, and one of the masters is {foreign}",
                self.locker.name()
            );
        }
        ensure!(
            !self.guarded || !self.faults.iter().any(|kind| kind.is_unguarded()),
            "amnesia is about masters that nobody guards: give --restart-guard off"
        );
        self.check_changes()?;
        let known = self.locker.workloads();
        ensure!(
            self.workloads.iter().all(|one| known.contains(one)),
            "{} knows only this: --workload {}",
            self.locker.name(),
            Workload::name_of(known)
        );
        let forgets = self.faults.iter().any(|kind| kind.forgets());
        ensure!(
            !(self.has(Needs::Clocks) && forgets),
            "wrong clocks and lost memory together break even the order of fencing tokens: \
             run them apart"
        );
        Ok(())
    }

    fn check_changes(&self) -> anyhow::Result<()> {
        let Some(changes) = &self.changes else {
            return Ok(());
        };
        ensure!(
            changes.servers() == self.masters && self.nodes.is_empty(),
            "masters are changed where all of them are Redis"
        );
        ensure!(
            self.locker == Locker::Quorate && self.guarded,
            "masters are changed under the library, with a restart guard"
        );
        let wrong = changes.operator != Operator::Careful;
        let meet = changes
            .sets
            .windows(2)
            .any(|two| two[0].iter().any(|one| two[1].contains(one)));
        ensure!(
            !wrong || !meet,
            "a wrong operator replaces all masters at once, so that two holders are certain"
        );
        Ok(())
    }

    /// Whether some fault needs this.
    pub fn has(&self, needed: Needs) -> bool {
        self.faults.iter().any(|kind| kind.needs == needed)
    }

    /// What is to be built for it.
    pub fn layout(&self) -> Layout {
        Layout {
            ways: match self.changes {
                None => self.clients,
                // The marks count the names of the masters, so everybody has to call them the same.
                Some(_) => 1,
            },
            masters: (self.nodes().into_iter().enumerate())
                .map(|(index, node)| (node, self.persistence(index)))
                .collect(),
            timeout: self.ttl / 4,
            server: self.server.clone(),
            needs: self.faults.iter().map(|kind| kind.needs).collect(),
            seed: self.seed,
        }
    }

    /// What the master of this index keeps on disk, if it is a Redis, so that every kind of restart finds its like.
    pub fn persistence(&self, index: usize) -> Persistence {
        let mut wanted: Vec<Persistence> = Vec::new();
        for kind in &self.faults {
            if let Some(kept) = kind.persistence()
                && !wanted.contains(&kept)
            {
                wanted.push(kept);
            }
        }
        match wanted.len() {
            0 => Persistence::None,
            kinds => {
                // Those in front of it that keep nothing of the kind are not counted.
                let nodes = self.nodes();
                let before = nodes.iter().take(index);
                wanted[before.filter(|node| **node == NodeKind::Redis).count() % kinds]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_exclusion_is_known_beforehand() {
        let of = |faults: &[Kind], guarded| {
            let scenario = Scenario {
                faults: faults.to_vec(),
                guarded,
                ..Scenario::default()
            };
            scenario.exclusion()
        };
        assert_eq!(of(&Kind::mixed(&[NodeKind::Redis]), true), Exclusion::Holds);
        let kind = |name: &str| name.parse::<Kind>().unwrap();
        assert_eq!(of(&[kind("kill")], false), Exclusion::MayBreak);
        assert_eq!(of(&[kind("amnesia")], false), Exclusion::MustBreak);
        let over = |nodes: &[NodeKind]| {
            let scenario = Scenario {
                faults: vec![kind("restart-majority")],
                guarded: false,
                ..Scenario::default().over(nodes)
            };
            scenario.exclusion()
        };
        let (flushed, not) = (NodeKind::Mysql, NodeKind::MysqlFlush0);
        assert_eq!(
            over(&[flushed, flushed, NodeKind::Ensemble]),
            Exclusion::Holds
        );
        assert_eq!(over(&[flushed, not]), Exclusion::MayBreak);
        let both = [kind("flushall"), kind("stop")];
        assert_eq!(of(&both, true), Exclusion::MayBreak);
        let kinds = Scenario {
            faults: vec![kind("amnesia")],
            guarded: false,
            workloads: Workload::KINDS.to_vec(),
            ..Scenario::default()
        };
        assert_eq!(kinds.exclusion(), Exclusion::MayBreak);
    }

    #[test]
    fn lockers_that_know_only_redis_are_kept_from_other_masters() {
        let mix = [NodeKind::Redis, NodeKind::Mysql, NodeKind::Redis];
        let checked = |locker| {
            let scenario = Scenario {
                locker,
                ..Scenario::default().over(&mix)
            };
            scenario.check().map_err(|error| error.to_string())
        };
        assert_eq!(checked(Locker::Quorate), Ok(()));
        assert_eq!(checked(Locker::IgnoresLoss), Ok(()));
        let why = "half-quorum knows only Redis, and one of the masters is mysql";
        assert_eq!(checked(Locker::HalfQuorum), Err(why.to_owned()));
    }

    #[test]
    fn a_wrong_locker_is_asked_for_nothing_that_it_does_not_know() {
        let checked = |locker, workloads: &[Workload]| {
            let scenario = Scenario {
                locker,
                workloads: workloads.to_vec(),
                ..Scenario::default()
            };
            scenario.check().map_err(|error| error.to_string())
        };
        assert_eq!(checked(Locker::Quorate, &Workload::ALL), Ok(()));
        assert_eq!(checked(Locker::HalfQuorum, &[Workload::File]), Ok(()));
        assert_eq!(checked(Locker::AnyPermit, &[Workload::Permits]), Ok(()));
        let known = "any-permit knows only this: --workload permits";
        let wrong = checked(Locker::AnyPermit, &[Workload::Permits, Workload::File]);
        assert_eq!(wrong, Err(known.to_owned()));
        assert!(checked(Locker::HalfQuorum, &[Workload::Readers]).is_err());
    }
}
