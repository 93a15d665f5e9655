//! A held lock that several owners may use at the same time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quorate::{LossCause, NodeReport};

use crate::call::{Answer, Call, Reply};
use crate::client::Client;
use crate::error::{CallError, ErrorKind};
use crate::held::{HeldSlot, Hold};
use crate::once::RecordRequest;
use crate::risk::RiskWatcher;

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

    fn client(&self) -> &Arc<Client> {
        self.client
            .as_ref()
            .expect("the guard must not have been dropped yet")
    }

    /// Whether this guard belongs to the process from which this process was forked.
    pub fn is_forked(&self) -> bool {
        self.client().is_forked()
    }

    fn check_process(&self) -> Result<(), CallError> {
        if self.is_forked() {
            return Err(CallError::forked());
        }
        Ok(())
    }

    /// The lock; `None` if it was released, or in a forked process.
    fn hold(&self) -> Option<Arc<Hold>> {
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

    /// Resolves when the lock ends. `None` if it was released.
    pub(crate) fn lost(&self) -> Option<impl Future<Output = LossCause> + Send + use<>> {
        Some(self.hold()?.guard().lost())
    }

    /// Takes the lock out of this guard, and returns the call that releases it. Another release answers false. The
    /// answer is [`Answer::Flag`]: whether the lock was still valid.
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn release(&self) -> Result<Call, CallError> {
        self.check_process()?;
        let record = self
            .record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(record);
        let _ = self.end.set(self.loss().unwrap_or(LossCause::Released));
        let Some(hold) = self.slot.take() else {
            return Ok(Call::done(self.client(), Ok(Answer::Flag(false))));
        };
        // Queues the releases at once, also if the call is never started.
        let Some(released) = self.client().enter(|| hold.guard().release()) else {
            return Ok(Call::done(self.client(), Ok(Answer::Flag(false))));
        };
        Ok(Call::new(self.client(), async move {
            let was_valid = released.await.was_valid;
            drop(hold);
            Ok(Answer::Flag(was_valid))
        }))
    }

    /// The call that extends the lock to `ttl` from now.
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn extend(&self, ttl: Duration) -> Result<Call, CallError> {
        self.check_process()?;
        let (hold, end) = (self.hold(), self.end.get().copied());
        Ok(Call::new(self.client(), async move {
            let Some(hold) = hold else {
                return Err(CallError::lost(end.unwrap_or(LossCause::Released)));
            };
            hold.guard().extend(ttl).await?;
            Ok(Answer::Done)
        }))
    }

    /// The call that waits until the lock has ended. The answer is [`Answer::Loss`].
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn wait_lost(&self, limit: Option<Duration>) -> Result<Call, CallError> {
        self.check_process()?;
        // Only the future, not the lock: a caller that waits for the end must not keep the lock.
        let (lost, end) = (self.lost(), self.end.get().copied());
        Ok(Call::new(self.client(), async move {
            let cause = match (lost, limit) {
                (None, _) => Some(end.unwrap_or(LossCause::Released)),
                (Some(lost), None) => Some(lost.await),
                (Some(lost), Some(limit)) => tokio::time::timeout(limit, lost).await.ok(),
            };
            Ok(Answer::Loss(cause))
        }))
    }

    /// Watches for the notice that the lock may be lost soon: no more than `margin` of its validity is left, because it
    /// was not renewed in time.
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn at_risk(&self, margin: Duration) -> Result<RiskWatcher, CallError> {
        self.check_process()?;
        let watch = self.hold().map(|hold| hold.guard().at_risk(margin));
        Ok(RiskWatcher::new(self.client(), watch))
    }

    /// The call that records the period of [`at_least_once`](crate::once::OnceOptions::at_least_once) as done. It can
    /// be made once.
    ///
    /// # Errors
    ///
    /// In a forked process, or if this guard has no period to record.
    pub fn record(&self) -> Result<Call, CallError> {
        self.check_process()?;
        let request = self
            .record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(request) = request else {
            let text = "this lock has no period that could be recorded as done";
            return Err(CallError::new(ErrorKind::Invalid, text));
        };
        let lost = self.loss();
        Ok(Call::new(self.client(), async move {
            recorded(request, lost).await
        }))
    }
}

async fn recorded(request: RecordRequest, lost: Option<LossCause>) -> Reply {
    let (result_sender, result) = tokio::sync::oneshot::channel();
    if request.send(result_sender).is_err() {
        return Err(CallError::lost(lost.unwrap_or(LossCause::Released)));
    }
    match result.await {
        Ok(result) => result.map(|()| Answer::Done).map_err(CallError::from),
        Err(_) => Err(CallError::closed()),
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
