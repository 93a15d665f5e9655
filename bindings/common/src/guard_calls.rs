//! The calls of a held lock.

use std::time::Duration;

use quorate::LossCause;

use crate::call::{Answer, Call, Reply};
use crate::error::{CallError, ErrorKind};
use crate::guard::{Guard, RecordRequest};
use crate::risk::RiskWatcher;

impl Guard {
    /// Takes the lock out of this guard, and returns the call that releases it. Another release answers false. The
    /// answer is [`Answer::Flag`]: whether the lock was still valid.
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn release(&self) -> Result<Call, CallError> {
        self.check_process()?;
        let Some(hold) = self.take_hold() else {
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
        let (hold, end) = (self.hold(), self.end());
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
        let (lost, end) = (self.lost(), self.end());
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
        let Some(request) = self.take_record() else {
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
