//! What a store has to be able to do.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::pace::Pacer;
use crate::node::inspection::Inspection;
use crate::node::{Fault, NodeName, ServerRun};

/// A server that keeps records by name and changes them by compare-and-set: a database, a coordination
/// service. A [`StoreNode`](super::StoreNode) makes a master of it.
///
/// All that a lock needs to be decided is decided by the client, over the state in the record of its
/// resource; the store only has to keep to this:
///
/// - A commit takes effect as a whole or not at all, and only where every record in it still has the version that
///   is named. A record that is changed has another version afterwards, and **never one that it had before**,
///   also when it has been removed in between.
/// - What a session was asked and has not answered may take effect at any later time, or never; versions make
///   that harmless.
/// - What is read may be older than what others have been told, as at a follower that lags behind, but never older
///   than what the same session has read or changed.
/// - What was answered as done is not forgotten while the server runs, and after that only as
///   [`Greeting::uptime`] admits.
pub trait Store: Send + Sync + 'static {
    /// A connection for reading and changing.
    type Session: Session;
    /// A connection for wake-ups.
    type Listener: Listener;

    /// The server's name for reports: its address without credentials.
    fn name(&self) -> &NodeName;

    /// How to treat it.
    fn traits(&self) -> Traits;

    /// Opens a session. Bounded by the caller, who drops the future.
    fn connect(&self) -> impl Future<Output = Result<(Self::Session, Greeting), Fault>> + Send;

    /// Hears the wake-ups for a process from now on.
    fn listen(
        &self,
        process: Arc<str>,
    ) -> impl Future<Output = Result<Self::Listener, Fault>> + Send;

    /// Looks at the server, beside all that is under way.
    fn inspect(&self) -> impl Future<Output = Inspection> + Send;
}

/// How a store is to be treated.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Traits {
    /// How long it may take to answer.
    pub timeout: Duration,
    /// How many sessions share the work. Each does one batch at a time, and a record always goes through the same
    /// one.
    pub lanes: usize,
    /// How many commits may go out in one batch.
    pub batch: usize,
    /// Whether it wakes who waits; without, they look again and again.
    pub wakes: bool,
    /// Whether its listener looks again and again instead of being told: then who stands next in line is told so in
    /// good time, as a word like any other, and [`Listener::follow`] says how often to look.
    pub looks: bool,
}

impl Traits {
    /// One session that does one thing at a time, with wake-ups.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            lanes: 1,
            batch: 1,
            wakes: true,
            looks: false,
        }
    }

    /// The same, with so many sessions.
    #[must_use]
    pub fn lanes(self, lanes: usize) -> Self {
        Self { lanes, ..self }
    }

    /// The same, with so many commits in a batch.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// The same, with a listener that looks again and again.
    #[must_use]
    pub fn looks(self) -> Self {
        Self {
            looks: true,
            ..self
        }
    }

    /// The same, waking nobody.
    #[must_use]
    pub fn without_wakes(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }
}

/// What a server tells of itself when a session begins.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Greeting {
    /// Which run of the server it is: after a restart it is another one.
    pub run: ServerRun,
    /// Names the server, so that one server with two addresses is noticed: the same through every address,
    /// and after a restart.
    pub server: Option<String>,
    /// How long the server has been up, where it may have forgotten grants when it started: its votes do not count
    /// until every lease from before has ended. `None` for a server that loses nothing it has answered.
    pub uptime: Option<Duration>,
}

impl Greeting {
    /// Of a server that loses nothing.
    pub fn new(run: ServerRun) -> Self {
        Self {
            run,
            server: None,
            uptime: None,
        }
    }

    /// The same, of the server of this name.
    #[must_use]
    pub fn server(self, server: impl Into<String>) -> Self {
        let server = Some(server.into());
        Self { server, ..self }
    }

    /// The same, of one that may have forgotten what was before.
    #[must_use]
    pub fn uptime(self, uptime: Duration) -> Self {
        let uptime = Some(uptime);
        Self { uptime, ..self }
    }
}

/// One connection to a store. Who drops a future of it drops the session as well.
pub trait Session: Send + 'static {
    /// Reads these records, in the order asked.
    fn load(
        &mut self,
        names: &[Arc<[u8]>],
    ) -> impl Future<Output = Result<Clocked<Vec<Record>>, Fault>> + Send;

    /// Tries these commits, in this order, each by itself: that one is stale says nothing of the next. At most
    /// [`Traits::batch`]; no two of them change the same record.
    fn commit(
        &mut self,
        commits: &[Commit],
    ) -> impl Future<Output = Result<Clocked<Vec<Committed>>, Fault>> + Send;

    /// The records from the `from`th on, at most `count`, in an order that stays.
    fn page(
        &mut self,
        from: u64,
        count: u32,
    ) -> impl Future<Output = Result<Clocked<Vec<NamedRecord>>, Fault>> + Send;

    /// What the server's clock showed when it made the last change of this session that it has answered, in microseconds
    /// since 1970. For a store that dates its changes, by a clock that no lease can be measured with: fencing numbers are
    /// drawn by it. A session tells a date from its beginning on, or never; without one the counter of a lock is kept
    /// for ever. Of no effect for a store that says [`Clocked::clock`].
    fn date(&self) -> Option<u64> {
        None
    }

    /// Removes these records, each only where it still has this version: nothing in them is of use any more. It may
    /// take effect late, or never, as a commit may.
    fn remove(
        &mut self,
        records: &[(Arc<[u8]>, u64)],
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// An answer, and what the server's clock showed.
#[derive(Clone, Debug)]
pub struct Clocked<T> {
    /// The answer.
    pub what: T,
    /// What the server's clock showed at some moment between question and answer, in microseconds since 1970.
    /// A store without a clock of its own says `None`, always: then a lease is over for whoever has seen it
    /// unchanged for as long as it lasts.
    pub clock: Option<u64>,
}

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its version; 0 where there is none.
    pub version: u64,
    /// What was last put into it.
    pub state: Vec<u8>,
}

/// A record and its name.
pub type NamedRecord = (Vec<u8>, Record);

/// A change of one or several records, all or none, and whom to wake when it is done.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The records.
    pub changes: Vec<Change>,
    /// Whom to wake, behind it. A hint: it may be lost, and waking for nothing does no harm.
    pub wakes: Vec<Wake>,
}

/// What is to happen to one record.
#[derive(Clone, Debug)]
pub struct Change {
    /// The record; at most 2,100 bytes.
    pub name: Arc<[u8]>,
    /// The version that it must have; 0: there must be none.
    pub version: u64,
    /// What it is to hold; without, only its version is asked for.
    pub state: Option<Vec<u8>>,
}

/// What became of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It is done; the versions of its records now, in their order.
    Done(Vec<u64>),
    /// Not done: one of the records has another version.
    Stale,
}

/// A wake-up for one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The process: 16 hexadecimal digits.
    pub process: Arc<str>,
    /// What it is told, as it is.
    pub word: Vec<u8>,
}

/// Hears wake-ups.
pub trait Listener: Send + 'static {
    /// What tells from now on how often it is worth looking, for a listener that does. Others ignore it.
    fn follow(&mut self, pacer: Pacer) {
        let _ = pacer;
    }

    /// Waits for what the process is told next. Where it cannot say what was told, only that something was, it
    /// gives an empty list.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Vec<u8>>, Fault>> + Send;
}
