//! An election, as data.

use std::sync::Arc;
use std::time::Duration;

use quorate::{AcquireError, Election, Leadership, Observation, Wait};
use tokio::sync::Mutex;

use crate::call::{Answer, Call};
use crate::client::Client;
use crate::error::CallError;
use crate::guard::Guard;
use crate::held::Hold;

/// An election: at most one client leads, and observers see which.
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    /// The name of the election, and of the lock that the leader holds.
    pub name: Vec<u8>,
    /// How long a leader that has crashed keeps the leadership; `None` for the `ttl` of the client.
    pub ttl: Option<Duration>,
    /// How long a candidate waits; `None` for no limit.
    pub wait: Option<Wait>,
}

impl ElectionOptions {
    fn election(&self, client: &Client) -> Election {
        let mut election = client.redlock().election(&self.name);
        if let Some(ttl) = self.ttl {
            election = election.ttl(ttl);
        }
        if let Some(wait) = self.wait {
            election = election.wait(wait);
        }
        election
    }

    /// The call that waits until this client leads. The answer is [`Answer::Guard`], whose fencing token is the term.
    pub fn campaign(&self, client: &Arc<Client>, note: Option<String>) -> Call {
        let (election, owner) = (self.election(client), client.clone());
        Call::new(client, async move {
            let leadership = campaign(&election, note).await?;
            let hold = Arc::new(Hold::Leadership(leadership));
            Ok(Answer::Guard(Guard::new(&owner, hold)))
        })
    }

    /// The call that makes one attempt to lead. The answer is [`Answer::Guard`] or [`Answer::NotAcquired`].
    pub fn try_campaign(&self, client: &Arc<Client>, note: Option<String>) -> Call {
        let (election, owner) = (self.election(client).wait(Wait::None), client.clone());
        Call::new(client, async move {
            Ok(match campaign(&election, note).await {
                Ok(leadership) => {
                    Answer::Guard(Guard::new(&owner, Arc::new(Hold::Leadership(leadership))))
                }
                Err(AcquireError::HeldByOther(_)) => Answer::NotAcquired,
                Err(error) => return Err(error.into()),
            })
        })
    }

    /// An observer of the election. It sends nothing before [`Observer::next`].
    ///
    /// # Errors
    ///
    /// If the name is invalid.
    pub fn observe(&self, client: &Arc<Client>) -> Result<Observer, CallError> {
        let observation = self.election(client).observe()?;
        Ok(Observer {
            client: Some(client.clone()),
            observation: Some(Arc::new(Mutex::new(observation))),
        })
    }
}

async fn campaign(election: &Election, note: Option<String>) -> Result<Leadership, AcquireError> {
    match note {
        Some(note) => election.campaign(note).await,
        None => election.campaign(None).await,
    }
}

/// Observes which client leads.
pub struct Observer {
    /// `None` only while the observer is dropped, as is the observation.
    client: Option<Arc<Client>>,
    observation: Option<Arc<Mutex<Observation>>>,
}

impl Observer {
    /// The call that waits until the leader changes. The answer is [`Answer::Leader`]. The first call answers with the
    /// leader of now. Cancelling the call loses no change.
    ///
    /// # Errors
    ///
    /// In a forked process.
    pub fn next(&self) -> Result<Call, CallError> {
        let client = self.client.as_ref().filter(|client| !client.is_forked());
        let (Some(client), Some(observation)) = (client, self.observation.clone()) else {
            return Err(CallError::forked());
        };
        Ok(Call::new(client, async move {
            let leader = observation.lock().await.next().await;
            Ok(Answer::Leader(leader))
        }))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let observation = self.observation.take();
        if client.is_forked() {
            std::mem::forget((client, observation));
            return;
        }
        // The drop of an observation sends requests.
        client.enter(|| drop(observation));
    }
}
