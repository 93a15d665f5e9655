//! Looking at a semaphore, and breaking one of its permits.

use crate::keys;
use crate::listing::Listed;
use crate::node::Request;
use crate::redlock::{Redlock, Status};
use crate::resource::{InvalidResource, MAX_PERMITS};

/// What the masters know of a semaphore; see [`Redlock::semaphore_status`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SemaphoreStatus {
    /// The slots of which any master has a holder, in order. A permit is held where a majority names the
    /// same one ([`Status::verdict`]).
    pub permits: Vec<Listed>,
    /// Who waits for a permit, master by master; it shows no holder.
    pub line: Status,
}

impl Redlock {
    /// What every master knows of the semaphore `name`, without touching it: all its permits, however many
    /// its callers say that there are. The plain lock of that name is another one: see
    /// [`status`](Self::status).
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
    /// Only for a name that cannot be locked; faults of masters are part of the answer.
    pub async fn semaphore_status(
        &self,
        name: impl AsRef<[u8]>,
    ) -> Result<SemaphoreStatus, InvalidResource> {
        let name = self.key(name.as_ref())?;
        let slots = (0..MAX_PERMITS).filter_map(|slot| u8::try_from(slot).ok());
        let slots: Vec<_> = slots.map(|slot| keys::slot(&name, slot)).collect();
        let key = keys::line_of_semaphore(&name).into();
        let line = self.look(Request::Look { key }).await;
        let mut permits = self.listed(&slots).await;
        permits.retain(|permit| permit.status.is_held_anywhere());
        Ok(SemaphoreStatus { permits, line })
    }

    /// Deletes one permit of the semaphore `name` on every master, whoever holds it, as
    /// [`break_lock`](Self::break_lock) does with a lock, and says what was there. Who stands first in the
    /// line of the semaphore is woken.
    ///
    /// # Errors
    ///
    /// Only for a name that cannot be locked and a slot that cannot be; faults of masters are part of the
    /// answer.
    pub async fn break_permit(
        &self,
        name: impl AsRef<[u8]>,
        slot: usize,
    ) -> Result<Status, InvalidResource> {
        let name = self.key(name.as_ref())?;
        let known = u8::try_from(slot).ok().filter(|_| slot < MAX_PERMITS);
        let slot = known.ok_or(InvalidResource::Slot(slot))?;
        let key = keys::slot(&name, slot).into();
        Ok(self.look(Request::Break { key }).await)
    }
}
