//! All kinds of faults. Each file has the table of its faults and the code that injects them.

mod clients;
mod clocks;
mod databases;
mod etcd;
mod etcd_data;
mod impostors;
mod kind;
mod landed;
mod links;
mod names;
mod network;
mod postgres;
mod postgres_files;
mod processes;
mod servers;
mod zookeepers;

use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};

pub use kind::{Injection, Kind, Lasts, Reach};
pub use landed::Landed;

use crate::node::NodeKind;
use crate::world::Needs;

impl Kind {
    /// All kinds of faults, in the order in which the documentation lists them.
    pub fn all() -> Vec<Self> {
        let tables = [
            processes::ROWS,
            network::ROWS,
            impostors::ROWS,
            links::ROWS,
            names::ROWS,
            clocks::ROWS,
            servers::ROWS,
            databases::ROWS,
            postgres::ROWS,
            postgres_files::ROWS,
            zookeepers::ROWS,
            etcd::ROWS,
            etcd_data::ROWS,
            clients::ROWS,
        ];
        tables.into_iter().flatten().map(Self).collect()
    }

    /// The faults that the option `--faults mixed` selects for these kinds of masters:
    ///
    /// - They apply to at least one of these masters.
    /// - They cannot break mutual exclusion if clients ignore the votes of restarted masters (the restart guard).
    /// - They need no clock offsets, network links or host names.
    pub fn mixed(nodes: &[NodeKind]) -> Vec<Self> {
        let is_suitable = |kind: &Self| {
            nodes.iter().any(|node| kind.on.includes(*node))
                && !kind.breaks_exclusion(true, nodes)
                && !matches!(kind.needs, Needs::Clocks | Needs::Links | Needs::Names)
        };
        Self::all().into_iter().filter(is_suitable).collect()
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let kinds = Self::all();
        let kind = kinds.iter().find(|kind| kind.name() == name).copied();
        kind.ok_or_else(|| {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            format!(
                "there is no fault {name:?}; the faults are: {}",
                names.join(", ")
            )
        })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_of_fault_is_found_by_its_unique_name() {
        let kinds = Kind::all();
        for kind in &kinds {
            assert_eq!(kind.name().parse(), Ok(*kind));
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(
                json,
                format!("\"{kind}\""),
                "the JSON of a fault must be the name that Display prints"
            );
            assert_eq!(serde_json::from_str::<Kind>(&json).unwrap(), *kind);
            assert!(
                !kind.description.is_empty(),
                "{kind} must have an explanation"
            );
        }
        let names: BTreeSet<_> = kinds.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), kinds.len());
    }

    #[test]
    fn documentation_states_the_right_number_of_faults() {
        let kinds = Kind::all();
        let redis_faults = kinds
            .iter()
            .filter(|kind| kind.on.includes(NodeKind::REDIS));
        let redis_faults = redis_faults.count();
        let other_faults = kinds.len() - redis_faults;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (page, expected) in [
            ("CONTRIBUTING.md", format!("{} faults", kinds.len())),
            (
                "docs/track-record.md",
                format!("**{} faults**: {redis_faults} for Redis", kinds.len()),
            ),
            ("docs/track-record.md", format!("and {other_faults} more")),
            (
                "evidence/track-record/matrix.md",
                format!("the {redis_faults} faults for Redis"),
            ),
        ] {
            let text = std::fs::read_to_string(root.join(page)).expect("the page must be readable");
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&expected), "{page} must contain {expected:?}");
        }
    }
}
