//! Hearing wake-ups.
//!
//! A process has one ephemeral znode. Who wakes it puts the words into it; that fires the one watch there is, the
//! process's own. What is put into it twice before the process has looked is told as "something was said": the
//! version of the znode shows that.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::node::Fault;
use quorate::node::store::Listener;
use zookeeper_client::{Client, CreateMode, Error, OneshotWatcher, Stat};

use crate::address::Address;
use crate::dial::{Dialled, Watch};
use crate::fault;
use crate::layout::Layout;
use crate::words;

/// How often the znode that an earlier session of this process left is removed.
const TRIES: usize = 4;

/// Hears the wake-ups for one process.
pub struct ZooKeeperListener {
    client: Client,
    address: Arc<Address>,
    path: String,
    /// The version of the znode that has been told.
    heard: i32,
    /// What is waited for next. Kept here, so that nothing is lost with a future that is dropped.
    next: Next,
}

type Seen = Result<(Vec<u8>, Stat, OneshotWatcher), Error>;

enum Next {
    /// The watch, to fire.
    Watch(BoxFuture<'static, ()>),
    /// The znode, to be read, with a new watch on it.
    Read(BoxFuture<'static, Seen>),
    /// Nothing: what was to be said is said, and the listener is to look before it watches.
    Look,
}

impl ZooKeeperListener {
    /// Makes the znode of this process anew, in place of what an earlier session of it may have left.
    pub(crate) async fn open(
        dialled: Dialled,
        address: Arc<Address>,
        process: &str,
    ) -> Result<Self, Fault> {
        let client = dialled.client;
        let layout = Layout::new(&address);
        let path = layout.wake(process);
        let options = layout.options(CreateMode::Ephemeral);
        for _ in 0..TRIES {
            let mut writer = client.new_multi_writer();
            let added = writer.add_create(&path, b"", &options);
            added.map_err(|error| fault::of_request(&error, &address))?;
            match writer.commit().await.map_err(Error::from) {
                Ok(_) => {
                    return Ok(Self {
                        client,
                        address,
                        path,
                        heard: 0,
                        next: Next::Look,
                    });
                }
                Err(Error::NodeExists) => match client.delete(&path, None).await {
                    Ok(()) | Err(Error::NoNode) => {}
                    Err(error) => return Err(fault::of_request(&error, &address)),
                },
                Err(error) => return Err(fault::of_request(&error, &address)),
            }
        }
        Err(Fault::Server("two processes of one name listen".into()))
    }

    fn look(&self) -> BoxFuture<'static, Seen> {
        let (client, path) = (self.client.clone(), self.path.clone());
        async move { client.get_and_watch_data(&path).await }.boxed()
    }

    /// What the znode says since it was last read; `None` if nothing.
    fn told(&mut self, data: &[u8], version: i32) -> Option<Vec<Vec<u8>>> {
        let since = version.wrapping_sub(self.heard);
        self.heard = version;
        match since {
            0 => None,
            1 => Some(words::read(data).unwrap_or_default()),
            // What was said before that has been written over.
            _ => Some(Vec::new()),
        }
    }

    async fn hear(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            match &mut self.next {
                Next::Look => self.next = Next::Read(self.look()),
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
                    if let Some(words) = self.told(&data, stat.version) {
                        return Ok(words);
                    }
                }
            }
        }
    }

    fn gone(&self, error: &Error) -> Fault {
        match error {
            Error::NoNode => {
                Fault::Disconnected("its znode for wake-ups is gone, or another listens".into())
            }
            error => fault::of_request(error, &self.address),
        }
    }
}

impl Listener for ZooKeeperListener {
    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        Watch::on(&self.client)?.over(self.hear()).await
    }
}
