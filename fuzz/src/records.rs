//! The records of locks in a store (a database or ZooKeeper), which any program with access to the store can write.
//!
//! The first two bytes of an input choose the requests and the kind of store. The rest is the content of every record.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate::node::store::{
    Change, Clocked, Commit, Committed, Date, Greeting, NamedRecord, Record, Session, Store,
    StoreNode, Table, Traits,
};
use quorate::node::{Answer, Fault, Node, NodeName, Phase, Reply, ReplySink, Request};
use quorate::{Inspection, Redlock};

use crate::Depth;
use crate::redis::requests;

/// The bit of the second byte that means: the store has a clock.
pub const HAS_CLOCK: u8 = 1;

/// A store in memory. When a record is read for the first time, it has the content `first_state`.
#[derive(Clone, Debug)]
pub struct DamagedStore {
    table: Table,
    first_state: Arc<[u8]>,
    damaged_names: HashSet<Arc<[u8]>>,
}

impl DamagedStore {
    /// Creates the store. `first_state` is the content of each record before the first change of it.
    pub fn new(first_state: &[u8], has_clock: bool) -> Self {
        Self {
            table: Table::new("table", has_clock),
            first_state: first_state.into(),
            damaged_names: HashSet::new(),
        }
    }

    /// Reads one record.
    pub async fn content(&self, name: &[u8]) -> Vec<u8> {
        let loaded = self.table.clone().load(&[name.into()]).await;
        let mut records = loaded.map(|loaded| loaded.what).unwrap_or_default();
        records.pop().unwrap_or_default().state
    }

    async fn damage(&mut self, name: &Arc<[u8]>) {
        if !self.damaged_names.insert(name.clone()) || self.first_state.is_empty() {
            return;
        }
        let change = Change {
            name: name.clone(),
            version: 0,
            state: Some(self.first_state.to_vec()),
        };
        let commit = Commit {
            changes: vec![change],
            ..Commit::default()
        };
        // The commit has no effect if the record exists already.
        let _ = self.table.commit(&[commit]).await;
    }
}

impl Store for DamagedStore {
    type Session = Self;
    type Listener = <Table as Store>::Listener;

    fn name(&self) -> &NodeName {
        self.table.name()
    }

    fn traits(&self) -> Traits {
        self.table.traits()
    }

    async fn connect(&self) -> Result<(Self, Greeting), Fault> {
        let (table, greeting) = self.table.connect().await?;
        let session = Self {
            table,
            ..self.clone()
        };
        Ok((session, greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<Self::Listener, Fault> {
        self.table.listen(process).await
    }

    async fn inspect(&self) -> Inspection {
        self.table.inspect().await
    }
}

impl Session for DamagedStore {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        for name in names {
            self.damage(name).await;
        }
        self.table.load(names).await
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        self.table.commit(commits).await
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        self.table.page(from, count).await
    }

    fn date(&self) -> Option<Date> {
        self.table.date()
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        self.table.remove(records).await
    }
}

#[derive(Default)]
struct Counts {
    answered: AtomicUsize,
    good_answers: AtomicUsize,
}

impl ReplySink for Counts {
    fn answered(&self, _node: usize, _phase: Phase, answer: Result<Answer, Fault>) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        if answer.is_ok() {
            self.good_answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sends the requests to a master made of this store, one after the other. After each answer, calls `after_answer` with
/// the store. Returns the number of requests and of good answers.
///
/// # Panics
///
/// If the driver of stores panics, or does not answer a request exactly once.
pub async fn send_requests<F: Future<Output = ()>>(
    store: DamagedStore,
    requests: impl Iterator<Item = (Phase, Request)>,
    mut after_answer: impl FnMut(DamagedStore) -> F,
) -> (usize, usize) {
    let node = StoreNode::new(store.clone());
    node.settle(&quorate::testing::context(&Redlock::builder()));
    let counts = Arc::<Counts>::default();
    let mut sent = 0;
    for (phase, request) in requests {
        sent += 1;
        node.send(request, Reply::new(counts.clone(), 0, phase));
        // Releases are repeated in the background, if the record cannot be changed.
        let _ = tokio::time::timeout(Duration::from_secs(5), node.idle()).await;
        after_answer(store.clone()).await;
    }
    drop(node);
    let answered = || counts.answered.load(Ordering::Relaxed);
    for _ in 0..100 {
        if answered() < sent {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    assert_eq!(
        answered(),
        sent,
        "each request must be answered exactly once"
    );
    (sent, counts.good_answers.load(Ordering::Relaxed))
}

/// Passes an input to the driver of stores.
///
/// # Panics
///
/// If the driver panics, or does not answer every request exactly once.
pub fn run(input: &[u8]) -> Depth {
    let [skip, flags, state @ ..] = input else {
        return Depth::Refused;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let store = DamagedStore::new(state, flags & HAS_CLOCK != 0);
    let selected_requests = requests().into_iter().skip(usize::from(*skip) % 24);
    let (_, good_answers) = runtime.block_on(send_requests(store, selected_requests, |_| async {}));
    if good_answers > 0 {
        Depth::Accepted
    } else {
        Depth::Refused
    }
}
