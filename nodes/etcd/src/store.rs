//! An etcd cluster as a store of records.

use std::sync::Arc;

use quorate::Inspection;
use quorate::node::store::{Greeting, Store, StoreNode, Traits};
use quorate::node::{Fault, NodeName};

use crate::greet::{era, greet};
use crate::inspect::inspect;
use crate::listener::EtcdListener;
use crate::member::{Member, Shared, down};
use crate::session::EtcdSession;
use crate::txn::MOST_RECORDS;
use crate::url::{Address, BadUrl};

/// The largest number of commits in one batch. A batch is one transaction, if it is small enough.
const BATCH: usize = 32;

/// An etcd cluster as a [`Store`], for a [`StoreNode`].
#[derive(Clone, Debug)]
pub struct Etcd {
    name: NodeName,
    shared: Arc<Shared>,
}

impl Etcd {
    /// Creates the store for the cluster with this URL (format: see the [crate] page). Connects on first use.
    ///
    /// # Errors
    ///
    /// [`BadUrl`] if the URL is not valid. The error gives the reason, but never contains the URL.
    pub fn open(url: &str) -> Result<Self, BadUrl> {
        let address = Address::open(url)?;
        let name = NodeName::new(address.name());
        let shared = Shared::new(address);
        Ok(Self { name, shared })
    }
}

/// Creates a master from the etcd cluster with this URL, for
/// [`RedlockBuilder::node`](quorate::RedlockBuilder::node).
///
/// # Errors
///
/// [`BadUrl`] if the URL is not valid.
pub fn node(url: &str) -> Result<StoreNode<Etcd>, BadUrl> {
    Etcd::open(url).map(StoreNode::new)
}

impl Store for Etcd {
    type Session = EtcdSession;
    type Listener = EtcdListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        Traits::new(self.shared.address.timeout)
            .batch(BATCH)
            .records(MOST_RECORDS)
    }

    async fn connect(&self) -> Result<(EtcdSession, Greeting), Fault> {
        let mut member = Member::open(&self.shared).await?;
        // The era first: the session begins with the date of the last answer.
        let era = era(&mut member).await.map_err(down)?;
        let met = greet(&mut member).await?;
        let greeting = met.greeting();
        Ok((EtcdSession::new(member, met, era), greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<EtcdListener, Fault> {
        EtcdListener::open(&self.shared, &process).await
    }

    async fn inspect(&self) -> Inspection {
        inspect(&self.name, &self.shared).await
    }
}
