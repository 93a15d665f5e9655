//! Acquires one lock: the loop that makes all attempts of one acquire.
//!
//! - In fair order (the default), the loop first waits for its turn in the local queue. If the first attempt fails
//!   because the lock is not free, the loop queues on every master. It tries again after a wake-up or a timer.
//! - In unordered mode, the loop tries again after jittered pauses. The masters store no queue.

use std::sync::Arc;
use std::time::Duration;

use super::queue_place::{QueuePlace, RetryPauses, UnqueuedHolder, next_poll_at};
use crate::hold::core::Core;
use crate::limit::Limit;
use crate::metrics;
use crate::node::{Fairness, LocalTurn, Note, Numbering};
use crate::outcome::Failure;
use crate::protocol::instant::Instant;
use crate::report;
use crate::rounds::acquire::AcquireRound;
use crate::rounds::attempt::{FailedAttempt, WonAttempt};
use crate::rounds::lock_target::LockTarget;
use crate::runtime::random_number;
use crate::waiting::Waiting;
use crate::waiting::last_finding::LastFinding;
use crate::waiting::local_queue::place::LocalPlace;
use crate::waiting::own::SlotReservation;

/// How long an attempt that began before the acquire's deadline may continue after that deadline.
const LAST_ATTEMPT_GRACE: Duration = Duration::from_millis(2);

/// The caller's callback (`LockRequest::waiting`). It receives the state of the caller's waiting acquire.
pub(crate) type Observer = Arc<dyn Fn(&Waiting) + Send + Sync>;

/// The parameters of one acquire, and the lock keys that its next attempt asks the masters for.
pub(crate) struct AcquireLoop<'a> {
    pub(crate) core: &'a Core,
    /// The lock keys to acquire. For a semaphore: the slot to ask for next.
    pub(crate) target: LockTarget,
    /// The reservation of the semaphore slot that the next attempt asks for, so that other tasks of this process prefer
    /// other slots. `None` if no slot is reserved.
    pub(crate) reservation: Option<SlotReservation>,
    pub(crate) ttl: Duration,
    /// Whether to make only one attempt (`try_acquire`).
    pub(crate) tries_once: bool,
    /// Whether this waiter's entry in the queue on the masters contains its host and process. Other clients can read
    /// the entry.
    pub(crate) has_note: bool,
    pub(crate) deadline: Instant,
    pub(crate) started_at: Instant,
    pub(crate) observer: Option<&'a Observer>,
}

/// How many attempts of one acquire have collided with other attempts for the same owner; at most 8 are counted.
#[derive(Default)]
struct Collisions(u32);

impl Collisions {
    /// Returns the upper limit of the next pause, which has a random length. `attempt_time` is the duration of the last
    /// attempt. The first call returns twice `attempt_time`, and each further call doubles the factor, up to 256 times
    /// `attempt_time`.
    fn longest_pause(&mut self, attempt_time: Duration) -> Duration {
        self.0 = (self.0 + 1).min(8);
        attempt_time.saturating_mul(1 << self.0)
    }

    /// Returns the next pause: a random part of its upper limit, which is at most `ttl`. The longest pause, for the
    /// largest `random_byte`, is 255 / 256 of the limit.
    fn next_pause(&mut self, attempt_time: Duration, ttl: Duration, random_byte: u8) -> Duration {
        let limit = self.longest_pause(attempt_time).min(ttl);
        limit / 256 * u32::from(random_byte)
    }
}

/// Whether a failed attempt that a majority of the masters granted has collided with another attempt for the same owner.
fn may_have_collided(numbering: Numbering, failure: Option<Failure>) -> bool {
    let was_refused = matches!(failure, Some(Failure::Contention | Failure::NotJoinable));
    numbering == Numbering::OfOwner && was_refused
}

/// The state that one acquire keeps between its attempts.
#[derive(Default)]
struct AttemptState<'a> {
    /// This acquire's place in the queue of waiters in this process; `None` if it does not queue in this process.
    local_place: Option<LocalPlace>,
    /// This acquire's entry in the queue on the masters; `None` while it is not queued there.
    remote_place: Option<Box<QueuePlace<'a>>>,
    retry_pauses: Option<RetryPauses>,
    last_finding: Option<LastFinding>,
    attempts: u32,
    collisions: Collisions,
    /// How many slots of a semaphore were tried since the last wake-up.
    slots_in_a_row: u32,
}

/// When an acquire that enters the local queue may send its first request to the masters.
enum LocalEntry {
    AtFront(Option<LocalPlace>),
    /// When all waiters of this process that are ahead in the local queue have left it.
    Behind(LocalPlace),
}

/// An acquired lock, with its place in the local queue.
pub(crate) struct Acquired {
    pub(crate) won: WonAttempt,
    pub(crate) place: Option<LocalPlace>,
    /// For a semaphore: the reservation of the acquired slot in this process. It must last until this process has
    /// registered the lock as held.
    pub(crate) reservation: Option<SlotReservation>,
    pub(crate) attempts: u32,
}

/// Why the lock was not acquired.
pub(crate) struct NotAcquired {
    pub(crate) failure: Failure,
    /// The round of requests whose replies led to the failure. `None` if no replies led to it, for example because this
    /// process itself held the lock.
    pub(crate) round: Option<Arc<AcquireRound>>,
    /// The note of the lock's holder; `None` if no note is known.
    pub(crate) note: Option<Note>,
    /// Whether this process itself holds the lock.
    pub(crate) held_here: bool,
    /// Whether another program wrote the lock key.
    pub(crate) foreign: bool,
    pub(crate) attempts: u32,
    pub(crate) waited: Duration,
}

impl<'a> AcquireLoop<'a> {
    pub(crate) async fn run(&mut self) -> Result<Acquired, NotAcquired> {
        let mut state = AttemptState::default();
        if self.core.options.fair {
            let local_turn = self.target.shape().local_turn();
            let entry_result = self.enter_local_queue(local_turn);
            let entry =
                entry_result.map_err(|finding| self.not_acquired(Some(finding), None, 0))?;
            let mut local_place = match entry {
                LocalEntry::AtFront(local_place) => local_place,
                LocalEntry::Behind(local_place) => {
                    Some(Box::pin(self.wait_for_local_turn(local_place)).await?)
                }
            };
            // Readers can share the lock. So a reader (`QueueAndShare`) lets the next local waiter ask the masters at
            // once.
            if let (LocalTurn::QueueAndShare, Some(local_place)) = (local_turn, &mut local_place) {
                local_place.leave_queues();
            }
            state.last_finding = local_place.as_ref().and_then(LocalPlace::shared_finding);
            state.local_place = local_place;
        }
        // Box the future that handles a failed attempt, so that the caller's future stays small. Most acquires succeed
        // with the first attempt, and allocate no box.
        loop {
            let attempt_started_at = self.core.coordinator.now();
            match self.next_attempt(&mut state).await {
                Ok(won) => return Ok(self.acquired(won, state)),
                Err(failed) => {
                    Box::pin(self.prepare_next_attempt(&mut state, failed, attempt_started_at))
                        .await?;
                }
            }
        }
    }

    /// Makes the next attempt. If this waiter is queued on the masters, the attempt contains the ticket of its queue
    /// entry.
    async fn next_attempt(
        &mut self,
        state: &mut AttemptState<'a>,
    ) -> Result<WonAttempt, FailedAttempt> {
        state.attempts += 1;
        if let Some(place) = &state.local_place {
            place.forget_wakes();
        }
        self.choose_slot(state.local_place.as_mut(), state.remote_place.is_some());
        let fairness = if self.core.options.fair {
            let ticket = state
                .remote_place
                .as_ref()
                .map(|remote_place| remote_place.ticket.clone());
            Fairness::Fair(ticket.map(Box::new))
        } else {
            Fairness::Unordered
        };
        self.attempt(fairness, state.attempts).await
    }

    /// Handles a failed attempt, which began at `attempt_started_at`. Returns when it is time for the next attempt, or
    /// with the error of this acquire.
    async fn prepare_next_attempt(
        &mut self,
        state: &mut AttemptState<'a>,
        failed: FailedAttempt,
        attempt_started_at: Instant,
    ) -> Result<(), NotAcquired> {
        LastFinding::add(&mut state.last_finding, failed.finding, &failed.round);
        if let Some(place) = &state.local_place {
            place.share_finding(state.last_finding.clone());
            self.share_occupied_slots(place, &failed);
        }
        self.report_attempt(&failed, state.attempts);
        let queued = state.remote_place.is_some();
        if self
            .choose_another_slot(&failed, &mut state.slots_in_a_row, queued)
            .await
        {
            return Ok(());
        }
        // Wait until the masters have released the keys of the failed attempt. Otherwise, the masters could refuse the
        // next attempt because of these keys.
        if !self.is_over() && self.wait_for_releases(&failed).await {
            let hopeless = failed.round.answers().is_hopeless();
            let is_first = match &mut state.local_place {
                Some(place) => !hopeless && self.is_still_first(place).await,
                None => true,
            };
            if is_first {
                self.wait_before_retry(state, &failed, attempt_started_at)
                    .await;
            }
        }
        if self.is_over() || failed.round.answers().is_hopeless() {
            let last_finding = state.last_finding.take();
            return Err(self.not_acquired(last_finding, Some(failed), state.attempts));
        }
        Ok(())
    }

    /// Waits before the next attempt:
    ///
    /// - If the lock is held, and this waiter has an entry in the queue on the masters: waits for a wake-up or a timer.
    /// - If the lock is held, and this waiter has no such entry: does not wait. The next attempt adds the entry.
    /// - In unordered mode, or if the attempt failed for another reason: removes the entry, if any, and pauses.
    async fn wait_before_retry(
        &self,
        state: &mut AttemptState<'a>,
        failed: &FailedAttempt,
        attempt_started_at: Instant,
    ) {
        let has_collided = self.has_collided(failed);
        let is_contended = failed.failure == Some(Failure::Contention) && !has_collided;
        match (&state.local_place, &mut state.remote_place) {
            (Some(_), None) if is_contended => {
                state.remote_place = Some(Box::new(self.new_remote_place(failed)));
                return;
            }
            (Some(place), Some(entry)) if is_contended => {
                return self.wait_for_wake_up(place, entry, failed).await;
            }
            // The attempt failed for another reason than a held lock. Remove this waiter's queue entry, so that no
            // other waiter stays behind it during the pause.
            (_, Some(entry)) => {
                self.deadline_limit().wait(entry.leave_remote_queue()).await;
            }
            (_, None) => {}
        }
        if has_collided {
            self.pause_after_collision(&mut state.collisions, attempt_started_at)
                .await;
        } else {
            self.pause_by_retry_settings(&mut state.retry_pauses).await;
        }
    }

    fn acquired(&mut self, won: WonAttempt, state: AttemptState<'_>) -> Acquired {
        let AttemptState {
            mut local_place,
            remote_place,
            attempts,
            ..
        } = state;
        if let Some(reservation) = &self.reservation {
            if let Some(local_place) = &local_place {
                local_place.clear_occupied_slot(reservation.permit.slot());
            }
            // This waiter has a slot. Leave both queues, so that the next waiter can ask for one of the other slots.
            local_place = None;
        } else if let Some(remote_place) = remote_place {
            // The queue entry now belongs to the lock, and is removed when the lock is released.
            remote_place.stay_queued();
        }
        Acquired {
            won,
            place: local_place,
            reservation: self.reservation.take(),
            attempts,
        }
    }

    /// Makes a queue entry whose ticket is behind all waiters that the masters reported in the failed attempt. The next
    /// attempt sends the entry to the masters.
    fn new_remote_place(&self, failed: &FailedAttempt) -> QueuePlace<'a> {
        let answers = failed.round.answers();
        let largest_ticket = answers
            .refusals()
            .map_or(0, |refusals| refusals.largest_ticket);
        drop(answers);
        let waiting_since = self.has_note.then_some(self.started_at);
        QueuePlace::with_number(self.core, &self.target, largest_ticket + 1, waiting_since)
    }

    /// Enters the local queue. Returns whether this acquire may ask the masters now, or must wait for local waiters
    /// ahead.
    ///
    /// A `try_acquire` never waits. If other local waiters are ahead, returns an error with the known reason why the
    /// lock is not available. If no reason is known, the `try_acquire` asks the masters.
    fn enter_local_queue(&self, local_turn: LocalTurn) -> Result<LocalEntry, LastFinding> {
        let local_queues = &self.core.local_queues;
        if local_turn == LocalTurn::Pass {
            // A hold of an owner does not queue here, because the owner may already hold the lock.
            return Ok(LocalEntry::AtFront(Some(
                local_queues.place_unqueued(&self.target),
            )));
        }
        if self.tries_once {
            return Ok(LocalEntry::AtFront(
                local_queues.enter_if_free(&self.target)?,
            ));
        }
        let local_place = local_queues.enter(&self.target);
        Ok(if local_place.is_front() {
            LocalEntry::AtFront(Some(local_place))
        } else {
            LocalEntry::Behind(local_place)
        })
    }

    /// Waits behind other waiters of this process until this waiter may ask the masters.
    async fn wait_for_local_turn(&self, place: LocalPlace) -> Result<LocalPlace, NotAcquired> {
        metrics::record_waiters_ahead(|| Some(place.ahead()));
        if let Some(observer) = self.observer {
            observer(&self.local_queue_status(&place));
        }
        if self
            .deadline_limit()
            .wait(place.wait_for_front())
            .await
            .is_some()
        {
            return Ok(place);
        }
        // The error of a failed acquire contains the masters' replies. This waiter has asked no master, so it polls for
        // the result of the first local waiter's attempt, and reports that result.
        let coordinator = &self.core.coordinator;
        let give_up_at = coordinator.answers_due_at();
        while place.shared_finding().is_none()
            && !place.is_front()
            && coordinator.now() < give_up_at
        {
            let step_end = coordinator.now() + coordinator.patience.answer;
            let mut limit = Limit::new(&*coordinator.runtime, step_end.min(give_up_at));
            limit.wait(place.wait_for_front()).await;
        }
        match place.shared_finding() {
            None if place.is_front() => Ok(place),
            last_finding => Err(self.not_acquired(last_finding, None, 0)),
        }
    }

    /// Makes one attempt, which ends at most [`LAST_ATTEMPT_GRACE`] after the acquire's deadline. A first attempt, and
    /// the attempt of a `try_acquire`, may end later: at most [`LAST_ATTEMPT_GRACE`] after the masters' timeout.
    async fn attempt(
        &self,
        fairness: Fairness,
        attempt_number: u32,
    ) -> Result<WonAttempt, FailedAttempt> {
        let coordinator = &self.core.coordinator;
        let answer_deadline = if attempt_number == 1 || self.tries_once {
            coordinator.given_up_at()
        } else {
            self.deadline
        };
        let attempt_deadline = self.deadline.max(answer_deadline) + LAST_ATTEMPT_GRACE;
        coordinator
            .attempt(&self.target, self.ttl, fairness, attempt_deadline)
            .await
    }

    /// Waits until every master has released the keys of the failed attempt, or until the keys have expired. Returns
    /// `false` if the acquire's deadline passed first.
    async fn wait_for_releases(&self, failed: &FailedAttempt) -> bool {
        let keys_expire_at = self.core.coordinator.now() + self.ttl;
        let runtime = &*self.core.coordinator.runtime;
        let mut limit = Limit::new(runtime, keys_expire_at.min(self.deadline));
        limit.wait(failed.releases.completed()).await;
        !self.is_over()
    }

    /// A time limit that expires when the acquire's wait ends.
    pub(super) fn deadline_limit(&self) -> Limit<'_> {
        Limit::new(&*self.core.coordinator.runtime, self.deadline)
    }

    /// Waits for a wake-up. Without a wake-up, the wait ends when the lock may be free on a majority of the masters,
    /// when the next heartbeat is due, or when this waiter must poll.
    async fn wait_for_wake_up(
        &self,
        place: &LocalPlace,
        entry: &mut QueuePlace<'_>,
        failed: &FailedAttempt,
    ) {
        let coordinator = &self.core.coordinator;
        let quorum = coordinator.quorum;
        let now = coordinator.now();
        let (granting, free_in, ahead, holder) = {
            let answers = failed.round.answers();
            let refusals = answers.refusals();
            (
                answers.granting_masters(),
                answers.majority_free_in(),
                refusals.and_then(|refusals| refusals.ahead).unwrap_or(0),
                refusals.and_then(|refusals| refusals.holder.clone()),
            )
        };
        let mut poll_at = next_poll_at(now, free_in, ahead, entry.ticket.heartbeat);
        if !coordinator.wakes {
            poll_at = poll_at.min(now + entry.pause_without_wake_ups());
        }
        // `ahead` includes the holder. If it is 0, the holder has no queue entry, and may not wake this waiter: poll.
        match holder.filter(|_| ahead == 0) {
            Some(holder) => {
                let unqueued_holder = &mut entry.unqueued_holder;
                let pause = UnqueuedHolder::pause_until_poll(unqueued_holder, holder, now, || {
                    self.retry_pauses()
                });
                poll_at = poll_at.min(now + pause);
            }
            None => entry.unqueued_holder = None,
        }
        place
            .wait_for_wake_ups(
                &*coordinator.runtime,
                granting,
                quorum,
                poll_at.min(self.deadline),
            )
            .await;
    }

    /// Whether this attempt collided with another attempt for the same owner: a majority of the masters granted the
    /// claim, but these masters have different fencing counters.
    fn has_collided(&self, failed: &FailedAttempt) -> bool {
        let numbering = self.target.shape().numbering();
        let granting = failed.round.answers().granting_masters();
        let has_majority = self.core.coordinator.quorum.is_met_by(granting);
        has_majority && may_have_collided(numbering, failed.failure)
    }

    /// Pauses for a random time after a collision with another attempt for the same owner (docs/protocol.md, "Several
    /// resources, readers, owners, semaphores"). Without the pause, the two attempts could collide again.
    ///
    /// The longest possible pause doubles with each call, up to the ttl.
    async fn pause_after_collision(
        &self,
        collisions: &mut Collisions,
        attempt_started_at: Instant,
    ) {
        let coordinator = &self.core.coordinator;
        let now = coordinator.now();
        let mut random_byte = [0];
        coordinator.runtime.random(&mut random_byte);
        let attempt_time = now.saturating_since(attempt_started_at);
        let pause = collisions.next_pause(attempt_time, self.ttl, random_byte[0]);
        let resume_at = (now + pause).min(self.deadline);
        coordinator.runtime.sleep_until(resume_at).await;
    }

    /// Sleeps for the next pause of the retry settings. The random jitter is seeded only before the first pause,
    /// because most locks need no pause.
    async fn pause_by_retry_settings(&self, retry_pauses: &mut Option<RetryPauses>) {
        let retry_pauses = retry_pauses.get_or_insert_with(|| self.retry_pauses());
        let coordinator = &self.core.coordinator;
        let resume_at = coordinator.now() + retry_pauses.next().unwrap_or_default();
        coordinator
            .runtime
            .sleep_until(resume_at.min(self.deadline))
            .await;
    }

    fn retry_pauses(&self) -> RetryPauses {
        // The seed of the jitter, used if the user has set no seed.
        let seed = random_number(&*self.core.coordinator.runtime);
        Box::new(self.core.options.retry.delays(seed))
    }

    pub(super) fn is_over(&self) -> bool {
        self.tries_once || self.core.coordinator.now() >= self.deadline
    }

    fn report_attempt(&self, failed: &FailedAttempt, attempts: u32) {
        metrics::record_waiters_ahead(|| failed.round.answers().refusals()?.ahead);
        let is_debug_enabled = tracing::enabled!(tracing::Level::DEBUG);
        if self.observer.is_none() && !is_debug_enabled {
            return;
        }
        let coordinator = &self.core.coordinator;
        let masters = coordinator.quorum.nodes();
        let waited = coordinator.now().saturating_since(self.started_at);
        let waiting = {
            let answers = failed.round.answers();
            let refusals = answers.refusals();
            let reports = answers.reports(coordinator.names());
            let numbered_reports = reports.iter().enumerate();
            let answering_reports = numbered_reports.filter(|(_, report)| !report.has_failed());
            let answering = answering_reports.map(|(node, _)| node).collect();
            let trouble = report::failures_by_importance(reports);
            Waiting {
                majority_answers: coordinator.quorum.is_met_by(answering),
                ahead: refusals.and_then(|refusals| refusals.ahead),
                holder: refusals.and_then(|refusals| refusals.holder.clone()),
                note: answers.holder_note(),
                ttl_left: answers.ttl_left(),
                answering: masters - trouble.len(),
                trouble,
                held_here: self.is_held_here(),
                foreign: answers.is_foreign(),
                masters,
                waited,
                attempts,
            }
        };
        if is_debug_enabled {
            tracing::debug!(
                attempts,
                failure = failed.failure.map_or("cut_off", Failure::as_str),
                ahead = waiting.ahead,
                holder = waiting
                    .holder
                    .as_deref()
                    .map(String::from_utf8_lossy)
                    .as_deref(),
                ttl_left_ms = waiting.ttl_left.map(|left| left.as_millis() as u64),
                answering = waiting.answering,
                masters = waiting.masters,
                "attempt failed"
            );
            // Record these fields only at the first attempt. A span keeps every value that is recorded for a field, and
            // a wait may last for days. Later progress is reported as events.
            if attempts == 1 {
                let span = tracing::Span::current();
                if let Some(ahead) = waiting.ahead {
                    span.record("ahead", ahead);
                }
                span.record("answering", waiting.answering);
            }
        }
        // No mutex may be held here, because the observer is the user's code.
        if let Some(observer) = self.observer {
            observer(&waiting);
        }
    }

    /// The state that the observer sees while this waiter is behind other waiters of its own process.
    fn local_queue_status(&self, place: &LocalPlace) -> Waiting {
        let coordinator = &self.core.coordinator;
        Waiting {
            ahead: Some(place.ahead()),
            holder: None,
            note: None,
            ttl_left: None,
            answering: coordinator.quorum.nodes(),
            majority_answers: true,
            trouble: Vec::new(),
            held_here: self.is_held_here(),
            foreign: false,
            masters: coordinator.quorum.nodes(),
            waited: coordinator.now().saturating_since(self.started_at),
            attempts: 0,
        }
    }

    /// Makes the error of this acquire from `last_finding`, the last known reason why the lock was not available. If no
    /// reason is known, the error reports an outage.
    fn not_acquired(
        &self,
        last_finding: Option<LastFinding>,
        last_attempt: Option<FailedAttempt>,
        attempts: u32,
    ) -> NotAcquired {
        let waited = self
            .core
            .coordinator
            .now()
            .saturating_since(self.started_at);
        let names_holder = last_finding
            .as_ref()
            .is_none_or(|last_finding| last_finding.names_holder);
        let (failure, round) = match last_finding {
            Some(last_finding) => (last_finding.finding.into(), last_finding.round),
            None => (Failure::Outage, last_attempt.map(|failed| failed.round)),
        };
        let holder_round = round.as_ref().filter(|_| names_holder);
        let note = holder_round.and_then(|round| round.answers().holder_note());
        let foreign = holder_round.is_some_and(|round| round.answers().is_foreign());
        let held_here = failure == Failure::Contention && self.is_held_here();
        NotAcquired {
            failure,
            round,
            note,
            held_here,
            foreign: foreign && !held_here,
            attempts,
            waited,
        }
    }

    fn is_held_here(&self) -> bool {
        let local_queues = &self.core.local_queues;
        self.target.keys().any(|key| local_queues.is_held(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_pause_after_a_collision_doubles_up_to_256_times_the_time_of_an_attempt() {
        let mut collisions = Collisions::default();
        let attempt_time = Duration::from_millis(3);
        let factors: Vec<u128> = (0..10)
            .map(|_| collisions.longest_pause(attempt_time).as_millis() / 3)
            .collect();
        assert_eq!(factors, [2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
    }

    #[test]
    fn pause_after_a_collision_is_a_random_part_of_its_limit_which_is_at_most_the_ttl() {
        let pause_ms = |attempt_ms, ttl_ms, random_byte| {
            let [attempt_time, ttl] = [attempt_ms, ttl_ms].map(Duration::from_millis);
            let pause = Collisions::default().next_pause(attempt_time, ttl, random_byte);
            pause.as_millis()
        };
        // The limit is twice the time of the attempt.
        assert_eq!(pause_ms(128, 10_000, 0), 0);
        assert_eq!(pause_ms(128, 10_000, 1), 1);
        assert_eq!(pause_ms(128, 10_000, 255), 255);
        assert_eq!(pause_ms(5_120, 512, 128), 256);
    }

    #[test]
    fn only_a_refused_attempt_for_an_owner_counts_as_a_collision() {
        for (failure, is_collision) in [
            (Some(Failure::Contention), true),
            (Some(Failure::NotJoinable), true),
            (Some(Failure::Outage), false),
            (Some(Failure::Late), false),
            (None, false),
        ] {
            let may_have_collided_as = |numbering| may_have_collided(numbering, failure);
            assert_eq!(may_have_collided_as(Numbering::OfOwner), is_collision);
            assert!(!may_have_collided_as(Numbering::Raised));
            assert!(!may_have_collided_as(Numbering::Joined));
        }
    }
}
