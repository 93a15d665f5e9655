//! Extends a held lock once, at its holder's request.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::core::Core;
use super::end::end_lost_lock;
use super::held::Held;
use crate::error::ExtendError;
use crate::limit::Limit;
use crate::node::{Answer, ExtendItem, Fault, Phase, Request};
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Extension, Terms};
use crate::report::Replies;
use crate::rounds::coordinator::Coordinator;
use crate::rounds::extend::{Votes, answer_for_lock, key_extensions_of};
use crate::rounds::fan_out::{Collect, FanOut, Source};

/// Extends the lock `held`: its TTL `ttl` begins again now. The caller has checked `ttl`. `id` is the lock's id in the
/// renewal schedule.
pub(super) async fn extend(
    core: &Arc<Core>,
    held: &Arc<Held>,
    id: u64,
    ttl: Duration,
) -> Result<(), ExtendError> {
    let coordinator = &core.coordinator;
    let started_at = coordinator.now();
    if let Some(cause) = held.end_cause(started_at) {
        return Err(ExtendError::Lost(cause));
    }
    let items: Arc<[ExtendItem]> =
        [ExtendItem::new(held.claim.clone(), ttl).note(held.is_noted())].into();
    let answers = ExtendAnswers::open(core, held, id, started_at, ttl);
    let fan_out = FanOut::new(coordinator.runtime.clone(), answers);
    coordinator.ask_all(&fan_out, Phase::Extend, || Request::Extend {
        items: items.clone(),
    });
    if held.is_noted() && !held.claim.shape().renewal_keeps_note() {
        // For a lock on several keys, of readers or of an owner, a separate request renews the holder's note.
        send_note_again(coordinator, held);
    }
    let extension_outcome = fan_out.wait_until(|answers| {
        Some(answers.outcome).filter(|outcome| *outcome != Extension::Pending)
    });
    // Stop waiting when the lock's validity ends, because no later answer can extend the lock.
    let mut limit = Limit::new(&*coordinator.runtime, held.valid_until());
    let outcome = limit.wait(extension_outcome).await;
    // After the limit, the result of this extension is unknown. A concurrent renewal may have extended the lock.
    let outcome = outcome.unwrap_or(Extension::Unknown);
    match outcome {
        Extension::Renewed(_) => Ok(()),
        Extension::Lost | Extension::TooLate => {
            let cause = held
                .end_cause(coordinator.now())
                .unwrap_or(LossCause::Expired);
            Err(ExtendError::Lost(cause))
        }
        Extension::Unknown | Extension::Pending => {
            // A release may have ended the lock meanwhile, and withdrawn the requests of this extension.
            if let Some(cause) = held.end_cause(coordinator.now()) {
                return Err(ExtendError::Lost(cause));
            }
            let replies = &fan_out.answers().replies;
            let reports = replies.reports(coordinator.names(), Phase::Extend);
            Err(ExtendError::NoQuorum(reports))
        }
    }
}

fn send_note_again(coordinator: &Coordinator, held: &Held) {
    let runtime = &coordinator.runtime;
    let note = held.note(false, runtime.now(), runtime.wall_micros());
    coordinator.note(note.into_iter().collect());
}

/// The votes of all masters on one extension that the lock's holder requested.
struct ExtendAnswers {
    votes: Votes,
    terms: Terms,
    held: Arc<Held>,
    id: u64,
    core: Weak<Core>,
    replies: Replies,
    outcome: Extension,
}

impl Collect for ExtendAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        let keys = 0..self.held.claim.keys().count();
        let key_extensions = key_extensions_of(answer, keys.len());
        let lock_answer = answer_for_lock(&key_extensions, &keys);
        self.replies.record(
            source.node,
            &lock_answer,
            self.terms.started_at,
            source.now,
            false,
        );
        let old_end = self.held.valid_until();
        let outcome = self.votes.record(
            source.node,
            &key_extensions,
            &keys,
            source.now,
            old_end,
            self.terms,
        );
        if let (Ok(key_extensions), Some(core)) = (&key_extensions, self.core.upgrade())
            && self.held.lacks_note(key_extensions)
        {
            send_note_again(&core.coordinator, &self.held);
        }
        // Apply the extension here, because the caller's future may be dropped, or be polled much later.
        match outcome {
            Extension::Pending => return false,
            Extension::Renewed(until) => {
                self.outcome = if self.held.extend_lease(until, self.held.ttl(), source.now) {
                    outcome
                } else {
                    Extension::TooLate
                };
            }
            Extension::Lost | Extension::TooLate | Extension::Unknown => self.outcome = outcome,
        }
        if let Extension::Lost | Extension::TooLate = self.outcome {
            self.end_lost_lock(source.now);
        }
        true
    }
}

impl ExtendAnswers {
    fn open(
        core: &Arc<Core>,
        held: &Arc<Held>,
        id: u64,
        started_at: Instant,
        ttl: Duration,
    ) -> Self {
        let coordinator = &core.coordinator;
        Self {
            votes: Votes::new(coordinator.quorum, held.claim.keys().count()),
            terms: Terms {
                started_at,
                ttl,
                drift: coordinator.drift,
            },
            held: held.clone(),
            id,
            core: Arc::downgrade(core),
            replies: Replies::new(coordinator.quorum.nodes()),
            outcome: Extension::Pending,
        }
    }

    /// Ends a lock that this extension found to be lost, in the same way as a renewal does.
    fn end_lost_lock(&mut self, now: Instant) {
        self.held.record_replies(self.replies.clone());
        let cause = match self.outcome {
            Extension::Lost => LossCause::TakenAway,
            _ => self.held.end_cause(now).unwrap_or(LossCause::Expired),
        };
        if let Some(core) = self.core.upgrade() {
            end_lost_lock(&core.renewal, &core.coordinator, &self.held, self.id, cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::keys::hold_note_key;
    use crate::node::memory::intercepted::{ExtensionCounts, counting_extensions, intercepted};
    use crate::node::note::NOTE_LIVES;
    use crate::node::{Extended, Request};
    use crate::redlock::Redlock;
    use crate::testing::{Masters, MemoryNode};

    #[tokio::test(start_paused = true)]
    async fn extension_of_a_reader_also_renews_the_note_of_the_holder() {
        let ttl = Duration::from_secs(10);
        let masters = Masters::new(3);
        // For each written note, whether it is to be announced.
        let announced = Arc::<Mutex<Vec<bool>>>::default();
        let seen = announced.clone();
        let nodes = intercepted(&masters, move |request, reply| {
            if let Request::Note { items } = request {
                let mut seen = seen.lock().expect("not poisoned");
                seen.extend(items.iter().map(|item| item.announce));
            }
            Some(reply)
        });
        let redlock = Redlock::builder().nodes(nodes).build();
        let lock = redlock.expect("good settings").lock("doc");
        let lock = lock.shared().note("me").renewal(false).ttl(ttl);
        let guard = lock.acquire().await.expect("free");
        tokio::time::sleep(ttl / 2).await;
        let note_key = hold_note_key(&guard.token().to_hex(), b"doc");
        let note_expiries = || {
            let expiry_on = |master: &MemoryNode| {
                master.with_master(|master, now| {
                    let expires_at = master.peek(now, &note_key).expires;
                    Duration::from_micros(expires_at.expect("a note").saturating_sub(now))
                })
            };
            masters.iter().map(expiry_on).collect::<Vec<_>>()
        };
        assert!(note_expiries().iter().all(|left| *left < NOTE_LIVES * ttl));
        guard.extend(2 * ttl).await.expect("still held");
        assert_eq!(note_expiries(), [NOTE_LIVES * 2 * ttl; 3]);
        let announced = announced.lock().expect("not poisoned");
        assert!(announced.len() >= 6, "two notes for each master");
        assert!(!announced.contains(&true), "only candidates announce notes");
    }

    #[tokio::test(start_paused = true)]
    async fn extension_sends_the_note_separately_only_for_groups_whose_note_was_written() {
        let ms = Duration::from_millis;
        for (is_shared, held_for, with_note, separate_notes) in [
            // A note is written only when the lock has been held for 100 ms.
            (false, ms(1), 0, 0),
            (true, ms(1), 0, 0),
            (false, ms(200), 3, 0),
            (true, ms(200), 3, 3),
        ] {
            let (nodes, counts) = counting_extensions(&Masters::new(3));
            let redlock = Redlock::builder().nodes(nodes).build();
            let lock = redlock.expect("good settings").lock("doc");
            let lock = if is_shared { lock.shared() } else { lock };
            let guard = lock.note("me").renewal(false).acquire().await;
            let guard = guard.expect("free");
            tokio::time::sleep(held_for).await;
            *counts.lock().expect("not poisoned") = ExtensionCounts::default();
            guard.extend(guard.held.ttl()).await.expect("still held");
            let expected = ExtensionCounts {
                extensions: 3,
                with_note,
                separate_notes,
            };
            let counts = *counts.lock().expect("not poisoned");
            assert_eq!(counts, expected, "{is_shared} {held_for:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_answer_that_decides_an_extension_wakes_the_caller() {
        let redlock = Redlock::in_memory(3);
        let guard = redlock.acquire("r").await.expect("free");
        let (core, held) = (&redlock.core, &guard.held);
        let now = core.coordinator.now();
        let id = guard.id.get();
        let mut answers = ExtendAnswers::open(core, held, id, now, held.ttl());
        let wakes = [0, 1, 2].map(|node| {
            let answer = Answer::Extended(vec![Extended::Kept]);
            answers.record_answer(Source { node, now }, Ok(answer))
        });
        assert_eq!(wakes, [false, true, false]);
        let names = core.coordinator.names();
        let reports = answers.replies.reports(names, Phase::Extend);
        assert!(
            reports.iter().all(|report| !report.late),
            "these answers arrived in time: {reports:?}"
        );
    }
}
