//! What stands on the masters of one `Redlock`, as far as it has been seen: which of them has lost its mark.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::node::NodeName;
use crate::protocol::mark::Mark;

/// The marks of all masters, by name, as their last handshakes showed them.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    masters: usize,
    /// The masters that are, without those that will be.
    old: Vec<NodeName>,
    seen: Mutex<HashMap<NodeName, Mark>>,
    /// How many show one: all that is looked at by who never changes masters.
    marked: AtomicUsize,
}

impl Marks {
    /// Of so many masters; `old` are those that are, without those that will be.
    pub(crate) fn of(masters: usize, old: Vec<NodeName>) -> Self {
        Self {
            masters,
            old,
            ..Self::default()
        }
    }

    /// Whether this is one of the masters that are.
    pub(in crate::node) fn is_old(&self, name: &NodeName) -> bool {
        self.old.contains(name)
    }

    /// This master shows this mark, or none.
    pub(in crate::node) fn saw(&self, name: &NodeName, mark: Option<Mark>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match mark {
            Some(mark) => seen.insert(name.clone(), mark),
            None => seen.remove(name),
        };
        self.marked.store(seen.len(), Ordering::Relaxed);
    }

    /// What a master without a mark should have: the largest that the others show, once most of all masters show one.
    /// Then it has forgotten its own, or is another server than it was.
    pub(in crate::node) fn missed(&self) -> Option<Mark> {
        if self.marked.load(Ordering::Relaxed) <= self.masters / 2 {
            return None;
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let most = seen.len() > self.masters / 2;
        seen.values()
            .filter(|_| most)
            .max_by_key(|mark| mark.number)
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_missed_where_most_masters_have_one() {
        let marks = Marks::of(3, Vec::new());
        let mark = |number: u64| Mark::read(format!("{number} 0123456789abcdef").as_bytes());
        let [a, b, c] = ["a", "b", "c"].map(NodeName::new);
        marks.saw(&a, mark(2));
        marks.saw(&c, None);
        assert_eq!(marks.missed(), None);
        marks.saw(&b, mark(1));
        assert_eq!(marks.missed(), mark(2));
        marks.saw(&a, None);
        assert_eq!(marks.missed(), None, "it has lost it as well");
    }
}
