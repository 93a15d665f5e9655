//! The seeded bug `LocalCountAnswers`: a process that already has a hold of an owner does not ask the masters when the
//! owner acquires the lock again. If the masters have lost the lock, the process does not notice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate::node::Token;
use quorate::runtime::BoxFuture;
use quorate::{Instant, RiskWatch};

use crate::locker::Hold;

/// The number of an owner and the number of a resource.
type OwnerAndResource = (u8, u8);

/// The number of live clones of a hold, and the hold itself.
type CountedHold = (u32, Arc<dyn Hold>);

/// The holds of the owners in one process, by owner and resource.
#[derive(Clone, Default)]
pub(crate) struct CountedHolds(Arc<Mutex<HashMap<OwnerAndResource, CountedHold>>>);

impl CountedHolds {
    fn locked(&self) -> MutexGuard<'_, HashMap<OwnerAndResource, CountedHold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a further clone of the owner's hold on the resource; `None` if this process has no such hold.
    pub(crate) fn join_existing(&self, place: OwnerAndResource) -> Option<Arc<dyn Hold>> {
        let mut holds = self.locked();
        let (count, hold) = holds.get_mut(&place)?;
        *count += 1;
        let hold = hold.clone();
        drop(holds);
        Some(self.clone_of(place, hold))
    }

    /// Adds the first hold of an owner on a resource, and returns its first clone.
    pub(crate) fn add_first(&self, place: OwnerAndResource, hold: Arc<dyn Hold>) -> Arc<dyn Hold> {
        self.locked().insert(place, (1, hold.clone()));
        self.clone_of(place, hold)
    }

    fn clone_of(&self, place: OwnerAndResource, hold: Arc<dyn Hold>) -> Arc<dyn Hold> {
        let holds = self.clone();
        Arc::new(HoldClone { holds, place, hold })
    }
}

/// One clone of an owner's hold. Dropping the last clone drops the hold, unless the lock is lost.
struct HoldClone {
    holds: CountedHolds,
    place: OwnerAndResource,
    hold: Arc<dyn Hold>,
}

impl Drop for HoldClone {
    fn drop(&mut self) {
        if self.hold.end_of_validity().is_none() {
            return;
        }
        let mut holds = self.holds.locked();
        let is_last = holds.get_mut(&self.place).is_some_and(|(count, _)| {
            *count -= 1;
            *count == 0
        });
        let last_hold = if is_last {
            holds.remove(&self.place)
        } else {
            None
        };
        drop(holds);
        drop(last_hold);
    }
}

impl Hold for HoldClone {
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

    fn at_risk(&self, margin: Duration) -> Option<RiskWatch> {
        self.hold.at_risk(margin)
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
