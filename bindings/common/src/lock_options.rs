//! A lock to acquire, as data.

use std::sync::Arc;
use std::time::Duration;

use quorate::{AcquireError, LockRequest, Redlock, TryAcquire, Wait};

use crate::call::{Answer, Call};
use crate::client::Client;
use crate::error::CallError;
use crate::guard::Guard;
use crate::held::Hold;

/// Which kind of lock to acquire.
#[derive(Clone, Debug, Default)]
pub enum LockKind {
    /// One holder at a time.
    #[default]
    Exclusive,
    /// Several readers at a time.
    Shared,
    /// All names in one lock.
    All,
    /// One of this number of permits.
    Permit(usize),
    /// A hold of the owner with this id. All holds of an owner share the lock.
    Owner(String),
}

/// A lock to acquire.
#[derive(Clone, Debug)]
pub struct LockOptions {
    /// The names of the resources. Only [`LockKind::All`] has more than one.
    pub names: Vec<Vec<u8>>,
    /// Which kind of lock to acquire.
    pub kind: LockKind,
    /// How long the masters keep the lock without a renewal; `None` for that of the client.
    pub ttl: Option<Duration>,
    /// How long to wait for the lock; `None` for that of the client.
    pub wait: Option<Wait>,
    /// The longest time that the lock is held; `None` for that of the client.
    pub max_hold: Option<Duration>,
    /// Whether the lock is renewed in the background.
    pub renewal: bool,
    /// A text that describes the holder; `None` for that of the client.
    pub note: Option<String>,
    /// Whether the holder publishes no note at all.
    pub is_anonymous: bool,
}

impl LockOptions {
    fn request(self, redlock: &Redlock) -> Result<LockRequest, AcquireError> {
        let first = self.names.first().cloned().unwrap_or_default();
        let mut request = match self.kind {
            LockKind::Exclusive => redlock.lock(first),
            LockKind::Shared => redlock.lock(first).shared(),
            LockKind::All => redlock.lock_all(&self.names),
            LockKind::Permit(permits) => redlock.semaphore(first, permits),
            LockKind::Owner(id) => redlock.owner(id)?.lock(first),
        };
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(wait) = self.wait {
            request = request.wait(wait);
        }
        if let Some(max_hold) = self.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(note) = self.note {
            request = request.note(note);
        }
        if self.is_anonymous {
            request = request.note(None);
        }
        Ok(request.renewal(self.renewal))
    }

    /// The call that waits for the lock. The answer is [`Answer::Guard`].
    pub fn acquire(self, client: &Arc<Client>) -> Call {
        let owner = client.clone();
        Call::new(client, async move {
            let guard = self.request(owner.redlock())?.acquire().await?;
            Ok(Answer::Guard(Guard::new(
                &owner,
                Arc::new(Hold::Lock(guard)),
            )))
        })
    }

    /// The call that makes one attempt. The answer is [`Answer::Guard`] or [`Answer::NotAcquired`].
    pub fn try_acquire(self, client: &Arc<Client>) -> Call {
        let owner = client.clone();
        Call::new(client, async move {
            let request = self.request(owner.redlock())?;
            Ok(
                match request.try_acquire().await.map_err(CallError::from)? {
                    TryAcquire::Acquired(guard) => {
                        Answer::Guard(Guard::new(&owner, Arc::new(Hold::Lock(guard))))
                    }
                    TryAcquire::Held(_) => Answer::NotAcquired,
                },
            )
        })
    }
}
