//! The notice that a held lock may be lost soon.

use std::sync::Arc;

use quorate::RiskWatch;
use tokio::sync::Mutex;

use crate::call::{Answer, Call};
use crate::client::Client;
use crate::error::CallError;

/// Watches a held lock for the notice that it may be lost soon. Does not keep the lock held.
pub struct RiskWatcher {
    /// `None` only while the watcher is dropped.
    client: Option<Arc<Client>>,
    /// `None` if the lock was released before.
    watch: Option<Arc<Mutex<RiskWatch>>>,
}

impl RiskWatcher {
    pub(crate) fn new(client: &Arc<Client>, watch: Option<RiskWatch>) -> Self {
        Self {
            client: Some(client.clone()),
            watch: watch.map(|watch| Arc::new(Mutex::new(watch))),
        }
    }

    /// The call that waits until the lock is at risk. The answer is [`Answer::Risk`], or [`Answer::Loss`] if the lock
    /// has ended. Cancelling the call loses no notice.
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn next(&self) -> Result<Call, CallError> {
        let client = self.client.as_ref().filter(|client| !client.is_forked());
        let client = client.ok_or_else(CallError::forked)?;
        let Some(watch) = self.watch.clone() else {
            let released = quorate::LossCause::Released;
            return Ok(Call::done(client, Ok(Answer::Loss(Some(released)))));
        };
        Ok(Call::new(client, async move {
            Ok(match watch.lock().await.next().await {
                Ok(risk) => Answer::Risk(risk),
                Err(cause) => Answer::Loss(Some(cause)),
            })
        }))
    }
}

impl Drop for RiskWatcher {
    fn drop(&mut self) {
        if let Some(client) = self.client.take().filter(|client| client.is_forked()) {
            std::mem::forget((client, self.watch.take()));
        }
    }
}
