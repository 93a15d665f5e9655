//! A held lock that several owners may use at the same time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quorate::{LossCause, NodeReport, ValueError};
use tokio::sync::oneshot;

use crate::client::Client;
use crate::error::CallError;
use crate::held::{HeldSlot, Hold};

/// Asks the task that keeps a period to record it as done. The sender that is sent receives the result.
pub(crate) type RecordRequest = oneshot::Sender<oneshot::Sender<Result<(), ValueError>>>;

/// A held lock. Dropping it releases the lock in the background. In a forked process, a copy is not valid and releases
/// nothing.
pub struct Guard {
    slot: Arc<HeldSlot>,
    /// `None` only while the guard is dropped.
    client: Option<Arc<Client>>,
    fencing_token: Option<u64>,
    permit: Option<usize>,
    token: String,
    resources: Vec<Vec<u8>>,
    /// Why the lock ended, once it was released.
    end: OnceLock<LossCause>,
    /// Records the period of `once` as done.
    record: Mutex<Option<RecordRequest>>,
}

impl Guard {
    pub(crate) fn new(client: &Arc<Client>, hold: Arc<Hold>) -> Self {
        let guard = hold.guard();
        Self {
            fencing_token: guard.fencing_token(),
            permit: guard.slot(),
            token: guard.token().to_string(),
            resources: guard.resources().map(<[u8]>::to_vec).collect(),
            end: OnceLock::new(),
            record: Mutex::new(None),
            slot: client.add_held(hold),
            client: Some(client.clone()),
        }
    }

    pub(crate) fn with_record(mut self, request: RecordRequest) -> Self {
        self.record = Mutex::new(Some(request));
        self
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.client
            .as_ref()
            .expect("the guard must not have been dropped yet")
    }

    /// Whether this guard belongs to the process from which this process was forked.
    pub fn is_forked(&self) -> bool {
        self.client().is_forked()
    }

    pub(crate) fn check_process(&self) -> Result<(), CallError> {
        if self.is_forked() {
            return Err(CallError::forked());
        }
        Ok(())
    }

    /// The lock; `None` if it was released, or in a forked process.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        if self.is_forked() {
            return None;
        }
        self.slot.get()
    }

    /// The fencing token; `None` if fencing is off.
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }

    /// The number of the slot, from 0, if this lock is a permit of a semaphore.
    pub fn permit(&self) -> Option<usize> {
        self.permit
    }

    /// The random value of this lock on the masters, as text.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The names of the locked resources.
    pub fn resources(&self) -> &[Vec<u8>] {
        &self.resources
    }

    /// Whether the lock is held now.
    pub fn is_valid(&self) -> bool {
        self.hold().is_some_and(|hold| hold.guard().is_valid())
    }

    /// How long the lock stays valid without a further renewal; zero once it has ended.
    pub fn remaining(&self) -> Duration {
        self.hold()
            .map_or(Duration::ZERO, |hold| hold.guard().remaining())
    }

    /// Why the lock ended; `None` while it is held.
    pub fn loss(&self) -> Option<LossCause> {
        if self.is_forked() {
            return Some(LossCause::Forked);
        }
        if let Some(cause) = self.end.get() {
            return Some(*cause);
        }
        // If the client was closed, the lock was taken out without a release of this guard.
        let hold = self.slot.get();
        hold.map_or(Some(LossCause::Released), |hold| hold.guard().loss())
    }

    /// Whether the lock was released. True in a forked process, which has nothing to release.
    pub fn is_released(&self) -> bool {
        self.is_forked() || self.slot.is_empty()
    }

    /// The reply of each master to the acquire, or to the last renewal if it failed.
    pub fn reports(&self) -> Vec<NodeReport> {
        self.hold()
            .map(|hold| hold.guard().report())
            .unwrap_or_default()
    }

    /// Why the lock ended, if this guard was released.
    pub(crate) fn end(&self) -> Option<LossCause> {
        self.end.get().copied()
    }

    /// Takes the lock out of this guard for a release. `None` if it was taken out before.
    pub(crate) fn take_hold(&self) -> Option<Arc<Hold>> {
        drop(self.take_record());
        let _ = self.end.set(self.loss().unwrap_or(LossCause::Released));
        self.slot.take()
    }

    /// Takes out the request to record the period of `once`.
    pub(crate) fn take_record(&self) -> Option<RecordRequest> {
        self.record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// The error of work of `once` that was not finished, because the lock was lost. `None` if the lock is still held.
    pub fn stopped(&self, recorded: bool) -> Option<CallError> {
        let cause = self.loss()?;
        let name = self.resources.first().map_or(&[][..], Vec::as_slice);
        let name = String::from_utf8_lossy(name).into_owned();
        Some(CallError::from(ValueError::Stopped {
            name,
            cause,
            recorded,
        }))
    }

    /// Resolves when the lock ends. `None` if it was released.
    pub(crate) fn lost(&self) -> Option<impl Future<Output = LossCause> + Send + use<>> {
        Some(self.hold()?.guard().lost())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        if client.is_forked() {
            // The lock is the parent's to release.
            let record = self.record.get_mut().map(Option::take).ok();
            std::mem::forget((self.slot.clone(), record));
            return;
        }
        client.remove_held(&self.slot);
        let record = self.record.get_mut().map(Option::take).ok();
        let hold = self.slot.take();
        drop(record);
        if let Some(hold) = hold {
            // The call queues the releases, also if another call still uses the lock.
            client.enter(|| drop((hold.guard().release(), hold)));
        }
    }
}
