//! One task that renews all held locks, in batches, each lock on its own votes, and ends those
//! whose time is over.
//!
//! The task only keeps time: it sends, and never waits for an answer. Answers come to a board a
//! batch, so a slow master delays no lock that has its majority. The end of a lease does not
//! depend on it: [`Held::lost`] has a timer of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::coordinator::Coordinator;
use crate::gather::{Board, From, Gather};
use crate::held::{Held, LossCause};
use crate::metrics;
use crate::node::{Answer, ExtendItem, Extended, Fault, Phase, Request};
use crate::protocol::instant::Instant;
use crate::protocol::lease::{Ballot, Extension, Kept, Terms, renew_at, retry_at};

/// The most locks in one message: one script call must not keep a master busy for long.
const BATCH: usize = 256;

/// The most locks that are renewed at one look.
const BURST: usize = 8 * BATCH;

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
        self.wheel().remove(seat.0.load(Ordering::Relaxed));
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
        let (due, next) = {
            let mut wheel = owner.wheel();
            let due = wheel.take_due(now);
            let next = wheel.next();
            wheel.wakes_at = next.unwrap_or(Instant::NEVER);
            (due, next)
        };
        for batch in due.chunks(BATCH) {
            send(&owner, &driver, batch, now);
        }
        let Some(next) = next else {
            let mut wheel = owner.wheel();
            // Looked at again under the lock, so that no lock is seated between look and end.
            if wheel.next().is_none() {
                wheel.running = false;
                // The next lock may have started another task before this one is gone: that
                // one's mark is not ours to take away.
                renewal.0 = Weak::new();
                return;
            }
            continue;
        };
        // What a burst has left over goes out a moment later: masters and memory breathe, and
        // other requests are let in between.
        let nap = driver.runtime.sleep_until(next.max(now + SOON));
        drop((owner, driver));
        futures::future::select(nap, std::pin::pin!(sooner.notified())).await;
    }
}

/// Sends one batch to every node and returns at once.
fn send(renewal: &Arc<Renewal>, coordinator: &Arc<Coordinator>, batch: &[Due], now: Instant) {
    let mut entries = Vec::with_capacity(batch.len());
    let mut items = Vec::with_capacity(batch.len());
    for due in batch {
        let held = &due.held;
        if let Some(cause) = held.ended(now) {
            end(renewal, coordinator, held, due.seat, cause);
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
            held: held.clone(),
            seat: due.seat,
            ttl,
            ballot: Ballot::new(coordinator.quorum),
        });
    }
    if items.is_empty() {
        return;
    }
    let items: Arc<[ExtendItem]> = items.into();
    let board = RenewBoard {
        entries,
        started: now,
        renewal: Arc::downgrade(renewal),
        coordinator: Arc::downgrade(coordinator),
    };
    let gather = Gather::new(coordinator.runtime.clone(), board);
    coordinator.ask_all(&gather, Phase::Extend, || Request::Extend {
        items: items.clone(),
    });
}

/// Ends a lock that is lost and lets go of what is left of it, so that nobody waits for our ttl.
fn end(renewal: &Renewal, coordinator: &Coordinator, held: &Held, seat: u64, cause: LossCause) {
    renewal.wheel().remove(seat);
    if cause == LossCause::Released || held.claim.is_withdrawn() {
        return;
    }
    coordinator.release_unheard(&held.claim);
    held.end(cause);
    let resource = String::from_utf8_lossy(held.claim.resource());
    tracing::warn!(%resource, cause = cause.as_str(), "lock lost");
}

/// The votes on one batch; each lock is settled on its own.
struct RenewBoard {
    entries: Vec<Entry>,
    started: Instant,
    renewal: Weak<Renewal>,
    coordinator: Weak<Coordinator>,
}

struct Entry {
    held: Arc<Held>,
    seat: u64,
    ttl: Duration,
    ballot: Ballot,
}

impl Board for RenewBoard {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        let (Some(renewal), Some(coordinator)) =
            (self.renewal.upgrade(), self.coordinator.upgrade())
        else {
            return false;
        };
        let said = match answer {
            Ok(Answer::Extended(said)) if said.len() == self.entries.len() => said,
            _ => Vec::new(),
        };
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let kept = match said.get(index) {
                Some(Extended::Kept | Extended::Restored) => Kept::Yes,
                Some(Extended::NotOurs) => Kept::No,
                Some(Extended::Withdrawn) | None => Kept::Unknown,
            };
            let held = &entry.held;
            if said.get(index) == Some(&Extended::Restored) {
                let resource = String::from_utf8_lossy(held.claim.resource());
                tracing::debug!(%resource, node = from.node, "put a missing key back");
            }
            let terms = Terms {
                started: self.started,
                ttl: entry.ttl,
                drift: coordinator.drift,
            };
            let old_end = held.valid_until();
            let outcome = entry.ballot.record(kept, from.now, old_end, terms);
            metrics::renewal(outcome, old_end.saturating_since(from.now));
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
                    tracing::warn!(%resource, "no majority for a renewal, trying again");
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
    seats: Vec<SeatState>,
    free: Vec<u32>,
    times: BinaryHeap<Reverse<(Instant, u64)>>,
    live: usize,
    running: bool,
    wakes_at: Instant,
}

#[derive(Default)]
struct SeatState {
    generation: u32,
    due: Option<Instant>,
    held: Option<Arc<Held>>,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            seats: Vec::new(),
            free: Vec::new(),
            times: BinaryHeap::new(),
            live: 0,
            running: false,
            wakes_at: Instant::NEVER,
        }
    }
}

impl Wheel {
    fn insert(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.seats.push(SeatState::default());
            u32::try_from(self.seats.len() - 1).unwrap_or(u32::MAX)
        });
        let seat = &mut self.seats[index as usize];
        seat.held = Some(held);
        seat.due = Some(due);
        let id = u64::from(seat.generation) << 32 | u64::from(index);
        self.live += 1;
        self.times.push(Reverse((due, id)));
        id
    }

    fn seat(&mut self, id: u64) -> Option<&mut SeatState> {
        let seat = self.seats.get_mut((id & u64::from(u32::MAX)) as usize)?;
        (u64::from(seat.generation) == id >> 32 && seat.held.is_some()).then_some(seat)
    }

    fn remove(&mut self, id: u64) {
        let Some(seat) = self.seat(id) else { return };
        seat.held = None;
        seat.due = None;
        seat.generation = seat.generation.wrapping_add(1);
        self.live -= 1;
        self.free.push((id & u64::from(u32::MAX)) as u32);
        if self.times.len() > 2 * self.live + 1024 {
            self.sweep();
        }
    }

    /// Drops the times of seats that are free or have another time by now.
    fn sweep(&mut self) {
        let times = std::mem::take(&mut self.times);
        self.times = times
            .into_iter()
            .filter(|Reverse((due, id))| self.seat(*id).is_some_and(|seat| seat.due == Some(*due)))
            .collect();
    }

    /// Makes `id` due at `at`, if that is sooner.
    fn hasten(&mut self, id: u64, at: Instant) -> bool {
        let Some(seat) = self.seat(id) else {
            return false;
        };
        if seat.due.is_some_and(|due| due <= at) {
            return false;
        }
        seat.due = Some(at);
        self.times.push(Reverse((at, id)));
        at < self.wakes_at
    }

    fn next(&self) -> Option<Instant> {
        self.times.peek().map(|Reverse((due, _))| *due)
    }

    /// Everything due by `now`, and what would be due so soon after that it may as well share
    /// the message. Each gets its next time at once, so that an answer that never comes cannot
    /// end its renewal.
    fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let mut taken = Vec::new();
        while taken.len() < BURST
            && let Some(&Reverse((due, id))) = self.times.peek()
        {
            let Some(seat) = self.seat(id).filter(|seat| seat.due == Some(due)) else {
                self.times.pop();
                continue;
            };
            let Some(held) = seat.held.clone() else { break };
            // Renewals may come a little early, ends may not.
            let is_end = !held.renews() || due >= held.hold_end;
            let early = !is_end && !taken.is_empty();
            let horizon = if early { now + held.ttl() / 60 } else { now };
            if due > horizon {
                break;
            }
            // Always later than now: what was taken is not taken again in this loop.
            let next = next_due(&held, now).max(now + SOON);
            seat.due = Some(next);
            self.times.pop();
            self.times.push(Reverse((next, id)));
            taken.push(Due { held, seat: id });
        }
        taken
    }
}
