//! The replies of masters to an extension of many locks, and the result for each lock.

use std::ops::Range;

use crate::node::{Answer, Extended, Fault};
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Ballot, Extension, Kept, Terms};
use crate::protocol::quorum::{MasterSet, Quorum};

/// The reply of one master to an extension, with one entry for each key in order. `Err` if the master failed.
pub(crate) type KeysSaid = Result<Vec<Extended>, Fault>;

/// The part of a master's reply that concerns one lock, for a report; `keys` are the indices of the lock's keys.
pub(crate) fn said_of_lock(said: &KeysSaid, keys: &Range<usize>) -> Result<Answer, Fault> {
    let said = said.as_ref().map_err(Clone::clone)?;
    let said = said.get(keys.clone());
    match said.map(kept) {
        Some(Kept::Yes) => Ok(Answer::Confirmed),
        Some(Kept::No) => Ok(Answer::NotOurs),
        Some(Kept::Unknown) | None => {
            let mut faults = said.into_iter().flatten().filter_map(|said| match said {
                Extended::Unknown(fault) => Some(fault.clone()),
                _ => None,
            });
            Err(faults.next().unwrap_or(Fault::Withdrawn))
        }
    }
}

/// The vote of one master on one lock. The vote is `Yes` only if the master has extended all keys of the lock.
fn kept(keys: &[Extended]) -> Kept {
    if keys.contains(&Extended::Withdrawn) || keys.is_empty() {
        Kept::Unknown
    } else if keys.contains(&Extended::NotOurs) {
        Kept::No
    } else if keys.iter().all(Extended::is_kept) {
        Kept::Yes
    } else {
        Kept::Unknown
    }
}

/// Returns the extension in this answer, if it has exactly `keys` entries, one per key. Any other answer is a fault.
pub(crate) fn extended(answer: Result<Answer, Fault>, keys: usize) -> KeysSaid {
    match answer? {
        Answer::Extended(said) if said.len() == keys => Ok(said),
        _ => Err(Fault::Server("unexpected type of answer".into())),
    }
}

/// The votes of all masters on the extension of one lock.
pub(crate) struct Votes {
    ballot: Ballot,
    quorum: Quorum,
    /// For each key, the masters that reported the key as not held by this client. Empty for a lock with a single key.
    denied: Box<[MasterSet]>,
}

impl Votes {
    /// An empty count of votes, for a lock with this number of keys.
    pub(crate) fn new(quorum: Quorum, keys: usize) -> Self {
        let denied = if keys > 1 {
            vec![MasterSet::default(); keys]
        } else {
            Vec::new()
        };
        Self {
            ballot: Ballot::new(quorum),
            quorum,
            denied: denied.into(),
        }
    }

    /// Counts the reply of one master. A lock of several keys is lost if a majority denies the same key
    /// (docs/protocol.md, "Several resources, readers, owners, semaphores"). Denials of different keys do not add up.
    pub(crate) fn record(
        &mut self,
        node: usize,
        said: &KeysSaid,
        keys: &Range<usize>,
        now: Instant,
        old_end: Instant,
        terms: Terms,
    ) -> Extension {
        let said = said.as_ref().ok().and_then(|said| said.get(keys.clone()));
        let mut vote = said.map_or(Kept::Unknown, kept);
        if !self.denied.is_empty() && vote == Kept::No {
            for (denied, said) in self.denied.iter_mut().zip(said.unwrap_or_default()) {
                if *said == Extended::NotOurs {
                    denied.add(node);
                }
            }
            let mut denied = self.denied.iter();
            if denied.any(|denied| self.quorum.is_met_somewhere(*denied)) {
                return self.ballot.lose();
            }
            vote = Kept::Unknown;
        }
        self.ballot.record(node, vote, now, old_end, terms)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::validity::Drift;
    use Extended::{Kept as Held, NotOurs, Restored, Withdrawn};

    fn votes(said: &[&[Extended]]) -> Vec<Extension> {
        let keys = said[0].len();
        let mut votes = Votes::new(Quorum::of(3), keys);
        let at = Instant::from_nanos(2_000_000_000);
        let terms = Terms {
            started: Instant::from_nanos(1_000_000_000),
            ttl: Duration::from_secs(10),
            drift: Drift::default(),
        };
        let said = said.iter().map(|said| Ok(said.to_vec())).enumerate();
        let end = at + Duration::from_secs(1);
        said.map(|(node, said)| votes.record(node, &said, &(0..keys), at, end, terms))
            .collect()
    }

    #[test]
    fn lock_of_several_keys_is_lost_if_a_majority_denies_one_key() {
        let both = |said: &[Extension]| said.last().copied();
        let kept = votes(&[&[Held, Restored], &[Held, NotOurs], &[Held, Held]]);
        assert!(matches!(both(&kept), Some(Extension::Renewed(_))));
        let one = votes(&[&[Held, NotOurs], &[Held, NotOurs]]);
        assert_eq!(both(&one), Some(Extension::Lost));
        // Each master denies a different key, so no key is denied by a majority.
        let mixed = votes(&[&[Held, NotOurs], &[NotOurs, Held], &[Held, Withdrawn]]);
        assert_eq!(both(&mixed), Some(Extension::Unknown));
    }

    #[test]
    fn unknown_state_of_a_key_is_not_counted_as_a_vote() {
        let full = || Extended::Unknown(Fault::OutOfMemory);
        let strange = votes(&[&[full()], &[Held], &[full()]]);
        assert_eq!(strange.last(), Some(&Extension::Unknown));
        let most = votes(&[&[full()], &[Held], &[Restored]]);
        assert!(matches!(most.last(), Some(Extension::Renewed(_))));
        // `full()` is a fault for the first key only, so both masters deny the second key.
        let denied = votes(&[&[full(), NotOurs], &[Held, NotOurs]]);
        assert_eq!(denied.last(), Some(&Extension::Lost));
        let said = said_of_lock(&Ok(vec![Held, full()]), &(0..2));
        assert_eq!(said, Err(Fault::OutOfMemory));
    }

    #[test]
    fn extension_reports_the_loss_of_a_lock_only_once() {
        let said = votes(&[
            &[NotOurs, NotOurs],
            &[NotOurs, NotOurs],
            &[NotOurs, NotOurs],
        ]);
        assert_eq!(
            said,
            [Extension::Pending, Extension::Lost, Extension::Pending]
        );
    }

    #[test]
    fn lock_on_a_single_key_is_lost_if_a_majority_denies_it() {
        assert_eq!(votes(&[&[NotOurs], &[NotOurs]])[1], Extension::Lost);
    }
}
