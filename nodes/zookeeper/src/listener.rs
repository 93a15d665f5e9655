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
use quorate::node::store::{Listener, decode_messages};
use zookeeper_client::{Acls, Client, CreateMode, Error, OneshotWatcher, Stat};

use crate::acl;
use crate::address::Address;
use crate::dial::{MemberConnection, SessionWatch};
use crate::fault;
use crate::layout::Layout;

/// The number of attempts to create the wake-up znode. If the znode exists already, the listener removes it before
/// the next attempt.
const CREATE_ATTEMPTS: usize = 4;

/// Receives wake-ups from a ZooKeeper server or ensemble, for tasks that wait for a lock or observe an election.
pub struct ZooKeeperListener {
    client: Client,
    address: Arc<Address>,
    path: String,
    /// The version of the znode when it was last read.
    last_read_version: i32,
    /// The operation in progress. If the caller drops the future of `next`, the following call of `next` continues this
    /// operation.
    operation: Operation,
}

type ReadResult = Result<(Vec<u8>, Stat, OneshotWatcher), Error>;

enum Operation {
    /// The listener waits until the watch on the znode fires.
    AwaitChange(BoxFuture<'static, ()>),
    /// The listener reads the znode and sets a new watch.
    Read(BoxFuture<'static, ReadResult>),
    /// No operation is in progress. The next operation is to read the znode.
    None,
}

impl ZooKeeperListener {
    /// Creates the wake-up znode of `process`. If an earlier session left this znode, replaces it.
    pub(crate) async fn open(
        connection: MemberConnection,
        address: Arc<Address>,
        process: &str,
    ) -> Result<Self, Fault> {
        let client = connection.client;
        let layout = Layout::new(&address);
        let path = layout.wake_up(process);
        let acl = acl::read_acl(&client, &layout.wake_ups(), &address).await?;
        let options = CreateMode::Ephemeral.with_acls(Acls::new(&acl));
        let fault_of =
            |error: &Error| fault::classify_request_error(error, &layout.wake_ups(), &address);
        for _ in 0..CREATE_ATTEMPTS {
            let mut writer = client.new_multi_writer();
            let create_result = writer.add_create(&path, b"", &options);
            create_result.map_err(|error| fault_of(&error))?;
            match writer.commit().await.map_err(Error::from) {
                Ok(_) => {
                    return Ok(Self {
                        client,
                        address,
                        path,
                        last_read_version: 0,
                        operation: Operation::None,
                    });
                }
                Err(Error::NodeExists) => match client.delete(&path, None).await {
                    Ok(()) | Err(Error::NoNode) => {}
                    Err(error) => return Err(fault_of(&error)),
                },
                Err(error) => return Err(fault_of(&error)),
            }
        }
        Err(Fault::Server(
            "another process repeatedly creates the znode that notifies this process of released locks".into(),
        ))
    }

    fn read_and_watch(&self) -> BoxFuture<'static, ReadResult> {
        let (client, path) = (self.client.clone(), self.path.clone());
        async move { client.get_and_watch_data(&path).await }.boxed()
    }

    /// Returns the messages that were written to the znode since it was last read:
    ///
    /// - `None` if the znode has not changed.
    /// - An empty list if the znode was written more than once. Each write replaces the messages of the previous write,
    ///   so some messages are lost. The caller must then wake all waiters.
    fn new_messages(&mut self, data: &[u8], version: i32) -> Option<Vec<Vec<u8>>> {
        let writes = version.wrapping_sub(self.last_read_version);
        self.last_read_version = version;
        match writes {
            0 => None,
            1 => Some(decode_messages(data).unwrap_or_default()),
            _ => Some(Vec::new()),
        }
    }

    async fn receive(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            match &mut self.operation {
                Operation::None => self.operation = Operation::Read(self.read_and_watch()),
                Operation::AwaitChange(change) => {
                    change.await;
                    self.operation = Operation::None;
                }
                Operation::Read(pending_read) => {
                    let read_result = pending_read.await;
                    self.operation = Operation::None;
                    let (data, stat, watch) =
                        read_result.map_err(|error| self.fault_of_error(&error))?;
                    if stat.ephemeral_owner != self.client.session_id().0 {
                        return Err(self.fault_of_error(&Error::NoNode));
                    }
                    self.operation = Operation::AwaitChange(watch.changed().map(|_| ()).boxed());
                    if let Some(messages) = self.new_messages(&data, stat.version) {
                        return Ok(messages);
                    }
                }
            }
        }
    }

    fn fault_of_error(&self, error: &Error) -> Fault {
        match error {
            Error::NoNode => Fault::Disconnected(
                "the znode that notifies this process of released locks is gone, or belongs to another process".into(),
            ),
            error => fault::classify_request_error(error, &self.path, &self.address),
        }
    }
}

impl Listener for ZooKeeperListener {
    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        SessionWatch::start(&self.client)?
            .result_of(self.receive())
            .await
    }
}
