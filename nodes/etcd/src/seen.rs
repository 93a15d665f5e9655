//! The highest revision that this process has seen of each cluster.
//!
//! # Why like this
//!
//! A cluster that was restored from a snapshot has the same names, the same identity key and a lower revision. Its
//! records may be older than those that this process has read or written, and a version may be given a second time. So
//! a process that has seen a higher revision refuses the cluster until its identity has changed, even after the
//! revision has grown beyond the one that it has seen.
//!
//! Answers of several connections can overtake each other. So an answer is compared with the highest revision that was
//! known *before* its request was sent: etcd answers each request at least as new as every answer before it.
//!
//! Not solved: a process that starts after the restore does not notice it. The operator must change the identity.

use std::sync::{Mutex, PoisonError};

use quorate::node::Fault;

/// The number of clusters that are remembered. Each change of the identity of a cluster makes another one.
const MOST: usize = 64;

/// The facts that this process knows about one cluster.
#[derive(Clone, Debug)]
struct Known {
    cluster: String,
    highest: u64,
    /// The lower revision that was seen after `highest`; `None` if there was none.
    fell_to: Option<u64>,
}

/// The highest revision that this process has seen of each cluster.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Vec<Known>>);

impl Seen {
    /// The highest revision of this cluster that is known. Call this before a request is sent.
    pub(crate) fn floor(&self, cluster: &str) -> u64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|known| known.cluster == cluster);
        found.map_or(0, |known| known.highest)
    }

    /// The highest revisions of all clusters that are known, by their names.
    pub(crate) fn floors(&self) -> Vec<(String, u64)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = |known: &Known| (known.cluster.clone(), known.highest);
        known.iter().map(floor).collect()
    }

    /// Stores the revision of an answer. `floor` was known before its request was sent.
    ///
    /// Fails if the cluster has ever answered with a lower revision than this process had seen before.
    pub(crate) fn check(&self, cluster: &str, floor: u64, revision: u64) -> Result<(), Fault> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().position(|known| known.cluster == cluster);
        let index = found.unwrap_or_else(|| {
            if known.len() >= MOST {
                known.remove(0);
            }
            known.push(Known {
                cluster: cluster.to_owned(),
                highest: 0,
                fell_to: None,
            });
            known.len() - 1
        });
        let known = &mut known[index];
        if revision < floor {
            known.fell_to.get_or_insert(revision);
        }
        let highest = known.highest;
        known.highest = highest.max(revision);
        match known.fell_to {
            None => Ok(()),
            Some(fell_to) => Err(restored(highest, fell_to)),
        }
    }
}

/// The fault of a cluster that was restored from a snapshot.
fn restored(highest: u64, revision: u64) -> Fault {
    let why = format!(
        "the cluster was restored from an older snapshot: its revision was {highest} and fell to {revision}. Delete \
         the key {} and run `quorate prepare-server URL`",
        crate::layout::IDENTITY_NAME
    );
    Fault::Unsupported(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_revision_is_refused_until_the_identity_changes() {
        let seen = Seen::default();
        assert_eq!(seen.floor("a"), 0);
        assert_eq!(seen.check("a", 0, 7), Ok(()));
        assert_eq!(seen.floor("a"), 7);
        assert_eq!(seen.check("a", 7, 7), Ok(()));
        let fault = seen.check("a", 7, 6).expect_err("lower");
        assert!(fault.to_string().contains("fell to 6"), "{fault}");
        assert!(!fault.passes_by_itself());
        assert!(seen.check("a", 7, 100).is_err());
        assert_eq!(seen.check("b", 0, 6), Ok(()));
    }

    #[test]
    fn answers_that_overtake_each_other_are_not_refused() {
        let seen = Seen::default();
        let floor = seen.floor("a");
        assert_eq!(seen.check("a", floor, 9), Ok(()));
        assert_eq!(seen.check("a", floor, 8), Ok(()));
        assert_eq!(seen.floor("a"), 9);
    }

    #[test]
    fn number_of_clusters_that_are_remembered_is_limited() {
        let seen = Seen::default();
        for number in 0..=MOST as u64 {
            assert_eq!(seen.check(&number.to_string(), 0, 5), Ok(()));
        }
        assert_eq!((seen.floor("0"), seen.floor("64")), (0, 5));
    }
}
