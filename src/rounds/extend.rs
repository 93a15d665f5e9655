//! The replies of masters to an extension of many locks, and the result for each lock.

use std::ops::Range;

use crate::node::{Answer, Extended, Fault};
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Ballot, Extension, RenewalVote, Terms};
use crate::protocol::quorum::{MasterSet, Quorum};

/// The reply of one master to an extension, with one entry for each key in order. `Err` if the master failed.
pub(crate) type KeyExtensions = Result<Vec<Extended>, Fault>;

/// The part of a master's reply that concerns one lock, for a report; `keys` are the indices of the lock's keys.
pub(crate) fn answer_for_lock(
    key_extensions: &KeyExtensions,
    keys: &Range<usize>,
) -> Result<Answer, Fault> {
    let key_extensions = key_extensions.as_ref().map_err(Clone::clone)?;
    let lock_extensions = key_extensions.get(keys.clone());
    match lock_extensions.map(keys_held) {
        Some(RenewalVote::Yes) => Ok(Answer::Confirmed),
        Some(RenewalVote::No) => Ok(Answer::NotOurs),
        Some(RenewalVote::Unknown) | None => {
            let mut faults = lock_extensions
                .into_iter()
                .flatten()
                .filter_map(|key| match key {
                    Extended::Unknown(fault) => Some(fault.clone()),
                    _ => None,
                });
            Err(faults.next().unwrap_or(Fault::Withdrawn))
        }
    }
}

/// The vote of one master on one lock. The vote is `Yes` only if the master has extended all keys of the lock.
fn keys_held(keys: &[Extended]) -> RenewalVote {
    if keys.contains(&Extended::Withdrawn) || keys.is_empty() {
        RenewalVote::Unknown
    } else if keys.contains(&Extended::NotOurs) {
        RenewalVote::No
    } else if keys.iter().all(Extended::is_kept) {
        RenewalVote::Yes
    } else {
        RenewalVote::Unknown
    }
}

/// Returns the extension in this answer, if it has exactly `keys` entries, one per key. Any other answer is a fault.
pub(crate) fn key_extensions_of(answer: Result<Answer, Fault>, keys: usize) -> KeyExtensions {
    match answer? {
        Answer::Extended(key_extensions) if key_extensions.len() == keys => Ok(key_extensions),
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
        key_extensions: &KeyExtensions,
        keys: &Range<usize>,
        now: Instant,
        old_end: Instant,
        terms: Terms,
    ) -> Extension {
        let lock_extensions = key_extensions
            .as_ref()
            .ok()
            .and_then(|extensions| extensions.get(keys.clone()));
        let mut vote = lock_extensions.map_or(RenewalVote::Unknown, keys_held);
        if !self.denied.is_empty() && vote == RenewalVote::No {
            for (denied, key) in self
                .denied
                .iter_mut()
                .zip(lock_extensions.unwrap_or_default())
            {
                if *key == Extended::NotOurs {
                    denied.add(node);
                }
            }
            let mut denied = self.denied.iter();
            if denied.any(|denied| self.quorum.is_met_in_one_set(*denied)) {
                return self.ballot.settle_as_lost();
            }
            vote = RenewalVote::Unknown;
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

    fn outcomes(answers: &[&[Extended]]) -> Vec<Extension> {
        let keys = answers[0].len();
        let mut votes = Votes::new(Quorum::new(3), keys);
        let now = Instant::from_nanos(2_000_000_000);
        let terms = Terms {
            started_at: Instant::from_nanos(1_000_000_000),
            ttl: Duration::from_secs(10),
            drift: Drift::default(),
        };
        let answers = answers.iter().map(|keys| Ok(keys.to_vec())).enumerate();
        let end = now + Duration::from_secs(1);
        answers
            .map(|(node, extensions)| votes.record(node, &extensions, &(0..keys), now, end, terms))
            .collect()
    }

    #[test]
    fn lock_of_several_keys_is_lost_if_a_majority_denies_one_key() {
        let last_outcome = |outcomes: &[Extension]| outcomes.last().copied();
        let keys_held = outcomes(&[&[Held, Restored], &[Held, NotOurs], &[Held, Held]]);
        assert!(matches!(
            last_outcome(&keys_held),
            Some(Extension::Renewed(_))
        ));
        let one_denied = outcomes(&[&[Held, NotOurs], &[Held, NotOurs]]);
        assert_eq!(last_outcome(&one_denied), Some(Extension::Lost));
        // Each master denies a different key, so no key is denied by a majority.
        let mixed = outcomes(&[&[Held, NotOurs], &[NotOurs, Held], &[Held, Withdrawn]]);
        assert_eq!(last_outcome(&mixed), Some(Extension::Unknown));
    }

    #[test]
    fn unknown_state_of_a_key_is_not_counted_as_a_vote() {
        let full_master = || Extended::Unknown(Fault::OutOfMemory);
        let strange = outcomes(&[&[full_master()], &[Held], &[full_master()]]);
        assert_eq!(strange.last(), Some(&Extension::Unknown));
        let one_full = outcomes(&[&[full_master()], &[Held], &[Restored]]);
        assert!(matches!(one_full.last(), Some(Extension::Renewed(_))));
        // `full()` is a fault for the first key only, so both masters deny the second key.
        let denied = outcomes(&[&[full_master(), NotOurs], &[Held, NotOurs]]);
        assert_eq!(denied.last(), Some(&Extension::Lost));
        let lock_answer = answer_for_lock(&Ok(vec![Held, full_master()]), &(0..2));
        assert_eq!(lock_answer, Err(Fault::OutOfMemory));
    }

    #[test]
    fn extension_reports_the_loss_of_a_lock_only_once() {
        let lost_once = outcomes(&[
            &[NotOurs, NotOurs],
            &[NotOurs, NotOurs],
            &[NotOurs, NotOurs],
        ]);
        assert_eq!(
            lost_once,
            [Extension::Pending, Extension::Lost, Extension::Pending]
        );
    }

    #[test]
    fn lock_on_a_single_key_is_lost_if_a_majority_denies_it() {
        assert_eq!(outcomes(&[&[NotOurs], &[NotOurs]])[1], Extension::Lost);
    }
}
