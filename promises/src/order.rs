//! First come, first served: once somebody is certainly in line, nobody whose first attempt began after that
//! has the lock before it. On true time, and not by the tickets that make the line.

use std::collections::BTreeSet;

/// Who is certainly in line before one resource, and since when.
#[derive(Debug)]
pub struct Line<I> {
    waiting: BTreeSet<(u64, I)>,
}

impl<I> Default for Line<I> {
    fn default() -> Self {
        Self {
            waiting: BTreeSet::new(),
        }
    }
}

impl<I: Ord + Clone> Line<I> {
    /// It is in line since then.
    pub fn stands(&mut self, who: I, since: u64) {
        self.waiting.insert((since, who));
    }

    /// It has the lock, or does without.
    pub fn leaves(&mut self, who: &I) {
        self.waiting.retain(|(_, one)| one != who);
    }

    /// Who stands there the longest, and since when.
    pub fn first(&self) -> Option<(u64, &I)> {
        self.waiting.first().map(|(since, one)| (*since, one))
    }

    /// The same of those that a winner must not pass.
    pub fn first_of(&self, is: impl Fn(&I) -> bool) -> Option<(u64, &I)> {
        let first = self.waiting.iter().find(|(_, one)| is(one));
        first.map(|(since, one)| (*since, one))
    }

    /// Who is passed over by a winner that began then, and has left the line.
    pub fn passed(&self, began: u64) -> Option<&I> {
        let (since, first) = self.first()?;
        (since < began).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_later_may_not_win_before_who_stands_in_line() {
        let mut line = Line::default();
        assert_eq!(line.passed(100), None);
        line.stands(1, 10);
        line.stands(2, 20);
        assert_eq!(line.passed(10), None, "begun by then");
        assert_eq!(line.passed(15), Some(&1));
        assert_eq!(line.first_of(|one| *one != 1), Some((20, &2)));
        line.leaves(&1);
        assert_eq!(line.passed(15), None);
        assert_eq!(line.passed(21), Some(&2));
    }
}
