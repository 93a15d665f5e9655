//! The schedule of held locks: when each lock must be renewed, when its note must be written, and when it must be
//! ended. Renewals are sent in batches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::held::Held;
use crate::protocol::instant::Instant;
use crate::protocol::lease::{early_by, late_after, renew_at};
use crate::repeats::Repeats;

/// The largest number of locks in one message, so that one script call does not block a master for long.
const BATCH: usize = 256;

/// The largest number of notes in one message that writes notes for the first time. Such notes are not urgent, and each
/// note is larger than a renewal.
const NOTES: usize = 64;

/// While at least this many batches of renewals lack the replies of a majority, the next batch is delayed.
pub(super) const OPEN: usize = 2;

/// The shortest time between two batches of new notes.
///
/// While at least [`OPEN`] batches of renewals wait for a majority, also the shortest time between two batches of
/// renewals. For a late renewal, [`SOON`] (1 ms) is used instead.
const PACE: Duration = Duration::from_millis(5);

/// The largest number of expired locks that one call of `take_due` takes.
const ENDS: usize = 8 * BATCH;

/// The shortest time between two due times of one lock, and the shortest sleep of the renewal task.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// The schedule of the held locks, and the wake-up of the task that renews them.
pub(crate) struct Renewal {
    schedule: Mutex<Schedule>,
    /// Wakes the renewal task when a lock becomes due before the planned wake-up, or when this `Renewal` is dropped.
    /// The sleeping task holds this `Arc`, but no strong reference to the `Renewal`.
    pub(super) sooner: Arc<Notify>,
    /// Limits how often warnings about renewals without a majority are logged.
    pub(super) repeats: Repeats,
}

/// The id of a lock in the schedule: the index and the generation of its entry, in one 64-bit number.
#[derive(Debug)]
pub(crate) struct ScheduleId(pub(super) AtomicU64);

impl ScheduleId {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for ScheduleId {
    /// The id of a lock that is not scheduled. It is not 0, because 0 is the id of the first scheduled lock.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Renewal {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            schedule: Mutex::new(Schedule::default()),
            sooner: Arc::default(),
            repeats: Repeats::default(),
        })
    }

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a lock from the schedule. A renewal that is already queued for a master may still be sent.
    pub(crate) fn forget(&self, id: &ScheduleId) {
        self.schedule().remove(id.get());
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        // Wake the renewal task. The task then finds that this `Renewal` no longer exists, and ends.
        self.sooner.notify_one();
    }
}

/// When a lock is due next: for writing its first note, for a renewal, or for its end.
pub(super) fn next_due(held: &Held, from: Instant) -> Instant {
    let due = if held.renews() {
        renew_at(from, held.ttl()).min(held.hold_end)
    } else {
        held.valid_until()
    };
    held.note_due().map_or(due, |note| note.min(due))
}

/// A held lock that is due, with the reason.
pub(super) struct Due {
    pub(super) held: Arc<Held>,
    pub(super) id: u64,
    pub(super) what: What,
}

/// Why a lock in the schedule is due: for its first note, for a renewal, or for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The note must be written for the first time. Later renewals of the lock also renew the note.
    Note,
    Renewal,
    End,
}

impl What {
    /// Why a lock is due at the time `due`.
    fn of(held: &Held, due: Instant) -> Self {
        if due >= held.hold_end {
            Self::End
        } else if held.note_due() == Some(due) {
            Self::Note
        } else if held.renews() {
            Self::Renewal
        } else {
            Self::End
        }
    }
}

/// The scheduled locks, and their due times in ascending order.
///
/// A due time becomes outdated when its lock is removed or gets a new due time. Outdated due times are dropped when
/// they are reached, or when there are many of them.
pub(super) struct Schedule {
    entries: Entries,
    /// The times at which locks are due for a renewal.
    renewals: Times,
    /// The times at which locks end. They have a heap of their own, so that no end waits behind a burst of renewals.
    ends: Times,
    /// The times at which notes must be written for the first time. They have a heap of their own, because renewals
    /// take precedence.
    notes: Times,
    /// When a batch of first notes (notes that are written for the first time) was last sent.
    noted_at: Instant,
    pub(super) running: bool,
    pub(super) wakes_at: Instant,
    /// The number of batches of renewals that lack the replies of a majority.
    pub(super) open: usize,
    /// When the last batch of renewals was sent.
    pub(super) sent_at: Instant,
    /// Whether the next batch of renewals is delayed, because at least [`OPEN`] batches wait for a majority.
    pub(super) held_back: bool,
}

type Times = BinaryHeap<Reverse<(Instant, u64)>>;

#[derive(Default)]
struct Entries {
    states: Vec<Entry>,
    free: Vec<u32>,
    live: usize,
}

struct Entry {
    generation: u32,
    /// When the lock of this entry is due; `NEVER` in a free entry.
    due: Instant,
    held: Option<Arc<Held>>,
}

impl Entries {
    fn take(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.states.push(Entry {
                generation: 0,
                due: Instant::NEVER,
                held: None,
            });
            u32::try_from(self.states.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.states[index as usize];
        entry.held = Some(held);
        entry.due = due;
        self.live += 1;
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    fn get(&mut self, id: u64) -> Option<&mut Entry> {
        let entry = self.states.get_mut((id & u64::from(u32::MAX)) as usize)?;
        (u64::from(entry.generation) == id >> 32 && entry.held.is_some()).then_some(entry)
    }

    /// The lock with this id, if it is due at exactly this time. `None` if this due time is outdated.
    fn due(&mut self, due: Instant, id: u64) -> Option<&Arc<Held>> {
        let entry = self.get(id).filter(|entry| entry.due == due)?;
        entry.held.as_ref()
    }

    fn free(&mut self, id: u64) -> bool {
        let Some(entry) = self.get(id) else {
            return false;
        };
        entry.held = None;
        entry.due = Instant::NEVER;
        entry.generation = entry.generation.wrapping_add(1);
        self.live -= 1;
        self.free.push((id & u64::from(u32::MAX)) as u32);
        true
    }

    /// The first due time in `times` that is not outdated, with its lock. Drops the outdated times that are earlier.
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

impl Default for Schedule {
    fn default() -> Self {
        Self {
            entries: Entries::default(),
            renewals: Times::new(),
            ends: Times::new(),
            notes: Times::new(),
            noted_at: Instant::from_nanos(0),
            running: false,
            wakes_at: Instant::NEVER,
            open: 0,
            sent_at: Instant::from_nanos(0),
            held_back: false,
        }
    }
}

impl Schedule {
    pub(super) fn insert(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let what = What::of(&held, due);
        let id = self.entries.take(held, due);
        self.enter(due, id, what);
        id
    }

    fn enter(&mut self, due: Instant, id: u64, what: What) {
        let times = match what {
            What::Note => &mut self.notes,
            What::Renewal => &mut self.renewals,
            What::End => &mut self.ends,
        };
        times.push(Reverse((due, id)));
    }

    pub(super) fn remove(&mut self, id: u64) {
        let most = 2 * self.entries.live + 1024;
        let times = self.renewals.len() + self.ends.len() + self.notes.len();
        if self.entries.free(id) && times > most {
            self.sweep();
        }
    }

    /// Drops all outdated due times.
    fn sweep(&mut self) {
        for times in [&mut self.renewals, &mut self.ends, &mut self.notes] {
            *times = std::mem::take(times)
                .into_iter()
                .filter(|Reverse((due, id))| self.entries.due(*due, *id).is_some())
                .collect();
        }
    }

    /// Makes the lock `id` due at `at`, if that is earlier than its current due time. Returns whether the task must
    /// wake up earlier than planned.
    pub(super) fn hasten(&mut self, id: u64, at: Instant) -> bool {
        let Some(entry) = self.entries.get(id).filter(|entry| at < entry.due) else {
            return false;
        };
        entry.due = at;
        let what = entry.held.as_ref().map(|held| What::of(held, at));
        self.enter(at, id, what.unwrap_or(What::Renewal));
        at < self.wakes_at
    }

    /// When the renewal task must call `take_due` again. If a lock is already due, this is not later than `now`. `None`
    /// if no lock is scheduled.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        let end = self.entries.first(&mut self.ends).map(|(due, ..)| due);
        let renewal = self.next_batch(now);
        let note = self.entries.first(&mut self.notes).map(|(due, ..)| due);
        let note = note.map(|due| due.max(self.noted_at + PACE));
        end.into_iter().chain(renewal).chain(note).min()
    }

    /// When the next batch of renewals may be sent; `None` if no renewal is scheduled.
    fn next_batch(&mut self, now: Instant) -> Option<Instant> {
        self.held_back = false;
        let (due, _, held) = self.entries.first(&mut self.renewals)?;
        let late = now.saturating_since(due) > late_after(held.ttl());
        let pace = if late { SOON } else { PACE };
        let leaves = if self.open < OPEN {
            due
        } else {
            due.max(self.sent_at + pace)
        };
        self.held_back = due < leaves;
        Some(leaves)
    }

    /// Takes the locks that are due, and sets the next due time of each of them:
    ///
    /// - the locks whose end is due;
    /// - one batch of renewals, unless earlier batches delay it ([`PACE`]);
    /// - one batch of notes that are written for the first time, unless the last such batch was sent less than [`PACE`]
    ///   ago.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let mut taken = Vec::new();
        while taken.len() < ENDS
            && let Some((due, id, _)) = self.entries.first(&mut self.ends)
            && due <= now
        {
            self.ends.pop();
            taken.extend(self.turn(id, now, What::End));
        }
        if self.next_batch(now).is_some_and(|leaves| leaves <= now) {
            self.take_renewals(&mut taken, now);
        }
        if self.noted_at + PACE <= now {
            self.take_notes(&mut taken, now);
        }
        taken
    }

    /// Takes one batch of renewals. The batch also includes locks that are due shortly after `now`, to save messages.
    fn take_renewals(&mut self, taken: &mut Vec<Due>, now: Instant) {
        // A batch is sent now in any case, so fill it with locks that are due soon.
        let full = taken.len() + BATCH;
        while taken.len() < full
            && let Some((due, id, held)) = self.entries.first(&mut self.renewals)
            && due <= now + early_by(held.ttl())
        {
            self.renewals.pop();
            taken.extend(self.turn(id, now, What::Renewal));
        }
    }

    /// Takes one batch of notes that are written for the first time. These notes are not urgent, so the time between
    /// two such batches is at least [`PACE`].
    fn take_notes(&mut self, taken: &mut Vec<Due>, now: Instant) {
        let full = taken.len() + NOTES;
        while taken.len() < full
            && let Some((due, id, _)) = self.entries.first(&mut self.notes)
            && due <= now
        {
            self.notes.pop();
            taken.extend(self.turn(id, now, What::Note));
            self.noted_at = now;
        }
        if self.notes.is_empty() {
            // Free the memory of the empty heap.
            self.notes = Times::new();
        }
    }

    /// Sets the next due time of a lock that is due now, and returns the lock. `None` if the schedule has no lock with
    /// this id.
    fn turn(&mut self, id: u64, now: Instant, what: What) -> Option<Due> {
        let entry = self.entries.get(id)?;
        let held = entry.held.clone()?;
        // Writing the first note does not change the time of the next renewal.
        let from = match what {
            What::Note => held.since(),
            What::Renewal | What::End => now,
        };
        held.will_be_noted();
        // The next due time is always later than now, so that the same call does not take the lock again.
        let next = next_due(&held, from).max(now + SOON);
        entry.due = next;
        self.enter(next, id, What::of(&held, next));
        Some(Due { held, id, what })
    }
}

#[cfg(test)]
mod tests;
