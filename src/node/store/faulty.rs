//! Helpers for the tests of this module: a store that fails in a chosen way, and receivers of answers and of
//! wake-ups.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::contract::{
    Clocked, Commit, Committed, Greeting, Listener, NamedRecord, Record, Session, Store, Traits,
};
use super::pace::Pacer;
use super::table::Table;
use crate::node::inspection::Inspection;
use crate::node::{Answer, Fault, NodeName, Phase, Reply, ReplySink, Subscriber, WakeSink};

/// The number of listeners after which a [`Faulty`] store opens no further one. A client that listens again without a
/// pause reaches this number at once.
pub(super) const MAX_LISTENERS: usize = 200;

/// How a [`Faulty`] store fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    /// The store does not fail.
    Never,
    /// A session never answers when it reads records.
    LoadStalls,
    /// A session panics when it reads records.
    LoadPanics,
    /// The store refuses all commits with this fault.
    CommitFails(Fault),
    /// All pages also show this record, with the name `secret`.
    PageShows(Record),
    /// No listener can be opened because of this fault.
    ListenFails(Fault),
    /// The opening of a listener takes this time, and the listener gets no message.
    ListenTakes(Duration),
    /// The opening of a listener never ends.
    ListenStalls,
    /// The opening of a listener panics.
    ListenPanics,
    /// Each listener fails with this fault.
    ListenerFails(Fault),
    /// Each listener panics after this time.
    ListenerPanics(Duration),
    /// The inspection of the server panics.
    InspectPanics,
}

/// A store that fails in one way, and otherwise works as a [`Table`].
#[derive(Clone, Debug)]
pub(super) struct Faulty {
    table: Table,
    traits: Traits,
    failing: Failing,
    /// How long the store takes to open a session, to read a page, and to fail while it listens.
    answer_time: Duration,
    /// The commits that were sent so far, by the calls that sent them.
    pub(super) commits: Arc<Mutex<Vec<Vec<Commit>>>>,
    /// How many listeners were requested so far.
    pub(super) listener_count: Arc<AtomicUsize>,
    /// The pacer that the last listener follows.
    pub(super) pacer: Arc<Mutex<Option<Pacer>>>,
}

impl Faulty {
    pub(super) fn new(failing: Failing) -> Self {
        let table = Table::new("table", true);
        Self {
            traits: table.traits(),
            table,
            failing,
            answer_time: Duration::ZERO,
            commits: Arc::default(),
            listener_count: Arc::default(),
            pacer: Arc::default(),
        }
    }

    /// Sets how long the store may take to answer a request.
    pub(super) fn timeout(mut self, timeout: Duration) -> Self {
        self.traits.timeout = timeout;
        self
    }

    /// Sets how long the store takes to open a session, to read a page, and to fail while it listens.
    pub(super) fn answer_time(self, answer_time: Duration) -> Self {
        Self {
            answer_time,
            ..self
        }
    }

    /// Keeps the commits of one call for the test.
    fn keep(&self, commits: &[Commit]) {
        let mut sent = self.commits.lock().expect("no test panics here");
        sent.push(commits.to_vec());
    }

    /// Waits for the time that the store takes to answer.
    async fn wait(&self) {
        if !self.answer_time.is_zero() {
            tokio::time::sleep(self.answer_time).await;
        }
    }

    /// Sets the largest number of commits that one call may have.
    pub(super) fn batch(mut self, batch: usize) -> Self {
        self.traits.batch = batch;
        self
    }

    /// Declares that the listener looks for wake-ups itself, with the help of wait locks.
    pub(super) fn looks(mut self) -> Self {
        self.traits.looks = true;
        self
    }
}

impl Store for Faulty {
    type Session = Self;
    type Listener = Self;

    fn name(&self) -> &NodeName {
        self.table.name()
    }

    fn traits(&self) -> Traits {
        self.traits.clone()
    }

    async fn connect(&self) -> Result<(Self, Greeting), Fault> {
        self.wait().await;
        let (_, greeting) = self.table.connect().await?;
        Ok((self.clone(), greeting))
    }

    async fn listen(&self, _: Arc<str>) -> Result<Self, Fault> {
        let listener_count = self.listener_count.fetch_add(1, Ordering::Relaxed);
        match &self.failing {
            Failing::ListenStalls => std::future::pending().await,
            _ if listener_count >= MAX_LISTENERS => std::future::pending().await,
            Failing::ListenFails(fault) => Err(fault.clone()),
            Failing::ListenPanics => panic!("no listener"),
            Failing::ListenTakes(time) => {
                tokio::time::sleep(*time).await;
                Ok(self.clone())
            }
            _ => Ok(self.clone()),
        }
    }

    async fn inspect(&self) -> Inspection {
        assert!(self.failing != Failing::InspectPanics, "no inspection");
        self.table.inspect().await
    }
}

impl Session for Faulty {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        assert!(self.failing != Failing::LoadPanics, "no records");
        if self.failing == Failing::LoadStalls {
            std::future::pending::<()>().await;
        }
        self.table.load(names).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        self.keep(commits);
        if let Failing::CommitFails(fault) = &self.failing {
            return Err(fault.clone());
        }
        self.table.commit(commits).await
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        self.wait().await;
        let mut page = self.table.page(from, count).await?;
        if let Failing::PageShows(record) = &self.failing {
            page.what.push((b"secret".to_vec(), record.clone()));
        }
        Ok(page)
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        self.table.remove(records).await
    }
}

impl Listener for Faulty {
    fn follow(&mut self, pacer: Pacer) {
        *self.pacer.lock().expect("no test panics here") = Some(pacer);
    }

    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        match &self.failing {
            Failing::ListenerFails(fault) => {
                self.wait().await;
                Err(fault.clone())
            }
            Failing::ListenerPanics(after) => {
                tokio::time::sleep(*after).await;
                panic!("no message")
            }
            _ => std::future::pending().await,
        }
    }
}

/// A receiver of the answers to requests. Each answer is passed to the test over a channel.
pub(super) struct Answers(UnboundedSender<Result<Answer, Fault>>);

impl Answers {
    /// A reply for one request, and the channel that gets its answer.
    pub(super) fn reply() -> (Reply, UnboundedReceiver<Result<Answer, Fault>>) {
        let (answers, received) = unbounded_channel();
        (Self::reply_to(answers), received)
    }

    /// A reply that passes the answer of its request to this channel.
    pub(super) fn reply_to(answers: UnboundedSender<Result<Answer, Fault>>) -> Reply {
        Reply::new(Arc::new(Self(answers)), 0, Phase::Look)
    }
}

impl ReplySink for Answers {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        let _ = self.0.send(answer);
    }
}

/// Records the keys of all wake-ups.
#[derive(Default)]
pub(super) struct WokenKeys(Mutex<Vec<Vec<u8>>>);

impl WokenKeys {
    /// A subscriber for the process with this name.
    pub(super) fn subscriber(self: &Arc<Self>, process: &str) -> Subscriber {
        Subscriber {
            process: process.into(),
            node: 0,
            sink: self.clone(),
        }
    }

    /// The keys of all wake-ups so far.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        self.0.lock().expect("no test panics here").clone()
    }
}

impl WakeSink for WokenKeys {
    fn woken(&self, _: usize, key: &[u8]) {
        self.0
            .lock()
            .expect("no test panics here")
            .push(key.to_vec());
    }
}
