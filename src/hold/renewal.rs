//! One task renews all held locks in batches, and ends expired locks.
//!
//! - The task never waits for replies. Votes are counted for each lock separately, so a slow master does not delay a
//!   lock that has its majority.
//! - If several batches wait for a majority, the task sends only one further batch every few milliseconds. This limits
//!   memory.
//! - [`Held::lost`] has its own timer, so a holder notices an expired lease even if the task is late.
//!
//! # Why like this
//!
//! A task and a timer per lock would be simpler, but a message for 256 locks costs the masters and the network much
//! less than 256 messages. The price is that locks depend on each other:
//!
//! - The error of one lock once ended the script, and with it the renewals of up to 255 other locks. Each lock now gets
//!   its own answer (`renewals_continue_if_full_masters_cannot_restore_a_deleted_lock`).
//! - Locks that were acquired together are due together. Sent at once, the messages and votes of all of them were in
//!   memory together. So a third batch waits for replies, but only for some milliseconds (evidence/benchmarks/notes.md,
//!   "Optimizations that helped").
//! - Renewals once waited behind a burst of acquires, and locks expired. They now have a mailbox queue of their own.
//!
//! Batches of 128 were tried and removed: they saved no memory, and halved the rate of renewals
//! (evidence/benchmarks/notes.md, "What was tried and removed").
//!
//! Not solved: the CPU time of 10,000 renewed locks misses its goal. Most of this time is access to data that does not
//! fit into the caches (evidence/benchmarks/notes.md, "Why some goals are missed").

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::end::end_lost_lock;
use super::held::Held;
use super::schedule::{
    Due, DueKind, MAX_OPEN_BATCHES, Renewal, SHORTEST_INTERVAL, ScheduleId, next_due_time,
};
use crate::metrics;
use crate::node::{Answer, ExtendItem, Extended, Fault, Phase, Request};
use crate::outcome::LossCause;
use crate::panics;
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Extension, Terms, retry_at};
use crate::repeats::warn_seldom;
use crate::report::Replies;
use crate::rounds::coordinator::Coordinator;
use crate::rounds::extend::{KeyExtensions, Votes, answer_for_lock, key_extensions_of};
use crate::rounds::fan_out::{Collect, FanOut, Source};
use crate::runtime::{BoxFuture, yield_once};

/// Schedules renewals of `held`, and starts the renewal task if it is not running. Returns `false` if there is no
/// runtime to run the task on. The lock is then not renewed and expires.
pub(crate) fn schedule_renewals(
    renewal: &Arc<Renewal>,
    coordinator: &Arc<Coordinator>,
    held: &Arc<Held>,
    id: &ScheduleId,
    started_at: Instant,
) -> bool {
    let due = next_due_time(held, started_at);
    let (starts_task, wakes_task) = {
        let mut schedule = renewal.schedule();
        id.0.store(schedule.insert(held.clone(), due), Ordering::Relaxed);
        let starts_task = !std::mem::replace(&mut schedule.is_running, true);
        (starts_task, due < schedule.wakes_at)
    };
    if starts_task {
        let task = run_renewals(RenewalTask::new(renewal, coordinator));
        let spawned = coordinator.runtime.spawn(Box::pin(task));
        renewal.schedule().is_running &= spawned;
        return spawned;
    }
    if wakes_task {
        renewal.rescheduled.notify_one();
    }
    true
}

/// Owned by the renewal task. If a runtime shuts down and drops the task, `Drop` starts a new renewal task in the
/// background runtime. If there is no background runtime, the next acquired lock starts the task.
struct RenewalTask {
    renewal: Weak<Renewal>,
    coordinator: Weak<Coordinator>,
}

impl RenewalTask {
    fn new(renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>) -> Self {
        Self {
            renewal: Arc::downgrade(renewal),
            coordinator: Arc::downgrade(coordinator),
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        let Some(renewal) = self.renewal.upgrade() else {
            return;
        };
        let coordinator = self.coordinator.upgrade();
        if let Some(coordinator) = coordinator.filter(|_| !std::thread::panicking()) {
            let handles = (self.renewal.clone(), self.coordinator.clone());
            let task = move || -> BoxFuture<()> {
                let (renewal, coordinator) = handles;
                Box::pin(run_renewals(RenewalTask {
                    renewal,
                    coordinator,
                }))
            };
            if coordinator.runtime.take_over(Box::new(task)) {
                return;
            }
        }
        renewal.schedule().is_running = false;
    }
}

async fn run_renewals(mut task: RenewalTask) {
    let Some(rescheduled) = task
        .renewal
        .upgrade()
        .map(|renewal| renewal.rescheduled.clone())
    else {
        return;
    };
    loop {
        let (renewal, coordinator) = (task.renewal.upgrade(), task.coordinator.upgrade());
        let (Some(renewal), Some(coordinator)) = (renewal, coordinator) else {
            return;
        };
        let now = coordinator.now();
        let due = renewal.schedule().take_due(now);
        // A panic must not end the renewal of all other locks. The locks of this batch expire if it was not sent, and
        // their holders notice this by their own timers.
        if let Err(panic) = panics::caught(|| send(&renewal, &coordinator, due, now)) {
            let why = panics::text(&panic);
            tracing::error!(%why, "internal failure: locks that were due are not renewed");
        }
        let next_wake_at = {
            let mut schedule = renewal.schedule();
            let next_wake_at = schedule.next_wake_at(now);
            schedule.wakes_at = next_wake_at.unwrap_or(Instant::NEVER);
            // Set `is_running` before the schedule is unlocked. If `is_running` is false, this task ends, and the next
            // lock that is added to the schedule starts a new task.
            schedule.is_running = next_wake_at.is_some();
            next_wake_at
        };
        let Some(next_wake_at) = next_wake_at else {
            // `Drop` must not reset the `is_running` flag, because a new task may already have set it.
            task.renewal = Weak::new();
            return;
        };
        if next_wake_at <= now {
            drop((renewal, coordinator));
            yield_once().await;
            continue;
        }
        let sleep = coordinator
            .runtime
            .sleep_until(next_wake_at.max(now + SHORTEST_INTERVAL));
        drop((renewal, coordinator));
        futures::future::select(sleep, std::pin::pin!(rescheduled.notified())).await;
    }
}

/// RenewalTask the expired locks among those that are due. Sends the renewals of the other locks to every node, and
/// does not wait for the replies.
fn send(renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>, due: Vec<Due>, now: Instant) {
    // Groups (locks on several keys, locks of readers and of owners) are renewed by a slower script than plain locks
    // and permits. So groups get a batch of their own.
    let (mut plain, mut groups) = (Batch::default(), Batch::default());
    let mut notes = Vec::new();
    let wall_micros = coordinator.runtime.wall_micros();
    for Due { held, id, kind } in due {
        if let Some(cause) = held.end_cause(now) {
            end_lost_lock(renewal, coordinator, &held, id, cause);
            continue;
        }
        let keeps_note = kind != DueKind::Note && held.next_renewal_keeps_note();
        // The script for groups renews locks, but not the notes that describe their holders.
        let with_note = held.claim.shape().renewal_keeps_note();
        if kind == DueKind::Note || !held.is_noted() || (keeps_note && !with_note) {
            notes.extend(held.note(false, now, wall_micros));
        }
        if !held.renews() || kind == DueKind::Note {
            continue;
        }
        let batch = if with_note { &mut plain } else { &mut groups };
        batch.add(coordinator, held, id, keeps_note && with_note);
    }
    for batch in [plain, groups] {
        batch.send(renewal, coordinator, now);
    }
    // A master derives the expiry of a note from the lock's remaining TTL, which a renewal extends. So send the notes
    // after the renewals.
    coordinator.note(notes);
}

/// Locks that are renewed together, with one message to each master.
#[derive(Default)]
struct Batch {
    renewals: Vec<LockRenewal>,
    items: Vec<ExtendItem>,
    keys: usize,
}

impl Batch {
    fn add(&mut self, coordinator: &Coordinator, held: Arc<Held>, id: u64, note: bool) {
        let ttl = held.ttl();
        let claim = held.claim.clone();
        let first_key_index = self.keys;
        self.keys += claim.keys().count();
        self.items.push(ExtendItem::new(claim, ttl).note(note));
        let keys = first_key_index..self.keys;
        self.renewals.push(LockRenewal {
            votes: Votes::new(coordinator.quorum, keys.len()),
            keys,
            held,
            id,
            ttl,
            records_replies: false,
            is_note_sent: false,
        });
    }

    fn send(self, renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>, now: Instant) {
        if self.items.is_empty() {
            return;
        }
        let items: Arc<[ExtendItem]> = self.items.into();
        let answers = RenewAnswers {
            renewals: self.renewals,
            keys: self.keys,
            started_at: now,
            renewal: Arc::downgrade(renewal),
            coordinator: Arc::downgrade(coordinator),
            received: Vec::new(),
            open_batch: Some(OpenBatch::count(renewal, now)),
        };
        let fan_out = FanOut::new(coordinator.runtime.clone(), answers);
        coordinator.ask_all(&fan_out, Phase::Extend, || Request::Extend {
            items: items.clone(),
        });
    }
}

/// The votes on one batch of renewals; the result is decided for each lock by itself.
struct RenewAnswers {
    renewals: Vec<LockRenewal>,
    keys: usize,
    started_at: Instant,
    renewal: Weak<Renewal>,
    coordinator: Weak<Coordinator>,
    /// The replies in the order in which they arrived. Each reply has one entry per key of the batch.
    received: Vec<(Source, KeyExtensions)>,
    /// `Some` while the batch waits for a majority; `None` once a majority or all masters have answered.
    open_batch: Option<OpenBatch>,
}

/// While this value exists, one batch of renewals counts as open: the batch still waits for the replies of a majority.
struct OpenBatch(Weak<Renewal>);

impl OpenBatch {
    fn count(renewal: &Arc<Renewal>, now: Instant) -> Self {
        let mut schedule = renewal.schedule();
        schedule.open_batches += 1;
        schedule.batch_sent_at = now;
        Self(Arc::downgrade(renewal))
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        let Some(renewal) = self.0.upgrade() else {
            return;
        };
        let may_send_next = {
            let mut schedule = renewal.schedule();
            schedule.open_batches -= 1;
            schedule.open_batches < MAX_OPEN_BATCHES && schedule.is_held_back
        };
        if may_send_next {
            renewal.rescheduled.notify_one();
        }
    }
}

struct LockRenewal {
    held: Arc<Held>,
    id: u64,
    ttl: Duration,
    /// The indices of this lock's keys in the batch.
    keys: Range<usize>,
    votes: Votes,
    /// Whether the lock stores the masters' replies to this renewal, so that [`Held::reports`] returns them.
    records_replies: bool,
    /// Whether the holder's note was sent again during this renewal, because a master had lost the note.
    is_note_sent: bool,
}

impl Collect for RenewAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        let (Some(renewal), Some(coordinator)) =
            (self.renewal.upgrade(), self.coordinator.upgrade())
        else {
            return false;
        };
        // Store the reply. The batch stays open until a majority has replied without error, or all have answered.
        let nodes = coordinator.quorum.nodes();
        self.received
            .push((source, key_extensions_of(answer, self.keys)));
        let usable_answers = self.received.iter().filter(|(_, answer)| answer.is_ok());
        let answering = usable_answers.map(|(source, _)| source.node).collect();
        if coordinator.quorum.is_met_by(answering) || self.received.len() >= nodes {
            self.open_batch = None;
        }
        let Self {
            renewals,
            received,
            started_at,
            ..
        } = self;
        let Some((_, extensions)) = received.last() else {
            return false;
        };
        // The reply has one part for each lock, so each lock is decided separately.
        let mut notes = Vec::new();
        for lock in renewals.iter_mut() {
            let held = &lock.held;
            let lock_keys = extensions
                .as_ref()
                .ok()
                .and_then(|keys| keys.get(lock.keys.clone()));
            if lock_keys.is_some_and(|keys| keys.contains(&Extended::Restored)) {
                let resource = String::from_utf8_lossy(held.claim.resource());
                tracing::debug!(%resource, node = source.node, "missing key restored");
            }
            if lock_keys.is_some_and(|keys| held.lacks_note(keys)) && !lock.is_note_sent {
                lock.is_note_sent = true;
                notes.extend(held.note(false, source.now, coordinator.runtime.wall_micros()));
            }
            // Count the vote. A majority renews the lock only if it replies before the old validity ends.
            let terms = Terms {
                started_at: *started_at,
                ttl: lock.ttl,
                drift: coordinator.drift,
            };
            let old_end = held.valid_until();
            let outcome = lock.votes.record(
                source.node,
                extensions,
                &lock.keys,
                source.now,
                old_end,
                terms,
            );
            metrics::count_renewal(outcome, old_end.saturating_since(source.now));
            lock.records_replies |= match outcome {
                Extension::Pending => false,
                Extension::Renewed(_) => held.is_troubled(),
                Extension::Lost | Extension::TooLate | Extension::Unknown => true,
            };
            // After a loss or in trouble, the holder can ask for all replies that have arrived so far.
            if lock.records_replies {
                held.record_replies(replies_of_lock(received, &lock.keys, *started_at, nodes));
            }
            apply_outcome(&renewal, &coordinator, lock, outcome, source.now);
        }
        coordinator.note(notes);
        false
    }
}

/// The replies that have arrived so far, as far as they concern the lock with these keys.
fn replies_of_lock(
    received: &[(Source, KeyExtensions)],
    keys: &Range<usize>,
    started_at: Instant,
    nodes: usize,
) -> Replies {
    let mut replies = Replies::new(nodes);
    for (source, extensions) in received {
        let lock_answer = answer_for_lock(extensions, keys);
        replies.record(source.node, &lock_answer, started_at, source.now, false);
    }
    replies
}

/// Applies the result of a renewal to the lock: extends its validity, ends the lock, or schedules another attempt.
fn apply_outcome(
    renewal: &Renewal,
    coordinator: &Coordinator,
    lock: &LockRenewal,
    outcome: Extension,
    now: Instant,
) {
    let held = &lock.held;
    let resource = || String::from_utf8_lossy(held.claim.resource());
    match outcome {
        Extension::Pending => {}
        Extension::Renewed(until) => {
            held.extend_lease(until, lock.ttl, now);
            tracing::trace!(resource = %resource(), "lock renewed");
        }
        Extension::Lost => end_lost_lock(renewal, coordinator, held, lock.id, LossCause::TakenAway),
        Extension::TooLate => {
            let cause = held.end_cause(now).unwrap_or(LossCause::Expired);
            end_lost_lock(renewal, coordinator, held, lock.id, cause);
        }
        Extension::Unknown => {
            let reply_texts = held.trouble(coordinator.names());
            let resource = resource();
            warn_seldom!(
                (renewal.repeats, &resource, now),
                %resource,
                said = reply_texts,
                "no majority for a renewal, trying again"
            );
            let retry_time = retry_at(now, lock.ttl).min(held.valid_until());
            if renewal.schedule().move_earlier(lock.id, retry_time) {
                renewal.rescheduled.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::hold::core::Core;
    use crate::hold::guard::LockGuard;
    use crate::node::memory::intercepted::{ExtensionCounts, counting_extensions};
    use crate::node::memory::{Masters, MemoryNode};
    use crate::node::{Fault, Node};
    use crate::protocol::validity::Drift;
    use crate::redlock::Redlock;
    use crate::retry::Retry;
    use crate::rounds::coordinator::{Members, Patience};
    use crate::runtime::manual::ManualClock;
    use crate::runtime::{Runtime, Tokio};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn coordinator() -> Arc<Coordinator> {
        coordinator_on(Arc::new(Tokio::default()))
    }

    fn coordinator_on(runtime: Arc<dyn Runtime>) -> Arc<Coordinator> {
        let node = |name: &str| Arc::new(MemoryNode::new(name)) as Arc<dyn Node>;
        let patience = Patience {
            answer: Duration::from_millis(50),
            connect: Duration::ZERO,
        };
        let nodes = ["a", "b", "c"].map(node).to_vec();
        let drift = Drift::default();
        let retry = Retry::default();
        Arc::new(Coordinator::new(
            Members::new(nodes),
            runtime,
            drift,
            "",
            true,
            patience,
            retry,
        ))
    }

    /// Counts the answers to one batch of renewals, one after another. Returns, after each answer, how many batches
    /// still wait for a majority.
    fn open_after(answers: &[Result<Answer, Fault>]) -> Vec<usize> {
        let (renewal, coordinator) = (Renewal::new(), coordinator());
        let mut batch = RenewAnswers {
            renewals: Vec::new(),
            keys: 1,
            started_at: NOW,
            renewal: Arc::downgrade(&renewal),
            coordinator: Arc::downgrade(&coordinator),
            received: Vec::new(),
            open_batch: Some(OpenBatch::count(&renewal, NOW)),
        };
        let answers = answers.iter().cloned().enumerate();
        let open_batch_counts = answers.map(|(node, answer)| {
            batch.record_answer(Source { node, now: NOW }, answer);
            renewal.schedule().open_batches
        });
        open_batch_counts.collect()
    }

    #[test]
    fn renewal_task_counts_as_running_after_a_shutdown_only_if_another_runtime_takes_over() {
        for has_other_executor in [true, false] {
            let runtime = Arc::new(ManualClock::shut_down(has_other_executor));
            let (renewal, coordinator) = (Renewal::new(), coordinator_on(runtime));
            renewal.schedule().is_running = true;
            drop(RenewalTask::new(&renewal, &coordinator));
            assert_eq!(renewal.schedule().is_running, has_other_executor);
        }
    }

    #[test]
    fn renewal_task_that_panicked_is_not_taken_over_by_another_runtime() {
        let runtime = Arc::new(ManualClock::shut_down(true));
        let (renewal, coordinator) = (Renewal::new(), coordinator_on(runtime));
        renewal.schedule().is_running = true;
        let task = RenewalTask::new(&renewal, &coordinator);
        let panic = panics::caught(move || {
            let _task = task;
            std::panic::resume_unwind(Box::new("internal failure"));
        });
        assert!(panic.is_err());
        assert!(!renewal.schedule().is_running);
    }

    #[test]
    fn next_batch_is_planned_from_the_time_of_the_last_one() {
        let renewal = Renewal::new();
        let _batch = OpenBatch::count(&renewal, NOW);
        assert_eq!(renewal.schedule().batch_sent_at, NOW);
    }

    #[test]
    fn renewal_batch_is_open_until_a_majority_answered_or_every_request_ended() {
        let kept_answer = || Ok(Answer::Extended(vec![Extended::Kept]));
        let denied_answer = || Ok(Answer::Extended(vec![Extended::NotOurs]));
        let down_answer = || Err(Fault::Down("off".into()));
        let malformed_answer = || Ok(Answer::Extended(Vec::new()));
        assert_eq!(
            open_after(&[kept_answer(), kept_answer(), kept_answer()]),
            [1, 0, 0]
        );
        assert_eq!(
            open_after(&[kept_answer(), denied_answer(), down_answer()]),
            [1, 0, 0]
        );
        assert_eq!(
            open_after(&[down_answer(), kept_answer(), kept_answer()]),
            [1, 1, 0]
        );
        assert_eq!(
            open_after(&[down_answer(), malformed_answer(), kept_answer()]),
            [1, 1, 0]
        );
    }

    #[test]
    fn answer_that_arrives_after_the_end_of_the_redlock_is_ignored() {
        let mut batch = RenewAnswers {
            renewals: Vec::new(),
            keys: 1,
            started_at: NOW,
            renewal: Weak::new(),
            coordinator: Weak::new(),
            received: Vec::new(),
            open_batch: None,
        };
        let source = Source { node: 0, now: NOW };
        assert!(!batch.record_answer(source, Ok(Answer::Extended(vec![Extended::Kept]))));
        assert!(batch.received.is_empty());
    }

    #[test]
    fn end_of_an_open_batch_wakes_the_task_only_if_it_may_send_the_next_batch() {
        for (is_held_back, other_batches, wakes) in [
            (true, MAX_OPEN_BATCHES - 1, true),
            (true, MAX_OPEN_BATCHES, false),
            (false, MAX_OPEN_BATCHES - 1, false),
        ] {
            let renewal = Renewal::new();
            let batch = OpenBatch::count(&renewal, NOW);
            renewal.schedule().open_batches += other_batches;
            renewal.schedule().is_held_back = is_held_back;
            drop(batch);
            let has_woken = renewal.rescheduled.notified().now_or_never().is_some();
            assert_eq!(has_woken, wakes, "{is_held_back} {other_batches}");
        }
    }

    /// A renewal of the lock of `guard` that has no votes yet.
    fn lock_renewal(core: &Core, guard: &LockGuard, id: u64) -> LockRenewal {
        LockRenewal {
            held: guard.held.clone(),
            id,
            ttl: guard.held.ttl(),
            keys: 0..1,
            votes: Votes::new(core.coordinator.quorum, 1),
            records_replies: false,
            is_note_sent: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_a_lock_whose_renewal_came_too_late_are_released() {
        let masters = Masters::new(3);
        let redlock = Redlock::builder().in_memory_on(&masters).build();
        let redlock = redlock.expect("good settings");
        let guard = redlock.acquire("r").await.expect("free");
        let core = &redlock.core;
        let lock = lock_renewal(core, &guard, guard.id.get());
        let late_time = guard.valid_until();
        let outcome = Extension::TooLate;
        apply_outcome(&core.renewal, &core.coordinator, &lock, outcome, late_time);
        assert_eq!(guard.loss(), Some(LossCause::Expired));
        for master in masters.iter() {
            assert!(master.with_master(|master, now| master.peek(now, b"r").holder.is_none()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_sixth_renewal_keeps_the_note_once_the_note_was_sent() {
        let lock = Redlock::in_memory(3).lock("r").renewal(false);
        let guard = lock.acquire().await.expect("free");
        let keeping = || (0..24).filter(|_| guard.held.next_renewal_keeps_note());
        assert_eq!(keeping().count(), 0, "no note was sent yet");
        guard.held.claim.take_note();
        let keeping: Vec<usize> = keeping().collect();
        assert_eq!(keeping.len(), 4);
        assert!(keeping.windows(2).all(|pair| pair[1] == pair[0] + 6));
    }

    #[tokio::test(start_paused = true)]
    async fn note_is_renewed_with_the_lock_or_separately_if_the_lock_is_of_a_group() {
        let ttl = Duration::from_secs(9);
        for (is_shared, with_note, separate_notes) in [(false, 3, 0), (true, 0, 3)] {
            let (nodes, counts) = counting_extensions(&Masters::new(1));
            let redlock = Redlock::builder().nodes(nodes).ttl(ttl).build();
            let lock = redlock.expect("good settings").lock("doc").note("me");
            let lock = if is_shared { lock.shared() } else { lock };
            let _guard = lock.acquire().await.expect("free");
            // The note is written for the first time after 100 ms. The lock is renewed each third of its ttl.
            tokio::time::sleep(ttl / 6).await;
            *counts.lock().expect("not poisoned") = ExtensionCounts::default();
            tokio::time::sleep(18 * ttl / 3).await;
            let expected = ExtensionCounts {
                extensions: 18,
                with_note,
                separate_notes,
            };
            let counts = *counts.lock().expect("not poisoned");
            assert_eq!(counts, expected, "{is_shared}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_without_a_majority_is_tried_again_before_the_validity_ends() {
        let redlock = Redlock::in_memory(3);
        let guard = redlock.acquire("r").await.expect("free");
        let core = &redlock.core;
        let (now, end) = (core.coordinator.now(), guard.valid_until());
        let soon = retry_at(now, guard.held.ttl());
        let just_before_end = Instant::from_nanos(end.as_nanos() - 1);
        for (now, task_wakes_at, expected) in [
            (now, Instant::NEVER, (soon, true)),
            (just_before_end, Instant::NEVER, (end, true)),
            // The task wakes early enough anyway.
            (now, now, (soon, false)),
        ] {
            let renewal = Renewal::new();
            let id = renewal
                .schedule()
                .insert(guard.held.clone(), Instant::NEVER);
            renewal.schedule().wakes_at = task_wakes_at;
            let lock = lock_renewal(core, &guard, id);
            apply_outcome(&renewal, &core.coordinator, &lock, Extension::Unknown, now);
            let next_wake_at = renewal.schedule().next_wake_at(now);
            let has_woken = renewal.rescheduled.notified().now_or_never().is_some();
            let (retry_time, wakes) = expected;
            assert_eq!((next_wake_at, has_woken), (Some(retry_time), wakes));
        }
    }
}
