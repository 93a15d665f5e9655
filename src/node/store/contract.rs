//! The interface between this library and a store, with the requirements that a store must meet.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::pace::Pacer;
use crate::node::inspection::Inspection;
use crate::node::{Fault, NodeName, ServerRun};

/// A server that keeps records by name and changes them by compare-and-set, for example a database or a coordination
/// service. A [`StoreNode`](super::StoreNode) makes the server usable as a master.
///
/// The client makes all decisions about a lock, based on the record of the locked resource. The store only has to
/// guarantee the following:
///
/// - **Commits are atomic.** A commit takes effect as a whole or not at all. It takes effect only if every record in it
///   has the version that the commit names.
/// - **Versions are never reused.** Each change gives a record a version that the record never had before, even if the
///   record was removed in between.
/// - **A session reads its own writes.** A read in a session is at least as new as every earlier read and write in this
///   session. Other sessions may see newer content earlier, for example if a follower lags behind.
/// - **A running server forgets no acknowledged change.** A server that may forget such changes in a restart must
///   report its uptime ([`Greeting::uptime`]).
///
/// A commit without an answer may take effect at any later time, or never. A late commit does no harm, because it takes
/// effect only if the versions of its records are unchanged.
pub trait Store: Send + Sync + 'static {
    /// A connection to the store over which records are read and changed.
    type Session: Session;
    /// A connection that receives the wake-ups of one process.
    type Listener: Listener;

    /// The server's name for reports: its address without credentials.
    fn name(&self) -> &NodeName;

    /// The properties of this store, for example its timeout.
    fn traits(&self) -> Traits;

    /// Opens a session. To stop waiting, the caller drops the future.
    fn connect(&self) -> impl Future<Output = Result<(Self::Session, Greeting), Fault>> + Send;

    /// Opens a listener, which receives the wake-ups for one process.
    fn listen(
        &self,
        process: Arc<str>,
    ) -> impl Future<Output = Result<Self::Listener, Fault>> + Send;

    /// Inspects the server without waiting for requests in progress.
    fn inspect(&self) -> impl Future<Output = Inspection> + Send;
}

/// The properties of a store, as the implementation of the store declares them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Traits {
    /// How long the store may take to answer a request.
    pub timeout: Duration,
    /// The number of sessions over which a process distributes its requests; by default 1. Each session executes one
    /// batch at a time, and all requests for a record go through the same session.
    pub lanes: usize,
    /// The largest number of commits in one batch; by default 1.
    pub batch: usize,
    /// The largest number of records in one commit; by default unlimited. The client then sends a request for more locks
    /// as several requests, each with its own commit. It must be at least [`MAX_RESOURCES`](crate::MAX_RESOURCES),
    /// because the records of one lock are always in the same commit.
    pub records: usize,
    /// Whether the store notifies waiters when a lock becomes free; by default `true`. Otherwise, waiters poll.
    pub wakes: bool,
    /// Whether the store's [`Listener`] must look for wake-ups itself; by default `false`.
    ///
    /// If `true`, the listener polls, or blocks on the [wait lock](WaitLock) that
    /// [`Pace::Behind`](super::Pace::Behind) names. If `false`, the store notifies the listener.
    pub looks: bool,
    /// Whether the store's sessions write the age of the server's run to the server; by default `false`.
    ///
    /// If `true`, each session is used several times per second as long as the votes of the server do not count. So even
    /// a process that ends soon adds to the age.
    pub counts_age: bool,
}

impl Traits {
    /// Creates properties with this `timeout`. All other fields have their default values.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            lanes: 1,
            batch: 1,
            records: usize::MAX,
            wakes: true,
            looks: false,
            counts_age: false,
        }
    }

    /// Sets the number of sessions over which a process distributes its requests.
    #[must_use]
    pub fn lanes(self, lanes: usize) -> Self {
        Self { lanes, ..self }
    }

    /// Sets the largest number of commits in a batch.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Sets the largest number of records in one commit.
    #[must_use]
    pub fn records(self, records: usize) -> Self {
        Self { records, ..self }
    }

    /// Declares that the store cannot notify its [`Listener`]. The listener must then poll, or block on a
    /// [wait lock](WaitLock).
    #[must_use]
    pub fn looks(self) -> Self {
        Self {
            looks: true,
            ..self
        }
    }

    /// Declares that the store's sessions write the age of the server's run to the server.
    #[must_use]
    pub fn counts_age(self) -> Self {
        Self {
            counts_age: true,
            ..self
        }
    }

    /// Declares that the store does not wake waiters.
    #[must_use]
    pub fn without_wakes(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }
}

/// The facts that a server reports about itself when a session begins.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Greeting {
    /// Identifies the run of the server process: the id changes with every restart, unless
    /// [`run_outlives_restarts`](Self::run_outlives_restarts) is set.
    pub run: ServerRun,
    /// The server's own name, which is the same at every address and after a restart; `None` if the server has none.
    /// The client compares these names to detect two addresses of one server.
    pub server: Option<String>,
    /// The time since the server's start. The server's votes do not count until every lease from before the start has
    /// expired, because the server may have forgotten grants. `None` for a server that never loses an acknowledged
    /// change.
    pub uptime: Option<Duration>,
    /// Whether the run id stays the same when the server restarts, and changes only if its data may have been replaced by
    /// older data. Then the client never trusts a value that was stored under another run id, even if the restart guard
    /// is off. Default: false.
    pub run_outlives_restarts: bool,
}

impl Greeting {
    /// Creates the greeting of a server that never loses an acknowledged change.
    pub fn new(run: ServerRun) -> Self {
        Self {
            run,
            server: None,
            uptime: None,
            run_outlives_restarts: false,
        }
    }

    /// Declares that the run id stays the same when the server restarts, and changes only if its data may have been
    /// replaced by older data.
    #[must_use]
    pub fn run_outlives_restarts(self) -> Self {
        Self {
            run_outlives_restarts: true,
            ..self
        }
    }

    /// Sets the server's name, which must be the same at every address of the server.
    #[must_use]
    pub fn server(self, server: impl Into<String>) -> Self {
        let server = Some(server.into());
        Self { server, ..self }
    }

    /// Sets the time since the server's start, and declares that the server may have forgotten changes from before the
    /// start.
    #[must_use]
    pub fn uptime(self, uptime: Duration) -> Self {
        let uptime = Some(uptime);
        Self { uptime, ..self }
    }
}

/// One connection to a store. The methods need not be cancel-safe: if the library drops an unfinished future of a
/// method, the library also drops the session.
pub trait Session: Send + 'static {
    /// Reads these records, in the given order.
    fn load(
        &mut self,
        names: &[Arc<[u8]>],
    ) -> impl Future<Output = Result<Clocked<Vec<Record>>, Fault>> + Send;

    /// Executes the commits in the given order. If a record does not have the version that its commit requires, this
    /// commit has no effect. The commits after it are still executed.
    ///
    /// There are at most [`Traits::batch`] commits, and each has at most [`Traits::records`] records. No two of them
    /// change the same record.
    fn commit(
        &mut self,
        commits: &[Commit],
    ) -> impl Future<Output = Result<Clocked<Vec<Committed>>, Fault>> + Send;

    /// Reads up to `count` records, beginning at the position `from`. If it returns fewer, this page is the last one.
    /// All pages must use the same order of records. A record that is removed between two pages may still appear, with
    /// version 0.
    fn page(
        &mut self,
        from: u64,
        count: u32,
    ) -> impl Future<Output = Result<Clocked<Vec<NamedRecord>>, Fault>> + Send;

    /// The date that the server gave to this session's last change that was answered. `None`, the default, if the store
    /// gives no dates. A store that gives dates must return one even before the first change.
    ///
    /// A store without a clock needs dates for two purposes:
    ///
    /// - Clients derive fencing numbers from [`Clocked::clock`]. If there is no clock, they use this date. If there is
    ///   no date either, fencing counters never expire.
    /// - A client that reads a lease for the first time computes from this date how old the lease is. Without dates,
    ///   a process that ends soon cannot replace a dead holder that ran on another machine.
    fn date(&self) -> Option<Date> {
        None
    }

    /// Removes each of these records if it still has the given version. If the session is lost before the server has
    /// answered, a removal may take effect later, or never.
    fn remove(
        &mut self,
        records: &[(Arc<[u8]>, u64)],
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The date that a store gave to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Date {
    /// The date in microseconds since 1970, rounded down.
    pub micros: u64,
    /// Identifies the clock that gave the date. Two dates with the same `era` must come from the clock of the same
    /// server process. For example, a ZooKeeper ensemble has a new era after each election of a leader.
    pub era: u64,
    /// The precision of the date; by default 1 ms. The server's clock may have been ahead of the date by up to this
    /// time.
    pub grain: Duration,
}

impl Date {
    /// Creates a date with a precision of 1 ms. `micros` is the date in microseconds since 1970, and `era` identifies
    /// the clock that gave the date.
    pub fn new(micros: u64, era: u64) -> Self {
        let grain = Duration::from_millis(1);
        Self { micros, era, grain }
    }

    /// Sets the precision of the date, for example one second for a store whose dates have whole seconds.
    #[must_use]
    pub fn grain(self, grain: Duration) -> Self {
        Self { grain, ..self }
    }
}

/// An answer from the server, with the time on the server's clock.
#[derive(Clone, Debug)]
pub struct Clocked<T> {
    /// The answer itself.
    pub what: T,
    /// The time on the server's clock at some moment between request and answer, in microseconds since 1970.
    ///
    /// Always `None` if the store has no clock. Each client then measures a lease on its own clock, from the moment
    /// when this client first sees the lease. If the store gives dates ([`Session::date`]), the client also computes
    /// how old the lease was at that moment.
    pub clock: Option<u64>,
}

/// One record of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The version of the record; 0 if the record does not exist.
    pub version: u64,
    /// The content of the record.
    pub state: Vec<u8>,
    /// Why this client cannot read this record, for example because of a missing right; `None` if the record was read.
    /// Requests for other records are not affected.
    pub fault: Option<Fault>,
}

impl Record {
    /// Creates a record with this version and this content.
    pub fn new(version: u64, state: Vec<u8>) -> Self {
        Self {
            version,
            state,
            fault: None,
        }
    }

    /// Creates a record that exists, but that this client cannot read because of `fault`.
    pub fn unreadable(fault: Fault) -> Self {
        Self {
            version: u64::MAX,
            state: vec![u8::MAX],
            fault: Some(fault),
        }
    }
}

/// A record with its name.
pub type NamedRecord = (Vec<u8>, Record);

/// An atomic change of one or more records, with the wake-ups to send after the change.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The changes, one for each record.
    pub changes: Vec<Change>,
    /// The wake-ups to send after the commit. They are hints: a wake-up may be lost, and an unnecessary one does no
    /// harm.
    pub wakes: Vec<Wake>,
    /// The wait locks (named locks of the server) that the session must take or release if the commit took effect.
    /// Empty unless the store declares [`Traits::looks()`].
    pub wait_locks: Vec<WaitLock>,
}

/// An instruction to a session to take or to release a wait lock.
///
/// A wait lock is a named lock of the server, such as `GET_LOCK` in MySQL. With wait locks, a waiter can block instead
/// of polling:
///
/// - Each queued client takes a wait lock in its session. A holder takes one when it renews its lock.
/// - A waiter blocks on the wait lock of the client directly ahead of it.
/// - The server releases the wait locks of a session when the session ends.
///
/// A wait lock is only a hint: a session can fail to get a wait lock, and can lose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitLock {
    /// Take the server's named lock with this name, and keep it until a `Release` with the same name. The name has at
    /// most 48 characters: hexadecimal digits and colons.
    Keep(Arc<str>),
    /// Release the server's named lock with this name, if the session holds it.
    Release(Arc<str>),
}

/// The change of one record in a [`Commit`], or a check of its version.
#[derive(Clone, Debug)]
pub struct Change {
    /// The name of the record; at most 2,100 bytes.
    pub name: Arc<[u8]>,
    /// The version that the record must have; 0 if it must not exist.
    pub version: u64,
    /// The new content; `None` only checks the version.
    pub state: Option<Vec<u8>>,
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The commit took effect. The numbers are the new versions of the records, in the order of the changes.
    Done(Vec<u64>),
    /// The commit had no effect, because the version of one of the records differs from the version in the commit.
    Stale,
}

/// A wake-up message for one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The id of the process: 16 hexadecimal digits.
    pub process: Arc<str>,
    /// The message, which the store passes on unchanged.
    pub word: Vec<u8>,
}

/// Receives the wake-ups that are addressed to one process.
pub trait Listener: Send + 'static {
    /// Gives the listener the [`Pacer`], which says for which wake-ups the process waits. Called once, before the first
    /// call of `next`. A listener that neither polls the store nor rests while nobody waits ignores the pacer.
    fn follow(&mut self, pacer: Pacer) {
        let _ = pacer;
    }

    /// Waits for the next messages to this process. Returns an empty list if a message has an unknown text. The client
    /// then wakes all waiters of the process.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Vec<u8>>, Fault>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_has_no_optional_property_unless_it_declares_it() {
        let timeout = Duration::from_secs(1);
        let traits = Traits::new(timeout);
        assert_eq!(
            (traits.timeout, traits.lanes, traits.batch),
            (timeout, 1, 1)
        );
        assert_eq!((traits.records, traits.wakes), (usize::MAX, true));
        assert_eq!((traits.looks, traits.counts_age), (false, false));
    }

    #[test]
    fn run_id_changes_with_each_restart_unless_the_greeting_declares_otherwise() {
        let greeting = Greeting::new(ServerRun::new("run"));
        assert!(!greeting.run_outlives_restarts);
        assert!(greeting.run_outlives_restarts().run_outlives_restarts);
    }
}
