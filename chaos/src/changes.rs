//! Masters that are replaced during a run: which, how often, and by what kind of operator.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The sets of masters that a run goes through, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The masters of each generation, by index.
    pub sets: Vec<Vec<usize>>,
    /// Who changes them.
    pub operator: Operator,
}

/// Who changes the masters: by the page for operators, or wrongly, which must be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Takes every step, in its order, until it is done.
    #[default]
    Careful,
    /// Gives clients the next masters one after the other, and never heard of the steps.
    NoJointStep,
    /// Opens the next masters by writing their marks by hand, and has never closed the old ones.
    OpensByHand,
}

impl Operator {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Careful, Self::NoJointStep, Self::OpensByHand];

    /// Its name on the command line.
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
        let named = Self::ALL.into_iter().find(|one| one.name() == name);
        named.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl Changes {
    /// So many of `masters` are replaced, one after the other, each in a change of its own.
    pub fn one_by_one(masters: usize, replaced: usize) -> Self {
        let set = |first: usize| (first..first + masters).collect();
        Self::through((0..=replaced).map(set).collect())
    }

    /// All of them are replaced in one change: the sets have nothing in common.
    pub fn at_once(masters: usize) -> Self {
        Self::through(vec![
            (0..masters).collect(),
            (masters..2 * masters).collect(),
        ])
    }

    /// They become more, or fewer, in one change.
    pub fn resized(masters: usize, to: usize) -> Self {
        Self::through(vec![(0..masters).collect(), (0..to).collect()])
    }

    fn through(sets: Vec<Vec<usize>>) -> Self {
        Self {
            sets,
            operator: Operator::default(),
        }
    }

    /// How many changes there are.
    pub fn count(&self) -> usize {
        self.sets.len().saturating_sub(1)
    }

    /// How many servers there are in all.
    pub fn servers(&self) -> usize {
        let all = self.sets.iter().flatten().max();
        all.map_or(0, |last| last + 1)
    }

    /// The masters that are left over by this change.
    pub fn left_over(&self, change: usize) -> Vec<usize> {
        let [old, next] = [&self.sets[change], &self.sets[change + 1]];
        let old = old.iter().filter(|master| !next.contains(master));
        old.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_follow_each_other_and_what_is_left_over_is_known() {
        let one_by_one = Changes::one_by_one(3, 2);
        assert_eq!(one_by_one.sets, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]);
        assert_eq!((one_by_one.count(), one_by_one.servers()), (2, 5));
        assert_eq!(one_by_one.left_over(1), [1]);
        let grown = Changes::resized(3, 5);
        assert_eq!((grown.count(), grown.servers()), (1, 5));
        assert!(grown.left_over(0).is_empty());
        assert_eq!(Changes::resized(5, 3).left_over(0), [3, 4]);
        assert_eq!(Changes::at_once(2).left_over(0), [0, 1]);
        for operator in Operator::ALL {
            assert_eq!(operator.name().parse(), Ok(operator));
        }
    }
}
