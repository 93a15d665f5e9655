//! The state of a semaphore, and force-releasing one of its permits.

use std::sync::Arc;

use crate::keys;
use crate::listing::Listed;
use crate::node::Request;
use crate::redlock::Redlock;
use crate::redlock::status::Status;
use crate::resource::{InvalidResource, MAX_PERMITS};

/// The state of a semaphore on the masters; see [`Redlock::semaphore_status`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SemaphoreStatus {
    /// The slots that have a holder on at least one master, in order of their numbers. A permit is held only if a
    /// majority of the masters stores the same holder ([`Status::verdict`]).
    pub permits: Vec<Listed>,
    /// The semaphore's queue on each master: its waiters. This status never contains a holder; `permits` contains the
    /// holders.
    pub line: Status,
}

impl Redlock {
    /// The state of the semaphore `name` on every master: its held permits and its queue. Reads every possible slot,
    /// because clients may use different numbers of permits for the same semaphore. Changes nothing.
    ///
    /// A lock on the resource `name` is independent of the semaphore: use [`status`](Self::status) for it.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::InvalidResource> {
    /// for permit in redlock.semaphore_status("api").await?.permits {
    ///     println!("slot {:?}: {:?}", permit.slot, permit.status.note());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name of the semaphore is not valid. If a master fails, the returned status contains
    /// the fault of this master.
    pub async fn semaphore_status(
        &self,
        name: impl AsRef<[u8]>,
    ) -> Result<SemaphoreStatus, InvalidResource> {
        let name = self.key(name.as_ref())?;
        let slots = (0..MAX_PERMITS).filter_map(|slot| u8::try_from(slot).ok());
        let slots: Vec<_> = slots.map(|slot| keys::slot_key(&name, slot)).collect();
        let key = keys::semaphore_queue_name(&name).into();
        let queue_status = self.key_status(Request::Status { key }).await;
        let mut permits = self.statuses_of_keys(&slots).await;
        permits.retain(|permit| permit.status.is_held_anywhere());
        Ok(SemaphoreStatus {
            permits,
            line: queue_status,
        })
    }

    /// The state of the permit with number `slot` of the semaphore `name` on every master. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name of the semaphore is not valid, or if there is no such slot. If a master fails,
    /// the returned status contains the fault of this master.
    pub async fn permit_status(
        &self,
        name: impl AsRef<[u8]>,
        slot: usize,
    ) -> Result<Status, InvalidResource> {
        let key = self.slot_key(name.as_ref(), slot)?;
        Ok(self.key_status(Request::Status { key }).await)
    }

    /// Deletes the permit with number `slot` of the semaphore `name` on every master, no matter which client holds it.
    /// The masters then wake the first waiter in the semaphore's queue. Returns the state of the slot before the
    /// deletion. The warnings of [`break_lock`](Self::break_lock) apply.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name of the semaphore is not valid, or if there is no such slot. If a master fails,
    /// the returned status contains the fault of this master.
    pub async fn break_permit(
        &self,
        name: impl AsRef<[u8]>,
        slot: usize,
    ) -> Result<Status, InvalidResource> {
        let key = self.slot_key(name.as_ref(), slot)?;
        Ok(self.force_release(key).await)
    }

    /// The name of the lock key of the permit with number `slot` of the semaphore `name`.
    fn slot_key(&self, name: &[u8], slot: usize) -> Result<Arc<[u8]>, InvalidResource> {
        let name = self.key(name)?;
        let valid_slot = u8::try_from(slot).ok().filter(|_| slot < MAX_PERMITS);
        let slot = valid_slot.ok_or(InvalidResource::Slot(slot))?;
        Ok(keys::slot_key(&name, slot).into())
    }
}
