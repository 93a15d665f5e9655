//! The description of a run: its masters, clients and faults, and the promises that the lock must keep.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::Persistence;
use serde::{Deserialize, Serialize};

use crate::changes::{MasterChanges, Operator};
use crate::faults::Kind;
use crate::node::NodeKind;
pub use crate::workload::{Order, Workload};
use crate::world::{Layout, Needs};

/// Everything that determines a run. It is stored with the history, so that the run can be repeated and checked again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// The seed of all random draws.
    pub seed: u64,
    /// The time during which faults are injected. It does not include the fault-free period at the end.
    pub duration: Duration,
    /// The number of masters.
    pub masters: usize,
    /// The kinds of the masters. If empty, all are Redis.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeKind>,
    /// The changes of masters; `None` if the masters stay the same. With changes, `masters` counts both old and new
    /// masters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<MasterChanges>,
    /// The number of client processes.
    pub clients: usize,
    /// The kinds of faults to inject.
    pub faults: Vec<Kind>,
    /// The workloads of every client.
    pub workloads: Vec<Workload>,
    /// The number of the seeded bug that is switched on in the clients, but not in the process that checks them; see
    /// `mutants/seeded.toml`. `None` if the clients run the code as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeded_bug: Option<usize>,
    /// The order in which waiting clients get the lock.
    pub order: Order,
    /// Whether clients ignore the votes of a restarted master until the locks that it may have lost have expired.
    pub guarded: bool,
    /// The TTL of a lock.
    pub ttl: Duration,
    /// The longest TTL that a client may use. It must exceed two seconds (see "Rising tokens" in
    /// docs/promises.md).
    pub max_ttl: Duration,
    /// The longest pause of a client between two attempts.
    pub pause: Duration,
    /// The number of locks that each client holds at the same time in the workload `many`.
    pub many: usize,
    /// The approximate time for which a client holds each lock in the workload `many`.
    pub many_hold: Duration,
    /// The longest pause between the starts of two faults.
    pub gap: Duration,
    /// The server program of the Redis masters. `None` selects the program that `quorate_testbed::available` finds.
    pub server: Option<PathBuf>,
    /// The maximum length of the fault-free period at the end of the run. The period ends earlier if every client has
    /// obtained locks again and the time [`settling_time`](Self::settling_time) has passed since the period began.
    pub patience: Duration,
}

/// The promise of a scenario about mutual exclusion. The other promises, e.g. about fencing, are the same in every
/// scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// There are never two holders at the same time.
    Holds,
    /// Two holders at the same time are allowed, but only during faults that can break exclusion.
    MayBreak,
    /// The faults must lead to two holders at the same time. If the checker finds no such holders, the verdict is
    /// "unknown".
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
            faults: Kind::mixed(&[NodeKind::REDIS]),
            workloads: Workload::LOCK.to_vec(),
            seeded_bug: None,
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
    /// The kind of each master: Redis for all masters if the field `nodes` is empty.
    pub fn nodes(&self) -> Vec<NodeKind> {
        match &self.nodes[..] {
            [] => vec![NodeKind::REDIS; self.masters],
            nodes => nodes.to_vec(),
        }
    }

    /// The same scenario with masters of these kinds.
    #[must_use]
    pub fn with_nodes(self, nodes: &[NodeKind]) -> Self {
        let is_mixed = nodes.iter().any(|node| !node.is_redis());
        Self {
            masters: nodes.len(),
            nodes: if is_mixed { nodes.to_vec() } else { Vec::new() },
            ..self
        }
    }

    /// The code that the clients run: `quorate`, or the number of the seeded bug that is switched on in them.
    pub fn code_name(&self) -> String {
        match self.seeded_bug {
            None => "quorate".to_owned(),
            Some(number) => format!("seeded bug {number}"),
        }
    }

    /// The number of masters in a majority.
    pub fn majority(&self) -> usize {
        self.masters / 2 + 1
    }

    /// The promise of this scenario about mutual exclusion.
    pub fn exclusion(&self) -> Exclusion {
        let nodes = self.nodes();
        let may_break = |kind: &Kind| kind.breaks_exclusion(self.guarded, &nodes);
        // Two simultaneous holders are expected only if clients often compete for the same lock.
        let shows_breaks = self
            .workloads
            .iter()
            .any(|workload| workload.shows_breaks());
        if shows_breaks
            && !self.faults.is_empty()
            && self.faults.iter().all(|kind| kind.must_break())
        {
            Exclusion::MustBreak
        } else if self.faults.iter().any(may_break) {
            Exclusion::MayBreak
        } else {
            Exclusion::Holds
        }
    }

    /// The key of a released lock may exist for this time after a fault, because a delayed request may create it again.
    /// `None` if a fault changes clocks: the time is then unknown.
    pub fn settling_time(&self) -> Option<Duration> {
        if self.needs_feature(Needs::Clocks) {
            return None;
        }
        if self.faults.is_empty() {
            return Some(Duration::ZERO);
        }
        // The maximum delay of a request, in milliseconds. It is longer after a link fault, because of retransmissions.
        let max_delay_ms = if self.needs_feature(Needs::Links) {
            2_500
        } else {
            1_000
        };
        Some(self.ttl + Duration::from_millis(max_delay_ms))
    }

    /// Checks whether the settings of the scenario can be combined.
    ///
    /// # Errors
    ///
    /// If the settings cannot be combined: the reason.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.masters > 0, "--masters is 0: give at least one master");
        ensure!(self.clients > 0, "--clients is 0: give at least one client");
        ensure!(
            self.nodes.is_empty() || self.nodes.len() == self.masters,
            "the scenario lists the kinds of {} masters, but has {} masters: list one kind for each master",
            self.nodes.len(),
            self.masters
        );
        ensure!(
            !self.guarded || !self.faults.iter().any(|kind| kind.is_unguarded()),
            "the fault amnesia needs masters without the restart guard: give --restart-guard off"
        );
        self.check_changes()?;
        let forgets = self.faults.iter().any(|kind| kind.forgets());
        ensure!(
            !(self.needs_feature(Needs::Clocks) && forgets),
            "use two runs for clock faults and faults that lose data: together, they can make fencing tokens decrease"
        );
        Ok(())
    }

    fn check_changes(&self) -> anyhow::Result<()> {
        let Some(changes) = &self.changes else {
            return Ok(());
        };
        ensure!(
            changes.servers() == self.masters && self.nodes.is_empty(),
            "replacing masters is possible only if all masters are Redis"
        );
        ensure!(self.guarded, "replacing masters needs a restart guard");
        let skips_steps = changes.operator != Operator::Careful;
        let sets_overlap = changes
            .sets
            .windows(2)
            .any(|pair| pair[0].iter().any(|master| pair[1].contains(master)));
        ensure!(
            !skips_steps || !sets_overlap,
            "an operator that skips steps must replace all masters in one change: give --replace-at-once"
        );
        Ok(())
    }

    /// Whether a fault of the scenario needs this feature, e.g. proxies.
    pub fn needs_feature(&self, needed: Needs) -> bool {
        self.faults.iter().any(|kind| kind.needs == needed)
    }

    /// The servers and tools that must be set up for the scenario.
    pub fn layout(&self) -> Layout {
        Layout {
            path_count: match self.changes {
                None => self.clients,
                // To detect a change of masters, clients compare a fingerprint of the masters' addresses. All clients
                // must use the same addresses, so they share one proxy per master.
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

    /// The persistence of the Redis master with this index. If the faults need several kinds of persistence, successive
    /// Redis masters get different kinds.
    pub fn persistence(&self, index: usize) -> Persistence {
        let mut kinds: Vec<Persistence> = Vec::new();
        for kind in &self.faults {
            if let Some(persistence) = kind.persistence()
                && !kinds.contains(&persistence)
            {
                kinds.push(persistence);
            }
        }
        match kinds.len() {
            0 => Persistence::None,
            count => {
                // The kinds of persistence are distributed over the Redis masters only.
                let nodes = self.nodes();
                let earlier_nodes = nodes.iter().take(index);
                kinds[earlier_nodes.filter(|node| node.is_redis()).count() % count]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeKind {
        name.parse().unwrap()
    }

    #[test]
    fn scenario_states_in_advance_whether_exclusion_may_break() {
        let exclusion_with = |faults: &[Kind], guarded| {
            let scenario = Scenario {
                faults: faults.to_vec(),
                guarded,
                ..Scenario::default()
            };
            scenario.exclusion()
        };
        assert_eq!(
            exclusion_with(&Kind::mixed(&[NodeKind::REDIS]), true),
            Exclusion::Holds
        );
        let kind = |name: &str| name.parse::<Kind>().unwrap();
        assert_eq!(exclusion_with(&[kind("kill")], false), Exclusion::MayBreak);
        assert_eq!(
            exclusion_with(&[kind("amnesia")], false),
            Exclusion::MustBreak
        );
        let exclusion_over = |nodes: &[NodeKind]| {
            let scenario = Scenario {
                faults: vec![kind("restart-majority")],
                guarded: false,
                ..Scenario::default().with_nodes(nodes)
            };
            scenario.exclusion()
        };
        let (safe, forgetful) = (node("mysql"), node("mysql-flush0"));
        assert_eq!(
            exclusion_over(&[safe, safe, node("ensemble")]),
            Exclusion::Holds
        );
        assert_eq!(exclusion_over(&[safe, forgetful]), Exclusion::MayBreak);
        let two_kinds = [kind("flushall"), kind("stop")];
        assert_eq!(exclusion_with(&two_kinds, true), Exclusion::MayBreak);
        let kinds_scenario = Scenario {
            faults: vec![kind("amnesia")],
            guarded: false,
            workloads: Workload::KINDS.to_vec(),
            ..Scenario::default()
        };
        assert_eq!(kinds_scenario.exclusion(), Exclusion::MayBreak);
    }
}
