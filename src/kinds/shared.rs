//! Converts a writer's lock into a reader's lock.

use std::sync::Arc;

use crate::hold::guard::LockGuard;
use crate::hold::held::{Held, HoldOptions};
use crate::hold::renewal;
use crate::hold::schedule::ScheduleId;
use crate::node::Fairness;
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::rounds::lock_target::LockTarget;

/// Why a writer's lock was not converted into a reader's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DowngradeError {
    /// The lock ended before a majority of the masters had converted it. Nothing is held any more; remaining keys are
    /// released in the background.
    #[error("the lock is lost ({0}) and cannot be downgraded: acquire it again with shared()")]
    Lost(LossCause),
    /// The lock cannot be converted into a reader's lock: it is a reader's lock already, a permit, an owner's hold, or
    /// a lock on several resources.
    #[error(
        "only an exclusive lock on a single resource can be downgraded: release it, and acquire again with shared()"
    )]
    NotAWriter,
    /// The `Redlock` was built with `fencing(false)`, but readers need fencing tokens.
    #[error("readers need fencing tokens: remove fencing(false) from the builder")]
    NeedsFencing,
    /// The call was made on a thread of a Tokio runtime.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error(transparent)]
    CannotBlock(crate::error::CannotBlock),
}

impl LockGuard {
    /// Converts the lock into a reader's lock, without a moment in which another writer could acquire it. The new guard
    /// shares the lock with other readers. Its fencing token is larger than the writer's.
    ///
    /// Once this method is called, the caller is no longer a writer and must not use the writer's token again. A reader
    /// cannot be converted into a writer, because two readers that wait to become writers would wait for each other
    /// forever. Release the lock and acquire it again instead.
    ///
    /// # Errors
    ///
    /// [`DowngradeError`]; after any error nothing is held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, both the writer's lock and the reader's lock are released in the background.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) -> Result<(), quorate::DowngradeError> {
    /// // Everything is written; from here on it is only read, shared with other readers.
    /// let reading = guard.downgrade().await?;
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<LockGuard, DowngradeError> {
        let (core, old) = (self.core.clone(), self.held.clone());
        let Some(wanted) = LockTarget::readers_instead_of(&old.claim) else {
            return Err(DowngradeError::NotAWriter);
        };
        if !old.claim.fenced() {
            return Err(DowngradeError::NeedsFencing);
        }
        let coordinator = &core.coordinator;
        if let Some(cause) = self.loss() {
            return Err(DowngradeError::Lost(cause));
        }
        // Stop the writer's renewals. After the conversion to a reader, they would restore the writer's lock.
        core.renewal.forget(&self.id);
        let old_valid_until = old.valid_until();
        // The writer may still have an entry in the queue on the masters. The request carries its ticket, so that each
        // master removes this entry when it converts the lock.
        let fairness = match old.claim.fairness() {
            Fairness::Fair(ticket) => Fairness::Fair(ticket.clone()),
            Fairness::Unordered => Fairness::Unordered,
        };
        let attempt = coordinator.attempt(&wanted, old.ttl(), fairness, old_valid_until);
        let won_attempt = match attempt.await {
            Ok(won_attempt) if coordinator.now() < old_valid_until => won_attempt,
            Ok(won_attempt) => {
                coordinator.release_in_background(&won_attempt.claim);
                return Err(DowngradeError::Lost(LossCause::Expired));
            }
            Err(failed) if failed.round.answers().majority_refused() => {
                return Err(DowngradeError::Lost(LossCause::TakenAway));
            }
            Err(_) => return Err(DowngradeError::Lost(LossCause::Expired)),
        };
        let started_at = won_attempt.started_at;
        let renews = old.renews();
        let has_max_hold = old.hold_end != Instant::NEVER;
        let max_hold = has_max_hold.then(|| old.hold_end.saturating_since(started_at));
        let hold_options = HoldOptions {
            ttl: old.ttl(),
            max_hold,
            renews,
            note_text: old.note_text().cloned(),
        };
        let held = Held::new(won_attempt, hold_options, &core.local_queues, None);
        let id = ScheduleId::default();
        renewal::schedule_renewals(&core.renewal, coordinator, &held, &id, started_at);
        // The end of this function drops the writer's guard, which sends releases to all masters. These releases delete
        // only keys that were not converted.
        Ok(LockGuard::new(held, Arc::clone(&core), id))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;
    use crate::node::memory::intercepted::intercepted;
    use crate::node::memory::{Condition, Masters};
    use crate::node::{Reply, Request};
    use crate::redlock::Redlock;

    const TTL: Duration = Duration::from_secs(10);

    fn client(masters: &Masters) -> Redlock {
        let settings = Redlock::builder().in_memory_on(masters).ttl(TTL);
        settings.build().expect("good settings")
    }

    fn is_of_a_reader(request: &Request) -> bool {
        matches!(request, Request::Acquire { claim, .. } if claim.group().is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn conversion_that_succeeds_after_the_end_of_the_writer_is_taken_back() {
        let nanosecond = Duration::from_nanos(1);
        for is_in_time in [true, false] {
            let masters = Masters::new(3);
            let pause = Arc::new(Mutex::new(Duration::ZERO));
            let next_pause = pause.clone();
            // Before the first master executes the request of the reader, the paused clock advances.
            let nodes = intercepted(&masters, move |request, reply| {
                if is_of_a_reader(request) {
                    let pause = std::mem::take(&mut *next_pause.lock().expect("not poisoned"));
                    // The first poll advances the clock.
                    let _ = tokio::time::advance(pause).now_or_never();
                }
                Some(reply)
            });
            let settings = Redlock::builder().nodes(nodes).ttl(TTL).max_ttl(2 * TTL);
            let settings = settings.node_timeout(TTL / 4);
            let redlock = settings.build().expect("good settings");
            let writer = redlock.lock("doc").renewal(false).acquire().await;
            let writer = writer.expect("free");
            tokio::time::sleep(TTL * 9 / 10).await;
            let time_left = writer.remaining();
            let until_last_moment = time_left.saturating_sub(nanosecond);
            *pause.lock().expect("not poisoned") = if is_in_time {
                until_last_moment
            } else {
                time_left
            };
            let reader = writer.downgrade().await;
            let loss = reader.as_ref().err().copied();
            let expected_loss = (!is_in_time).then_some(DowngradeError::Lost(LossCause::Expired));
            assert_eq!(loss, expected_loss);
            for master in masters.iter() {
                let is_held = |master: &mut crate::node::memory::Master, now| {
                    master.peek(now, b"doc").holder.is_some()
                };
                assert_eq!(master.with_master(is_held), is_in_time);
            }
        }
    }

    /// A renewal of the writer could restore the writer's lock after the conversion.
    #[tokio::test(start_paused = true)]
    async fn writer_is_not_renewed_any_more_during_its_conversion() {
        // The masters do not answer the reader.
        let unanswered = Arc::<Mutex<Vec<Reply>>>::default();
        let nodes = intercepted(&Masters::new(3), move |request, reply| {
            if is_of_a_reader(request) {
                unanswered.lock().expect("not poisoned").push(reply);
                return None;
            }
            Some(reply)
        });
        let redlock = Redlock::builder().nodes(nodes).build();
        let redlock = redlock.expect("good settings");
        let writer = redlock.acquire("doc").await.expect("free");
        let mut conversion = Box::pin(writer.downgrade());
        assert!((&mut conversion).now_or_never().is_none());
        assert!(redlock.core.renewal.take_all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn reader_ends_at_the_max_hold_of_the_writer() {
        let masters = Masters::new(3);
        let redlock = client(&masters);
        for max_hold in [None, Some(3 * TTL)] {
            let lock = redlock.lock("doc");
            let lock = match max_hold {
                Some(max_hold) => lock.max_hold(max_hold),
                None => lock,
            };
            let writer = lock.acquire().await.expect("free");
            tokio::time::sleep(TTL).await;
            let hold_end = writer.held.hold_end;
            assert_eq!(hold_end == Instant::NEVER, max_hold.is_none());
            let reader = writer.downgrade().await.expect("still held");
            assert_eq!(reader.held.hold_end, hold_end, "{max_hold:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_conversion_reports_why_the_writer_was_lost() {
        let masters = Masters::new(3);
        let redlock = client(&masters);
        let lock = |name| redlock.lock(name).renewal(false);
        let expired = lock("a").max_hold(TTL / 2).acquire().await.expect("free");
        tokio::time::sleep(TTL / 2).await;
        let loss = expired.downgrade().await.expect_err("not held any more");
        assert_eq!(loss, DowngradeError::Lost(LossCause::MaxHold));

        let overwritten = lock("b").acquire().await.expect("free");
        for master in masters.iter() {
            master.with_master(|master, now| master.put_text(now, b"b", b"other", None));
        }
        let loss = overwritten.downgrade().await.expect_err("held by another");
        assert_eq!(loss, DowngradeError::Lost(LossCause::TakenAway));

        let unreachable = lock("c").acquire().await.expect("free");
        for master in masters.iter() {
            master.set_condition(Condition::Down);
        }
        let loss = unreachable.downgrade().await.expect_err("no majority");
        assert_eq!(loss, DowngradeError::Lost(LossCause::Expired));
    }
}
