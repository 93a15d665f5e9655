//! A ZooKeeper server or ensemble as a store of records.

use std::sync::Arc;

use quorate::Inspection;
use quorate::node::store::{Greeting, Store, StoreNode, Traits};
use quorate::node::{Fault, NodeName, ServerRun};

use crate::acl;
use crate::address::{Address, BadUrl};
use crate::dial::dial;
use crate::greet::{greet, probe_rights};
use crate::inspect;
use crate::layout::Layout;
use crate::listener::ZooKeeperListener;
use crate::session::ZooKeeperSession;

/// The largest number of commits in one batch. A session sends all commits of a batch before it awaits the first
/// result.
const COMMITS_PER_BATCH: usize = 64;

/// A ZooKeeper server or ensemble as a [`Store`], for a [`StoreNode`].
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    address: Arc<Address>,
    name: NodeName,
}

impl ZooKeeper {
    /// Creates the store for the ZooKeeper server or ensemble with this URL (format: see the [crate] page). Connects on
    /// first use.
    ///
    /// # Errors
    ///
    /// [`BadUrl`] if the URL is not valid.
    pub fn open(url: &str) -> Result<Self, BadUrl> {
        let address = Arc::new(Address::parse(url)?);
        let name = NodeName::new(address.name());
        Ok(Self { address, name })
    }
}

/// Creates a master from the ZooKeeper server or ensemble with this URL, for
/// [`RedlockBuilder::node`](quorate::RedlockBuilder::node).
///
/// # Errors
///
/// [`BadUrl`] if the URL is not valid.
pub fn node(url: &str) -> Result<StoreNode<ZooKeeper>, BadUrl> {
    ZooKeeper::open(url).map(StoreNode::new)
}

impl Store for ZooKeeper {
    type Session = ZooKeeperSession;
    type Listener = ZooKeeperListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        Traits::new(self.address.timeout).batch(COMMITS_PER_BATCH)
    }

    async fn connect(&self) -> Result<(Self::Session, Greeting), Fault> {
        let connection = dial(&self.address).await?;
        let client = &connection.client;
        let address = &self.address;
        let records_path = Layout::new(address).records();
        let read_rights = async {
            let acl = acl::read_acl(client, &records_path, address).await?;
            let date = probe_rights(client, address, &acl).await?;
            Ok((acl, date))
        };
        let (names, (acl, date)) = futures::try_join!(greet(client, address), read_rights)?;
        let session = ZooKeeperSession::new(connection, address.clone(), acl, date);
        // The run id is the name of the path. It stays the same after a restart, because a restart loses no lock. Another
        // name means that the path was prepared again, possibly after older data was restored. The name of the ensemble
        // says nothing about this: it may be created later than the path.
        let greeting = Greeting::new(ServerRun::new(format!("zk-{}", names.path)));
        Ok((
            session,
            greeting.run_outlives_restarts().server(names.server),
        ))
    }

    async fn listen(&self, process: Arc<str>) -> Result<Self::Listener, Fault> {
        let connection = dial(&self.address).await?;
        ZooKeeperListener::open(connection, self.address.clone(), &process).await
    }

    async fn inspect(&self) -> Inspection {
        inspect::inspect(&self.address, self.name.clone()).await
    }
}
