//! Receives wake-ups for one process.
//!
//! Each process has one ephemeral znode, its wake-up znode, and watches it. To wake the process, a client writes
//! messages into this znode. The write fires the watch.
//!
//! If the znode is written twice before the process reads it, the first messages are lost. The listener detects this
//! by the version of the znode. It then reports a wake-up without messages.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::node::Fault;
use quorate::node::store::Listener;
use zookeeper_client::{Acls, Client, CreateMode, Error, OneshotWatcher, Stat};

use crate::acl;
use crate::address::Address;
use crate::dial::{Dialled, Watch};
use crate::fault;
use crate::layout::Layout;
use crate::words;

/// The number of attempts to create the wake-up znode. If the znode exists already, the listener removes it before
/// the next attempt.
const TRIES: usize = 4;

/// Receives wake-ups from a ZooKeeper server or ensemble, for tasks that wait for a lock or observe an election.
pub struct ZooKeeperListener {
    client: Client,
    address: Arc<Address>,
    path: String,
    /// The version of the znode when it was last read.
    seen_version: i32,
    /// The operation in progress. If the caller drops the future of `next`, the following call of `next` continues this
    /// operation.
    next: Next,
}

type Seen = Result<(Vec<u8>, Stat, OneshotWatcher), Error>;

enum Next {
    /// The listener waits until the watch on the znode fires.
    Watch(BoxFuture<'static, ()>),
    /// The listener reads the znode and sets a new watch.
    Read(BoxFuture<'static, Seen>),
    /// No operation is in progress. The next operation is to read the znode.
    Look,
}

impl ZooKeeperListener {
    /// Creates the wake-up znode of `process`. If an earlier session left this znode, replaces it.
    pub(crate) async fn open(
        dialled: Dialled,
        address: Arc<Address>,
        process: &str,
    ) -> Result<Self, Fault> {
        let client = dialled.client;
        let layout = Layout::new(&address);
        let path = layout.wake(process);
        let acl = acl::read(&client, &layout.wakes(), &address).await?;
        let options = CreateMode::Ephemeral.with_acls(Acls::new(&acl));
        let refused = |error: &Error| fault::of_request(error, &layout.wakes(), &address);
        for _ in 0..TRIES {
            let mut writer = client.new_multi_writer();
            let added = writer.add_create(&path, b"", &options);
            added.map_err(|error| refused(&error))?;
            match writer.commit().await.map_err(Error::from) {
                Ok(_) => {
                    return Ok(Self {
                        client,
                        address,
                        path,
                        seen_version: 0,
                        next: Next::Look,
                    });
                }
                Err(Error::NodeExists) => match client.delete(&path, None).await {
                    Ok(()) | Err(Error::NoNode) => {}
                    Err(error) => return Err(refused(&error)),
                },
                Err(error) => return Err(refused(&error)),
            }
        }
        Err(Fault::Server(
            "another process repeatedly creates the znode that notifies this process of released locks".into(),
        ))
    }

    fn read_and_watch(&self) -> BoxFuture<'static, Seen> {
        let (client, path) = (self.client.clone(), self.path.clone());
        async move { client.get_and_watch_data(&path).await }.boxed()
    }

    /// Returns the messages that were written to the znode since it was last read:
    ///
    /// - `None` if the znode has not changed.
    /// - An empty list if the znode was written more than once. Each write replaces the messages of the previous write,
    ///   so some messages are lost. The caller must then wake all waiters.
    fn new_words(&mut self, data: &[u8], version: i32) -> Option<Vec<Vec<u8>>> {
        let since = version.wrapping_sub(self.seen_version);
        self.seen_version = version;
        match since {
            0 => None,
            1 => Some(words::read(data).unwrap_or_default()),
            _ => Some(Vec::new()),
        }
    }

    async fn receive(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            match &mut self.next {
                Next::Look => self.next = Next::Read(self.read_and_watch()),
                Next::Watch(fired) => {
                    fired.await;
                    self.next = Next::Look;
                }
                Next::Read(read) => {
                    let read = read.await;
                    self.next = Next::Look;
                    let (data, stat, watch) = read.map_err(|error| self.gone(&error))?;
                    if stat.ephemeral_owner != self.client.session_id().0 {
                        return Err(self.gone(&Error::NoNode));
                    }
                    self.next = Next::Watch(watch.changed().map(|_| ()).boxed());
                    if let Some(words) = self.new_words(&data, stat.version) {
                        return Ok(words);
                    }
                }
            }
        }
    }

    fn gone(&self, error: &Error) -> Fault {
        match error {
            Error::NoNode => Fault::Disconnected(
                "the znode that notifies this process of released locks is gone, or belongs to another process".into(),
            ),
            error => fault::of_request(error, &self.path, &self.address),
        }
    }
}

impl Listener for ZooKeeperListener {
    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        Watch::on(&self.client)?.over(self.receive()).await
    }
}
