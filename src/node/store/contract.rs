//! The requirements for a store.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::pace::Pacer;
use crate::node::inspection::Inspection;
use crate::node::{Fault, NodeName, ServerRun};

/// A server that keeps records by name and changes them by compare-and-set, for example a database or a coordination
/// service. A [`StoreNode`](super::StoreNode) makes a master of it.
///
/// The client decides everything that a lock needs, based on the state in the record of the resource. The store only
/// has to guarantee the following:
///
/// - A commit takes effect as a whole or not at all, and only if every record in it still has the version that the
///   commit names. A changed record gets another version, and **never one that it had before**, even if it was removed
///   in between.
/// - A request that a session has not answered may take effect at any later time, or never. Versions make that
///   harmless.
/// - A read may be older than answers to others, for example at a follower that lags behind. It is never older than
///   what the same session has read or changed.
/// - The server does not forget a change that it has answered while it runs, and after a restart only as
///   [`Greeting::uptime`] allows.
pub trait Store: Send + Sync + 'static {
    /// A connection for reads and changes.
    type Session: Session;
    /// A connection for wake-ups.
    type Listener: Listener;

    /// The server's name for reports: its address without credentials.
    fn name(&self) -> &NodeName;

    /// The properties of this store.
    fn traits(&self) -> Traits;

    /// Opens a session. The caller limits the time by dropping the future.
    fn connect(&self) -> impl Future<Output = Result<(Self::Session, Greeting), Fault>> + Send;

    /// Receives the wake-ups for a process from now on.
    fn listen(
        &self,
        process: Arc<str>,
    ) -> impl Future<Output = Result<Self::Listener, Fault>> + Send;

    /// Inspects the server, independently of all requests in progress.
    fn inspect(&self) -> impl Future<Output = Inspection> + Send;
}

/// The properties of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Traits {
    /// How long the store may take to answer.
    pub timeout: Duration,
    /// The number of sessions that share the work. Each executes one batch at a time, and all requests for a record go
    /// through the same session.
    pub lanes: usize,
    /// The largest number of commits in one batch.
    pub batch: usize,
    /// Whether the store wakes waiters. If not, waiters poll.
    pub wakes: bool,
    /// Whether the listener polls instead of being notified. If so, waiters close to the front of the queue also
    /// receive a word in time, and [`Listener::follow`] determines how often to poll.
    pub looks: bool,
}

impl Traits {
    /// One session, one commit per batch, with wake-ups.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            lanes: 1,
            batch: 1,
            wakes: true,
            looks: false,
        }
    }

    /// Sets the number of sessions.
    #[must_use]
    pub fn lanes(self, lanes: usize) -> Self {
        Self { lanes, ..self }
    }

    /// Sets the largest number of commits in a batch.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Declares that the listener polls.
    #[must_use]
    pub fn looks(self) -> Self {
        Self {
            looks: true,
            ..self
        }
    }

    /// Declares that the store wakes nobody.
    #[must_use]
    pub fn without_wakes(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }
}

/// What a server reports about itself when a session begins
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Greeting {
    /// Identifies the run of the server: it changes with every restart.
    pub run: ServerRun,
    /// Identifies the server, so that one server with two addresses is noticed. It is the same through every address,
    /// and after a restart.
    pub server: Option<String>,
    /// For a server that may have forgotten grants when it started: how long it has been up. Its votes do not count
    /// until every lease from before the start has ended. `None` for a server that loses nothing that it has answered.
    pub uptime: Option<Duration>,
}

impl Greeting {
    /// The greeting of a server that loses nothing.
    pub fn new(run: ServerRun) -> Self {
        Self {
            run,
            server: None,
            uptime: None,
        }
    }

    /// Sets the name that identifies the server.
    #[must_use]
    pub fn server(self, server: impl Into<String>) -> Self {
        let server = Some(server.into());
        Self { server, ..self }
    }

    /// Declares that the server may have forgotten everything from before its start.
    #[must_use]
    pub fn uptime(self, uptime: Duration) -> Self {
        let uptime = Some(uptime);
        Self { uptime, ..self }
    }
}

/// One connection to a store. A caller that drops a future of the session drops the session as well.
pub trait Session: Send + 'static {
    /// Reads these records, in the given order.
    fn load(
        &mut self,
        names: &[Arc<[u8]>],
    ) -> impl Future<Output = Result<Clocked<Vec<Record>>, Fault>> + Send;

    /// Tries these commits in this order, each by itself: a stale commit does not stop the next one. There are at most
    /// [`Traits::batch`] of them, and no two change the same record.
    fn commit(
        &mut self,
        commits: &[Commit],
    ) -> impl Future<Output = Result<Clocked<Vec<Committed>>, Fault>> + Send;

    /// At most `count` records, from the `from`th on, in a stable order.
    fn page(
        &mut self,
        from: u64,
        count: u32,
    ) -> impl Future<Output = Result<Clocked<Vec<NamedRecord>>, Fault>> + Send;

    /// The date, in microseconds since 1970, of the last change of this session that the server has answered. For
    /// stores that date their changes by a clock with which leases cannot be measured. Fencing numbers are derived from
    /// this date. A session returns a date from its beginning on, or never; without a date the counter of a lock is
    /// kept forever. Ignored for stores that return [`Clocked::clock`].
    fn date(&self) -> Option<u64> {
        None
    }

    /// Removes these records, each only if it still has this version. Their content is of no use any more. Like a
    /// commit, the removal may take effect late or never.
    fn remove(
        &mut self,
        records: &[(Arc<[u8]>, u64)],
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// An answer, and the time on the server's clock.
#[derive(Clone, Debug)]
pub struct Clocked<T> {
    /// The answer.
    pub what: T,
    /// The time on the server's clock at some moment between request and answer, in microseconds since 1970. A store
    /// without its own clock always returns `None`. Then a lease is over for an observer that has seen it unchanged for
    /// the duration of the lease.
    pub clock: Option<u64>,
}

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The version; 0 if the record does not exist.
    pub version: u64,
    /// The content.
    pub state: Vec<u8>,
}

/// The name of a record, and the record.
pub type NamedRecord = (Vec<u8>, Record);

/// A change of one or several records, all or nothing, and the processes to wake afterwards.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The changes.
    pub changes: Vec<Change>,
    /// The wake-ups to send after the commit. They are hints: they may be lost, and a needless one does no harm.
    pub wakes: Vec<Wake>,
}

/// The change of one record.
#[derive(Clone, Debug)]
pub struct Change {
    /// The name of the record; at most 2,100 bytes.
    pub name: Arc<[u8]>,
    /// The version that the record must have; 0 if it must not exist.
    pub version: u64,
    /// The new content; `None` to check only the version.
    pub state: Option<Vec<u8>>,
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Done; with the new versions of the records, in their order.
    Done(Vec<u64>),
    /// Not done: one of the records has another version.
    Stale,
}

/// A wake-up for one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The process: 16 hexadecimal digits.
    pub process: Arc<str>,
    /// The message, passed on unchanged.
    pub word: Vec<u8>,
}

/// Receives wake-ups.
pub trait Listener: Send + 'static {
    /// Passes the pacer that determines from now on how often to poll. Only listeners that poll use it.
    fn follow(&mut self, pacer: Pacer) {
        let _ = pacer;
    }

    /// Waits for the next messages to this process. Returns an empty list if there was a message but its text is not
    /// known.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Vec<u8>>, Fault>> + Send;
}
