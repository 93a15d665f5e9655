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
use crate::protocol::lease::{early_window, late_threshold, renew_at};
use crate::repeats::Repeats;

/// The largest number of locks in one message, so that one script call does not block a master for long.
const BATCH_SIZE: usize = 256;

/// The largest number of notes in one message that writes notes for the first time. Such notes are not urgent, and each
/// note is larger than a renewal.
const NOTES_PER_CALL: usize = 64;

/// While at least this many batches of renewals lack the replies of a majority, the next batch is delayed.
pub(super) const MAX_OPEN_BATCHES: usize = 2;

/// The shortest time between two batches of new notes.
///
/// While at least [`MAX_OPEN_BATCHES`] batches of renewals wait for a majority, also the shortest time between two
/// batches of renewals. For a late renewal, [`SHORTEST_INTERVAL`] (1 ms) is used instead.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);

/// The largest number of expired locks that one call of `take_due` takes.
const MAX_ENDS_PER_CALL: usize = 8 * BATCH_SIZE;

/// The shortest time between two due times of one lock, and the shortest sleep of the renewal task.
pub(super) const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The schedule of the held locks, and the wake-up of the task that renews them.
pub(crate) struct Renewal {
    schedule: Mutex<Schedule>,
    /// Wakes the renewal task when a lock becomes due before the planned wake-up, or when this `Renewal` is dropped.
    /// The sleeping task holds this `Arc`, but no strong reference to the `Renewal`.
    pub(super) rescheduled: Arc<Notify>,
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
            rescheduled: Arc::default(),
            repeats: Repeats::default(),
        })
    }

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all locks from the schedule, and returns them.
    pub(crate) fn take_all(&self) -> Vec<Arc<Held>> {
        self.schedule().take_all()
    }

    /// Removes a lock from the schedule. A renewal that is already queued for a master may still be sent.
    pub(crate) fn forget(&self, id: &ScheduleId) {
        self.schedule().remove(id.get());
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        // Wake the renewal task. The task then finds that this `Renewal` no longer exists, and ends.
        self.rescheduled.notify_one();
    }
}

/// When a lock is due next: for writing its first note, for a renewal, or for its end.
pub(super) fn next_due_time(held: &Held, from: Instant) -> Instant {
    let end_or_renewal_at = if held.renews() {
        renew_at(from, held.ttl()).min(held.hold_end)
    } else {
        held.valid_until()
    };
    held.note_due_at()
        .map_or(end_or_renewal_at, |note_at| note_at.min(end_or_renewal_at))
}

/// A held lock that is due, with the reason.
pub(super) struct Due {
    pub(super) held: Arc<Held>,
    pub(super) id: u64,
    pub(super) kind: DueKind,
}

/// Why a lock in the schedule is due: for its first note, for a renewal, or for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueKind {
    /// The note must be written for the first time. Later renewals of the lock also renew the note.
    Note,
    Renewal,
    End,
}

impl DueKind {
    /// Why a lock is due at the time `due`.
    fn at_due_time(held: &Held, due: Instant) -> Self {
        if due >= held.hold_end {
            Self::End
        } else if held.note_due_at() == Some(due) {
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
    renewals: DueTimes,
    /// The times at which locks end. They have a heap of their own, so that no end waits behind a burst of renewals.
    ends: DueTimes,
    /// The times at which notes must be written for the first time. They have a heap of their own, because renewals
    /// take precedence.
    notes: DueTimes,
    /// When a batch of first notes (notes that are written for the first time) was last sent.
    notes_sent_at: Instant,
    pub(super) is_running: bool,
    pub(super) wakes_at: Instant,
    /// The number of batches of renewals that lack the replies of a majority.
    pub(super) open_batches: usize,
    /// When the last batch of renewals was sent.
    pub(super) batch_sent_at: Instant,
    /// Whether the next batch of renewals is delayed, because at least [`MAX_OPEN_BATCHES`] batches wait for a
    /// majority.
    pub(super) is_held_back: bool,
}

type DueTimes = BinaryHeap<Reverse<(Instant, u64)>>;

#[derive(Default)]
struct Entries {
    slots: Vec<Entry>,
    free_indices: Vec<u32>,
    live_count: usize,
}

struct Entry {
    generation: u32,
    /// When the lock of this entry is due; `NEVER` in a free entry.
    due: Instant,
    held: Option<Arc<Held>>,
}

impl Entries {
    fn insert(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let index = self.free_indices.pop().unwrap_or_else(|| {
            self.slots.push(Entry {
                generation: 0,
                due: Instant::NEVER,
                held: None,
            });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.slots[index as usize];
        entry.held = Some(held);
        entry.due = due;
        self.live_count += 1;
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    /// The ids of all entries, also of the free ones.
    fn ids(&self) -> impl Iterator<Item = u64> {
        let numbered_entries = self.slots.iter().zip(0_u64..);
        numbered_entries.map(|(entry, index)| u64::from(entry.generation) << 32 | index)
    }

    fn get(&mut self, id: u64) -> Option<&mut Entry> {
        let entry = self.slots.get_mut((id & u64::from(u32::MAX)) as usize)?;
        (u64::from(entry.generation) == id >> 32 && entry.held.is_some()).then_some(entry)
    }

    /// The lock with this id, if it is due at exactly this time. `None` if this due time is outdated.
    fn held_due_at(&mut self, due: Instant, id: u64) -> Option<&Arc<Held>> {
        let entry = self.get(id).filter(|entry| entry.due == due)?;
        entry.held.as_ref()
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(entry) = self.get(id) else {
            return false;
        };
        entry.held = None;
        entry.due = Instant::NEVER;
        entry.generation = entry.generation.wrapping_add(1);
        self.live_count -= 1;
        self.free_indices.push((id & u64::from(u32::MAX)) as u32);
        true
    }

    /// The first due time in `times` that is not outdated, with its lock. Drops the outdated times that are earlier.
    fn earliest(&mut self, times: &mut DueTimes) -> Option<(Instant, u64, &Arc<Held>)> {
        while let Some(&Reverse((due, id))) = times.peek() {
            if self.held_due_at(due, id).is_some() {
                return self.held_due_at(due, id).map(|held| (due, id, held));
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
            renewals: DueTimes::new(),
            ends: DueTimes::new(),
            notes: DueTimes::new(),
            notes_sent_at: Instant::from_nanos(0),
            is_running: false,
            wakes_at: Instant::NEVER,
            open_batches: 0,
            batch_sent_at: Instant::from_nanos(0),
            is_held_back: false,
        }
    }
}

impl Schedule {
    pub(super) fn insert(&mut self, held: Arc<Held>, due: Instant) -> u64 {
        let kind = DueKind::at_due_time(&held, due);
        let id = self.entries.insert(held, due);
        self.push_due_time(due, id, kind);
        id
    }

    fn push_due_time(&mut self, due: Instant, id: u64, kind: DueKind) {
        let due_times = match kind {
            DueKind::Note => &mut self.notes,
            DueKind::Renewal => &mut self.renewals,
            DueKind::End => &mut self.ends,
        };
        due_times.push(Reverse((due, id)));
    }

    pub(super) fn remove(&mut self, id: u64) {
        let max_times = 2 * self.entries.live_count + 1024;
        if self.entries.remove(id) && self.time_count() > max_times {
            self.drop_outdated_times();
        }
    }

    /// The number of due times of all kinds, with the outdated ones.
    fn time_count(&self) -> usize {
        let all_times = [&self.renewals, &self.ends, &self.notes];
        all_times.iter().map(|times| times.len()).sum()
    }

    fn take_all(&mut self) -> Vec<Arc<Held>> {
        let ids: Vec<u64> = self.entries.ids().collect();
        let held_locks = ids
            .iter()
            .filter_map(|id| self.entries.get(*id)?.held.clone());
        let held_locks: Vec<_> = held_locks.collect();
        for id in ids {
            self.remove(id);
        }
        held_locks
    }

    /// Drops all outdated due times.
    fn drop_outdated_times(&mut self) {
        for times in [&mut self.renewals, &mut self.ends, &mut self.notes] {
            *times = std::mem::take(times)
                .into_iter()
                .filter(|Reverse((due, id))| self.entries.held_due_at(*due, *id).is_some())
                .collect();
        }
    }

    /// Makes the lock `id` due at `due`, if that is earlier than its current due time. Returns whether the task must
    /// wake up earlier than planned.
    pub(super) fn move_earlier(&mut self, id: u64, due: Instant) -> bool {
        let Some(entry) = self.entries.get(id).filter(|entry| due < entry.due) else {
            return false;
        };
        entry.due = due;
        let kind = entry
            .held
            .as_ref()
            .map(|held| DueKind::at_due_time(held, due));
        self.push_due_time(due, id, kind.unwrap_or(DueKind::Renewal));
        due < self.wakes_at
    }

    /// When the renewal task must call `take_due` again. If a lock is already due, this is not later than `now`. `None`
    /// if no lock is scheduled.
    pub(super) fn next_wake_at(&mut self, now: Instant) -> Option<Instant> {
        let next_end_at = self.entries.earliest(&mut self.ends).map(|(due, ..)| due);
        let renewal = self.next_batch_at(now);
        let note_entry = self.entries.earliest(&mut self.notes);
        let next_note_at = note_entry.map(|(due, ..)| due.max(self.notes_sent_at + BATCH_INTERVAL));
        next_end_at
            .into_iter()
            .chain(renewal)
            .chain(next_note_at)
            .min()
    }

    /// When the next batch of renewals may be sent; `None` if no renewal is scheduled.
    fn next_batch_at(&mut self, now: Instant) -> Option<Instant> {
        self.is_held_back = false;
        let (due, _, held) = self.entries.earliest(&mut self.renewals)?;
        let is_late = now.saturating_since(due) > late_threshold(held.ttl());
        let interval = if is_late {
            SHORTEST_INTERVAL
        } else {
            BATCH_INTERVAL
        };
        let batch_due_at = if self.open_batches < MAX_OPEN_BATCHES {
            due
        } else {
            due.max(self.batch_sent_at + interval)
        };
        self.is_held_back = due < batch_due_at;
        Some(batch_due_at)
    }

    /// Takes the locks that are due, and sets the next due time of each of them:
    ///
    /// - the locks whose end is due;
    /// - one batch of renewals, unless earlier batches delay it ([`BATCH_INTERVAL`]);
    /// - one batch of notes that are written for the first time, unless the last such batch was sent less than
    ///   [`BATCH_INTERVAL`] ago.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let mut due_locks = Vec::new();
        while due_locks.len() < MAX_ENDS_PER_CALL
            && let Some((due, id, _)) = self.entries.earliest(&mut self.ends)
            && due <= now
        {
            self.ends.pop();
            due_locks.extend(self.reschedule(id, now, DueKind::End));
        }
        if self
            .next_batch_at(now)
            .is_some_and(|batch_due_at| batch_due_at <= now)
        {
            self.take_renewals(&mut due_locks, now);
        }
        if self.notes_sent_at + BATCH_INTERVAL <= now {
            self.take_notes(&mut due_locks, now);
        }
        due_locks
    }

    /// Takes one batch of renewals. The batch also includes locks that are due shortly after `now`, to save messages.
    fn take_renewals(&mut self, due_locks: &mut Vec<Due>, now: Instant) {
        // A batch is sent now in any case, so fill it with locks that are due soon.
        let full_len = due_locks.len() + BATCH_SIZE;
        while due_locks.len() < full_len
            && let Some((due, id, held)) = self.entries.earliest(&mut self.renewals)
            && due <= now + early_window(held.ttl())
        {
            self.renewals.pop();
            due_locks.extend(self.reschedule(id, now, DueKind::Renewal));
        }
    }

    /// Takes one batch of notes that are written for the first time. These notes are not urgent, so the time between
    /// two such batches is at least [`BATCH_INTERVAL`].
    fn take_notes(&mut self, due_locks: &mut Vec<Due>, now: Instant) {
        let full_len = due_locks.len() + NOTES_PER_CALL;
        while due_locks.len() < full_len
            && let Some((due, id, _)) = self.entries.earliest(&mut self.notes)
            && due <= now
        {
            self.notes.pop();
            due_locks.extend(self.reschedule(id, now, DueKind::Note));
            self.notes_sent_at = now;
        }
        if self.notes.is_empty() {
            // Free the memory of the empty heap.
            self.notes = DueTimes::new();
        }
    }

    /// Sets the next due time of a lock that is due now, and returns the lock. `None` if the schedule has no lock with
    /// this id.
    fn reschedule(&mut self, id: u64, now: Instant, kind: DueKind) -> Option<Due> {
        let entry = self.entries.get(id)?;
        let held = entry.held.clone()?;
        // Writing the first note does not change the time of the next renewal.
        let from = match kind {
            DueKind::Note => held.acquired_at(),
            DueKind::Renewal | DueKind::End => now,
        };
        held.mark_note_sent();
        // The next due time is always later than now, so that the same call does not take the lock again.
        let next_due_at = next_due_time(&held, from).max(now + SHORTEST_INTERVAL);
        entry.due = next_due_at;
        self.push_due_time(next_due_at, id, DueKind::at_due_time(&held, next_due_at));
        Some(Due { held, id, kind })
    }
}

#[cfg(test)]
mod tests;
