//! A limited number of units, as data.

use std::sync::Arc;

use quorate::{Quota, Wait};

use crate::call::{Answer, Call};
use crate::client::Client;

/// A quota: a limited number of units that are handed out across all machines.
#[derive(Clone, Debug)]
pub struct QuotaOptions {
    /// The name of the quota, and of the lock that protects it.
    pub name: Vec<u8>,
    /// How long each call waits for the lock; `None` for that of the client.
    pub wait: Option<Wait>,
}

impl QuotaOptions {
    fn quota(&self, client: &Client) -> Quota {
        let quota = client.redlock().quota(&self.name);
        match self.wait {
            Some(wait) => quota.wait(wait),
            None => quota,
        }
    }

    /// The call that creates the quota with this number of units. The answer is [`Answer::Done`].
    pub fn create(&self, client: &Arc<Client>, units: u64) -> Call {
        let quota = self.quota(client);
        Call::new(client, async move {
            quota.create(units).await?;
            Ok(Answer::Done)
        })
    }

    /// The call that takes this number of units, all or none. The answer is [`Answer::Take`].
    pub fn take(&self, client: &Arc<Client>, units: u64) -> Call {
        let quota = self.quota(client);
        Call::new(
            client,
            async move { Ok(Answer::Take(quota.take(units).await?)) },
        )
    }

    /// The call that reads how many units are left. The answer is [`Answer::Units`].
    pub fn left(&self, client: &Arc<Client>) -> Call {
        let quota = self.quota(client);
        Call::new(
            client,
            async move { Ok(Answer::Units(quota.left().await?)) },
        )
    }

    /// The call that removes the quota from every master. The answer is [`Answer::Flag`]: whether there was one.
    pub fn remove(&self, client: &Arc<Client>) -> Call {
        let quota = self.quota(client);
        Call::new(client, async move {
            Ok(Answer::Flag(quota.drop_quota().await?))
        })
    }
}
