//! The changes of masters in a chaos run: the masters before and after each change, and the kind of operator that makes
//! the changes.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The changes of masters during a chaos run. Each change moves the clients from one set of masters to the next set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterChanges {
    /// The sets of masters, in the order in which clients use them. Each master is given by its index.
    pub sets: Vec<Vec<usize>>,
    /// The operator that changes the masters.
    pub operator: Operator,
}

/// The kind of operator that changes masters. A careful operator follows the page docs/operations.md. A known-bad
/// operator breaks a rule of this page. A checker must then find a violation of the promises of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Completes every step of docs/operations.md, in order.
    #[default]
    Careful,
    /// Only restarts the clients with the new masters, one client after another, and skips all other steps. So some
    /// clients still use the old masters while others use the new ones.
    NoJointStep,
    /// Skips the step `close`, so the old masters do not refuse clients that know only them. Writes the key
    /// `quorate:masters`, which opens the new masters, by hand.
    OpensByHand,
}

impl Operator {
    /// All kinds of operators.
    pub const ALL: [Self; 3] = [Self::Careful, Self::NoJointStep, Self::OpensByHand];

    /// The name of the operator on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Careful => "careful",
            Self::NoJointStep => "no-joint-step",
            Self::OpensByHand => "opens-by-hand",
        }
    }
}

impl FromStr for Operator {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let operator = Self::ALL
            .into_iter()
            .find(|operator| operator.name() == name);
        operator.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl MasterChanges {
    /// Changes that replace `replaced` of `masters` masters one after the other. Each change replaces one master.
    pub fn one_by_one(masters: usize, replaced: usize) -> Self {
        let masters_from = |first: usize| (first..first + masters).collect();
        Self::with_sets((0..=replaced).map(masters_from).collect())
    }

    /// One change that replaces all `masters` masters, so that no master belongs to both the old and the new set.
    pub fn at_once(masters: usize) -> Self {
        Self::with_sets(vec![
            (0..masters).collect(),
            (masters..2 * masters).collect(),
        ])
    }

    /// One change in which the number of masters grows or shrinks from `masters` to `new_count`.
    pub fn resized(masters: usize, new_count: usize) -> Self {
        Self::with_sets(vec![(0..masters).collect(), (0..new_count).collect()])
    }

    fn with_sets(sets: Vec<Vec<usize>>) -> Self {
        Self {
            sets,
            operator: Operator::default(),
        }
    }

    /// The number of changes.
    pub fn count(&self) -> usize {
        self.sets.len().saturating_sub(1)
    }

    /// The number of different servers in all sets together.
    pub fn servers(&self) -> usize {
        let highest_index = self.sets.iter().flatten().max();
        highest_index.map_or(0, |index| index + 1)
    }

    /// The masters that the change with this number removes. Changes are numbered from 0.
    pub fn removed_masters(&self, change: usize) -> Vec<usize> {
        let [old, next] = [&self.sets[change], &self.sets[change + 1]];
        let old = old.iter().filter(|master| !next.contains(master));
        old.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_masters_lists_its_old_new_and_removed_masters() {
        let one_by_one = MasterChanges::one_by_one(3, 2);
        assert_eq!(one_by_one.sets, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]);
        assert_eq!((one_by_one.count(), one_by_one.servers()), (2, 5));
        assert_eq!(one_by_one.removed_masters(1), [1]);
        let grown = MasterChanges::resized(3, 5);
        assert_eq!((grown.count(), grown.servers()), (1, 5));
        assert!(grown.removed_masters(0).is_empty());
        assert_eq!(MasterChanges::resized(5, 3).removed_masters(0), [3, 4]);
        assert_eq!(MasterChanges::at_once(2).removed_masters(0), [0, 1]);
        for operator in Operator::ALL {
            assert_eq!(operator.name().parse(), Ok(operator));
        }
    }
}
