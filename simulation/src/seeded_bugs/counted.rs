//! The seeded bug `LocalCountAnswers`: a process that already has a hold of an owner does not ask the masters when the
//! owner acquires the lock again. If the masters have lost the lock, the process does not notice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate::Instant;
use quorate::node::Token;
use quorate::runtime::BoxFuture;

use crate::locker::Hold;

/// The number of an owner and the number of a resource.
type Place = (u8, u8);

/// The number of live clones of a hold, and the hold itself.
type Clones = (u32, Arc<dyn Hold>);

/// The holds of the owners in one process, by owner and resource.
#[derive(Clone, Default)]
pub(crate) struct CountedHolds(Arc<Mutex<HashMap<Place, Clones>>>);

impl CountedHolds {
    fn holds(&self) -> MutexGuard<'_, HashMap<Place, Clones>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a further clone of the owner's hold on the resource; `None` if this process has no such hold.
    pub(crate) fn join(&self, place: Place) -> Option<Arc<dyn Hold>> {
        let mut holds = self.holds();
        let (count, hold) = holds.get_mut(&place)?;
        *count += 1;
        let hold = hold.clone();
        drop(holds);
        Some(self.clone_of(place, hold))
    }

    /// Adds the first hold of an owner on a resource, and returns its first clone.
    pub(crate) fn first(&self, place: Place, hold: Arc<dyn Hold>) -> Arc<dyn Hold> {
        self.holds().insert(place, (1, hold.clone()));
        self.clone_of(place, hold)
    }

    fn clone_of(&self, place: Place, hold: Arc<dyn Hold>) -> Arc<dyn Hold> {
        let all = self.clone();
        Arc::new(Counted { all, place, hold })
    }
}

/// One clone of an owner's hold. Dropping the last clone drops the hold, unless the lock is lost.
struct Counted {
    all: CountedHolds,
    place: Place,
    hold: Arc<dyn Hold>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.hold.end_of_validity().is_none() {
            return;
        }
        let mut holds = self.all.holds();
        let last = holds.get_mut(&self.place).is_some_and(|(count, _)| {
            *count -= 1;
            *count == 0
        });
        let gone = if last {
            holds.remove(&self.place)
        } else {
            None
        };
        drop(holds);
        drop(gone);
    }
}

impl Hold for Counted {
    fn value(&self) -> Token {
        self.hold.value()
    }

    fn fencing(&self) -> Option<u64> {
        self.hold.fencing()
    }

    fn end_of_validity(&self) -> Option<Instant> {
        self.hold.end_of_validity()
    }

    fn lost(&self) -> BoxFuture<()> {
        self.hold.lost()
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        self.hold.clone().extend(ttl)
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("a lock that an owner holds cannot be downgraded")
    }
}
