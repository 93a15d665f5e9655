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
use super::schedule::{Due, OPEN, Renewal, SOON, ScheduleId, What, next_due};
use crate::metrics;
use crate::node::{Answer, ExtendItem, Extended, Fault, Phase, Request};
use crate::outcome::LossCause;
use crate::panics;
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Extension, Terms, retry_at};
use crate::repeats::warn_seldom;
use crate::report::Replies;
use crate::rounds::coordinator::Coordinator;
use crate::rounds::extend::{KeysSaid, Votes, extended, said_of_lock};
use crate::rounds::fan_out::{Collect, FanOut, From};
use crate::runtime::{BoxFuture, pause};

/// Schedules renewals of `held`, and starts the renewal task if it is not running. Returns `false` if there is no
/// runtime to run the task on. The lock is then not renewed and expires.
pub(crate) fn watch(
    renewal: &Arc<Renewal>,
    coordinator: &Arc<Coordinator>,
    held: &Arc<Held>,
    id: &ScheduleId,
    started: Instant,
) -> bool {
    let due = next_due(held, started);
    let (start, wake) = {
        let mut schedule = renewal.schedule();
        id.0.store(schedule.insert(held.clone(), due), Ordering::Relaxed);
        let start = !std::mem::replace(&mut schedule.running, true);
        (start, due < schedule.wakes_at)
    };
    if start {
        let task = run(RenewalTask::new(renewal, coordinator));
        let spawned = coordinator.runtime.spawn(Box::pin(task));
        renewal.schedule().running &= spawned;
        return spawned;
    }
    if wake {
        renewal.sooner.notify_one();
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
                Box::pin(run(RenewalTask {
                    renewal,
                    coordinator,
                }))
            };
            if coordinator.runtime.take_over(Box::new(task)) {
                return;
            }
        }
        renewal.schedule().running = false;
    }
}

async fn run(mut task: RenewalTask) {
    let Some(sooner) = task.renewal.upgrade().map(|renewal| renewal.sooner.clone()) else {
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
        let next = {
            let mut schedule = renewal.schedule();
            let next = schedule.next(now);
            schedule.wakes_at = next.unwrap_or(Instant::NEVER);
            // Set `running` before the schedule is unlocked. If `running` is false, this task ends, and the next lock
            // that is added to the schedule starts a new task.
            schedule.running = next.is_some();
            next
        };
        let Some(next) = next else {
            // `Drop` must not reset the `running` flag, because a new task may already have set it.
            task.renewal = Weak::new();
            return;
        };
        if next <= now {
            drop((renewal, coordinator));
            pause().await;
            continue;
        }
        let nap = coordinator.runtime.sleep_until(next.max(now + SOON));
        drop((renewal, coordinator));
        futures::future::select(nap, std::pin::pin!(sooner.notified())).await;
    }
}

/// RenewalTask the expired locks among those that are due. Sends the renewals of the other locks to every node, and does not
/// wait for the replies.
fn send(renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>, due: Vec<Due>, now: Instant) {
    // Groups (locks on several keys, locks of readers and of owners) are renewed by a slower script than plain locks
    // and permits. So groups get a batch of their own.
    let (mut plain, mut groups) = (Batch::default(), Batch::default());
    let mut notes = Vec::new();
    let wall = coordinator.runtime.wall_micros();
    for Due { held, id, what } in due {
        if let Some(cause) = held.end_cause(now) {
            end_lost_lock(renewal, coordinator, &held, id, cause);
            continue;
        }
        let keeps = what != What::Note && held.keeps_note();
        // The script for groups renews locks, but not the notes that describe their holders.
        let with_note = held.claim.shape().renewal_keeps_note();
        if what == What::Note || !held.is_noted() || (keeps && !with_note) {
            notes.extend(held.note(false, now, wall));
        }
        if !held.renews() || what == What::Note {
            continue;
        }
        let batch = if with_note { &mut plain } else { &mut groups };
        batch.add(coordinator, held, id, keeps && with_note);
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
    renewing: Vec<Renewing>,
    items: Vec<ExtendItem>,
    keys: usize,
}

impl Batch {
    fn add(&mut self, coordinator: &Coordinator, held: Arc<Held>, id: u64, note: bool) {
        let ttl = held.ttl();
        let claim = held.claim.clone();
        let first = self.keys;
        self.keys += claim.keys().count();
        self.items.push(ExtendItem { claim, ttl, note });
        let keys = first..self.keys;
        self.renewing.push(Renewing {
            votes: Votes::new(coordinator.quorum, keys.len()),
            keys,
            held,
            id,
            ttl,
            tells: false,
            noted: false,
        });
    }

    fn send(self, renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>, now: Instant) {
        if self.items.is_empty() {
            return;
        }
        let items: Arc<[ExtendItem]> = self.items.into();
        let answers = RenewAnswers {
            renewing: self.renewing,
            keys: self.keys,
            started: now,
            renewal: Arc::downgrade(renewal),
            coordinator: Arc::downgrade(coordinator),
            received: Vec::new(),
            open: Some(Open::count(renewal, now)),
        };
        let fan_out = FanOut::new(coordinator.runtime.clone(), answers);
        coordinator.ask_all(&fan_out, Phase::Extend, || Request::Extend {
            items: items.clone(),
        });
    }
}

/// The votes on one batch of renewals; the result is decided for each lock by itself.
struct RenewAnswers {
    renewing: Vec<Renewing>,
    keys: usize,
    started: Instant,
    renewal: Weak<Renewal>,
    coordinator: Weak<Coordinator>,
    /// The replies in the order in which they arrived. Each reply has one entry per key of the batch.
    received: Vec<(From, KeysSaid)>,
    /// `Some` while the batch waits for a majority; `None` once a majority or all masters have answered.
    open: Option<Open>,
}

/// While this value exists, one batch of renewals counts as open: the batch still waits for the replies of a majority.
struct Open(Weak<Renewal>);

impl Open {
    fn count(renewal: &Arc<Renewal>, now: Instant) -> Self {
        let mut schedule = renewal.schedule();
        schedule.open += 1;
        schedule.sent_at = now;
        Self(Arc::downgrade(renewal))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(renewal) = self.0.upgrade() else {
            return;
        };
        let wake = {
            let mut schedule = renewal.schedule();
            schedule.open -= 1;
            schedule.open < OPEN && schedule.held_back
        };
        if wake {
            renewal.sooner.notify_one();
        }
    }
}

struct Renewing {
    held: Arc<Held>,
    id: u64,
    ttl: Duration,
    /// The indices of this lock's keys in the batch.
    keys: Range<usize>,
    votes: Votes,
    /// Whether the lock stores the masters' replies to this renewal, so that [`Held::reports`] returns them.
    tells: bool,
    /// Whether the holder's note was sent again during this renewal, because a master had lost the note.
    noted: bool,
}

impl Collect for RenewAnswers {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        let (Some(renewal), Some(coordinator)) =
            (self.renewal.upgrade(), self.coordinator.upgrade())
        else {
            return false;
        };
        // Store the reply. The batch stays open until a majority has replied without error, or all have answered.
        let nodes = coordinator.quorum.nodes();
        self.received.push((from, extended(answer, self.keys)));
        let usable = self.received.iter().filter(|(_, said)| said.is_ok());
        let usable = usable.map(|(from, _)| from.node).collect();
        if coordinator.quorum.is_met_by(usable) || self.received.len() >= nodes {
            self.open = None;
        }
        let Self {
            renewing,
            received,
            started,
            ..
        } = self;
        let Some((_, said)) = received.last() else {
            return false;
        };
        // The reply has one part for each lock, so each lock is decided separately.
        let mut notes = Vec::new();
        for lock in renewing.iter_mut() {
            let held = &lock.held;
            let own = said
                .as_ref()
                .ok()
                .and_then(|said| said.get(lock.keys.clone()));
            if own.is_some_and(|own| own.contains(&Extended::Restored)) {
                let resource = String::from_utf8_lossy(held.claim.resource());
                tracing::debug!(%resource, node = from.node, "missing key restored");
            }
            if own.is_some_and(|own| held.lacks_note(own)) && !lock.noted {
                lock.noted = true;
                notes.extend(held.note(false, from.now, coordinator.runtime.wall_micros()));
            }
            // Count the vote. A majority renews the lock only if it replies before the old validity ends.
            let terms = Terms {
                started: *started,
                ttl: lock.ttl,
                drift: coordinator.drift,
            };
            let old_end = held.valid_until();
            let outcome = lock
                .votes
                .record(from.node, said, &lock.keys, from.now, old_end, terms);
            metrics::renewal(outcome, old_end.saturating_since(from.now));
            lock.tells |= match outcome {
                Extension::Pending => false,
                Extension::Renewed(_) => held.is_troubled(),
                Extension::Lost | Extension::TooLate | Extension::Unknown => true,
            };
            // After a loss or in trouble, the holder can ask for all replies that have arrived so far.
            if lock.tells {
                let mut replies = Replies::of(nodes);
                for (from, said) in received.iter() {
                    let said = said_of_lock(said, &lock.keys);
                    replies.note(from.node, &said, *started, from.now, false);
                }
                held.record_replies(replies);
            }
            conclude(&renewal, &coordinator, lock, outcome, from.now);
        }
        coordinator.note(notes);
        false
    }
}

/// Applies the result of a renewal to the lock: extends its validity, ends the lock, or schedules another attempt.
fn conclude(
    renewal: &Renewal,
    coordinator: &Coordinator,
    lock: &Renewing,
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
            let said = held.trouble(coordinator.names());
            let resource = resource();
            warn_seldom!(
                (renewal.repeats, &resource, now),
                %resource,
                said,
                "no majority for a renewal, trying again"
            );
            let again = retry_at(now, lock.ttl).min(held.valid_until());
            if renewal.schedule().hasten(lock.id, again) {
                renewal.sooner.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::memory::MemoryNode;
    use crate::node::{Fault, Node};
    use crate::protocol::validity::Drift;
    use crate::retry::Retry;
    use crate::rounds::coordinator::{Members, Patience};
    use crate::runtime::Tokio;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn coordinator() -> Arc<Coordinator> {
        let node = |name: &str| Arc::new(MemoryNode::new(name)) as Arc<dyn Node>;
        let patience = Patience {
            answer: Duration::from_millis(50),
            connect: Duration::ZERO,
        };
        let runtime = Arc::new(Tokio::default());
        let nodes = ["a", "b", "c"].map(node).to_vec();
        let drift = Drift::default();
        let retry = Retry::default();
        Arc::new(Coordinator::new(
            Members::of(nodes),
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
            renewing: Vec::new(),
            keys: 1,
            started: NOW,
            renewal: Arc::downgrade(&renewal),
            coordinator: Arc::downgrade(&coordinator),
            received: Vec::new(),
            open: Some(Open::count(&renewal, NOW)),
        };
        let answers = answers.iter().cloned().enumerate();
        let open = answers.map(|(node, answer)| {
            batch.count(From { node, now: NOW }, answer);
            renewal.schedule().open
        });
        open.collect()
    }

    #[test]
    fn renewal_batch_is_open_until_a_majority_answered_or_every_request_ended() {
        let kept = || Ok(Answer::Extended(vec![Extended::Kept]));
        let denied = || Ok(Answer::Extended(vec![Extended::NotOurs]));
        let down = || Err(Fault::Down("off".into()));
        let malformed = || Ok(Answer::Extended(Vec::new()));
        assert_eq!(open_after(&[kept(), kept(), kept()]), [1, 0, 0]);
        assert_eq!(open_after(&[kept(), denied(), down()]), [1, 0, 0]);
        assert_eq!(open_after(&[down(), kept(), kept()]), [1, 1, 0]);
        assert_eq!(open_after(&[down(), malformed(), kept()]), [1, 1, 0]);
    }
}
