//! One task that renews all held locks, in batches, each lock on its own votes, and ends those
//! whose time is over.
//!
//! The task only keeps time: it sends, and depends on no answer. Answers come to a answers a batch,
//! so a slow master delays no lock that has its majority. The end of a lease does not depend on
//! it: [`Held::lost`] has a timer of its own.
//!
//! Locks that were taken together come due together. Their batches leave at the pace of the
//! answers, or everything that a burst needs would be in memory at once, for every master; and
//! masters and other requests breathe in between. That pace is bounded from below, so that far
//! or silent masters starve no renewal, and the ends of locks do not keep to it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::coordinator::Coordinator;
use crate::fan_out::{Collect, FanOut, From};
use crate::held::Held;
use crate::metrics;
use crate::node::{Answer, ExtendItem, Extended, Fault, Phase, Request};
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Ballot, Extension, Kept, Terms, renew_at, retry_at};
use crate::report::Slots;

/// The most locks in one message: one script call must not keep a master busy for long.
const BATCH: usize = 256;

/// The batches without a majority's answer that hold the next one back for a while.
const OPEN: usize = 2;

/// For how long: 50,000 locks a second leave however late the answers are, and five times as
/// many once they are late themselves.
const PACE: Duration = Duration::from_millis(5);

/// A lock that waits for longer than this part of its ttl is late.
const LATE: u32 = 30;

/// The most locks that are ended at one look.
const ENDS: usize = 8 * BATCH;

/// The shortest time between two looks at one lock.
const SOON: Duration = Duration::from_millis(1);

/// The held locks that are to be renewed, and the task that does it.
pub(crate) struct Renewal {
    wheel: Mutex<Wheel>,
    /// A lock became due before the task meant to wake, or the owner is gone. Shared, so that
    /// the sleeping task does not keep its owner alive.
    sooner: Arc<Notify>,
}

/// Where a lock stands in the wheel. Packed into one word: slot and generation.
#[derive(Debug)]
pub(crate) struct Seat(AtomicU64);

impl Seat {
    pub(crate) fn id(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Seat {
    /// Nowhere: the seat of a lock that nobody watches. Not 0, which is somebody's seat
    /// (`a_fixed_lease_that_ends_does_not_end_the_renewal_of_another_lock`).
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Renewal {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            wheel: Mutex::new(Wheel::default()),
            sooner: Arc::default(),
        })
    }

    fn wheel(&self) -> MutexGuard<'_, Wheel> {
        self.wheel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts renewing `held`, and the task where none runs. False when there is no runtime to
    /// run it on: then the lease simply ends at its deadline.
    pub(crate) fn watch(
        self: &Arc<Self>,
        coordinator: &Arc<Coordinator>,
        held: &Arc<Held>,
        seat: &Seat,
        started: Instant,
    ) -> bool {
        let due = next_due(held, started);
        let (start, wake) = {
            let mut wheel = self.wheel();
            seat.0
                .store(wheel.insert(held.clone(), due), Ordering::Relaxed);
            let start = !std::mem::replace(&mut wheel.running, true);
            (start, due < wheel.wakes_at)
        };
        if start {
            let task = run(
                Ends(Arc::downgrade(self)),
                Arc::downgrade(coordinator),
                self.sooner.clone(),
            );
            let spawned = coordinator.runtime.spawn(Box::pin(task));
            self.wheel().running &= spawned;
            return spawned;
        }
        if wake {
            self.sooner.notify_one();
        }
        true
    }

    /// Stops renewing it. What is already queued at a node stays before any later release there.
    pub(crate) fn forget(&self, seat: &Seat) {
        self.wheel().remove(seat.id());
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        // The task holds a weak handle: this lets it see that its owner is gone.
        self.sooner.notify_one();
    }
}

/// Marks the task as ended however it ends, so that the next lock starts a new one: also when
/// its runtime was shut down under it, or before it was polled at all.
struct Ends(Weak<Renewal>);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(renewal) = self.0.upgrade() {
            renewal.wheel().running = false;
        }
    }
}

async fn run(mut renewal: Ends, coordinator: Weak<Coordinator>, sooner: Arc<Notify>) {
    loop {
        let (Some(owner), Some(driver)) = (renewal.0.upgrade(), coordinator.upgrade()) else {
            return;
        };
        let now = driver.now();
        let due = owner.wheel().take_due(now);
        send(&owner, &driver, due, now);
        let next = {
            let mut wheel = owner.wheel();
            let next = wheel.next(now);
            wheel.wakes_at = next.unwrap_or(Instant::NEVER);
            // Under the lock, so that no lock is seated between look and end.
            wheel.running = next.is_some();
            next
        };
        let Some(next) = next else {
            // The next lock may have started another task before this one is gone: that one's
            // mark is not ours to take away.
            renewal.0 = Weak::new();
            return;
        };
        if next <= now {
            drop((owner, driver));
            pause().await;
            continue;
        }
        let nap = driver.runtime.sleep_until(next.max(now + SOON));
        drop((owner, driver));
        futures::future::select(nap, std::pin::pin!(sooner.notified())).await;
    }
}

/// Lets other tasks run, on any runtime.
async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Ends what is over, sends the others as one batch to every node, and returns at once.
fn send(renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>, due: Vec<Due>, now: Instant) {
    let mut entries = Vec::with_capacity(due.len());
    let mut items = Vec::with_capacity(due.len());
    for Due { held, seat } in due {
        if let Some(cause) = held.ended(now) {
            end(renewal, coordinator, &held, seat, cause);
            continue;
        }
        if !held.renews() {
            continue;
        }
        let ttl = held.ttl();
        items.push(ExtendItem {
            claim: held.claim.clone(),
            ttl,
        });
        entries.push(Entry {
            ballot: Ballot::new(coordinator.quorum),
            held,
            seat,
            ttl,
            tells: false,
        });
    }
    if items.is_empty() {
        return;
    }
    let items: Arc<[ExtendItem]> = items.into();
    let answers = RenewAnswers {
        entries,
        started: now,
        renewal: Arc::downgrade(renewal),
        coordinator: Arc::downgrade(coordinator),
        heard: Vec::new(),
        open: Some(Open::count(renewal, now)),
    };
    let fan_out = FanOut::new(coordinator.runtime.clone(), answers);
    coordinator.ask_all(&fan_out, Phase::Extend, || Request::Extend {
        items: items.clone(),
    });
}

/// Ends a lock that is lost and lets go of what is left of it, so that nobody waits for our ttl.
pub(crate) fn end(
    renewal: &Renewal,
    coordinator: &Coordinator,
    held: &Held,
    seat: u64,
    cause: LossCause,
) {
    renewal.wheel().remove(seat);
    if cause == LossCause::Released || held.claim.is_withdrawn() {
        return;
    }
    coordinator.release_unheard(&held.claim);
    held.end(cause);
    let resource = String::from_utf8_lossy(held.claim.resource());
    let said = held.trouble(coordinator.names());
    tracing::warn!(%resource, cause = cause.as_str(), said, "lock lost");
}

/// The votes on one batch; each lock is settled on its own.
struct RenewAnswers {
    entries: Vec<Entry>,
    started: Instant,
    renewal: Weak<Renewal>,
    coordinator: Weak<Coordinator>,
    /// What each node said, of every lock, in the order of the answers.
    heard: Vec<(From, Result<Vec<Extended>, Fault>)>,
    /// Until a majority has answered, or everybody.
    open: Option<Open>,
}

/// A batch that counts as open as long as this lives.
struct Open(Weak<Renewal>);

impl Open {
    fn count(renewal: &Arc<Renewal>, now: Instant) -> Self {
        let mut wheel = renewal.wheel();
        wheel.open += 1;
        wheel.sent_at = now;
        Self(Arc::downgrade(renewal))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(renewal) = self.0.upgrade() else {
            return;
        };
        let wake = {
            let mut wheel = renewal.wheel();
            wheel.open -= 1;
            wheel.open < OPEN && wheel.held_back
        };
        if wake {
            renewal.sooner.notify_one();
        }
    }
}

struct Entry {
    held: Arc<Held>,
    seat: u64,
    ttl: Duration,
    ballot: Ballot,
    /// What the masters say to this renewal is what the holder is to know.
    tells: bool,
}

/// What one node said of one lock of an extension, as a vote and as a report.
pub(crate) fn said_of_lock(
    said: &Result<Vec<Extended>, Fault>,
    index: usize,
) -> (Kept, Result<Answer, Fault>) {
    match said.as_ref().map(|said| said.get(index)) {
        Ok(Some(Extended::Kept | Extended::Restored)) => (Kept::Yes, Ok(Answer::Confirmed)),
        Ok(Some(Extended::NotOurs)) => (Kept::No, Ok(Answer::NotOurs)),
        Ok(Some(Extended::Withdrawn) | None) => (Kept::Unknown, Err(Fault::Withdrawn)),
        Err(fault) => (Kept::Unknown, Err(fault.clone())),
    }
}

/// The answer to an extension of `count` locks.
pub(crate) fn extended(
    answer: Result<Answer, Fault>,
    count: usize,
) -> Result<Vec<Extended>, Fault> {
    match answer? {
        Answer::Extended(said) if said.len() == count => Ok(said),
        _ => Err(Fault::Server("an answer of another kind".into())),
    }
}

impl Collect for RenewAnswers {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        let (Some(renewal), Some(coordinator)) =
            (self.renewal.upgrade(), self.coordinator.upgrade())
        else {
            return false;
        };
        let nodes = coordinator.quorum.nodes();
        self.heard
            .push((from, extended(answer, self.entries.len())));
        let usable = self.heard.iter().filter(|(_, said)| said.is_ok()).count();
        if usable >= coordinator.quorum.size() || self.heard.len() >= nodes {
            self.open = None;
        }
        let Self {
            entries,
            heard,
            started,
            ..
        } = self;
        let Some((_, said)) = heard.last() else {
            return false;
        };
        for (index, entry) in entries.iter_mut().enumerate() {
            let (kept, _) = said_of_lock(said, index);
            let held = &entry.held;
            if matches!(said, Ok(said) if said.get(index) == Some(&Extended::Restored)) {
                let resource = String::from_utf8_lossy(held.claim.resource());
                tracing::debug!(%resource, node = from.node, "put a missing key back");
            }
            let terms = Terms {
                started: *started,
                ttl: entry.ttl,
                drift: coordinator.drift,
            };
            let old_end = held.valid_until();
            let outcome = entry.ballot.record(kept, from.now, old_end, terms);
            metrics::renewal(outcome, old_end.saturating_since(from.now));
            entry.tells |= match outcome {
                Extension::Pending => false,
                Extension::Renewed(_) => held.is_troubled(),
                Extension::Lost | Extension::TooLate | Extension::Unknown => true,
            };
            if entry.tells {
                let mut slots = Slots::of(nodes);
                for (from, said) in heard.iter() {
                    let (_, said) = said_of_lock(said, index);
                    slots.note(from.node, &said, *started, from.now, false);
                }
                held.tell(slots);
            }
            match outcome {
                Extension::Pending => {}
                Extension::Renewed(until) => {
                    held.prolong(until, entry.ttl, from.now);
                    tracing::trace!(
                        resource = %String::from_utf8_lossy(held.claim.resource()),
                        "lock renewed"
                    );
                }
                Extension::Lost => {
                    end(
                        &renewal,
                        &coordinator,
                        held,
                        entry.seat,
                        LossCause::TakenAway,
                    );
                }
                Extension::TooLate => {
                    let cause = held.ended(from.now).unwrap_or(LossCause::Expired);
                    end(&renewal, &coordinator, held, entry.seat, cause);
                }
                Extension::Unknown => {
                    let resource = String::from_utf8_lossy(held.claim.resource());
                    let said = held.trouble(coordinator.names());
                    tracing::warn!(%resource, said, "no majority for a renewal, trying again");
                    let again = retry_at(from.now, entry.ttl).min(held.valid_until());
                    if renewal.wheel().hasten(entry.seat, again) {
                        renewal.sooner.notify_one();
                    }
                }
            }
        }
        false
    }
}

/// When to look at a lock again: for its renewal, or for its end.
fn next_due(held: &Held, from: Instant) -> Instant {
    if held.renews() {
        renew_at(from, held.ttl()).min(held.hold_end)
    } else {
        held.valid_until()
    }
}

/// A lock whose time has come.
struct Due {
    held: Arc<Held>,
    seat: u64,
}

/// Seats for the locks, and their times in order. A seat is freed at once when a lock is
/// released; its times are swept when they come up, or when they outnumber the seats.
struct Wheel {
    seats: Seats,
    /// When locks are to be renewed.
    renewals: Times,
    /// When locks end: apart, so that no end stands behind a burst of renewals.
    ends: Times,
    running: bool,
    wakes_at: Instant,
    /// Batches without a majority's answer, and when the last one was sent.
    open: usize,
    sent_at: Instant,
    /// A batch is due, and waits for those.
    held_back: bool,
}

type Times = BinaryHeap<Reverse<(Instant, u64)>>;

#[derive(Default)]
struct Seats {
    states: Vec<SeatState>,
    free: Vec<u32>,
    live: usize,
}

struct SeatState {
    generation: u32,
    /// `NEVER` in a free seat.
    due: Instant,
    held: Option<Arc<Held>>,
}

impl Seats {
    fn take(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.states.push(SeatState {
                generation: 0,
                due: Instant::NEVER,
                held: None,
            });
            u32::try_from(self.states.len() - 1).unwrap_or(u32::MAX)
        });
        let seat = &mut self.states[index as usize];
        seat.held = Some(held);
        seat.due = due;
        self.live += 1;
        u64::from(seat.generation) << 32 | u64::from(index)
    }

    fn get(&mut self, id: u64) -> Option<&mut SeatState> {
        let seat = self.states.get_mut((id & u64::from(u32::MAX)) as usize)?;
        (u64::from(seat.generation) == id >> 32 && seat.held.is_some()).then_some(seat)
    }

    /// The lock in a seat, if it is due at this very time: otherwise the time is an old one.
    fn due(&mut self, due: Instant, id: u64) -> Option<&Arc<Held>> {
        let seat = self.get(id).filter(|seat| seat.due == due)?;
        seat.held.as_ref()
    }

    fn free(&mut self, id: u64) -> bool {
        let Some(seat) = self.get(id) else {
            return false;
        };
        seat.held = None;
        seat.due = Instant::NEVER;
        seat.generation = seat.generation.wrapping_add(1);
        self.live -= 1;
        self.free.push((id & u64::from(u32::MAX)) as u32);
        true
    }

    /// The first of `times` that still stands, without those before it.
    fn first(&mut self, times: &mut Times) -> Option<(Instant, u64, &Arc<Held>)> {
        while let Some(&Reverse((due, id))) = times.peek() {
            if self.due(due, id).is_some() {
                return self.due(due, id).map(|held| (due, id, held));
            }
            times.pop();
        }
        None
    }
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            seats: Seats::default(),
            renewals: Times::new(),
            ends: Times::new(),
            running: false,
            wakes_at: Instant::NEVER,
            open: 0,
            sent_at: Instant::from_nanos(0),
            held_back: false,
        }
    }
}

impl Wheel {
    fn insert(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let is_end = ends(&held, due);
        let id = self.seats.take(held, due);
        self.note(due, id, is_end);
        id
    }

    fn note(&mut self, due: Instant, id: u64, is_end: bool) {
        let times = if is_end {
            &mut self.ends
        } else {
            &mut self.renewals
        };
        times.push(Reverse((due, id)));
    }

    fn remove(&mut self, id: u64) {
        let most = 2 * self.seats.live + 1024;
        if self.seats.free(id) && self.renewals.len() + self.ends.len() > most {
            self.sweep();
        }
    }

    /// Drops the times of seats that are free or have another time by now.
    fn sweep(&mut self) {
        for times in [&mut self.renewals, &mut self.ends] {
            *times = std::mem::take(times)
                .into_iter()
                .filter(|Reverse((due, id))| self.seats.due(*due, *id).is_some())
                .collect();
        }
    }

    /// Makes `id` due at `at`, if that is sooner.
    fn hasten(&mut self, id: u64, at: Instant) -> bool {
        let Some(seat) = self.seats.get(id).filter(|seat| at < seat.due) else {
            return false;
        };
        seat.due = at;
        let is_end = seat.held.as_ref().is_some_and(|held| ends(held, at));
        self.note(at, id, is_end);
        at < self.wakes_at
    }

    /// When to look again; not after `now` where something is left to do at once.
    fn next(&mut self, now: Instant) -> Option<Instant> {
        let end = self.seats.first(&mut self.ends).map(|(due, ..)| due);
        let renewal = self.next_batch(now);
        end.into_iter().chain(renewal).min()
    }

    /// When the next batch may leave.
    fn next_batch(&mut self, now: Instant) -> Option<Instant> {
        self.held_back = false;
        let (due, _, held) = self.seats.first(&mut self.renewals)?;
        let late = now.saturating_since(due) > held.ttl() / LATE;
        let pace = if late { SOON } else { PACE };
        let leaves = if self.open < OPEN {
            due
        } else {
            due.max(self.sent_at + pace)
        };
        self.held_back = due < leaves;
        Some(leaves)
    }

    /// The ends that have come, and one batch of renewals, if one may leave by now: with what
    /// would be due so soon after that it may as well share the message. Each gets its next time
    /// at once, so that an answer that never comes cannot end its renewal.
    fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let mut taken = Vec::new();
        while taken.len() < ENDS
            && let Some((due, id, _)) = self.seats.first(&mut self.ends)
            && due <= now
        {
            self.ends.pop();
            taken.extend(self.turn(id, now));
        }
        if self.next_batch(now).is_none_or(|leaves| leaves > now) {
            return taken;
        }
        // Only ever early in the company of one that is due; ends are never early.
        let (first, full) = (taken.len(), taken.len() + BATCH);
        while taken.len() < full
            && let Some((due, id, held)) = self.seats.first(&mut self.renewals)
            && (due <= now || taken.len() > first && due <= now + held.ttl() / 60)
        {
            self.renewals.pop();
            taken.extend(self.turn(id, now));
        }
        taken
    }

    /// Notes the next time of a lock whose time has come.
    fn turn(&mut self, id: u64, now: Instant) -> Option<Due> {
        let seat = self.seats.get(id)?;
        let held = seat.held.clone()?;
        // Always later than now: what was taken is not taken again at this look.
        let next = next_due(&held, now).max(now + SOON);
        seat.due = next;
        self.note(next, id, ends(&held, next));
        Some(Due { held, seat: id })
    }
}

/// Whether a lock that is due then ends, rather than being renewed.
fn ends(held: &Held, due: Instant) -> bool {
    !held.renews() || due >= held.hold_end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{AcquireAnswers, Won};
    use crate::node::{Claim, Token};
    use crate::protocol::quorum::Quorum;
    use crate::runtime::Tokio;
    use crate::waiting::LocalLines;

    const TTL: Duration = Duration::from_secs(9);
    const BEGAN: Instant = Instant::from_nanos(1_000_000_000);

    fn at(ms: u64) -> Instant {
        BEGAN + Duration::from_millis(ms)
    }

    fn held(max_hold: Option<Duration>, renews: bool) -> Arc<Held> {
        let won = Won {
            claim: Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true)),
            started: BEGAN,
            valid_until: BEGAN + TTL,
            fencing: Some(1),
            round: FanOut::new(
                Arc::new(Tokio::default()),
                AcquireAnswers::open(Quorum::of(5), BEGAN),
            ),
        };
        Held::new(won, TTL, max_hold, renews, &LocalLines::new(), None)
    }

    /// A wheel with `count` locks that are all to be renewed at 3 s.
    fn burst(count: usize) -> Wheel {
        let mut wheel = Wheel::default();
        for _ in 0..count {
            wheel.insert(held(None, true), renew_at(BEGAN, TTL));
        }
        wheel
    }

    /// As when a batch is sent.
    fn take(wheel: &mut Wheel, now: Instant) -> usize {
        let taken = wheel.take_due(now).len();
        if taken > 0 {
            wheel.open += 1;
            wheel.sent_at = now;
        }
        taken
    }

    #[test]
    fn a_burst_leaves_batch_by_batch_at_the_pace_of_the_answers() {
        let mut wheel = burst(5_000);
        assert_eq!(take(&mut wheel, at(2_999)), 0);
        for _ in 0..OPEN {
            assert!(wheel.next(at(3_000)) <= Some(at(3_000)));
            assert_eq!(take(&mut wheel, at(3_000)), BATCH);
        }
        assert_eq!(take(&mut wheel, at(3_000)), 0);
        assert_eq!(wheel.next(at(3_000)), Some(at(3_000) + PACE));
        assert!(wheel.held_back);
        // An answer lets the next one go at once.
        wheel.open -= 1;
        assert_eq!(take(&mut wheel, at(3_001)), BATCH);
        // Without answers it goes a while later, and sooner once it is late.
        assert_eq!(take(&mut wheel, at(3_001) + PACE / 2), 0);
        assert_eq!(take(&mut wheel, at(3_001) + PACE), BATCH);
        assert_eq!(take(&mut wheel, at(3_400)), BATCH);
        assert_eq!(wheel.next(at(3_400)), Some(at(3_400) + SOON));
        let mut now = at(3_401);
        while wheel.next_batch(now).is_some_and(|leaves| leaves <= now) {
            assert!(take(&mut wheel, now) > 0);
            now = now + SOON;
        }
        assert!(now < at(3_430), "all within the ttl, without an answer");
        assert!(wheel.next(now) > Some(at(5_900)), "each has its next time");
    }

    #[test]
    fn ends_do_not_wait_behind_a_burst() {
        let mut wheel = burst(5_000);
        let max_hold = Duration::from_millis(3_002);
        let bounded = held(Some(max_hold), true);
        let end = bounded.hold_end;
        let longest = wheel.insert(bounded, end);
        let fixed = held(None, false);
        let fixed = wheel.insert(fixed, at(3_003));
        for _ in 0..OPEN {
            assert_eq!(take(&mut wheel, at(3_000)), BATCH);
        }
        assert_eq!(wheel.next(at(3_000)), Some(at(3_002)));
        let ended: Vec<_> = wheel.take_due(at(3_002)).iter().map(|d| d.seat).collect();
        assert_eq!(ended, [longest]);
        wheel.remove(longest);
        assert_eq!(wheel.next(at(3_002)), Some(at(3_003)));
        let ended: Vec<_> = wheel.take_due(at(3_003)).iter().map(|d| d.seat).collect();
        assert_eq!(ended, [fixed]);
    }

    #[test]
    fn old_times_are_swept() {
        let mut wheel = Wheel::default();
        for _ in 0..10_000 {
            let id = wheel.insert(held(None, true), at(3_000));
            wheel.remove(id);
        }
        assert!(wheel.renewals.len() < 2_000);
        assert_eq!(wheel.seats.states.len(), 1);
        assert_eq!(wheel.next(BEGAN), None);
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_seat_is_small() {
        assert_eq!(size_of::<SeatState>(), 24);
        assert_eq!(size_of::<Reverse<(Instant, u64)>>(), 16);
    }
}
